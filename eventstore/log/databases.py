"""Several databases as one log: each holds its own shards, and knows its place in the log.

Number and order of the databases are fixed when they are made. In another order, a shard would be
read from a database where it is empty, and its identities would be unknown.

The databases are exported side by side to one place, ``<place>/db-0``, ``<place>/db-1``, …: each an
export of its own, with positions of its own.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from eventstore.log.errors import WrongDatabase
from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.streams import partition_stream

COUNT: Final = "databases"
PLACE: Final = "database"
SET: Final = "database_set"
"""Constants of each of several databases; a log in a single database has none of them."""


def agree(logs: Mapping[int, EventLog], shards: Sequence[Collection[str]], *, new_id: str) -> None:
    """Check that each database has its place in the log, and record the place in new ones.

    Args:
        logs: the databases by their places: all of them, or those that answer if none is new.
        shards: the names of the shards that each database of the log holds, in their order.
        new_id: the id that the databases share as one log, if they are new.

    Raises:
        WrongDatabase: one has another place, belongs to another log, or holds other shards.
        LogUnavailable: one cannot be read or written.
    """
    if len(shards) == 1:
        _alone(logs[0])
        return
    for place, log in logs.items():
        if COUNT not in log.settings():
            if not log.position() and any(other.position() for other in logs.values()):
                raise WrongDatabase(place, "empty, but the others are not")
            if len(logs) < len(shards):
                raise WrongDatabase(place, "new to this log, which is made with all of them")
            own = shards[place]
            _holds_no_other(log, place, [n for other in shards if other is not own for n in other])
    # A restore from an export brings no id back: it is that of the others.
    ids = (log.settings().get(SET) for log in logs.values())
    one_log = next(filter(None, ids), None) or logs[min(logs)].setting(SET, new_id)
    for place, log in logs.items():
        for name, value, meaning in (
            (COUNT, str(len(shards)), "one of {} databases, not of {}"),
            (PLACE, str(place), "database {}, not {}"),
            (SET, one_log, "a part of another log; if one was restored, restore that one again"),
        ):
            fixed = log.setting(name, value)
            if fixed != value:
                raise WrongDatabase(place, meaning.format(fixed, value))


def _alone(log: LogReader) -> None:
    count = log.settings().get(COUNT)
    if count is not None:
        raise WrongDatabase(0, f"one of {count} databases of a log, not the only one")


def _holds_no_other(log: LogReader, place: int, others: Collection[str]) -> None:
    """Refuse shards of the other databases, which a log that was in one database has."""
    for shard in others:
        if log.read_stream(partition_stream(shard), limit=1):
            raise WrongDatabase(
                place, f"a log that holds {shard}, which belongs to another database"
            )


_FOLDERS: Final = re.compile(r"db-(0|[1-9][0-9]{0,2})")


def folder_name(number: int) -> str:
    """The name of the folder of one database of several."""
    return f"db-{number}"


def folder_of_database(place: str, number: int) -> str:
    """The place within ``place`` (a path or URI) of the export of one database of several."""
    path, mark, query = place.partition("?")
    return f"{path.rstrip('/')}/{folder_name(number)}{mark}{query}"


def databases_among(names: Iterable[str]) -> int:
    """The number of databases, by the highest number among these names of folders."""
    found = [match for name in names if (match := _FOLDERS.fullmatch(name))]
    return max((int(match[1]) + 1 for match in found), default=0)
