"""Which rows leave the log for its archive, and the states that stand for them.

A row may leave when the archive has it, a seal and the seam stand for it, and no state refers to
it. The rows that leave are traffic: messages with their expiry times and what happened to them,
counts of refusals, signs of life of agents, and seals; contracts, contract requests and public
events that were removed; registrations, connections, rules of queues and devices for notifications
that a later one stands for (``actors.archive.leaving_kinds``). These rows stay:

- a row that the state of its identity refers to, such as a waiting message or a contract, or that
  says when a message expires;
- other events that the read models are built from (saved events, removals);
- the first row of each stream, which identifies the stream, and the newest row that the archived
  state includes, so that an outdated state meets a gap and is never taken for the current one;
- the newest seal of each partition, and those that a new owner reads for its nonces.

So the read models can be rebuilt from the rows that stay: a record never stays when the row that
removed it has left. The order of the steps of a section ensures this:

1. store the states of identities whose rows leave, folded from sealed rows alone, and of identities
   that have ended a reference to another, or were erased, since rows left, because their older
   archived states contain names; also of ended accounts whose speaker was erased since;
2. remove the rows before the seam that were needed until now;
3. advance the seam, and remove the rows that it passes and that are not needed.

``actors.archive.departure`` takes the steps.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from msgspec.structs import replace

from actors.archive.leaving_kinds import (
    CONTRACT_ENDS,
    RECORDS,
    REMOVING,
    REPLACED,
    TRAFFIC,
    rank_of,
)
from actors.archive.same_rows import Section
from actors.archive.seam_writer import NewState
from actors.core.identity import Identity
from actors.host.owned_partition import is_too_old
from actors.host.stored_states import snapshot_of, state_at
from eventstore.log.codec import decode, decode_seal
from eventstore.log.event_contents import ERASING
from eventstore.log.event_log import LogReader, LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    AccountEnded,
    AccountExpired,
    AccountRotated,
    IdentityErased,
    IdentityErasureBegun,
    KeylistUpdated,
    MessageExpirySet,
    SpeakerNamed,
    topics_of,
)
from eventstore.log.faults import Head
from eventstore.log.row_check import log_row
from eventstore.log.seam import Seam, row_entry
from eventstore.log.streams import erased_name, partition_stream, stream_of

_LEAVING: Final = TRAFFIC | REPLACED
_CHANGING: Final = (_LEAVING | REMOVING) | topics_of(
    KeylistUpdated, AccountEnded, AccountExpired, IdentityErased, SpeakerNamed
)
"""The events after which rows may leave, or a state has fewer names of others, or none."""
_REMOVING: Final = REMOVING - TRAFFIC
_WITH_RECORDS: Final = _LEAVING | RECORDS | CONTRACT_ENDS
_ERASING: Final = topics_of(*ERASING)
_ERASED: Final = topics_of(IdentityErased)
_BEGUN: Final = topics_of(IdentityErasureBegun)
_ROTATED: Final = topics_of(AccountRotated)
_NAMED: Final = topics_of(SpeakerNamed)
_EXPIRY: Final = topics_of(MessageExpirySet)
_FIRST: Final = 1
_SCANNED_ROWS: Final = 100_000
"""The rows of which one query finds the rotations: a fraction of a second."""


class Leaving(NamedTuple):
    """What leaves with a section, and the states that stand for it.

    The rows themselves are not kept: the contracts that end in a section may be a hundred times as
    long as it.

    Attributes:
        earlier: the rows up to the seam, in log order: position, and entry in the seam's sum.
        passed: the positions of those in the section.
        states: the new states.
    """

    earlier: list[tuple[int, bytes]]
    passed: set[int]
    states: list[NewState]


def leaving_with(log: LogReader, section: Section, seam: Seam, window_ms: int) -> Leaving:
    """Find the rows that leave the log when the seam moves to the end of a section.

    ``seam`` is the present one. Seals stay that are needed under ``window_ms``, the widest
    timestamp window of the settings.

    Raises:
        LogUnavailable: the log cannot be read now.
        UnknownTopic, CorruptRow: a row or a state cannot be understood.
    """
    until = section.rows[-1].position
    newest = {row.stream: row.version for row in section.rows}
    # With its first row alone an identity has none that leaves: most only registered.
    later = [row for row in section.rows if row.version != _FIRST]
    changed = {row.stream for row in later if row.topic in _CHANGING}
    erased = {row.stream for row in section.rows if row.topic in _ERASED}
    for stream in erased:
        changed |= _spoken_for(log, UUID(bytes=stream))
    changed |= _spoken_for_elsewhere(log, erased, until)
    leaving = Leaving([], set(), [])
    # Contracts and the like are read only if one was removed: most of them live.
    removed = {row.stream for row in later if row.topic in _REMOVING}
    for stream in changed:
        topics = _WITH_RECORDS if stream in removed else _LEAVING
        rows, states = _of_identity(log, UUID(bytes=stream), newest.get(stream, 0), until, topics)
        _add(leaving, rows, seam)
        leaving.states.extend(states)
    for name, head in section.heads.items():
        if partition_stream(name).bytes in newest:
            _add(leaving, _seals(log, name, head, window_ms), seam)
    leaving.earlier.sort()
    return leaving


def _add(leaving: Leaving, rows: Sequence[LogRow], seam: Seam) -> None:
    """Note rows that leave."""
    for row in rows:
        if row.position > seam.position:
            leaving.passed.add(row.position)
        else:
            leaving.earlier.append((row.position, row_entry(row, seam.whole_to)))


def _of_identity(
    log: LogReader, stream: UUID, version: int, until: int, topics: Collection[str]
) -> tuple[list[LogRow], list[NewState]]:
    """The rows of one stream up to a position that leave, and the state that stands for them.

    The state is at ``version``.
    """
    old = log.load_archived_state(stream)
    state = state_at(log, stream, version)
    stays = {_FIRST, state.version, *_referred_to(state)}
    found = log.stream_rows(stream, until=state.version, topics=topics)
    stays |= _not_replaced(found)
    rows = [
        row
        for row in found
        if row.position <= until
        and row.version not in stays
        and not (_ends_first(row) or _is_expiry_in(state, row))
    ]
    nameless = _without_erased_speakers(log, stream, state)
    new = snapshot_of(nameless)
    is_new = bool(rows) if old is None else old != new
    return rows, [NewState(stream, new, old, nameless != state)] if is_new else []


def _spoken_for(log: LogReader, stream: UUID) -> set[bytes]:
    """The streams of the accounts that an identity was to speak for (16 bytes each)."""
    said = [decode(row.topic, row.state) for row in log.stream_rows(stream, topics=_NAMED)]
    named = [each.account_did for each in said if isinstance(each, SpeakerNamed)]
    return {stream_of(account) for account in named if account}


def _spoken_for_elsewhere(log: LogReader, erased: Collection[bytes], until: int) -> set[bytes]:
    """The streams of the accounts that identities of another database spoke for (16 bytes each).

    Only rows of the accounts say here that they did.
    """
    gone = {one for one in erased if not log.stream_rows(UUID(bytes=one), topics=_BEGUN)}
    found = set[bytes]()
    for after in range(0, until if gone else 0, _SCANNED_ROWS):
        end = min(after + _SCANNED_ROWS, until)
        for one in log.read_log(after=after, until=end, topics=_ROTATED, limit=_SCANNED_ROWS):
            event = decode(one.topic, one.state)
            if isinstance(event, AccountRotated) and stream_of(event.speaker_did) in gone:
                found.add(log_row(one).stream)
    return found


def _without_erased_speakers(log: LogReader, stream: UUID, state: Identity) -> Identity:
    """The state of an account, without the names of those that spoke for it and were erased since.

    Only of an account that has ended: before, no DID that spoke for it is erased.
    """
    if state.connection is not None or not state.speaker_did:
        return state
    spoke_at: dict[bytes, int] = {}
    for row in log.stream_rows(stream, topics=_ROTATED):
        event = decode(row.topic, row.state)
        assert isinstance(event, AccountRotated)
        spoke_at[stream_of(event.speaker_did)] = row.position

    def left(did: str) -> str:
        own = stream_of(did)
        ended = log.stream_rows(UUID(bytes=own), topics=_ERASED)
        is_gone = any(row.position > spoke_at.get(own, row.position) for row in ended)
        return erased_name(did) if is_gone else did

    return replace(
        state,
        speaker_did=left(state.speaker_did),
        prior_speakers=[left(did) for did in state.prior_speakers],
    )


def _seals(log: LogReader, name: str, head: Head, window_ms: int) -> list[LogRow]:
    """The seals of a partition that leave: neither its first one nor ``head``, the newest.

    Seals that ``actors.host.owned_partition.load`` reads stay too: those that may hold a nonce in
    force, and the newest one that is too old to.
    """
    stream = partition_stream(name)
    (newest,) = log.read_stream(stream, limit=1, newest_first=True)
    newest_ms = decode(newest.topic, newest.state).at_ms
    found = log.stream_rows(stream, until=head.version, topics=(SEAL_TOPIC,))
    old = [row for row in found if is_too_old(decode_seal(row.state), newest_ms, window_ms)]
    return [row for row in old[:-1] if row.version != _FIRST]


def _referred_to(state: Identity) -> Iterator[int]:
    """The versions of the rows whose contents the state refers to."""
    for records in (state.messages, state.requests, state.contracts, state.public_events):
        yield from (record.version for record in records.values())


def _not_replaced(rows: Sequence[LogRow]) -> set[int]:
    """The versions of those of ``REPLACED`` among these rows for which no later one stands."""
    versions, highest = set[int](), dict[str, float]()
    for row in reversed(rows):
        if row.topic in REPLACED:
            rank = rank_of(decode(row.topic, row.state), row.version)
            if rank >= highest.get(row.topic, 0):
                versions.add(row.version)
                highest[row.topic] = rank
    return versions


def _ends_first(row: LogRow) -> bool:
    """Whether the row records the erasure of the content of its stream's first row."""
    if row.topic not in _ERASING:
        return False
    event = decode(row.topic, row.state)
    return isinstance(event, ERASING) and _FIRST in event.versions


def _is_expiry_in(state: Identity, row: LogRow) -> bool:
    """Whether the row says when a message expires that still waits: read models need it."""
    if row.topic not in _EXPIRY:
        return False
    event = decode(row.topic, row.state)
    assert isinstance(event, MessageExpirySet)
    return not state.messages.keys().isdisjoint(event.message_ids)
