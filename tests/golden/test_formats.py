"""What a log holds, and what nodes exchange, changes only with a decision about its number.

One file for each ``FORMAT`` and each ``NODE_PROTOCOL``. If the release before cannot cope with a
change, the number is raised and gets a file of its own; otherwise the file is amended.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec

from actors.core.identity import FOLD
from actors.core.replies import BatchResult, Push
from actors.core.submissions import Submission
from actors.host import host_connection, session_registry
from actors.host.host_connection import Hello, Welcome
from actors.host.port import AnyQuestion, HostQuestion
from actors.placement import port
from eventstore.log import seal
from eventstore.log.event_log import Snapshot
from eventstore.log.events import TYPE_BY_TOPIC
from eventstore.log.host_leases import NODE_PROTOCOL, HostLease
from eventstore.log.log_format import FORMAT
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import wrong_read_models
from tests.log.samples import OWNER

FOLDER = Path(__file__).parent
MEMBERS_MAX: Final = 6
EXCHANGED = (
    *(Hello, Welcome, Submission, BatchResult, Push, HostLease),
    *(AnyQuestion, port.PlacerQuestion, session_registry._Part),
)


def _golden(name: str) -> list[str]:
    return (FOLDER / name).read_text("utf-8").splitlines()


def _types_in(kind: Any) -> Iterator[type]:
    """Every struct and enumeration in a type, but not in the fields of these."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct | Enum):
        yield kind
    for part in get_args(kind):
        yield from _types_in(part)


def _exchanged() -> set[type]:
    """Every struct and enumeration that nodes exchange."""
    found: set[type] = set()
    new = {kind for root in EXCHANGED for kind in _types_in(root)}
    while new:
        found |= new
        parts = [
            part
            for kind in new
            if issubclass(kind, msgspec.Struct)
            for part in (*[f.type for f in msgspec.structs.fields(kind)], *_answers_of(kind))
        ]
        new = {kind for part in parts for kind in _types_in(part)} - found
    return found


def _answers_of(kind: type) -> tuple[Any, ...]:
    bases = getattr(kind, "__orig_bases__", ())
    return get_args(bases[0]) if issubclass(kind, HostQuestion) and bases else ()


def _shape(kind: type) -> str:
    """A type as it is exchanged, in one line; a field with a default ends with a mark."""
    if issubclass(kind, Enum):
        return f"{kind.__name__} = {', '.join(sorted(str(one.value) for one in kind))}"
    assert issubclass(kind, msgspec.Struct)
    config = kind.__struct_config__
    fields = [
        f"{f.encode_name}{'' if f.required else '?'}: {_name(f.type)}"
        for f in msgspec.structs.fields(kind)
    ]
    tag = "" if config.tag is None else f" {config.tag!r}"
    form = "array" if config.array_like else "map"
    answers = "".join(f" -> {_name(answer)}" for answer in _answers_of(kind))
    return f"{kind.__name__}{tag} {form}({', '.join(fields)}){answers}"


def _name(kind: Any) -> str:
    """A type by the names of its parts; the members of a long union have lines of their own."""
    if kind is None or kind is type(None):
        return "None"
    if get_origin(kind) is Annotated:
        return _name(get_args(kind)[0])
    parts = [_name(part) for part in get_args(kind)]
    if get_origin(kind) in {Union, UnionType}:
        return " | ".join(parts) if len(parts) < MEMBERS_MAX else f"one of {len(parts)}"
    name = str(getattr(kind, "__name__", kind))
    return f"{name}[{', '.join(parts)}]" if parts else name


def test_what_a_log_holds_is_that_of_its_format(tmp_path: Path) -> None:
    path = tmp_path / "log.db"
    with closing(open_log(f"sqlite:{path}")), closing(sqlite3.connect(path)) as connection:
        columns = connection.execute(
            "SELECT t.name, group_concat(c.name, ' ')"
            " FROM sqlite_master t, pragma_table_info(t.name) c"
            " WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite%' GROUP BY t.name ORDER BY t.name"
        ).fetchall()
    held = [f"event {topic}" for topic in sorted(TYPE_BY_TOPIC)]
    held += [f"table {name}: {names}" for name, names in columns]
    held.append(f"seal {seal._REDACTED.decode().strip()}")
    assert held == _golden(f"log-format.{FORMAT}.txt")


def test_a_log_that_was_stored_in_this_format_is_read_as_ever(tmp_path: Path) -> None:
    """Its contents by their keys, its lists by their names, and the states in place of its rows.

    When it is closed, one content is removed, which changes how the keys of all are stored.
    """
    path = tmp_path / "log.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((FOLDER / f"log.{FORMAT}.sql").read_text("utf-8"))
    for _ in range(2):
        with closing(open_store(f"sqlite:{path}")) as store:
            assert wrong_read_models(store) == []
        with closing(open_log(f"sqlite:{path}")) as log:
            (summary,) = verify(log)
            assert isinstance(summary, Summary)
            assert (summary.rows, summary.seals) == (14, 4)
            assert list(log.read_contents(after=0, until=14)) == [1, 4, 5, 6, 9, 10]
            assert log.load_archived_state(OWNER) == Snapshot(3, 7, b"state")


def test_what_nodes_exchange_is_that_of_their_protocol() -> None:
    exchanged = [f"frame {host_connection.HEADER.format}", f"layout of states {FOLD}"]
    exchanged += sorted(map(_shape, _exchanged()))
    assert exchanged == _golden(f"node-protocol.{NODE_PROTOCOL}.txt")
