"""The common part of the recorders of both stores: how they read ``stored_events``.

They extend only the public base class of the eventsourcing library. The library's own recorders for
SQLite and PostgreSQL repeat a failed append, which could then conflict with itself, insert row by
row or with the rows as text, and offer no public way to change that.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias
from uuid import UUID

from eventsourcing.persistence import (
    ApplicationRecorder,
    Notification,
    NotSupportedError,
    StoredEvent,
    Subscription,
)
from typing_extensions import override

_Condition: TypeAlias = tuple[str, Sequence[object]]
"""SQL with ``?`` for parameters, and the parameters."""


class SqlRecorder(ApplicationRecorder):
    """A recorder over one table of rows; a store adds ``insert_events``.

    It never retries: it raises errors as the library's, and leaves their meaning to the caller.
    """

    position: ClassVar[str]
    """The column with the position of a row in the log."""
    table: ClassVar[str] = "stored_events"

    @override
    def select_events(
        self,
        originator_id: UUID | str,
        *,
        gt: int | None = None,
        lte: int | None = None,
        desc: bool = False,
        limit: int | None = None,
    ) -> Sequence[StoredEvent]:
        conditions: list[_Condition] = [
            ("originator_id = ?", [self._stored_stream(originator_id)]),
            *_between("originator_version", gt, lte),
        ]
        columns = "originator_version, topic, state"
        order = f"originator_version {'DESC' if desc else 'ASC'}"
        found = self._select(columns, conditions, order, limit)
        return [StoredEvent(originator_id, *row) for row in found]

    @override
    def select_notifications(
        self,
        start: int | None,
        limit: int,
        stop: int | None = None,
        topics: Sequence[str] = (),
        *,
        inclusive_of_start: bool = True,
    ) -> Sequence[Notification]:
        after = start - 1 if start is not None and inclusive_of_start else start
        conditions = _between(self.position, after, stop)
        if topics:
            conditions.append((f"topic IN ({', '.join('?' * len(topics))})", topics))
        columns = "originator_id, originator_version, topic, state, "
        found = self._select(columns + self.position, conditions, self.position, limit)
        if start is None:
            # No bound includes an empty one, which PostgreSQL takes once the column is altered.
            empty: list[_Condition] = [(f"{self.position} IS NULL", [])]
            found = [*self._select(f"{columns}0", empty, "originator_version", limit), *found]
        return [Notification(self._stream(stream), *row) for stream, *row in found]

    @override
    def max_notification_id(self) -> int | None:
        ((newest,),) = self._rows(f"SELECT MAX({self.position}) FROM {self.table}", ())  # noqa: S608 - own text
        position: int | None = newest
        return position

    @override
    def subscribe(
        self, gt: int | None = None, topics: Sequence[str] = ()
    ) -> Subscription[ApplicationRecorder]:
        """Refused: appends notify no one, because every reader follows the log by position."""
        raise NotSupportedError("follow the log by position")

    @abstractmethod
    def _rows(self, statement: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """The rows of a query with ``?`` for parameters, in a transaction of its own."""

    @abstractmethod
    def _stored_stream(self, stream: UUID | str) -> object:
        """A stream id as its column holds it."""

    @abstractmethod
    def _stream(self, stored: Any) -> UUID | str:
        """A stream id from its column; unchanged if it is not in the form that we write."""

    def _select(
        self,
        columns: str,
        conditions: Sequence[_Condition],
        order: str,
        limit: int | None,
    ) -> Sequence[Sequence[Any]]:
        statement = f"SELECT {columns} FROM {self.table}"  # noqa: S608 - own text
        if conditions:
            statement += " WHERE " + " AND ".join(condition for condition, _ in conditions)
        statement += f" ORDER BY {order}"
        parameters = [value for _, values in conditions for value in values]
        if limit is not None:
            statement += " LIMIT ?"
            parameters.append(limit)
        return self._rows(statement, parameters)


def _between(column: str, after: int | None, until: int | None) -> list[_Condition]:
    ends = ((f"{column} > ?", after), (f"{column} <= ?", until))
    return [(condition, [value]) for condition, value in ends if value is not None]
