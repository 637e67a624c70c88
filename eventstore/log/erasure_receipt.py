"""Erasure receipts: the mediator's signed statement of what was erased, and where in the log.

A receipt follows from the rows of the log alone, so it can be made as long as these are in the log.
``check_receipt`` compares it with the log, or with the rows that remain there if some have left for
the archive: the first and the last row of an erasure never leave. A receipt names the identity by
its stream, which is derived from the DID: a reader who knows the DID recognises the identity, and
no one learns the DID from the receipt.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from eventstore.log.codec import decode
from eventstore.log.event_contents import CONTENT_FIELDS, ERASING
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    Event,
    IdentityErased,
    IdentityErasureBegun,
    topics_of,
    type_name,
)
from eventstore.log.public_key import PublicKey
from eventstore.log.seam import seam_position

_FORMAT: Final = 1
_SIGNED: Final = b"poste erasure receipt\n"
"""Prefix of the signed bytes, so that no signature fits anything else that the key signs."""
_CONTENT_BY_TOPIC: Final = {TOPIC_BY_TYPE[kind]: type_name(kind) for kind in CONTENT_FIELDS}
_STEPS: Final = topics_of(*ERASING, IdentityErasureBegun, IdentityErased)
_DIFFERS: Final = "it differs from the log: see poste log verify"
_Step: TypeAlias = tuple[LogRow, Event]


class ReceiptRefused(ValueError):
    """There is no such erasure, or the receipt is not what the log says."""


class RowsHaveLeft(ReceiptRefused):
    """Rows that a receipt is made of have left the log for its archive."""


class Run(NamedTuple):
    """A range of positions, both ends included."""

    first: int
    last: int


class ErasureReceipt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The signed statement about one erasure.

    ``stream`` is the stream of the identity, in hexadecimal; ``reason`` is as in
    ``IdentityErasureBegun``. ``begun`` and ``ended`` are the positions of the first and last event
    of the erasure, with their times in Unix milliseconds. ``contents`` counts the erased contents
    by the type of their facts; ``positions`` are the positions of these facts, which stay.
    """

    format: int = _FORMAT
    mediator_did: str
    stream: str
    reason: str
    begun: int
    begun_at_ms: int
    ended: int
    ended_at_ms: int
    contents: dict[str, int]
    positions: list[Run]
    signed_by: str


class _Erasure(NamedTuple):
    """An erasure that has ended: its first and last step, and the versions of what it erased."""

    begun: tuple[LogRow, IdentityErasureBegun]
    ended: _Step
    gone: set[int]


def erasure_of(log: LogReader, stream: UUID, key: PublicKey) -> ErasureReceipt:
    """Make the receipt of the newest erasure of an identity that has ended.

    The log says which mediator it belongs to, whatever the settings say.

    Raises:
        ReceiptRefused: there is no such erasure, or the log belongs to no mediator yet.
        RowsHaveLeft: some rows of the erasure are only in the archive.
        LogUnavailable, CorruptRow, UnknownTopic: the log cannot be read.
    """
    rows = _rows(log, stream)
    for newest in _erasures(rows):
        return _made(log, stream, key, rows, newest)
    raise ReceiptRefused("this log has no completed erasure of this identity")


def _made(
    log: LogReader,
    stream: UUID,
    key: PublicKey,
    rows: Sequence[LogRow],
    erasure: _Erasure,
) -> ErasureReceipt:
    """Make the receipt of one erasure of a stream. Raises as ``erasure_of``."""
    (first, begun), (last, ended), gone = erasure
    there = log.read_stream(stream, after=first.version - 1, before=last.version + 1)
    facts = [row for row in rows if row.topic in _CONTENT_BY_TOPIC and row.version in gone]
    others = gone - {row.version for row in facts}
    is_all = len(log.read_versions(stream, sorted(others))) == len(others)
    if not is_all or len(there) < last.version - first.version + 1:
        raise RowsHaveLeft("rows of this identity have left the log for its archive")
    mediator_did = log.settings().get("mediator_did")
    if mediator_did is None:
        raise ReceiptRefused("this log belongs to no mediator")
    return ErasureReceipt(
        mediator_did=mediator_did,
        stream=stream.hex,
        reason=begun.reason,
        begun=first.position,
        begun_at_ms=begun.at_ms,
        ended=last.position,
        ended_at_ms=ended.at_ms,
        contents=dict(sorted(Counter(_CONTENT_BY_TOPIC[row.topic] for row in facts).items())),
        positions=list(_runs(row.position for row in facts)),
        signed_by=key.text,
    )


def sign_receipt(receipt: ErasureReceipt, sign: Callable[[bytes], bytes]) -> bytes:
    """Sign a receipt: the receipt in JSON, and its signature on a line of its own."""
    said = msgspec.json.encode(receipt, order="sorted")
    return said + b"\n" + sign(_SIGNED + said).hex().encode() + b"\n"


def verified_receipt(content: bytes, key: PublicKey) -> ErasureReceipt:
    """Read a receipt, and verify that this key has signed it.

    Raises:
        ReceiptRefused: it is no receipt, or another key signed it.
    """
    said, _, signature = content.removesuffix(b"\n").partition(b"\n")
    try:
        is_signed = key.verify(_SIGNED + said, bytes.fromhex(signature.decode()))
        receipt = msgspec.json.decode(said, type=ErasureReceipt)
    except (msgspec.DecodeError, ValueError) as error:
        raise ReceiptRefused("it is not an erasure receipt, or it was changed") from error
    if not is_signed or receipt.signed_by != key.text:
        raise ReceiptRefused(f"it was not signed by {key.text}")
    if receipt.format != _FORMAT:
        raise ReceiptRefused(
            f"its format is {receipt.format}, but this release knows only {_FORMAT}"
        )
    return receipt


def check_receipt(log: LogReader, receipt: ErasureReceipt, key: PublicKey) -> int:
    """Compare a receipt with the log: it has the same erasure, and no content from before it.

    Returns:
        How many of the named positions the log does not have any more: these rows are in its
        archive, and only there can they be compared.

    Raises:
        ReceiptRefused: the erasure is not the same, or a content is still there.
        LogUnavailable, CorruptRow, UnknownTopic: the log cannot be read.
    """
    stream = UUID(hex=receipt.stream)
    rows = _rows(log, stream)
    erasures = [one for one in _erasures(rows) if one.begun[0].position == receipt.begun]
    if not erasures:
        raise ReceiptRefused(_DIFFERS)
    left = 0
    try:
        if _made(log, stream, key, rows, erasures[0]) != receipt:
            raise ReceiptRefused(_DIFFERS)
    except RowsHaveLeft:
        left = _positions_left(log, rows, erasures[0], receipt)
    named = (p for run in receipt.positions for p in range(run.first, run.last + 1))
    facts = (row.position for row in rows if row.topic in _CONTENT_BY_TOPIC)
    erased = {*named, *(p for p in facts if p < receipt.begun)}
    for first, last in _runs(erased):
        if there := log.read_contents(after=first - 1, until=last):
            raise ReceiptRefused(f"the content of position {min(there)} still exists")
    return left


def _rows(log: LogReader, stream: UUID) -> Sequence[LogRow]:
    """The rows of a stream that a receipt is made of, as far as they are in the log."""
    topics = _STEPS | _CONTENT_BY_TOPIC.keys()
    return log.stream_rows(stream, topics=sorted(topics))


def _positions_left(
    log: LogReader, rows: Iterable[LogRow], erasure: _Erasure, receipt: ErasureReceipt
) -> int:
    """Compare a receipt with the rows that remain; return how many of its positions have left.

    Raises:
        ReceiptRefused: the receipt contradicts them.
    """
    (first, begun), (last, ended), gone = erasure
    left_to = seam_position(log)
    facts = {row.position: row for row in rows if row.topic in _CONTENT_BY_TOPIC}
    named = [p for run in receipt.positions for p in range(run.first, run.last + 1)]
    said = {p for p, row in facts.items() if row.version in gone}
    kinds = Counter(_CONTENT_BY_TOPIC[facts[p].topic] for p in named if p in facts)
    left = [p for p in named if p not in facts]
    ends = (begun.reason, begun.at_ms, last.position, ended.at_ms)
    is_what_remains = (
        receipt.mediator_did == log.settings().get("mediator_did")
        and ends == (receipt.reason, receipt.begun_at_ms, receipt.ended, receipt.ended_at_ms)
        and said == set(named) - set(left)
        and all(p <= left_to and p < first.position for p in left)
        and sum(receipt.contents.values()) == len(set(named)) == len(named)
        and kinds <= Counter(receipt.contents)
    )
    if not is_what_remains:
        raise ReceiptRefused(_DIFFERS)
    return len(left)


def _erasures(rows: Iterable[LogRow]) -> Iterator[_Erasure]:
    """The erasures of a stream that have ended, the newest one first."""
    steps = [(row, decode(row.topic, row.state)) for row in rows if row.topic in _STEPS]
    for first in reversed(range(len(steps))):
        row, event = steps[first]
        if isinstance(event, IdentityErasureBegun):
            for last in range(first, len(steps)):
                if isinstance(steps[last][1], IdentityErased):
                    gone = _versions(steps[first : last + 1]) - _versions(steps[:first])
                    yield _Erasure((row, event), steps[last], gone)
                    break


def _versions(steps: Iterable[_Step]) -> set[int]:
    return {
        version for _, event in steps if isinstance(event, ERASING) for version in event.versions
    }


def _runs(positions: Iterable[int]) -> Iterator[Run]:
    # Within a run, each position is as far from its number in the list as the others.
    numbered = enumerate(sorted(positions))
    for _, run in groupby(numbered, key=lambda each: each[1] - each[0]):
        found = [position for _, position in run]
        yield Run(found[0], found[-1])
