"""Writes a whole log into an empty store, in bulk: the writing end of a restore.

From its first transaction to its last the log has the constant ``unfinished_restore``, and nothing
opens it meanwhile (``eventstore.stores.recorder_log.opened``). The rows that a killed restore left
are worth nothing: the next restore begins anew. Every transaction proves that the mark is still its
own, so that of two restores into one store the later one goes on and the other one ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import filterfalse
from typing import Any, Final
from uuid import UUID

from eventsourcing.persistence import StoredEvent
from typing_extensions import override

from eventstore.log.errors import ImportRefused, TargetHoldsLog
from eventstore.log.event_contents import erased_by
from eventstore.log.event_log import LogRow, QueueDepth, Snapshot, StoredRecord
from eventstore.log.events import Event
from eventstore.log.session import LogSession, Session, Store, StoredPosting, unavailable
from eventstore.read_models import postings, queue_depths
from eventstore.read_models.saved_events_erasure import LastSteps
from eventstore.read_models.update import update_read_models
from eventstore.stores.recorder_log import (
    SET,
    UNFINISHED,
    UNSET,
    save_states,
    stored_settings,
)

_HOLD: Final = "UPDATE settings SET value = value WHERE name = ?"
_KEEP: Final = "UPDATE settings SET value = value WHERE name = ? AND value = ?"


class LogImport:
    """A restore into one store. Call ``begin`` first and ``finish`` last.

    Every method raises ``LogUnavailable`` when the store fails (a full disk too), and all but
    ``begin`` raise ``ImportRefused`` when another restore has taken the store over.
    """

    def __init__(self, store: Store, mediator_did: str, token: str) -> None:
        """A restore of this mediator's log; ``token`` distinguishes it from every other restore."""
        self._store = store
        self._mediator_did = mediator_did
        self._mark = f"{mediator_did} {token}"
        self._steps: LastSteps = {}

    def begin(self) -> None:
        """Mark the empty log as unfinished, and remove what an earlier restore left.

        Raises:
            ImportRefused: the store holds a log, or an unfinished restore of another mediator.
        """
        with unavailable(), self._store.writing() as session:
            # In the order of ``_writing``: first the row, then the tables.
            session.run_many(_HOLD, [(UNFINISHED.encode(),)])
            session.keep_out_writers()  # or what they store after the look at the rows is removed
            found = stored_settings(session)
            earlier = found.get(UNFINISHED)
            if earlier is None and (found or session.log_rows(0, 1, 1)):
                owner = found.get("mediator_did", "a mediator that is not named")
                raise TargetHoldsLog(f"it holds the log of {owner}")
            if earlier is not None and earlier.rpartition(" ")[0] != self._mediator_did:
                owner = earlier.rpartition(" ")[0]
                raise ImportRefused(f"it holds an unfinished restore of {owner}")
            session.run_many(SET, [(UNFINISHED.encode(), self._mark.encode())])
            session.clear()

    def write(self, rows: Sequence[LogRow], events: Iterable[tuple[LogRow, Event]]) -> None:
        """Store rows with contents, and apply ``events``, in one transaction.

        ``events`` are the events of the rows whose types are ``INDEXED`` or ``ERASING``: they
        change the read models and erase contents.
        """
        with self._writing() as session:
            session.import_rows(rows)
            gathering = _Gathering(session)
            gone: list[tuple[UUID, int]] = []
            for row, event in events:
                stored = StoredEvent(UUID(bytes=row.stream), row.version, row.topic, row.state)
                gone += erased_by([stored], [event])
                update_read_models(gathering, [stored], [event], self._steps)
            gathering.flush()
            session.erase(gone)

    def read_rows(self, after: int, rows_max: int, bytes_max: int) -> Sequence[LogRow]:
        """Read the rows that are stored, as ``LogReader.read_rows`` does."""
        with unavailable(), self._store.reading() as session:
            return session.log_rows(after, rows_max, bytes_max)

    def save_depths(self, depths: Sequence[QueueDepth]) -> None:
        """Store the depths of these queues, in one transaction."""
        with self._writing() as session:
            queue_depths.save(session, depths)

    def save_states(self, states: Sequence[tuple[UUID, Snapshot]]) -> None:
        """Store the states that replace missing rows, in one transaction."""
        with self._writing() as session:
            save_states(session, "archived_states", states)

    def finish(self, constants: Mapping[str, str]) -> None:
        """Fix the constants of the log and remove the mark: from now on the log can be opened."""
        with self._writing() as session:
            session.run_many(SET, [(n.encode(), v.encode()) for n, v in constants.items()])
            session.run_many(UNSET, [(UNFINISHED.encode(),)])

    @contextmanager
    def _writing(self) -> Iterator[LogSession]:
        with unavailable(), self._store.writing() as session:
            # UPDATE, not SELECT: it keeps another restore waiting until this is committed.
            session.run_many(_KEEP, [(UNFINISHED.encode(), self._mark.encode())])
            if stored_settings(session).get(UNFINISHED) != self._mark:
                raise ImportRefused("another restore has taken over the target")
            yield session


class _Gathering(Session):
    """A session that stores new postings in bulk, before a statement uses one of their lists."""

    def __init__(self, session: LogSession) -> None:
        self._session = session
        self._postings: dict[tuple[bytes, float, int], StoredPosting] = {}
        self._lists: set[object] = set()

    def flush(self) -> None:
        """Store the gathered postings."""
        if self._postings:
            self._session.import_postings(self._postings.values())
            self._postings, self._lists = {}, set()

    @override
    def rows(self, statement: str, parameters: Sequence[object] = ()) -> Sequence[Sequence[Any]]:
        self._flush_for([parameters])
        return self._session.rows(statement, parameters)

    @override
    def run_many(self, statement: str, parameters: Iterable[Sequence[Any]]) -> None:
        changes = list(parameters)
        if statement == postings.PUT:
            changes = list(filterfalse(self._gathers, changes))
        if changes:
            self._flush_for(changes)
            self._session.run_many(statement, changes)

    def _gathers(self, posting: Sequence[Any]) -> bool:
        """Gather a posting if it is new: one with a revision may replace an earlier one."""
        key, timestamp_s, version, revision, own = posting
        if revision:
            return False
        self._postings[key, timestamp_s, version] = (key, timestamp_s, version, revision, own)
        self._lists.add(key)
        return True

    def _flush_for(self, parameters: Sequence[Sequence[object]]) -> None:
        """Store the gathered postings before a statement about one of their lists.

        An erasure removes ranges only of an owner whose list of all events it read before.
        """
        if not all(map(self._lists.isdisjoint, parameters)):
            self.flush()

    @override
    def stored(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredEvent]:
        return self._session.stored(stream, versions)

    @override
    def records(self, stream: UUID, versions: Collection[int]) -> dict[int, StoredRecord]:
        return self._session.records(stream, versions)
