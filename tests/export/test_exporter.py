from __future__ import annotations

import itertools
import os
import shutil
import stat
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from actors.host.clock import system_clock
from eventstore.log.codec import decode_seal, encode
from eventstore.log.errors import AppendConflict, CorruptRow, NotAsSealed
from eventstore.log.event_log import EventLog
from eventstore.log.events import InvitationUsed, KeyClaimed, RefusalsCounted
from eventstore.log.seal import GENESIS, chain_digest
from eventstore.log.streams import identity_stream
from eventstore.log.verify import Summary, verify
from eventstore.parquet.errors import ExportDamaged, ExportRefused, ExportUnavailable
from eventstore.parquet.files import END, TABLE_LOG, ExportPlace, open_place
from eventstore.parquet.manifest import Signer
from eventstore.parquet.write.exporter import Exporter, ExportOwner
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from tests.contract.conftest import OpenLog
from tests.export.samples import (
    DAY_MS,
    OWNER,
    SIGNER,
    SMALL,
    Growing,
    catalog_of,
    contents,
    did,
    export_all,
    exported_log,
    exported_rows,
    exporter,
    registered,
    whole_log,
    written,
)
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, SealedWriter, append, message
from tests.log.samples import OWNER as OWNER_STREAM


def test_every_row_is_exported_once_and_in_order(log: EventLog, place: ExportPlace) -> None:
    Growing(log).grow(20)
    export_all(log, place)
    assert exported_log(place) == list(whole_log(log))
    assert len(catalog_of(place).statements) > 5


def test_an_export_follows_a_log_that_grows(log: EventLog, place: ExportPlace) -> None:
    growing = Growing(log)
    with closing(exporter(log, place)) as export:
        assert export.step() is None
        for transactions in (1, 3, 7):
            growing.grow(transactions)
            while export.step():
                pass
            assert exported_log(place) == list(whole_log(log))
    growing.grow(2)
    export_all(log, place)
    assert exported_log(place) == list(whole_log(log))


@pytest.mark.parametrize("grows", [True, False])
def test_an_export_that_was_removed_is_reported_and_its_place_is_left_alone(
    log: EventLog, tmp_path: Path, *, grows: bool
) -> None:
    now_ms = AT_MS
    growing, place = Growing(log), open_place(str(tmp_path / "export"))
    growing.grow()
    with closing(Exporter(log, place, OWNER, SIGNER, SMALL, clock=lambda: now_ms)) as export:
        while export.step():
            pass
        shutil.rmtree(tmp_path / "export")
        now_ms += 60_000
        if grows:
            growing.grow()
        for attempt in (export.step, export.sweep, export.step):
            with pytest.raises(ExportUnavailable, match="is gone"):
                attempt()
    assert not (tmp_path / "export").exists()


def test_an_export_that_is_removed_during_a_step_gets_no_commit(
    log: EventLog, tmp_path: Path
) -> None:
    folder = tmp_path / "export"
    changes = itertools.count(3)

    def removing() -> None:
        if next(changes) == 2:  # the first file of a step
            folder.rename(tmp_path / "away")

    growing, place = Growing(log), open_place(str(folder))
    growing.grow()
    with closing(exporter(log, place.checked(removing))) as export:
        while export.step():
            pass
        growing.grow()
        changes = itertools.count(1)
        with pytest.raises(ExportUnavailable, match="is gone"):
            export.step()
        assert not place.sizes(TABLE_LOG)
        shutil.rmtree(folder)
        (tmp_path / "away").rename(folder)
        assert export.step()
    assert exported_log(place) == list(whole_log(log))


def test_a_step_reads_the_mark_of_the_end_once(
    log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = ExportPlace.read

    def counted(self: ExportPlace, path: str, bytes_max: int | None = None) -> bytes:
        reads.append(path)
        return read(self, path, bytes_max)

    growing = Growing(log)
    with closing(exporter(log, place)) as export:
        for _ in range(2):
            growing.grow()
            monkeypatch.setattr(ExportPlace, "read", counted)
            reads.clear()
            assert export.step()
            assert reads.count(END) == 1


@pytest.mark.parametrize("grows", [True, False])
def test_an_export_is_not_complete_until_a_time_to_come_once_the_clock_is_set_back(
    log: EventLog, place: ExportPlace, *, grows: bool
) -> None:
    now_ms, settled_ms = AT_MS + DAY_MS, 60_000
    growing = Growing(log)
    growing.grow()
    with closing(Exporter(log, place, OWNER, SIGNER, SMALL, clock=lambda: now_ms)) as export:
        for set_back_ms, said_ms in (
            (0, AT_MS + DAY_MS - settled_ms),
            (settled_ms - 1, AT_MS + DAY_MS - settled_ms),
            (DAY_MS, AT_MS - settled_ms),
        ):
            now_ms = AT_MS + DAY_MS - set_back_ms
            if grows:
                growing.grow()
            while export.step():
                pass
            assert catalog_of(place).complete_until_ms == said_ms


def test_a_step_that_is_read_in_many_pages_has_the_rows_of_one_page(
    sqlite_log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    Growing(sqlite_log).grow(8)
    export_all(sqlite_log, place)
    monkeypatch.setattr("eventstore.parquet.write.step.PAGE_ROWS", 3)
    paged = open_place(str(tmp_path / "paged"))
    export_all(sqlite_log, paged)
    assert written(paged) == written(place)


def test_no_time_is_said_until_which_an_export_is_complete_that_never_had_the_whole_log(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(8)
    with closing(exporter(sqlite_log, place)) as export:
        assert export.catalog.complete_until_ms is None
        while (done := export.step()) and done.is_full:
            assert catalog_of(place).complete_until_ms is None
    assert catalog_of(place).complete_until_ms
    place.remove(END)
    assert catalog_of(place).complete_until_ms is None


def test_positions_that_failed_appends_left_out_are_no_gap(
    open_another: OpenLog, place: ExportPlace
) -> None:
    log = open_another()
    growing = Growing(log)
    growing.grow()
    with pytest.raises(AppendConflict):
        log.append([encode(identity_stream(did(1)), 1, message())], [message()])
    export_all(log, place)
    growing.grow()
    export_all(log, place)
    assert exported_log(place) == list(whole_log(log))


def test_the_same_log_gives_the_same_bytes_however_often_the_exporter_was_started(
    log: EventLog, tmp_path: Path
) -> None:
    Growing(log).grow(30)
    at_once, in_parts = (open_place(str(tmp_path / name)) for name in ("at-once", "in-parts"))
    export_all(log, at_once)
    for _ in range(100):
        with closing(exporter(log, in_parts)) as export:
            if export.step() is None:
                break
    one, other = catalog_of(at_once), catalog_of(in_parts)
    # Names also depend on the version of the table, of which each start may make one.
    for each in ("first", "last", "sha256"):
        assert [getattr(f, each) for f in one.files] == [getattr(f, each) for f in other.files]
    assert one.index is not None
    assert other.index is not None
    assert [file.root for file in one.index.files] == [file.root for file in other.index.files]
    assert [s.manifest.tree for s in one.statements] == [s.manifest.tree for s in other.statements]


def test_steps_end_where_they_are_full(log: EventLog, place: ExportPlace) -> None:
    Growing(log).grow(20)
    with closing(exporter(log, place, Bounds(rows_max=7, bytes_max=10**9))) as export:
        step = export.step()
    assert step is not None
    # Three rows and two rows with their seals make the transaction that reaches seven.
    assert (step.rows, step.is_full) == (8, True)
    by_bytes = Bounds(rows_max=10**6, bytes_max=1)
    with closing(exporter(log, place, by_bytes)) as export:
        second = export.step()
    assert second is not None
    assert second.rows == 2


def test_nothing_after_what_was_recorded_too_late_is_exported_though_the_clock_went_back(
    log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    growing = Growing(log)
    growing.grow()
    end = log.position()
    for passed_ms in (10, 0):
        monkeypatch.setattr("tests.log.samples.AT_MS", AT_MS + passed_ms)
        growing.grow()
    export_all(log, place, Bounds(until_ms=AT_MS))
    assert catalog_of(place).last == end


def test_rows_without_a_seal_wait_for_it(log: EventLog, place: ExportPlace) -> None:
    growing = Growing(log)
    growing.grow()
    end = log.position()
    append(log, OWNER_STREAM, message())
    export_all(log, place)
    assert [row.position for row in exported_log(place)][-1] == end


def test_a_row_has_its_identity_its_shard_and_its_time(log: EventLog, place: ExportPlace) -> None:
    writer = SealedWriter(log)
    key = KeyClaimed(at_ms=AT_MS, command=COMMAND, key="abc", owner_did=did(1))
    invited = InvitationUsed(at_ms=AT_MS, command=COMMAND, invitation_id="one", by_did=did(1))
    counted = RefusalsCounted(
        at_ms=AT_MS, command=COMMAND, edge="edge-7", since_ms=1, until_ms=2, refusals=[]
    )
    writer.commit({"shard-3": [registered(1, AT_MS + 1)], "shard-4": [(identity_stream("k"), key)]})
    with closing(exporter(log, place, Bounds(rows_max=1, bytes_max=1))) as export:
        export.step()
        export.step()
    unknown = identity_stream("unknown")
    writer.commit(
        {
            "shard-3": [
                (identity_stream(did(1)), message()),
                (identity_stream("k"), key),
                (identity_stream("i"), invited),
                (identity_stream("e"), counted),
                (unknown, message()),
            ]
        }
    )
    export_all(log, place)
    rows = exported_rows(place)
    assert [row["identity"] for row in rows] == [
        *(did(1), None),
        *("key:abc", None),
        *(did(1), "key:abc", "invitation:one", "edge:edge-7", None, None),
    ]
    assert [row["shard"] for row in rows] == ["shard-3"] * 2 + ["shard-4"] * 2 + ["shard-3"] * 6
    assert rows[0]["recorded_at"] == datetime.fromtimestamp((AT_MS + 1) / 1000, UTC)


def test_files_hold_the_rows_of_one_day_sorted_by_position(
    log: EventLog, place: ExportPlace
) -> None:
    writer = SealedWriter(log)
    days = [1, 0, 1, 2, 0]
    for number, day in enumerate(days):
        writer.commit({"shard-0": [registered(number, AT_MS + day * DAY_MS)]})
    export_all(log, place, Bounds())
    assert [file.path.split("/")[1] for file in catalog_of(place).files] == [
        "date=2023-11-14",
        "date=2023-11-15",
        "date=2023-11-16",
    ]
    assert exported_log(place) == list(whole_log(log))
    for file in catalog_of(place).files:
        assert file.first < file.last or file.rows == 1


def test_the_heads_of_an_export_are_those_of_the_log(log: EventLog, place: ExportPlace) -> None:
    growing = Growing(log)
    growing.grow(5)
    export_all(log, place)
    (summary,) = (item for item in verify(log) if isinstance(item, Summary))
    assert catalog_of(place).heads == summary.heads
    growing.grow()
    (again,) = verify(log, known_heads=catalog_of(place).heads)
    assert isinstance(again, Summary)


@pytest.mark.parametrize(
    ("owner", "seed"),
    [
        (ExportOwner("did:web:other.test", 16), None),
        (ExportOwner("did:web:mediator.test", 8), None),
        (OWNER, bytes(32)),
    ],
)
def test_the_place_of_another_mediator_is_refused(
    sqlite_log: EventLog, place: ExportPlace, owner: ExportOwner, seed: bytes | None
) -> None:
    Growing(sqlite_log).grow()
    export_all(sqlite_log, place)
    before = contents(place)
    signer = SIGNER
    if seed is not None:
        signer = Signer(signatures.public_key(seed).hex(), lambda m: signatures.sign(seed, m))
    with pytest.raises(ExportRefused, match=r"is the export of did:web:mediator\.test"):
        Exporter(sqlite_log, place, owner, signer, clock=system_clock)
    assert contents(place) == before


def test_another_log_of_the_same_mediator_is_refused(
    log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    Growing(log).grow(3)
    export_all(log, place)
    with closing(open_log(f"sqlite:{tmp_path / 'another.db'}")) as another:
        with pytest.raises(ExportRefused, match="belongs to another log, or the log lost its end"):
            exporter(another, place)
        writer = SealedWriter(another)
        for number in range(9):
            writer.commit({"shard-0": [registered(number)], "shard-1": [registered(number + 10)]})
        with pytest.raises(ExportRefused, match="belongs to another log"):
            exporter(another, place)


@pytest.mark.parametrize("folder", ["events", "manifests"])
def test_files_of_another_program_are_not_taken_for_an_export(
    sqlite_log: EventLog, place: ExportPlace, folder: str
) -> None:
    place.write(f"{folder}/mine.txt", b"mine")
    with pytest.raises(ExportRefused, match=r"no export\.json"):
        exporter(sqlite_log, place)
    assert [*place.sizes("")] == [f"{folder}/mine.txt"]


def test_a_second_exporter_at_the_same_place_is_noticed(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow()
    with closing(exporter(sqlite_log, place)) as one:
        one.step()
        with closing(exporter(sqlite_log, place)) as another:
            growing.grow()
            another.step()
        growing.grow()
        with pytest.raises(ExportRefused, match="another process"):
            one.step()
    export_all(sqlite_log, place)
    assert exported_log(place) == list(whole_log(sqlite_log))


@pytest.mark.parametrize(
    ("statement", "error", "said"),
    [
        ("DELETE FROM stored_events WHERE rowid = 7", NotAsSealed, "a seal over 2 rows"),
        ("DELETE FROM stored_events WHERE rowid BETWEEN 6 AND 8", NotAsSealed, "continue seal"),
        (
            "UPDATE stored_events SET originator_id = hex(zeroblob(16)) WHERE rowid = 8",
            NotAsSealed,
            "position 8 of the log: a seal of .* in another stream",
        ),
        (
            "UPDATE stored_events SET topic = 'new.2' WHERE rowid = 7",
            NotAsSealed,
            "not the seal",
        ),
        ("UPDATE stored_events SET state = x'00' WHERE rowid = 7", NotAsSealed, "position 6 on"),
        ("UPDATE stored_events SET state = 'text' WHERE rowid = 7", NotAsSealed, "position 7"),
        ("UPDATE stored_events SET topic = x'00' WHERE rowid = 7", NotAsSealed, "position 7"),
        (
            (
                "UPDATE stored_events SET state = CAST(replace(state, 'age-2', 'age-3') AS BLOB)"
                " WHERE rowid = 7"
            ),
            NotAsSealed,
            "position 8 of the log: not the seal of the 2 rows from position 6 on",
        ),
        ("UPDATE stored_events SET originator_id = 'x' WHERE rowid = 7", CorruptRow, "position 7"),
        *(
            (
                f"UPDATE stored_events SET originator_id = {other} WHERE rowid = 7",
                CorruptRow,
                "position 7: the stream is not in the form of this log",
            )
            for other in ("upper(originator_id)", "substr(originator_id, 3)")
        ),
        (
            "UPDATE stored_events SET originator_version = 9 WHERE rowid = 8",
            NotAsSealed,
            "seal 9 of shard-0 does not continue seal 1",
        ),
    ],
)
def test_what_is_wrong_in_the_log_is_not_signed(
    tmp_path: Path, place: ExportPlace, statement: str, error: type[Exception], said: str
) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(url)) as log:
        Growing(log).grow(4)
        run_sql(url, statement)
        with pytest.raises(error, match=said):
            export_all(log, place, Bounds(1, 1))
    assert {row.position for row in exported_log(place)} <= {1, 2, 3, 4, 5, 9, 10}


def test_a_changed_seal_over_no_rows_is_not_signed(tmp_path: Path, place: ExportPlace) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(url)) as log:
        SealedWriter(log).commit({"shard-0": []})
        (row,) = whole_log(log)
        sealed = decode_seal(row.state)
        changed = encode(UUID(bytes=row.stream), 1, replace(sealed, at_ms=sealed.at_ms + 1)).state
        run_sql(url, f"UPDATE stored_events SET state = x'{changed.hex()}'")
        with pytest.raises(NotAsSealed, match="position 1 on"):
            export_all(log, place)
    assert exported_log(place) == []


def test_a_seal_that_begins_another_chain_is_not_signed(tmp_path: Path, place: ExportPlace) -> None:
    url = f"sqlite:{tmp_path / 'log.db'}"
    with closing(open_log(url)) as log:
        writer = SealedWriter(log)
        for _ in range(2):
            writer.commit({"shard-0": []})
        _, row = whole_log(log)
        sealed = replace(decode_seal(row.state), previous=GENESIS)
        forged = replace(sealed, digest=chain_digest(sealed, [], are_redacted=True))
        state = encode(UUID(bytes=row.stream), row.version, forged).state
        run_sql(url, f"UPDATE stored_events SET state = x'{state.hex()}' WHERE rowid = 2")
        with pytest.raises(NotAsSealed, match="does not continue seal 1"):
            export_all(log, place)
    assert exported_log(place) == []


def test_an_export_that_was_damaged_is_not_continued(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(5)
    export_all(sqlite_log, place)
    place.remove(catalog_of(place).files[0].path)
    with pytest.raises(ExportDamaged, match="missing"):
        exporter(sqlite_log, place, SMALL)


def test_others_on_the_machine_read_an_export_only_in_a_folder_that_was_made_for_them(
    log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    """Whatever the umask: it has what the log has, and contents that were not yet taken out."""
    shared = open_place(str(tmp_path / "shared" / "export"))
    Path(shared.root).mkdir(parents=True)
    Path(shared.root).chmod(0o750)
    Growing(log).grow()
    before = os.umask(0)
    try:
        for each in (place, shared):
            export_all(log, each)
    finally:
        os.umask(before)
    assert [stat.S_IMODE(Path(each.root).stat().st_mode) for each in (place, shared)] == [
        0o700,
        0o750,
    ]
    (folder,) = {path.parent for path in Path(shared.root).rglob("*.parquet")}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
