"""A log that is stored in bulk is the log that appends would have made, on every store."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from eventstore.log.codec import decode
from eventstore.log.errors import (
    ImportRefused,
    LogUnavailable,
    LogUnfinished,
    NotAsSealed,
    ReadModelsMissing,
    TargetHoldsLog,
)
from eventstore.log.event_log import LogRow
from eventstore.log.events import SEAL_TOPIC, SavedEventsUnlisted
from eventstore.log.session import LogSession, Store, StoredPosting
from eventstore.read_models import queue_depths
from eventstore.stores import restore as restoring
from eventstore.stores.log_import import LogImport
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.restore import LogSection, SealCheck, log_sections, restore
from tests.export.samples import Growing, whole_log
from tests.histories import MEDIATOR, History, random_script
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, OWNER, append, message, saved, tagged
from tests.log.stored import copy_log, row_at, tables_of

CONSTANTS = {"mediator_did": MEDIATOR, "shards": "3"}
DEADLINE_S = 60.0
_WAITING = (
    "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
)
"""Whether a transaction in this database waits for a lock, of a table or of a row."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of a log with a random history of both protocols."""
    dsn = f"sqlite:{tmp_path_factory.mktemp('history') / 'log.db'}"
    with closing(open_log(dsn)) as log:
        for name, value in CONSTANTS.items():
            log.setting(name, value)
        History(log).play(random_script(7, 900))
    return dsn


@pytest.fixture
def rows(tmp_path: Path) -> list[LogRow]:
    """Three small transactions of two partitions."""
    with closing(open_log(f"sqlite:{tmp_path / 'rows.db'}")) as log:
        Growing(log).grow(3)
        return list(whole_log(log))


@pytest.fixture
def store(log_url: str) -> Iterator[Store]:
    with closing(open_store(log_url)) as opened:
        yield opened


def _import(store: Store, restore_id: str = "one", mediator: str = MEDIATOR) -> LogImport:
    importing = LogImport(store, mediator, restore_id)
    importing.begin()
    return importing


@pytest.mark.parametrize("entries_max", [1_000_000, 7, 1])
def test_every_table_is_as_appends_made_it(
    history: str, log_url: str, entries_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_depths, "ENTRIES_MAX", entries_max)
    restored = copy_log(history, log_url)
    assert tables_of(log_url) == (made := tables_of(history))
    assert restored.rows == len(made["stored_events"])
    assert restored.position == made["stored_events"][-1].position
    assert restored.identities == len(made["queue_depths"])
    assert all(made.values())


@pytest.mark.parametrize("rows_max", [1_000, 1])
def test_what_an_erasure_took_off_lists_is_on_none_after_a_restore(
    tmp_path: Path, log_url: str, store: Store, rows_max: int
) -> None:
    source = f"sqlite:{tmp_path / 'erasing.db'}"
    with closing(open_log(source)) as log:
        append(log, OWNER, *(saved(f"event-{n}", n, tags=["a", "b"]) for n in range(4)))
        append(log, OWNER, tagged("event-1", "c"))
        append(log, OWNER, SavedEventsUnlisted(at_ms=AT_MS, command=COMMAND, count=13))
        append(log, OWNER, saved("event-4", 4, tags=["a"]))
        rows = whole_log(log)
    importing = _import(store)
    for first in range(0, len(rows), rows_max):
        some = rows[first : first + rows_max]
        importing.write(some, [(row, decode(row.topic, row.state)) for row in some])
    importing.finish(CONSTANTS)
    assert tables_of(log_url)["postings"] == (made := tables_of(source)["postings"])
    assert made


def test_lists_of_saved_events_are_stored_in_bulk(
    tmp_path: Path, log_url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'saved.db'}")) as log:
        append(log, OWNER, *(saved(f"event-{n}", n, tags=["a", "b"]) for n in range(4)))
        rows = whole_log(log)
    with store.reading() as session:
        kind = type(session)
    real, in_bulk = kind.import_postings, []

    def recording(self: LogSession, postings: Collection[StoredPosting]) -> None:
        in_bulk.append(len(postings))
        real(self, postings)

    importing = _import(store)
    monkeypatch.setattr(kind, "import_postings", recording)
    importing.write(rows, [(row, decode(row.topic, row.state)) for row in rows])
    importing.finish(CONSTANTS)
    assert in_bulk == [len(tables_of(log_url)["postings"])]


def test_positions_stay_and_later_appends_go_on_behind_them(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    gaps = [row_at(row.position * 10, row) for row in rows]
    restore([LogSection(gaps)], _import(store), CONSTANTS)
    with closing(open_log(log_url)) as log:
        append(log, OWNER, message())
        found = whole_log(log)
    assert found[:-1] == gaps
    assert found[-1].position == gaps[-1].position + 1


def test_nothing_opens_a_log_before_its_restore_is_finished(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    importing = _import(store)
    with pytest.raises(LogUnfinished):
        open_log(log_url)
    importing.write(rows, [])
    with pytest.raises(LogUnfinished):
        open_log(log_url)
    importing.finish(CONSTANTS)
    with closing(open_log(log_url)) as log:
        assert log.settings() == CONSTANTS
        assert whole_log(log) == rows


def test_a_restore_begins_anew_after_one_that_was_cut_off(
    rows: list[LogRow], log_url: str, store: Store, history: str
) -> None:
    _import(store).write(rows, [])
    copy_log(history, log_url)
    assert tables_of(log_url) == tables_of(history)
    if log_url.startswith("sqlite:"):
        # What the first one left is in none of the sums either.
        facts, contents = (
            run_sql(log_url, f"SELECT sum(length({column})) FROM {table}")[0][0]
            for column, table in (("state", "stored_events"), ("content", "contents"))
        )
        assert run_sql(log_url, "SELECT facts, contents FROM log_bytes") == [(facts, contents)]


def test_a_store_that_holds_something_is_refused(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    with closing(open_log(log_url)) as log:
        append(log, OWNER, message())
        with pytest.raises(TargetHoldsLog, match="a mediator that is not named"):
            _import(store)
        log.setting("mediator_did", "did:example:another")
        with pytest.raises(TargetHoldsLog, match="did:example:another"):
            _import(store)
        assert len(whole_log(log)) == 1


def test_what_is_stored_while_a_restore_begins_is_not_removed(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    is_postgres = log_url.startswith("postgresql")
    with closing(open_store(log_url)) as another, ThreadPoolExecutor(1) as thread:
        with another.writing() as session:
            session.import_rows(rows)
            beginning = thread.submit(_import, store)
            while is_postgres and not run_sql(log_url, _WAITING):
                assert not beginning.done()
        with pytest.raises(ImportRefused, match="a mediator that is not named"):
            beginning.result(DEADLINE_S)
    with closing(open_log(log_url)) as log:
        assert whole_log(log) == rows


def test_an_unfinished_restore_of_another_mediator_is_refused(store: Store) -> None:
    _import(store, mediator="did:example:another")
    with pytest.raises(ImportRefused, match="did:example:another") as refused:
        _import(store)
    assert not isinstance(refused.value, TargetHoldsLog)


def test_of_two_restores_the_later_one_goes_on(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    first, second = _import(store, "one"), _import(store, "two")
    for write in (partial(first.write, rows), first.save_depths, first.save_states):
        with pytest.raises(ImportRefused, match="another restore"):
            write([])
    restore([LogSection(rows)], second, CONSTANTS)
    with pytest.raises(ImportRefused, match="another restore"):
        first.finish({"mediator_did": "did:example:another"})
    with closing(open_log(log_url)) as log:
        assert log.settings() == CONSTANTS


def test_a_restore_that_begins_while_another_one_writes_waits_for_that_write(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    first, is_postgres = _import(store, "one"), log_url.startswith("postgresql")
    with closing(open_store(log_url)) as another, ThreadPoolExecutor(1) as thread:
        with first._writing() as session:
            beginning = thread.submit(_import, another, "two")
            while is_postgres and not run_sql(log_url, _WAITING):
                assert not beginning.done()
            session.import_rows(rows)
        second = beginning.result(DEADLINE_S)
        with pytest.raises(ImportRefused, match="another restore"):
            first.write(rows, [])
        restore([LogSection(rows)], second, CONSTANTS)
    with closing(open_log(log_url)) as log:
        assert whole_log(log) == rows


def test_a_row_that_is_not_as_it_was_sealed_stops_the_restore(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    changed = LogRow(4, rows[3].stream, rows[3].version, rows[3].topic, rows[3].state + b"\0")
    text, raw = replace(rows[3], state="text"), replace(rows[3], topic=b"topic")
    damaged = {
        "changed": [*rows[:3], changed, *rows[4:]],
        "text for bytes": [*rows[:3], text, *rows[4:]],
        "bytes for text": [*rows[:3], raw, *rows[4:]],
        "missing": [*rows[:3], *rows[4:]],
        "cut off": rows[:-1],
        "twice": [*rows, rows[-1]],
        "swapped": [rows[1], rows[0], *rows[2:]],
        "a whole transaction missing": [*rows[:5], *rows[10:]],
    }
    for name, found in damaged.items():
        with pytest.raises(NotAsSealed):
            restore([LogSection(found)], _import(store, name.replace(" ", "-")), CONSTANTS)
        with pytest.raises(LogUnfinished):
            open_log(log_url)


def test_rows_have_their_order_and_no_gap_and_fit_into_a_transaction(
    rows: list[LogRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = replace(rows[0], position=1), replace(rows[0], position=2, version=2)
    elsewhere = replace(first, stream=bytes(16))
    for found in ([second], [first, elsewhere], [replace(first, version=1), first]):
        with pytest.raises(NotAsSealed):
            SealCheck().take(found)
    again, earlier = replace(second, position=3), replace(first, position=3)
    for rest in ([second, earlier], [second, again], [second, elsewhere]):
        with pytest.raises(NotAsSealed):
            SealCheck().begin(rest)
    sizes = [0]
    for row in rows:
        sizes.append(0 if row.topic == SEAL_TOPIC else sizes[-1] + len(row.state))
    monkeypatch.setattr(restoring, "BATCH_BYTES_MAX", max(sizes))
    assert SealCheck().take(rows) == rows
    monkeypatch.setattr(restoring, "BATCH_BYTES_MAX", max(sizes) - 1)
    with pytest.raises(NotAsSealed, match="size of a transaction"):
        SealCheck().take(rows)


def test_a_restore_ends_with_the_last_seal_before_a_position(
    rows: list[LogRow], log_url: str, store: Store
) -> None:
    ends = [row.position for row in rows if row.topic.startswith("batch-sealed")]
    for until in range(ends[1], rows[-1].position):
        importing = _import(store, str(until))
        restored = restore([LogSection(rows)], importing, CONSTANTS, until=until)
        assert restored.position == max(end for end in ends if end <= until)
        with store.writing() as session:
            session.run_many("DELETE FROM settings WHERE name <> ?", [(b"",)])
            session.clear()
    with pytest.raises(NotAsSealed, match="no transaction"):
        restore([LogSection(rows)], _import(store, "0"), CONSTANTS, until=1)


@pytest.mark.thorough
def test_a_store_that_fails_is_unavailable_and_not_finished(
    history: str, log_url: str, store: Store
) -> None:
    importing = _import(store)
    with closing(open_log(history)) as log:
        sections = list(log_sections(log))
    with store.writing() as session:
        session.run_many("DROP TABLE postings", [()])
    with pytest.raises(LogUnavailable):
        restore(sections, importing, CONSTANTS)
    with pytest.raises(ReadModelsMissing):
        open_log(log_url)
    open_store(log_url, makes_missing=True).close()
    with pytest.raises(LogUnfinished):
        open_log(log_url)
