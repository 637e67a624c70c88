"""``poste log verify``: a whole log passes, a touched one is named with its first bad row."""

import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from eventstore.log.codec import encode
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import Snapshot
from eventstore.log.events import MessageQueued
from eventstore.log.seal import GENESIS, seal
from eventstore.log.session import LogSession
from eventstore.log.streams import identity_stream, partition_stream
from eventstore.stores.open_log import open_log
from eventstore.stores.sqlite_log import SqliteStore
from http_edge.cli.log import KEPT_MAX, gathered
from http_edge.server.exits import Exit
from tests.contract.conftest import log_url
from tests.database_server import DatabaseServer, database_directory
from tests.full_disk import files_up_to
from tests.log.raw_sql import run_sql
from tests.log.samples import content, save
from tests.unit.actors.given import host, registration, submission
from tests.unit.actors.given import run as replies
from tests.unit.cli.conftest import Run

__all__ = ["log_url"]  # a fixture
BATCHES = 3


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of three sealed batches: three messages and their seals, six rows."""
    path = tmp_path / "log.db"
    stream, shard, previous = identity_stream("did:key:a"), partition_stream("shard-0"), GENESIS
    with closing(open_log(f"sqlite://{path}")) as log:
        for version in range(1, BATCHES + 1):
            event = MessageQueued(
                at_ms=version,
                command=bytes(16),
                message_id=f"message-{version}",
                protocol="decentrl",
                sender_did="did:key:b",
                recipient_key="",
                payload=content(b"opaque"),
            )
            row = encode(stream, version, event)
            sealed = seal(
                [row],
                [event],
                partition="shard-0",
                epoch=1,
                at_ms=version,
                window_ms=300_000,
                nonces=b"",
                previous=previous,
            )
            log.append([row, encode(shard, version, sealed)], [event, sealed])
            previous = sealed.digest
    return path


def test_a_log_as_it_was_written_passes(run: Run, path: Path) -> None:
    ran = run("log", "verify", "--log", f"sqlite://{path}")
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert "Every row is as it was sealed" in ran.out
    checked = json.loads(run("log", "verify", "--log", f"sqlite://{path}", "--json").out)
    assert checked["findings"] == []
    summary = checked["summary"]
    assert (summary["rows"], summary["seals"], summary["partitions"]) == (6, 3, 1)
    assert summary["heads"]["shard-0"]["version"] == BATCHES


def test_a_changed_row_is_named_and_is_exit_code_1(run: Run, path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "UPDATE stored_events SET state = CAST(replace(CAST(state AS TEXT), 'decentrl', "
            "'didcomm/') AS BLOB) WHERE rowid = 3"
        )
    ran = run("log", "verify", "--log", f"sqlite://{path}")
    assert ran.code == Exit.FINDING
    assert "First bad row: position 3 " in ran.out
    checked = json.loads(run("log", "verify", "--log", f"sqlite://{path}", "--json").out)
    assert checked["summary"]["findings"] == len(checked["findings"]) > 0
    assert checked["findings"][0]["first_position"] == 3
    assert (checked["made_from_rows"], "sealed" in checked["tables_unchecked"]) == ([], True)


def test_tables_are_said_to_be_unchecked_where_the_indexes_of_the_file_have_faults(
    run: Run, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = "row 3 missing from index"
    monkeypatch.setattr(SqliteStore, "faults_in_files", lambda _: [fault])
    ran = run("log", "verify", "--log", f"sqlite://{path}", "--json")
    checked = json.loads(ran.out)
    assert (ran.code, checked["made_from_rows"]) == (Exit.FINDING, [{"file": fault}])
    assert "indexes" in checked["tables_unchecked"]


def test_a_cut_end_is_found_against_an_earlier_check(run: Run, path: Path) -> None:
    known = path.with_name("known.json")
    known.write_text(run("log", "verify", "--log", f"sqlite://{path}", "--json").out)
    args = ["log", "verify", "--log", f"sqlite://{path}", "--known", str(known)]
    assert run(*args).code == Exit.OK
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DELETE FROM stored_events WHERE rowid > 4")
        connection.execute("DELETE FROM contents WHERE position > 4")
    assert run(*args[:-2]).code == Exit.OK
    ran = run(*args)
    assert ran.code == Exit.FINDING
    assert "missing-head" in ran.out


_HEAD = '{"summary":{"heads":{"shard-0":{"version":%s,"digest":"%s"}}}}'


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        "{}",
        "[" * 100_000,
        '{"summary":' + '{"a":' * 100_000,
        '{"databases":{"a":1}}',
        _HEAD % ('"3"', "00" * 32),
        _HEAD % ("null", "00" * 32),
        _HEAD % (2**70, "00" * 32),
        _HEAD % (3, "no digits"),
    ],
)
def test_another_file_is_no_earlier_check(run: Run, path: Path, content: str) -> None:
    known = path.with_name("known.json")
    known.write_text(content)
    ran = run("log", "verify", "--log", f"sqlite://{path}", "--known", str(known))
    assert ran.code == Exit.USAGE
    assert "poste log verify --json" in ran.err


def test_a_log_that_is_not_there_is_not_made(run: Run, tmp_path: Path) -> None:
    ran = run("log", "verify")
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert f"there is no log at {tmp_path}/data/log.db" in ran.err
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_log_is_refused_and_left_as_it_is(
    run: Run, tmp_path: Path, log_url: str
) -> None:
    run_sql(log_url, "CREATE TABLE salaries (name TEXT)")
    (tmp_path / "empty.db").touch()
    for url in (log_url, f"sqlite:{tmp_path}/empty.db"):
        for command in ("verify", "erase-names", "rebuild-read-models"):
            ran = run("log", command, "--log", url)
            assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
            assert "there is no log in" in ran.err
    assert (tmp_path / "empty.db").stat().st_size == 0
    with pytest.raises(Exception, match="settings"):
        run_sql(log_url, "DROP TABLE settings")


def test_a_table_that_is_missing_is_named_and_not_made(
    run: Run, tmp_path: Path, log_url: str
) -> None:
    with closing(open_log(log_url)) as log:
        replies(host(log), submission("did:x:me", registration("did:x:me")))
    run_sql(log_url, "DROP TABLE postings")
    for _ in range(2):
        ran = run("log", "verify", "--log", log_url)
        assert (ran.code, ran.err) == (Exit.FINDING, "")
        assert "Every row is as it was sealed" in ran.out
        assert "Table postings is missing. Rebuild it" in ran.out
    checked = json.loads(run("log", "verify", "--log", log_url, "--json").out)
    assert checked["made_from_rows"] == [{"table": "postings", "is_missing": True}]
    ran = run("log", "erase-names", "--log", log_url)
    assert (ran.code, ran.out) == (Exit.UNSAFE, "")
    assert "its tables postings are missing" in ran.err
    assert run("log", "rebuild-read-models", "--log", log_url).code == Exit.OK
    assert run("log", "verify", "--log", log_url).code == Exit.OK


@pytest.mark.postgres
def test_a_log_in_a_session_or_on_a_standby_that_writes_nothing_is_verified(run: Run) -> None:
    with database_directory() as directory:
        server = DatabaseServer.new(directory / "primary")
        server.start()
        try:
            with closing(open_log(server.url)) as log:
                replies(host(log), submission("did:x:me", registration("did:x:me")))
            standby = server.standby(directory / "standby")
            standby.start()
            try:
                ran = run("log", "verify", "--log", standby.url)
            finally:
                standby.stop()
            assert (ran.code, "Every row is as it was sealed" in ran.out) == (Exit.OK, True)
            assert "the tables for queries were not checked: a standby" in ran.err
            server.run("ALTER DATABASE postgres SET default_transaction_read_only = on")
            ran = run("log", "verify", "--log", server.url)
            assert (ran.code, ran.err) == (Exit.OK, "")
        finally:
            server.stop()


def test_what_was_found_is_shown_though_there_is_no_room_to_compare_the_tables(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:{tmp_path}/made.db"
    dids = [f"did:x:{number}" for number in range(200)]
    with closing(open_log(url)) as log:
        replies(host(log), *[submission(did, registration(did)) for did in dids])
        save(log, (identity_stream("did:x:1"), Snapshot(1, 1, b"of another release")))
    run_sql(url, "UPDATE snapshots SET version = 2")
    scratch = SqliteStore.scratch

    @contextmanager
    def small(store: SqliteStore) -> Iterator[tuple[LogSession, str]]:
        with scratch(store) as (session, schema):
            session.rows("PRAGMA temp.max_page_count = 1")
            yield session, schema

    monkeypatch.setattr(SqliteStore, "scratch", small)
    ran = run("log", "verify", "--log", url)
    assert "Every row is as it was sealed" in ran.out
    assert (ran.code, "Snapshot of stream" in ran.out) == (Exit.FINDING, True)
    assert "the tables for queries were not checked: no room for temporary tables" in ran.err
    checked = json.loads(run("log", "verify", "--log", url, "--json").out)
    assert checked["tables_unchecked"].startswith("no room for temporary tables")


@pytest.mark.parametrize("command", ["rebuild-read-models", "erase-names", "verify"])
def test_a_full_disk_is_named_and_not_another_log_recommended(
    run: Run, path: Path, command: str
) -> None:
    with files_up_to(1_000):  # SQLite needs a file beside that of the log also to read it
        ran = run("log", command, "--log", f"sqlite:{path}")
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "the event log has no room on its disk" in ran.err
    assert ("disk-full.md" in ran.err, "Name the log" in ran.err) == (True, False)


def test_tables_and_snapshots_that_were_changed_are_named_and_made_anew(
    run: Run, tmp_path: Path
) -> None:
    url = f"sqlite:{tmp_path}/made.db"
    with closing(open_log(url)) as log:
        owner = host(log)
        replies(owner, submission("did:x:me", registration("did:x:me")))
        save(log, (identity_stream("did:x:me"), Snapshot(1, 1, b"of another release")))
    assert run("log", "verify", "--log", url).code == Exit.OK
    run_sql(url, "DELETE FROM queue_depths")
    run_sql(url, "UPDATE snapshots SET version = 2")
    ran = run("log", "verify", "--log", url)
    assert ran.code == Exit.FINDING
    assert "Table queue_depths: 1 rows are missing, 0 too many." in ran.out
    assert f"Snapshot of stream {identity_stream('did:x:me')}" in ran.out
    checked = json.loads(run("log", "verify", "--log", url, "--json").out)
    made = checked["made_from_rows"]
    assert made[0] == {"table": "queue_depths", "missing": 1, "surplus": 0}
    assert checked["tables_unchecked"] is None
    run_sql(url, "DROP TABLE postings")
    assert run("log", "rebuild-read-models", "--log", url).code == Exit.OK
    assert run("log", "verify", "--log", url).code == Exit.OK


def test_a_log_with_a_row_that_cannot_be_read_is_not_made_anew(run: Run, path: Path) -> None:
    run_sql(f"sqlite:{path}", "UPDATE stored_events SET state = x'c1' WHERE rowid = 1")
    ran = run("log", "rebuild-read-models", "--log", f"sqlite://{path}")
    assert ran.code == Exit.UNSAFE
    assert "poste log verify names it" in ran.err


OTHER_USER = 65_534


@contextmanager
def read_only(path: Path, *beside: str, mode: int = 0o555) -> Iterator[Path]:
    """A copy of a log, and of files beside it, where this process cannot write, even as root."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        for end in ("", *beside):
            shutil.copy(f"{path}{end}", folder / f"log.db{end}")
        for one in (*folder.iterdir(), folder):
            one.chmod(mode)
        was = os.geteuid()
        if was == 0:
            os.seteuid(OTHER_USER)
        try:
            yield folder / "log.db"
        finally:
            os.seteuid(was)
            folder.chmod(0o755)


def test_a_backup_that_cannot_be_written_is_verified_as_it_stands(run: Run, path: Path) -> None:
    with read_only(path) as backup:
        args = ["--data-dir", str(backup.parent), "--log", f"sqlite://{backup}"]
        ran = run("log", "verify", *args)
        assert (ran.code, "Every row is as it was sealed" in ran.out) == (Exit.OK, True)
        assert f"{backup} is not writable" in ran.err
        assert [one.name for one in backup.parent.iterdir()] == ["log.db"]
        made = run("log", "rebuild-read-models", *args)
        assert (made.code, "cannot be read" in made.err) == (Exit.UNREACHABLE, True)


def test_a_log_that_this_user_may_not_read_is_refused_with_its_owner(run: Run, path: Path) -> None:
    with read_only(path, mode=0o111) as backup:
        ran = run("log", "verify", "--log", f"sqlite://{backup}", "--data-dir", "/")
        assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
        assert f"of user {os.geteuid()}, may not read {backup}" in ran.err
        assert f"belongs to user {os.getuid()}" in ran.err


def test_a_log_that_this_user_may_not_write_is_refused_as_such(path: Path) -> None:
    with read_only(path) as backup, pytest.raises(LogUnavailable, match=f"may not write {backup}"):
        open_log(f"sqlite://{backup}")


def test_a_log_on_a_read_only_mount_is_refused_as_such(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = list(os.statvfs(path))
    found[8] |= os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
    with read_only(path) as backup, pytest.raises(LogUnavailable, match="mounted read-only"):
        open_log(f"sqlite://{backup}")


def test_a_check_says_if_it_has_not_read_the_export(run: Run, path: Path) -> None:
    args = ["log", "verify", "--log", f"sqlite://{path}", "--data-dir", str(path.parent)]
    said = "its export was not checked"
    export = ["--set", f"export.to={path.parent}/export"]
    for more, is_said in ((export, True), ([*export, "--without-archive"], False), ([], False)):
        for form in ([], ["--json"]):
            ran = run(*args, *more, *form)
            assert (ran.code, said in ran.err) == (Exit.OK, is_said), more


@pytest.mark.parametrize("table", ["erased", "archived_states"])
def test_a_backup_of_an_earlier_release_is_verified_although_it_lacks_a_table(
    run: Run, path: Path, table: str
) -> None:
    run_sql(f"sqlite:{path}", f"DROP TABLE {table}")
    with read_only(path) as backup:
        ran = run("log", "verify", "--log", f"sqlite://{backup}", "--data-dir", "/")
    assert (ran.code, "Every row is as it was sealed" in ran.out) == (Exit.OK, True)


def test_what_a_backup_has_in_its_wal_is_verified_with_its_index_and_never_left_out(
    run: Run, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as writer:
        with writer:
            writer.execute("DELETE FROM stored_events WHERE rowid = 3")
        ends = ("-wal", "-shm")
        with read_only(path, *ends) as backup:
            found = run("log", "verify", "--log", f"sqlite://{backup}", "--data-dir", "/")
            assert (found.code, found.err) == (Exit.FINDING, "")
        with read_only(path, "-wal") as backup:
            refused = run("log", "verify", "--log", f"sqlite://{backup}", "--data-dir", "/")
            assert (refused.code, refused.out) == (Exit.UNREACHABLE, "")
            assert "log.db-wal has rows" in refused.err
            assert "copy both files" in refused.err


def test_all_findings_of_a_check_are_counted_and_none_is_passed_over() -> None:
    findings = list(range(KEPT_MAX + 1))
    assert gathered([*findings, "end"], int, str) == (findings[:-1], len(findings), "end")
    with pytest.raises(AssertionError):
        gathered([1, b"a finding of another check", "end"], int, str)
