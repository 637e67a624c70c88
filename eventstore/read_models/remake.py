"""Rebuilds the read models from the rows of the log, to repair or to check them.

Both do what an append does, in the order of the log and in bounded memory; queue depths come from
``QueueFold``, in as many passes over the log as it needs. A check fills tables of its own
(``Store.scratch``) and compares them with the stored ones row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, TypeAlias
from uuid import UUID

import msgspec
from eventsourcing.persistence import StoredEvent

from eventstore.log.codec import decode
from eventstore.log.events import topics_of
from eventstore.log.session import LogSession
from eventstore.read_models import queue_depths
from eventstore.read_models.queue_depths import COLUMNS, DUE_COLUMNS, FOLDED, QueueFold
from eventstore.read_models.saved_events_erasure import LastSteps
from eventstore.read_models.update import INDEXED, MADE, update_read_models

_ROWS: Final = 2_000
_BYTES: Final = 32 * 1024 * 1024
_INDEXED: Final = topics_of(*INDEXED)
_COMPARED: Final = {"queue_depths": ", ".join(c for c in COLUMNS if c not in DUE_COLUMNS)}
"""Without the times by which due work is found: rows of an earlier release have none."""

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of rows read and the number of all rows."""


class Difference(msgspec.Struct, frozen=True):
    """A read model that does not agree with the log: how many rows it lacks, and has too many."""

    table: str
    missing: int
    surplus: int


def remake(session: LogSession, *, progress: Progress | None = None) -> None:
    """Fill empty read models from all rows of the log.

    Raises:
        CorruptRow, UnknownTopic: a row cannot be understood; ``poste log verify`` names it.
    """
    ((end,),) = session.rows("SELECT count(*) FROM stored_events")
    fold, reached, done = QueueFold(), 0, 0
    steps: LastSteps = {}
    read_rows = partial(session.log_rows, rows_max=_ROWS, bytes_max=_BYTES)
    while rows := read_rows(reached):
        stored: list[StoredEvent] = []
        for row in rows:
            if row.topic in FOLDED:
                fold.take(row.stream, decode(row.topic, row.state))
            if row.topic in _INDEXED:
                stream = UUID(bytes=row.stream)
                stored.append(StoredEvent(stream, row.version, row.topic, row.state))
        events = [decode(row.topic, row.state) for row in stored]
        update_read_models(session, stored, events, steps)
        reached, done = rows[-1].position, done + len(rows)
        if progress is not None:
            progress(done, end)
    fold.save(read_rows, partial(queue_depths.save, session))


def differences(session: LogSession, stored_in: str) -> Iterator[Difference]:
    """Compare the stored read models with those that were made in a scratch session.

    ``stored_in`` is the schema of the stored read models.
    """
    for table in MADE:
        columns = _COMPARED.get(table, "*")
        made = f"SELECT {columns} FROM {table}"  # noqa: S608 - own text
        stored = f"SELECT {columns} FROM {stored_in}.{table}"  # noqa: S608 - own text
        ((missing,),) = session.rows(f"SELECT count(*) FROM ({made} EXCEPT {stored}) AS d")  # noqa: S608 - own text
        ((surplus,),) = session.rows(f"SELECT count(*) FROM ({stored} EXCEPT {made}) AS d")  # noqa: S608 - own text
        if missing or surplus:
            yield Difference(table, missing, surplus)
    if queue_depths.are_totals_wrong(session, stored_in):
        yield Difference("queue_totals", 1, 1)
