"""The seam of a log: where its rest begins, behind the rows that have left for its archive. Pure.

Up to the position of its seam, a log whose old rows have left holds only the rows that something
still refers to; from there on it holds all rows. The seam is what the mediator signed about the
part before it: the newest seal of every partition, which the chains continue; a sum over the rows
that stayed; a sum over the states of the streams that rows have left. With the seam, the rest is
verified without the archive, and a row or state before it that is changed, removed or put back is
found.

A sum does not depend on order, so a row that leaves later is subtracted. It is the sum modulo
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
from eventstore.log.event_log import LogReader, LogRow, Snapshot
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey
from eventstore.log.redaction import redacted_state

SEAM: Final = "seam"
"""The constant of a log that holds its seam; the only constant that changes."""
_FORMAT: Final = 2
_WITH_WHOLE_STATES: Final = 1
"""The format of earlier releases, whose sums are over rows as they stand."""
_SIGNED: Final = b"poste seam of a log\n"
"""Prefix of the signed bytes, so that no signature fits anything else that the key signs."""
_SUM_BYTES: Final = 384
_MODULUS: Final = 1 << (8 * _SUM_BYTES)
_ROW: Final = struct.Struct(">cQ16sQII")
_STATE: Final = struct.Struct(">c16sQQ")


class Sum(NamedTuple):
    """A sum over entries in any order, and their number."""

    number: int = 0
    total: bytes = bytes(_SUM_BYTES)

    def plus(self, entries: Iterable[bytes]) -> Sum:
        """The sum with these entries added."""
        return self._moved(entries, 1)

    def minus(self, entries: Iterable[bytes]) -> Sum:
        """The sum with these entries, which are in it, subtracted."""
        return self._moved(entries, -1)

    def _moved(self, entries: Iterable[bytes], sign: int) -> Sum:
        number, total = self.number, int.from_bytes(self.total, "big")
        for entry in entries:
            hashed = hashlib.shake_256(entry).digest(_SUM_BYTES)
            total += sign * int.from_bytes(hashed, "big")
            number += sign
        return Sum(number, (total % _MODULUS).to_bytes(_SUM_BYTES, "big"))


def row_entry(row: LogRow, whole_to: int = 0) -> bytes:
    """The entry of a row in the sum of those that stayed: its position and all that a seal covers.

    ``whole_to`` is the field of the seam.

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
    """The entry of a stream's state in the sum of states."""
    return _STATE.pack(b"s", stream.bytes, state.version, state.fold) + state.state


class Seam(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signed statement about a log up to ``position``, the position of a seal.

    ``left`` counts the rows that have left, ``stayed`` is the sum over the other rows up to
    ``position``, ``states`` the sum over the states of the streams that rows have left. ``stayed``
    has rows up to ``whole_to`` as they stand, the others in their redacted states. ``heads`` are
    the newest seals up to ``position``. ``fold`` is the layout of all states, 0 if unknown.
    ``manifest``, with its SHA-256, is the manifest of the archive with the rows that left last.
    ``at_ms`` is the time of signing in Unix milliseconds.
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
    """Sign a seam; the text for the log is the seam in JSON, and its signature on a second line."""
    said = msgspec.json.encode(seam, order="sorted")
    return f"{said.decode()}\n{sign(_SIGNED + said).hex()}"


def read_seam(text: str) -> Seam:
    """Read the seam in a text without a check of its signature.

    Raises:
        SeamRefused: the text has no seam that this release understands.
    """
    try:
        seam = msgspec.json.decode(text.partition("\n")[0], type=Seam)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise SeamRefused(f"it cannot be read: {error}") from error
    if seam.format == _WITH_WHOLE_STATES:
        seam = msgspec.structs.replace(seam, format=_FORMAT, whole_to=seam.position)
    if seam.format != _FORMAT or len(seam.stayed.total) != _SUM_BYTES:
        raise SeamRefused(f"its format is {seam.format}, but this release knows only {_FORMAT}")
    return seam


def seam_position(log: LogReader) -> int:
    """The position up to which rows have left a log; 0 if none have.

    Raises:
        SeamRefused: the log's seam cannot be understood.
        LogUnavailable: the log cannot be read now.
    """
    text = log.settings().get(SEAM)
    return 0 if text is None else read_seam(text).position


def stored_seam(log: LogReader) -> Seam | None:
    """The seam of a log, its signature unchecked; None if the log has none that can be read.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    text = log.settings().get(SEAM)
    with suppress(SeamRefused):
        return None if text is None else read_seam(text)
    return None


def verified_seam(text: str, key: PublicKey) -> Seam:
    """Read the seam in a text, and verify that this key has signed it.

    Raises:
        SeamRefused: the text has no seam, or another key signed it.
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


def seam_of(log: LogReader, key: PublicKey) -> Seam | None:
    """The seam of a log; None if no rows have left it.

    Raises:
        SeamRefused: the seam is not the mediator's.
        LogUnavailable: the log cannot be read now.
    """
    text = log.settings().get(SEAM)
    return None if text is None else verified_seam(text, key)
