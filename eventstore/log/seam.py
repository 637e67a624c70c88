"""The seam of a log: where its rest begins, behind the rows that have left for its archive. Pure.

A log whose old rows have left holds, up to the position of its seam, single rows that something
still refers to, and from there on all rows. The seam is what the mediator signed about the part
before it: the newest seal of every partition, from which the chains go on; a sum over the rows that
stayed; a sum over the states of the streams that rows have left from. So the rest is verified
without the archive, and no row or state before the seam can be changed, removed or put back.

A sum has no order, so that a row is taken out of it when it leaves later. It is the sum modulo
2**3072 of SHAKE-256 over each entry (MSet-Add-Hash of Clarke and others, 2003), with the number of
entries beside it. With so many bits the best known way to two sets with one sum (Wagner's) takes
more than 2**100 steps.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from eventstore.log.errors import SeamRefused
from eventstore.log.event_log import EventLog, LogRow, Snapshot
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey
from eventstore.log.redaction import redacted_state

SEAM: Final = "seam"
"""The constant of a log that has its seam; it is the one that changes."""
_FORMAT: Final = 2
_WITH_WHOLE_STATES: Final = 1
"""The format of earlier releases: their sums are over rows as they stand."""
_SIGNED: Final = b"poste seam of a log\n"
"""Stands before what is signed, so that it is nothing else that the key signs."""
_SUM_BYTES: Final = 384
_MODULUS: Final = 1 << (8 * _SUM_BYTES)
_ROW: Final = struct.Struct(">cQ16sQII")
_STATE: Final = struct.Struct(">c16sQQ")


class Sum(NamedTuple):
    """A sum over entries, whatever their order, and how many there are."""

    number: int = 0
    total: bytes = bytes(_SUM_BYTES)

    def plus(self, entries: Iterable[bytes]) -> Sum:
        """The sum with these entries more."""
        return self._moved(entries, 1)

    def minus(self, entries: Iterable[bytes]) -> Sum:
        """The sum without these entries, which are in it."""
        return self._moved(entries, -1)

    def _moved(self, entries: Iterable[bytes], sign: int) -> Sum:
        number, total = self.number, int.from_bytes(self.total, "big")
        for entry in entries:
            hashed = hashlib.shake_256(entry).digest(_SUM_BYTES)
            total += sign * int.from_bytes(hashed, "big")
            number += sign
        return Sum(number, (total % _MODULUS).to_bytes(_SUM_BYTES, "big"))


def row_entry(row: LogRow, whole_to: int = 0) -> bytes:
    """What a row is in the sum of those that stayed: its position and all that a seal covers.

    ``whole_to`` is that of the seam.

    Raises:
        TypeError, ValueError, struct.error: a column does not hold its type.
    """
    topic = row.topic.encode("ascii")
    is_whole = row.position <= whole_to
    state = row.state if is_whole else redacted_state(row.topic, row.state)
    if state is None:
        raise ValueError(f"position {row.position} is not written as rows are")
    head = _ROW.pack(b"r", row.position, row.stream, row.version, len(topic), len(state))
    return head + topic + state


def state_entry(stream: UUID, state: Snapshot) -> bytes:
    """What the state of a stream is in the sum of states."""
    return _STATE.pack(b"s", stream.bytes, state.version, state.fold) + state.state


class Seam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is signed about the part of a log up to ``position``, which is that of a seal.

    ``left`` counts the rows that have left, ``stayed`` is the sum over the others up to there,
    ``states`` that over the states of the streams that rows have left from. Rows up to ``whole_to``
    are in the sum as they stand, the others in their redacted states. ``heads`` are the newest
    seals up to there. ``fold`` is the layout of all states, 0 where nothing says it.
    ``manifest`` is the one of the archive, with its SHA-256, that had the
    rows which left last. ``at_ms`` is when it was signed, Unix milliseconds.
    """

    format: int = _FORMAT
    mediator_did: str
    position: int = 0
    left: int = 0
    stayed: Sum = Sum()
    states: Sum = Sum()
    whole_to: int = 0
    fold: int = 0
    heads: dict[str, Head] = {}
    manifest: str = ""
    manifest_sha256: str = ""
    at_ms: int = 0
    signed_by: str


def sign_seam(seam: Seam, sign: Callable[[bytes], bytes]) -> str:
    """The text that a log keeps: the seam in JSON, and the signature of it in a line of its own."""
    said = msgspec.json.encode(seam, order="sorted")
    return f"{said.decode()}\n{sign(_SIGNED + said).hex()}"


def read_seam(text: str) -> Seam:
    """The seam in a text, whichever key signed it.

    Raises:
        SeamRefused: there is none in it that this release understands.
    """
    try:
        seam = msgspec.json.decode(text.partition("\n")[0], type=Seam)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise SeamRefused(f"it cannot be read: {error}") from error
    if seam.format == _WITH_WHOLE_STATES:
        seam = msgspec.structs.replace(seam, format=_FORMAT, whole_to=seam.position)
    if seam.format != _FORMAT or len(seam.stayed.total) != _SUM_BYTES:
        raise SeamRefused(f"its format is {seam.format}, this release knows {_FORMAT}")
    return seam


def stored_seam(log: EventLog) -> Seam | None:
    """The seam of a log, whichever key signed it; None if it has none that can be read.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    text = log.settings().get(SEAM)
    with suppress(SeamRefused):
        return None if text is None else read_seam(text)
    return None


def verified_seam(text: str, key: PublicKey) -> Seam:
    """The seam in a text that this key has signed.

    Raises:
        SeamRefused: there is none in it, or another key signed it.
    """
    seam = read_seam(text)
    said, _, signature = text.partition("\n")
    try:
        is_signed = key.verify(_SIGNED + said.encode(), bytes.fromhex(signature))
    except ValueError:
        is_signed = False
    if not is_signed or seam.signed_by != key.text:
        raise SeamRefused(f"it was not signed by {key.text}")
    return seam
