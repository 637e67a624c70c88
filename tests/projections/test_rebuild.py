"""What is rebuilt from the files is what the core and the read models make of the log."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, timedelta
from pathlib import Path
from typing import Final

import msgspec
import pytest
from pyspark.sql import SparkSession

from actors.core import commands as c
from eventstore.log.event_log import EventLog
from eventstore.parquet.errors import RowsPruned
from eventstore.parquet.files import open_place
from eventstore.parquet.opening import NotExported
from eventstore.stores.open_log import open_log
from projections.generations.delta_table import TablesDamaged
from projections.generations.generation import Generation, TableFile
from projections.generations.place import Kept, TablesPlace
from projections.rebuild.rebuild import KEPT, RebuildRefused, rebuild
from projections.rebuild.writing import BUCKETS_MAX
from projections.spark.export import open_export
from projections.tables import PROJECTIONS
from projections.tables.agents import PUSH_DEVICES
from projections.tables.erased import about_names, names_of, with_names
from projections.tables.identities import IDENTITIES
from projections.tables.queues import QUEUES
from projections.tables.seals import SEALS
from tests.export.leaving import leave, played, prune
from tests.histories import CROWD, MEDIATOR, START_MS, Crowd, History, contract, random_script
from tests.projections.conftest import EVENTS_OF_BUCKET
from tests.projections.exports import (
    complete_until,
    export_log,
    prefix_of,
    read_tables,
    take_out_erased,
)
from tests.projections.folding import Rows, fold

pytestmark = pytest.mark.spark
REBUILT: Final = "projections.rebuild.rebuild.PROJECTIONS"
EVERY_TABLE: Final = frozenset(projection.name for projection in PROJECTIONS)


@pytest.fixture(autouse=True, scope="module")
def _few_rows_in_a_bucket() -> Iterator[None]:
    """So that tables of small logs have several buckets, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("projections.rebuild.writing.EVENTS_OF_BUCKET", EVENTS_OF_BUCKET)
        yield


@pytest.fixture
def few_tables(monkeypatch: pytest.MonkeyPatch) -> frozenset[str]:
    """Rebuild these tables alone, for promises that hold for any: Spark plans each one by itself.

    One has names of identities, one most of the rows, one no streams.
    """
    few = tuple(each for each in PROJECTIONS if each in (IDENTITIES, QUEUES, SEALS))
    monkeypatch.setattr(REBUILT, few)
    return frozenset(each.name for each in few)


@contextmanager
def exported(seed: int, acts: int = 400) -> Iterator[tuple[EventLog, Path]]:
    """A log with a random history, exported, and the folder of all that."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
            History(log).play(random_script(seed, acts))
            export_log(log, folder / "export", rows_max=300)
            yield log, folder


def seal_before(log: EventLog, position: int) -> int:
    """The newest seal up to a position: what follows it may be without one."""
    rows = log.read_log(limit=position)
    return max(row.id for row in rows if row.topic == "batch-sealed.1" and row.id <= position)


def read(target: Path, made: Generation) -> dict[str, Rows]:
    """The rows of the tables of a generation, as it describes them."""
    found = read_tables(target, made)
    assert {t.name: t.rows for t in made.tables} == {n: len(rows) for n, rows in found.items()}
    return found


def folded(log: EventLog, names: Collection[str] = EVERY_TABLE) -> dict[str, Rows]:
    """The rows of these tables by the core, none for tables that nothing belongs to."""
    found = fold(log)
    assert found.keys() <= EVERY_TABLE
    return {name: found.get(name, set()) for name in names}


def test_rebuilt_tables_are_the_fold_of_the_log(spark: SparkSession) -> None:
    """As of any time, and continued from there; every test here has another history."""
    with exported(7) as (log, folder):
        export = open_export(str(folder / "export"))
        position, target = seal_before(log, int(log.position() * 0.6)), folder / "tables"
        with closing(prefix_of(log, position, folder / "prefix.db")) as prefix:
            tables = rebuild(spark, export, str(target), as_of=position)
            assert (tables.position, tables.generation) == (position, 1)
            earlier = folded(prefix)
            assert read(target, tables) == earlier
        expected = folded(log)
        tables = rebuild(spark, export, str(target), incremental=True)
        assert (tables.position, tables.generation) == (log.position(), 2)
        assert read(target, tables) == expected
        (first,) = [TablesPlace(str(target)).generation(1)]
        assert first is not None
        assert read(target, first) == earlier


def test_no_character_of_a_path_stands_for_others(
    spark: SparkSession, few_tables: frozenset[str]
) -> None:
    with exported(8, acts=120) as (log, folder):
        named = folder / "export[1]{a,b}*?#"
        (folder / "export").rename(named)
        export, target = open_export(str(named)), folder / "tables[1]{a,b}*?#"
        position = seal_before(log, log.position() // 2)
        rebuild(spark, export, str(target), as_of=position)
        tables = rebuild(spark, export, str(target), incremental=True)
        assert read(target, tables) == folded(log, few_tables)


def fall_silent(history: History, agent: str, *, steps: int) -> None:
    """Hours later an agent is there once more, and then not again: it ends, step by step."""
    for command in (c.SeeAgent(), c.QueueEnvelopes("", [b"one"]), c.QueueEnvelopes("", [b"two"])):
        history.commit()
        history.now_ms += 4 * 3_600_000
        history._ask(agent, agent, command)
    for _ in range(steps):
        history._ask(MEDIATOR, agent, c.ExpireRecords(1))
    history.commit()


def test_tables_know_which_agents_and_public_events_left_by_themselves(
    spark: SparkSession, tmp_path: Path
) -> None:
    """One of them wholly, another on its way; both had something of everything."""
    one, other = CROWD.agents
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = History(log)
        history.play(random_script(21, 300))
        export_log(log, tmp_path / "export")
        export, target = str(tmp_path / "export"), tmp_path / "tables"
        before = read(target, rebuild(spark, open_export(export), str(target)))
        fall_silent(history, one, steps=12)
        fall_silent(history, other, steps=2)
        history._ask(MEDIATOR, CROWD.identities[0], c.ExpireRecords(20))
        history.commit()
        export_log(log, tmp_path / "export")
        made = rebuild(spark, open_export(export), str(target), incremental=True)
        found = read(target, made)
        assert found == folded(log)
        for table in ("connections", "mediation", "keylists", "queue_policies", "push_devices"):
            assert before[table]
            assert not found[table]
        assert found["queues"]
        assert 0 < len(found["public_events"]) < len(before["public_events"])
        history.play(random_script(22, 60))
        export_log(log, tmp_path / "export")
        again = rebuild(spark, open_export(export), str(target), incremental=True)
        assert read(target, again) == folded(log)
        topics = {row.topic for row in log.read_log(limit=10_000)}
        assert {"account-expired.1", "agent-seen.1", "public-events-expired.1"} <= topics


def test_tables_follow_devices_that_are_replaced_and_removed_between_two_rebuilds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    some = PUSH_DEVICES, SEALS  # by its seals a log is known to be the same
    monkeypatch.setattr(REBUILT, some)
    one, other = CROWD.agents
    fcm, apns = c.PushDevice("fcm", "1", "android"), c.PushDevice("apns", "2", "")
    steps: list[tuple[dict[str, c.PushDevice | None], set[str]]] = [
        ({one: fcm, other: fcm}, {"fcm"}),
        ({one: None, other: apns}, {"apns"}),
        ({one: apns, other: None}, {"apns"}),
        ({one: None}, set()),
    ]
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history, channel = History(log), [*PUSH_DEVICES.columns].index("channel")
        for devices, channels in steps:
            for agent, device in devices.items():
                history._ask(agent, agent, c.SetPushDevice(device))
            history.commit()
            export_log(log, tmp_path / "export")
            export, target = open_export(str(tmp_path / "export")), tmp_path / "tables"
            found = read(target, rebuild(spark, export, str(target), incremental=True))
            assert found == folded(log, [each.name for each in some])
            assert {row[channel] for row in found["push_devices"]} == channels


def test_a_time_names_the_last_seal_made_until_then(spark: SparkSession) -> None:
    with exported(1, acts=60) as (_, folder):
        export = open_export(str(folder / "export"))
        seals = [
            (row.recorded_at.astimezone(UTC), row.position)
            for row in export.events(spark).where("type = 'batch-sealed'").collect()
        ]
        for at in {at for at, _ in seals}:
            expected = max(position for made, position in seals if made <= at)
            assert export.position(at) == (expected,)
        assert export.position(min(seals)[0] - timedelta(milliseconds=1)) == (0,)
        assert export.position(complete_until(export)) == export.last


def test_tables_of_what_is_left_of_an_archive_are_those_of_the_whole_log(
    spark: SparkSession,
) -> None:
    """Of seals that were removed the counts are gone; earlier tables are not continued."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
            history = played(log, 500, seed=8)
            expected = folded(log)
            place, target = open_place(str(folder / "archive")), folder / "tables"
            leave(log, place)
            export = open_export(str(place.root))
            early = seal_before(log, 200)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(REBUILT, (SEALS,))  # what is refused is read no further
                rebuild(spark, export, str(target), as_of=early)
            assert prune(log, place, until_ms=history.now_ms - 100_000) > 100
            export = open_export(str(place.root))
            assert early < export.pruned_up_to[0] < log.position()
            with pytest.raises(RebuildRefused, match="removed from the archive"):
                rebuild(spark, export, str(target), incremental=True)
            with pytest.raises(RowsPruned):
                rebuild(spark, export, str(target), as_of=early)
            found = read(target, rebuild(spark, export, str(target)))
            names = list(dict.fromkeys(SEALS.columns))
            counts = [names.index(each) for each in ("seals", "nonces", "events")]
            for table, rows in expected.items():
                if table == SEALS.name:
                    assert _without(found[table], counts) == _without(rows, counts)
                else:
                    assert found[table] == rows, table


def _without(rows: Rows, columns: Sequence[int]) -> Rows:
    return {tuple(one for at, one in enumerate(row) if at not in columns) for row in rows}


@pytest.mark.usefixtures("few_tables")
def test_what_cannot_be_continued_is_refused_and_changes_nothing(spark: SparkSession) -> None:
    with exported(2, acts=40) as (log, folder), exported(2, acts=5) as (_, other):
        export, target = open_export(str(folder / "export")), folder / "tables"
        with pytest.raises(NotExported, match=f"the export ends at {log.position()}"):
            rebuild(spark, export, str(target), as_of=log.position() + 1)
        assert TablesPlace(str(target)).generation() is None
        made = rebuild(spark, export, str(target))
        before = read(target, made)
        assert rebuild(spark, export, str(target), incremental=True) == made
        with pytest.raises(RebuildRefused, match="after 3"):
            rebuild(spark, export, str(target), as_of=3, incremental=True)
        place = TablesPlace(str(target))
        strange = place.commit(msgspec.structs.replace(made, mediator="did:web:other"), None, KEPT)
        with pytest.raises(RebuildRefused, match="did:web:other"):
            rebuild(spark, export, str(target), incremental=True)
        assert place.numbers() == [made.generation, strange.generation]
        assert read(target, made) == before
        # There is no event up to this position: everything is empty.
        export = open_export(str(other / "export"))
        empty = rebuild(spark, export, str(target), as_of=0, kept=Kept(newest=1, replaced_s=0))
        assert {table.rows for table in empty.tables} == {0}
        assert place.numbers() == [empty.generation]
        assert not list(target.glob("*/*/*/*.parquet"))


def older_slots(log: EventLog, position: int) -> set[int]:
    """The slots of the streams, those of seals left out, that go on after a position."""
    rows = log.read_rows(after=position, rows_max=10_000, bytes_max=100_000_000)
    begun = {row.stream for row in rows if row.version == 1}
    return {
        int.from_bytes(row.stream[:2], "big") % BUCKETS_MAX
        for row in rows
        if row.topic != "batch-sealed.1" and row.stream not in begun
    }


def test_files_change_by_what_happened_to_older_streams_alone(spark: SparkSession) -> None:
    """New streams are written beside them; later they are older ones themselves."""
    strangers, regulars = Crowd.of(1, 1), CROWD._replace(name="later.")
    with exported(32, acts=250) as (log, folder):
        target = folder / "tables"
        before = rebuild(spark, open_export(str(folder / "export")), str(target))
        for number, crowds in enumerate([(strangers,), (regulars, strangers._replace(name="2."))]):
            position = log.position()
            for each, crowd in enumerate(crowds):
                start_ms = START_MS + (2 * number + each + 1) * 10_000_000
                History(log, crowd=crowd, start_ms=start_ms, after=log.position()).commit()
            export_log(log, folder / "export")
            export = open_export(str(folder / "export"))
            after = rebuild(spark, export, str(target), incremental=True)
            assert read(target, after) == folded(log)
            one, other = before.table("identities"), after.table("identities")
            assert one.buckets == other.buckets > 1
            touched = {slot % one.buckets for slot in older_slots(log, position)}
            stayed = {file.bucket for file in set(one.files) & set(other.files)}
            written = {file.bucket for file in set(other.files) - set(one.files)}
            assert stayed
            assert stayed.isdisjoint(touched)
            assert written - {other.recent} == touched
            assert bool(touched) == (number == 1)
            assert other.recent in written or number == 1
            before = after


def test_who_was_erased_has_no_name_in_tables_that_are_written_afterwards(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that rows of others name who is erased in buckets that nothing else changes.
    monkeypatch.setattr("projections.rebuild.writing.EVENTS_OF_BUCKET", 8)
    with exported(32, acts=250) as (log, folder):
        target, gone = folder / "tables", CROWD.identities[0]

        def rebuilt(act: Callable[[History], None] | None) -> tuple[Generation, dict[str, Rows]]:
            if act is not None:
                start_ms = START_MS + log.position() * 1_000_000
                other = CROWD._replace(name=f"{log.position()}.", identities=CROWD.agents)
                act(History(log, crowd=other, start_ms=start_ms, after=log.position()))
                export_log(log, folder / "export")
            export = open_export(str(folder / "export"))
            made = rebuild(spark, export, str(target), incremental=True, kept=Kept(1, 0))
            tables = read(target, made)
            assert tables == folded(log)
            return made, tables

        first, before = rebuilt(None)
        assert {"queues", "contracts", "identities"} <= naming(before, gone)
        # Names are looked for in files that stay, too: in none that was changed.
        stays = target / "invitations" / first.table("invitations").files[0].path
        content = stays.read_bytes()
        stays.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
        with pytest.raises(TablesDamaged, match="invitations/"):
            rebuilt(lambda history: erase(history, gone))
        stays.write_bytes(content)
        second, erased = rebuilt(None)
        assert naming(erased, gone) == set()
        for table in second.tables:  # an earlier commit may name who is hidden now
            commits = (target / table.name / "_delta_log").glob("*.json")
            assert min(commits).name == f"{table.version:020d}.json"
        # Nor do bounds of columns, in footers and in logs of tables: neither is compressed.
        files = [path for path in target.rglob("*") if path.is_file()]
        assert [path for path in files if gone.encode() in path.read_bytes()] == []
        assert files_of(first) & files_of(second)
        assert "erased" in {value for row in erased["contracts"] for value in row}
        one, _ = rebuilt(History.commit)
        other, continued = rebuilt(History.commit)
        assert naming(continued, gone) == set()
        assert files_of(one) & files_of(other)
        _, back = rebuilt(lambda history: come_back(history, gone))
        assert {"identities", "registrations"} <= naming(back, gone)


def test_tables_are_the_same_when_names_have_left_the_export(spark: SparkSession) -> None:
    with exported(32, acts=250) as (log, folder):
        export, gone = folder / "export", CROWD.identities[0]

        def goes_on(act: Callable[[History], None], *, is_taken_out: bool) -> dict[str, Rows]:
            start_ms = START_MS + log.position() * 1_000_000
            other = CROWD._replace(name=f"{log.position()}.", identities=CROWD.agents)
            act(History(log, crowd=other, start_ms=start_ms, after=log.position()))
            export_log(log, export)
            if is_taken_out:
                assert take_out_erased(log, export).names > 10
            target = folder / "tables"
            made = rebuild(spark, open_export(str(export)), str(target), incremental=True)
            tables = read(target, made)
            whole = folder / f"whole-{made.generation}"
            anew = read(whole, rebuild(spark, open_export(str(export)), str(whole)))
            assert _keyless(tables) == _keyless(anew) == _keyless(folded(log))
            return tables

        before = rebuild(spark, open_export(str(export)), str(folder / "tables"))
        erased = goes_on(lambda history: erase(history, gone), is_taken_out=True)
        assert naming(erased, gone) == set()
        # No identity was erased then, and yet the name has left.
        place, opened = folder / "earlier", open_export(str(export))
        earlier = read(place, rebuild(spark, opened, str(place), as_of=before.position))
        assert [row for row in earlier["identities"] if any("erased:" in str(c) for c in row)] == []
        back = goes_on(lambda history: come_back(history, gone), is_taken_out=False)
        assert {"identities", "registrations"} <= naming(back, gone)


def test_a_stream_has_one_name_where_its_name_left_some_of_its_events(spark: SparkSession) -> None:
    """Also as of a time before anybody was erased: names leave the whole export."""
    rows = [
        (b"1", "identity-registered", 1, "did:a", None),
        (b"1", "message-queued", 2, "erased:31", None),
        (b"2", "key-claimed", 1, "key:erased:32", "did:a"),
        (b"2", "key-released", 2, "key:k", None),
        (b"3", "identity-registered", 1, "did:c", None),
    ]
    schema = "stream binary, type string, version long, identity string, owner_did string"
    events = spark.createDataFrame(rows, schema)
    named = with_names(events, names_of(about_names(events)))
    found = {(bytes(row.stream), row.identity) for row in named.collect()}
    assert found == {(b"1", "did:a"), (b"2", "key:erased:32"), (b"3", "did:c")}


def _keyless(tables: dict[str, Rows]) -> dict[str, Rows]:
    """Without names of keys: what was written before one was released has its name."""
    return {
        table: {
            tuple("key:" if str(one).startswith("key:") else one for one in row) for row in rows
        }
        for table, rows in tables.items()
    }


def files_of(made: Generation) -> set[TableFile]:
    return {file for table in made.tables for file in table.files}


def naming(tables: dict[str, Rows], did: str) -> set[str]:
    """The tables in which a DID stands."""
    return {name for name, rows in tables.items() if any(did in row for row in rows)}


def erase(history: History, did: str) -> None:
    for _ in range(100):
        history._ask(did, did, c.EraseIdentity("operator", 8))
    history.commit()


def come_back(history: History, did: str) -> None:
    history._ask(did, did, c.Register(contract(did, did, history.now_ms // 1000 + 9_000)))
    history.commit()


def test_two_rebuilds_of_one_log_have_the_same_hashes(
    spark: SparkSession, filled: Path, tmp_path: Path
) -> None:
    made = rebuild(spark, open_export(str(filled / "export")), str(tmp_path))
    earlier = TablesPlace(str(filled / "tables")).opened()
    assert earlier is not None
    hashes = [{table.name: table.sha256 for table in each.tables} for each in (made, earlier)]
    assert hashes[0] == hashes[1]
    assert max(table.buckets for table in made.tables) > 1


def test_a_rebuild_that_fails_at_any_table_changes_nothing(
    spark: SparkSession, few_tables: frozenset[str]
) -> None:
    """What is read stays, whatever was written; the next one continues as if it had not been."""
    with exported(5, acts=50) as (log, folder):
        export, target = open_export(str(folder / "export")), folder / "tables"
        first = rebuild(spark, export, str(target), as_of=seal_before(log, log.position() // 2))
        written = sorted(target.glob("*/*/*/*.parquet"))
        for fatal in (1, len(few_tables)):
            done: list[str] = []

            def fail(name: str, done: list[str] = done, fatal: int = fatal) -> None:
                done.append(name)
                if len(done) == fatal:
                    raise _KilledError

            with pytest.raises(_KilledError):
                rebuild(spark, export, str(target), incremental=fatal > 1, progress=fail)
            assert sorted(target.glob("*/*/*/*.parquet")) == written
            assert TablesPlace(str(target)).opened() == first
        second = rebuild(spark, export, str(target), incremental=True)
        assert (second.generation, read(target, second)) == (2, folded(log, few_tables))


class _KilledError(Exception):
    pass


def test_tables_that_were_changed_are_not_continued(
    spark: SparkSession, few_tables: frozenset[str]
) -> None:
    with exported(6, acts=60) as (log, folder):
        export, target = open_export(str(folder / "export")), folder / "tables"
        first = rebuild(spark, export, str(target), as_of=seal_before(log, log.position() - 20))
        file = first.table("identities").files[0]
        path = target / "identities" / file.path
        content = path.read_bytes()
        path.write_bytes(content[:9] + bytes([content[9] ^ 1]) + content[10:])
        with pytest.raises(TablesDamaged, match=f"identities/{file.path}: its SHA-256"):
            rebuild(spark, export, str(target), incremental=True)
        # From the first event on nothing of them is read.
        assert read(target, rebuild(spark, export, str(target))) == folded(log, few_tables)
