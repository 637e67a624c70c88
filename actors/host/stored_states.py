"""The states of identities in the log: snapshots, the rows after them, and archived states.

The state of an identity is the fold of its rows. A snapshot spares reading them from the first one
on; an archived state stands for rows that have left the log for its archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent

from actors.core.evolve import evolve_all, from_snapshot, to_snapshot
from actors.core.identity import FOLD, Identity
from eventstore.log.codec import decode
from eventstore.log.errors import CorruptRow, UnknownTopic
from eventstore.log.event_log import LogReader, Snapshot
from eventstore.log.events import SEAL_TOPIC

_ROWS_PER_READ: Final = 1_000
_ROWS_AHEAD: Final = 100
"""Rows of each identity that are read together; an identity with more is read separately."""


def snapshot_of(state: Identity) -> Snapshot:
    """The state of an identity in the form in which the log stores it."""
    return Snapshot(state.version, FOLD, to_snapshot(state))


def read_identity(log: LogReader, stream: UUID) -> tuple[Identity, int]:
    """Read an identity from its snapshot and the events after it, with the snapshot's version.

    If rows after the snapshot have left for the archive, the archived state that stands for them
    replaces the snapshot.

    Raises:
        LogUnavailable: the log cannot be read.
        UnknownTopic, CorruptRow: the stream cannot be understood, or a row is missing.
    """
    state = _state_of(log.load_snapshot(stream))
    snapshot_version = state.version
    followed = _followed(log, stream, state)
    return followed, snapshot_version if followed is state else 0


def read_identities(
    log: LogReader, streams: Sequence[UUID]
) -> Iterator[tuple[UUID, Identity, int]]:
    """``read_identity`` for many streams with two queries; streams that need more are left out.

    Each state is made when it is needed.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    snapshots = log.load_snapshots(streams)
    versions = {s: snapshots[s].version if s in snapshots else 0 for s in streams}
    rows = log.read_streams(versions, limit=_ROWS_AHEAD)
    for stream, version in versions.items():
        if len(rows[stream]) == _ROWS_AHEAD:
            continue
        state = _state_of(snapshots.get(stream))
        with suppress(UnknownTopic, CorruptRow):
            following = _following(rows[stream], state.version)
            evolve_all(state, (decode(row.topic, row.state) for row in following))
            if state.version - version == len(rows[stream]):
                yield stream, state, version


def state_at(log: LogReader, stream: UUID, version: int) -> Identity:
    """The identity at a version, or at a later one if rows up to that have left.

    This trusts no snapshot, only the archived state that stands for rows that have left. Raises as
    ``read_identity``.
    """
    archived = log.load_archived_state(stream)
    if archived is not None and archived.fold != FOLD:
        why = (
            f"its archived state has layout {archived.fold} and was not yet remade in layout {FOLD}"
        )
        raise CorruptRow(str(stream), why)
    state = _followed(log, stream, _state_of(archived), until=version)
    if state.version < version:
        raise CorruptRow(str(stream), f"version {state.version + 1} is missing")
    return state


def _followed(log: LogReader, stream: UUID, state: Identity, until: int | None = None) -> Identity:
    """Apply the rows that follow a state, all or up to a version."""
    before = None if until is None else until + 1
    while True:
        rows = log.read_stream(stream, after=state.version, before=before, limit=_ROWS_PER_READ)
        following = _following(rows, state.version)
        evolve_all(state, (decode(row.topic, row.state) for row in following))
        if len(following) < len(rows):
            state = _behind_gap(log, stream, state.version, rows[len(following)])
        elif len(rows) < _ROWS_PER_READ:
            return state


def _following(rows: Sequence[StoredEvent], version: int) -> Sequence[StoredEvent]:
    """The first rows, as far as they follow each other after a version."""
    for number, row in enumerate(rows, 1):
        if row.originator_version != version + number:
            return rows[: number - 1]
    return rows


def _behind_gap(log: LogReader, stream: UUID, version: int, row: StoredEvent) -> Identity:
    """The archived state that stands for the rows missing before this one."""
    archived = _state_of(log.load_archived_state(stream))
    if archived.version <= version:
        raise CorruptRow(row.topic, f"version {version + 1} is missing")
    return archived


def wrong_snapshots(log: LogReader) -> Iterator[UUID]:
    """The streams whose snapshot was changed, or differs from the fold of their events.

    Only the digest is checked for snapshots of nonces or of other layouts, for snapshots older than
    rows that have left, and for the archived states that stand for such rows.

    Raises: as ``read_identity``.
    """
    for stream, snapshot in log.snapshots():
        if snapshot is None or (snapshot.fold == FOLD and not _is_fold(log, stream, snapshot)):
            yield stream
    yield from (stream for stream, state in log.archived_states() if state is None)


def _is_fold(log: LogReader, stream: UUID, snapshot: Snapshot) -> bool:
    first = log.read_stream(stream, limit=1)
    if not first or first[0].topic == SEAL_TOPIC:
        return bool(first)
    state = _followed(log, stream, Identity(), until=snapshot.version)
    if from_snapshot(snapshot.state) == state:
        return True
    # Loaded after the rows, which may have left while they were read.
    archived = log.load_archived_state(stream)
    return archived is not None and snapshot.version < archived.version


def _state_of(snapshot: Snapshot | None) -> Identity:
    if snapshot is None or snapshot.fold != FOLD:
        return Identity()
    return from_snapshot(snapshot.state) or Identity()
