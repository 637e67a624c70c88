"""The exports of a log in several databases show together what that of one database shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from actors.core.commands import EraseIdentity
from actors.core.erasure import ELSEWHERE, OPERATOR
from actors.core.partitioning import Placement
from actors.core.replies import Erased
from actors.core.submissions import Submission
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed
from eventstore.log.proof import ProvenMessage, check_proof, proof_bytes
from eventstore.log.tree_head import TreeHead, sign_head
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import identity_records, message_records
from eventstore.parquet.errors import ExportDamaged
from eventstore.parquet.opening import NoExport, NotExported, open_exports
from eventstore.parquet.proofs import message_proof
from eventstore.stores.open_log import open_log
from http_edge.server.exits import Exit
from projections.audit import events_until, records, stuck_messages
from projections.compare import compare
from projections.generations.generation import Generation
from projections.rebuild.rebuild import RebuildRefused, rebuild
from projections.report.writing import notes
from projections.spark.export import open_export
from projections.tables import PROJECTIONS
from tests.histories import (
    AGENTS,
    IDENTITIES,
    MEDIATOR,
    PLACEMENT,
    History,
    partition_of,
    random_script,
)
from tests.projections.dumps import dump_host
from tests.projections.exports import (
    SIGN,
    SIGNER,
    complete_until,
    export_log,
    read_tables,
    share_out,
)
from tests.projections.folding import Rows, fold, stored_events
from tests.unit.actors.given import host
from tests.unit.actors.given import run as run_on
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]
TWO: Final = Placement(shards=PLACEMENT.shards, hosts=1, databases=2)
ALL: Final = 10_000


@dataclass
class SampleLog:
    """A log with a history, the same in two databases, and the exports of both."""

    folder: Path
    log: EventLog
    history: History
    databases: Sequence[EventLog]
    shared_to: int = 0

    @property
    def export(self) -> Path:
        return self.folder / "export"

    def live(self, seed: int, acts: int) -> None:
        """Let something happen, and export it."""
        self.history.play(random_script(seed, acts))
        share_out(self.log, self.databases, TWO, after=self.shared_to)
        self.shared_to = self.log.position()
        for number, database in enumerate(self.databases):
            export_log(database, self.export / f"db-{number}", rows_max=300)


@contextmanager
def lived(folder: Path, seed: int) -> Iterator[SampleLog]:
    """A log with a random history in two databases; the same one for the same seed."""
    with ExitStack() as stack:
        log, *databases = [
            stack.enter_context(closing(open_log(f"sqlite:{folder / name}.db")))
            for name in ("whole", "first", "second")
        ]
        found = SampleLog(folder, log, History(log), databases)
        found.live(seed, 250)
        assert all(0 < one.position() < log.position() for one in databases)
        yield found


@pytest.fixture
def sample(tmp_path: Path) -> Iterator[SampleLog]:
    with lived(tmp_path, 9) as found:
        yield found


def rows_in(dump: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table of a dump."""
    found: list[dict[str, Any]] = pq.read_table(dump / f"{table}.parquet").to_pylist()
    return found


def unplaced(rows: dict[str, Rows]) -> dict[str, Rows]:
    """The rows of every table without positions, which are others in each database."""
    found = {}
    for projection in PROJECTIONS:
        kept = [n for n, name in enumerate(projection.columns) if name != "position"]
        known = rows.get(projection.name, set())
        found[projection.name] = {tuple(row[n] for n in kept) for row in known}
        assert len(found[projection.name]) == len(known)
    return found


@pytest.mark.parametrize(
    ("origin", "faults"),
    [
        (f"{MEDIATOR}/db-0", [["wrong-tree"], []]),
        (f"{MEDIATOR}/db-1", [[], ["wrong-tree"]]),
        (f"{MEDIATOR}/db-2", [["wrong-tree"], []]),
        ("did:web:other.test/db-7", [["misplaced"], []]),
    ],
)
def test_a_witnessed_head_is_compared_whatever_its_origin(
    sample: SampleLog, run: Run, origin: str, faults: list[list[str]]
) -> None:
    held = sample.folder / "held"
    held.write_bytes(sign_head(TreeHead(origin, 5, bytes(32)), SIGNER, SIGN))
    named = ("--from", str(sample.export), "--public-key", SIGNER.text)
    ran = run("verify", "--json", *named, "--witnessed", str(held))
    databases = json.loads(ran.out)["databases"]
    assert ran.code == Exit.FINDING
    assert [[one["fault"] for one in each["findings"]] for each in databases] == faults


@pytest.mark.spark
def test_the_exports_of_two_databases_are_rebuilt_as_one_log(
    spark: SparkSession, sample: SampleLog
) -> None:
    target = sample.folder / "tables"

    def read(made: Generation) -> dict[str, Rows]:
        return read_tables(target, made)

    tables = rebuild(spark, open_export(str(sample.export)), str(target))
    assert tables.at == tuple(one.position() for one in sample.databases)
    assert unplaced(read(tables)) == unplaced(fold(sample.log))
    sample.live(10, 100)
    tables = rebuild(spark, open_export(str(sample.export)), str(target), incremental=True)
    assert tables.generation == 2
    assert unplaced(read(tables)) == unplaced(fold(sample.log))
    with pytest.raises(RebuildRefused, match="2 of the log's databases"):
        rebuild(spark, open_export(str(sample.export / "db-0")), str(target), incremental=True)
    (sample.folder / "other").mkdir()
    with lived(sample.folder / "other", 12) as other:
        other.live(13, 250)
        assert other.databases[1].position() > sample.databases[1].position()
        (sample.export / "db-1").rename(sample.folder / "replaced")
        (other.export / "db-1").rename(sample.export / "db-1")
    with pytest.raises(RebuildRefused, match="another history"):
        rebuild(spark, open_export(str(sample.export)), str(target), incremental=True)


@pytest.mark.spark
def test_memory_is_compared_with_all_databases_at_once(
    spark: SparkSession, sample: SampleLog
) -> None:
    host, dump = sample.history._host, sample.folder / "dump"
    dumped = dump_host(host, sample.log, sample.export, dump, sample.databases)
    known = {row["stream"]: row["version"] for row in rows_in(dump, "watermarks")}
    known |= {row["partition"]: row["version"] for row in rows_in(dump, "seals")}
    sample.live(10, 60)
    # As if the mediator had been asked now, and what came since were not in its memory.
    now = [database.position() for database in sample.databases]
    written = json.loads((dump / "dump.json").read_bytes())
    (dump / "dump.json").write_text(json.dumps(written | {"after": now, "before": now}))
    found = compare(spark, open_export(str(sample.export)), str(dump))
    assert (found.positions, found.identities) == (tuple(now), dumped.identities)
    assert {table.name: table.rows for table in found.tables} == dumped.rows
    newest: dict[str, tuple[int, int]] = {}
    for stored in stored_events(sample.log):
        is_seal = isinstance(stored.event, BatchSealed)
        if not is_seal or stored.identity.startswith("shard-"):
            key = stored.identity if is_seal else stored.stream
            newest[stored.identity] = known.get(key, 0), stored.version
    stale = {name: (before, last) for name, (before, last) in newest.items() if before < last}
    assert {
        (each.identity, int(each.live or 0), int(each.rebuilt or 0)) for each in found.listed
    } == {(name, *versions) for name, versions in stale.items()}
    assert {TWO.database_of(name) for name in (*IDENTITIES, *AGENTS) if name in stale} == {0, 1}
    assert {each.column for each in found.listed} == {"version"}
    with pytest.raises(NotExported, match="the export is of 1 databases, but the dump is of 2"):
        compare(spark, open_export(str(sample.export / "db-0")), str(dump))


@contextmanager
def looking_up(place: Path) -> Iterator[list[Lookup]]:
    """What looks rows up in all exports of a place."""
    parts = open_exports(str(place)).parts
    with ExitStack() as stack:
        yield [
            stack.enter_context(Lookup(part, part.catalog.last, number if len(parts) > 1 else None))
            for number, part in enumerate(parts)
        ]


@pytest.mark.spark
def test_an_audit_finds_what_stands_in_either_database(
    spark: SparkSession, sample: SampleLog
) -> None:
    export_log(sample.log, sample.folder / "whole")
    with looking_up(sample.export) as both, looking_up(sample.folder / "whole") as alone:
        mixed, whole = (identity_records(one, AGENTS[0]).history for one in (both, alone))
    names = ("identity", "version", "type", "recorded_at")
    assert {tuple(row[n] for n in names) for row in mixed} == {
        tuple(row[n] for n in names) for row in whole
    }
    times = [row["recorded_at"] for row in mixed]
    assert times == sorted(times, reverse=True)
    where = {row["identity"]: row["database"] for row in mixed}
    assert where == {name: TWO.database_of(name) for name in where}
    assert {*where.values()} == {0, 1}
    export = open_export(str(sample.export))
    step = events_until(spark, export, export.last)
    [waits] = records(
        stuck_messages(step, export.at_ms(export.last), older_than_s=1, deliveries_min=1), 1
    )
    with looking_up(sample.export) as both, looking_up(sample.folder / "whole") as alone:
        events, expected = (message_records(one, waits["message_id"]) for one in (both, alone))
    shown = ("recorded_at", "event", "by", "version", "seal_partition", "seal_digest")
    assert [[row[name] for name in shown] for row in events] == [
        [row[name] for name in shown] for row in expected
    ]
    assert events
    part = open_export(str(sample.export)).parts[events[0]["database"]]
    seals = [event["seal_position"] for event in events]
    named = (waits["message_id"], events[0]["identity"], seals)
    proven = check_proof(
        proof_bytes(message_proof(part.place, part.catalog, SIGNER, *named)), SIGNER
    )
    assert isinstance(proven, ProvenMessage)
    assert [event.position for event in proven.events] == seals


def test_exports_are_of_all_databases_and_each_in_its_place(sample: SampleLog) -> None:
    export = open_export(str(sample.export))
    said = {note.name: note.text for note in notes(export, is_pseudonymised=False)}
    assert f"db-1 {sample.databases[1].position():,}, {sample.log.position():,} rows" in said["Log"]
    first, second = sample.export / "db-0", sample.export / "db-1"
    third = second.rename(sample.export / "db-2")
    with pytest.raises(NoExport, match="db-1: there is no such folder"):
        open_export(str(sample.export))
    third.rename(second)
    (sample.folder / "other").mkdir()
    first.rename(sample.folder / "other" / "db-0")
    with pytest.raises(ExportDamaged, match="one is missing"):
        open_export(str(sample.folder / "other"))
    second.rename(sample.export / "db-0")
    (sample.folder / "other" / "db-0").rename(sample.export / "db-1")
    with pytest.raises(ExportDamaged, match="in the place of another"):
        open_export(str(sample.export))


def test_a_number_names_no_position_of_several_databases(
    spark: SparkSession, sample: SampleLog
) -> None:
    export = open_export(str(sample.export))
    with pytest.raises(NotExported, match="name a time"):
        export.position(5)
    assert export.position(complete_until(export)) == export.last
    with pytest.raises(NotExported, match="complete until"):
        export.position(datetime(9000, 1, 1, tzinfo=UTC))
    assert export.position(datetime(1970, 1, 2, tzinfo=UTC)) == export.start


@pytest.mark.spark
def test_an_erasure_recorded_in_the_other_database_changes_no_table_of_the_whole_log(
    spark: SparkSession, sample: SampleLog
) -> None:
    gone = {TWO.database_of(did): did for did in (*IDENTITIES, *AGENTS)}
    for did in gone.values():
        erase = EraseIdentity(OPERATOR, 10_000)
        while run_on(sample.history._host, erasing(did, erase)) != [Erased(0, is_over=True)]:
            pass
    sample.live(10, 5)
    for number, database in enumerate(sample.databases):
        elsewhere = host(database, shards=["shard-noting"], name="noting")
        record = erasing(gone[1 - number], EraseIdentity(ELSEWHERE, 1), "shard-noting")
        assert run_on(elsewhere, record) == [Erased(0, is_over=True)]
        export_log(database, sample.export / f"db-{number}", rows_max=300)
    tables = rebuild(spark, open_export(str(sample.export)), str(sample.folder / "tables"))
    found = unplaced(read_tables(sample.folder / "tables", tables))
    expected = unplaced(fold(sample.log))
    for name in found.keys() - {"seals", "nonces"}:
        assert found[name] == expected[name], name


def erasing(did: str, command: EraseIdentity, partition: str = "") -> Submission:
    return Submission(partition or partition_of(did), did, bytes(16), command=command)
