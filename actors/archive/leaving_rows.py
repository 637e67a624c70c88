"""Which rows leave the log for its archive, and the states that stand for them.

A row may leave when the archive has it, a seal and the seam stand for it, and no state refers to
it. The rows that leave are traffic: messages with their expiry times and what happened to them,
counts of refusals, signs of life of agents, and seals; and a registration once a later one of the
same identity lasts longer. These rows stay:

- a row that the state of its identity refers to, such as a waiting message, or that says when one
  expires;
- other events that the read models are built from (saved and public events, connections);
- the first row of each stream, which identifies the stream, and the newest row that the archived
  state includes, so that an outdated state meets a gap and is never taken for the current one;
- the newest seal of each partition, and those that a new owner reads for its nonces.

So the read models can be rebuilt from the rows that stay: a message never stays when the row that
removed it has left. The order of the steps of a section ensures this:

1. store the states of identities whose rows leave, folded from sealed rows alone, and of identities
   that have ended a reference to another, or were erased, since rows left, because their older
   archived states contain names;
2. remove the rows before the seam that were needed until now;
3. advance the seam, and remove the rows that it passes and that are not needed.

``actors.archive.departure`` takes the steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple
from uuid import UUID

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
    AccountExpired,
    AgentSeen,
    AnyContractRequestsAcknowledged,
    AnyMessageQueued,
    AnyMessagesRemoved,
    ContractExpired,
    ContractRequestsExpired,
    IdentityErased,
    IdentityRegistered,
    KeylistUpdated,
    MessageExpirySet,
    MessagesDelivered,
    QueueRefused,
    RefusalsCounted,
    SpeakerNamed,
    topics_of,
)
from eventstore.log.faults import Head
from eventstore.log.streams import partition_stream

TRAFFIC: Final = topics_of(
    *(AnyMessageQueued, MessageExpirySet, MessagesDelivered, AnyMessagesRemoved),
    *(QueueRefused, RefusalsCounted, AgentSeen),
)
"""The events that leave, in addition to seals, when nothing refers to them."""
REGISTRATIONS: Final = topics_of(IdentityRegistered)
"""The events that leave when a later one of the same stream lasts longer."""
_LEAVING: Final = TRAFFIC | REGISTRATIONS
_CHANGING: Final = _LEAVING | topics_of(
    *(ContractExpired, AnyContractRequestsAcknowledged, ContractRequestsExpired),
    *(KeylistUpdated, AccountExpired, IdentityErased, SpeakerNamed),
)
"""The events that leave, and those after which a state has fewer names of others, or none."""
_ERASING: Final = topics_of(*ERASING)
_EXPIRY: Final = topics_of(MessageExpirySet)
_FIRST: Final = 1


class Leaving(NamedTuple):
    """The rows that leave with a section, in log order, and the states that stand for them."""

    rows: list[LogRow]
    states: list[NewState]


def leaving_with(log: LogReader, section: Section, window_ms: int) -> Leaving:
    """Find the rows that leave the log when the seam moves to the end of a section.

    Seals stay that are needed under ``window_ms``, the widest timestamp window of the settings.

    Raises:
        LogUnavailable: the log cannot be read now.
        UnknownTopic, CorruptRow: a row or a state cannot be understood.
    """
    until = section.rows[-1].position
    newest = {row.stream: row.version for row in section.rows}
    # With its first row alone an identity has none that leaves: most only registered.
    later = (row for row in section.rows if row.version != _FIRST)
    changed = {row.stream for row in later if row.topic in _CHANGING}
    leaving = Leaving([], [])
    for stream_key in changed:
        _add_identity(log, UUID(bytes=stream_key), newest[stream_key], until, leaving)
    for name, head in section.heads.items():
        if partition_stream(name).bytes in newest:
            leaving.rows.extend(_seals(log, name, head, window_ms))
    leaving.rows.sort(key=attrgetter("position"))
    return leaving


def _add_identity(log: LogReader, stream: UUID, version: int, until: int, leaving: Leaving) -> None:
    old = log.load_archived_state(stream)
    state = state_at(log, stream, version)
    stays = {_FIRST, state.version, *_referred_to(state)}
    found = list(log.stream_rows(stream, until=state.version, topics=_LEAVING))
    stays |= _not_outlasted(found)
    rows = [
        row
        for row in found
        if row.position <= until
        and row.version not in stays
        and not (_ends_first(row) or _is_expiry_in(state, row))
    ]
    if not rows and old is None:
        return
    leaving.rows.extend(rows)
    if old is None or old.version < state.version:
        leaving.states.append(NewState(stream, snapshot_of(state), old))


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


def _not_outlasted(rows: Sequence[LogRow]) -> set[int]:
    """The versions of the registrations among these rows after which none lasts longer."""
    versions, longest_s = set[int](), 0.0
    for row in reversed(rows):
        if row.topic in REGISTRATIONS:
            event = decode(row.topic, row.state)
            assert isinstance(event, IdentityRegistered)
            if event.expires_at_s >= longest_s:
                versions.add(row.version)
                longest_s = event.expires_at_s
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
