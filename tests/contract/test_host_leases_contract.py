"""Host leases, the same on both stores: who lives is decided by the time of the database."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import msgspec
import psycopg
import pytest

from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog
from eventstore.log.host_leases import LEASE_S_MAX, HostLease, HostLeases
from eventstore.stores.host_lease_file import HostLeaseFile
from eventstore.stores.open_log import open_host_leases, open_log
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_host_leases import PostgresHostLeases
from tests.log.raw_sql import run_sql
from tests.log.slow_leases import answer_slowly

LONG_S = LEASE_S_MAX
OVER_S = 0.0
MINE = HostLease("host-a", "a", "first", "127.0.0.1", 7001, b"\x00secret\xff", protocol=7)
ELSEWHERE = HostLease("host-a", "b", "second", "127.0.0.2", 7002, b"another", protocol=8)


@pytest.fixture
def another(log: EventLog, log_url: str) -> Iterator[Callable[[], HostLeases]]:
    """Opens the leases of one log again, as another process would."""
    with ExitStack() as stack:

        def open_it() -> HostLeases:
            leases = open_host_leases(log_url)
            stack.callback(leases.close)
            return leases

        yield open_it


@pytest.fixture
def leases(another: Callable[[], HostLeases]) -> HostLeases:
    return another()


def of(name: str, incarnation: str = "first") -> HostLease:
    there = MINE if incarnation == MINE.incarnation else ELSEWHERE
    return msgspec.structs.replace(there, name=name, incarnation=incarnation)


def rows(leases: HostLeases) -> list[HostLease]:
    """The hosts that live, as they were given."""
    return [msgspec.structs.replace(lease, ends_s=0.0) for lease in leases.living()]


def test_a_row_tells_whether_it_was_renewed(
    leases: HostLeases, another: Callable[[], HostLeases]
) -> None:
    leases.take(MINE, LONG_S)
    (before,) = another().living()
    assert [before] == another().living()
    assert leases.renew(MINE, LONG_S)
    (after,) = another().living()
    assert after.ends_s > before.ends_s > 0


def test_a_host_lives_for_every_process_as_long_as_its_time_runs(
    leases: HostLeases, another: Callable[[], HostLeases]
) -> None:
    assert rows(leases) == []
    leases.take(MINE, LONG_S)
    leases.take(of("host-b"), LONG_S)
    assert rows(another()) == [MINE, of("host-b")]
    assert leases.renew(MINE, OVER_S)
    assert rows(another()) == [of("host-b")]


def test_a_host_whose_time_was_over_has_it_again_by_renewing(leases: HostLeases) -> None:
    leases.take(MINE, OVER_S)
    assert leases.renew(MINE, LONG_S)
    assert rows(leases) == [MINE]


def test_a_new_process_takes_its_name_at_once_and_the_former_one_cannot_renew(
    leases: HostLeases,
) -> None:
    leases.take(MINE, LONG_S)
    leases.take(of("host-a", "second"), LONG_S)
    assert not leases.renew(MINE, LONG_S)
    assert rows(leases) == [of("host-a", "second")]
    leases.leave(MINE)
    assert rows(leases) == [of("host-a", "second")]


def test_a_name_that_no_process_has_any_more_goes_to_who_renews_first(
    leases: HostLeases, another: Callable[[], HostLeases]
) -> None:
    leases.take(MINE, OVER_S)
    assert another().renew(of("host-a", "second"), LONG_S)
    assert not leases.renew(MINE, LONG_S)
    leases.leave(of("host-a", "second"))
    assert rows(leases) == []
    assert leases.renew(MINE, LONG_S)


def test_a_name_may_be_that_of_any_identity(leases: HostLeases) -> None:
    name = "identity@node:did:web:grüße.example:\u2028"
    leases.take(of(name), LONG_S)
    assert rows(leases) == [of(name)]


@pytest.mark.postgres
def test_a_lost_host_lives_no_longer_if_the_clock_of_the_database_is_set_back(
    postgres_url: str,
) -> None:
    open_log(postgres_url).close()
    set_back = "UPDATE host_leases SET ends = ends + 3600"
    with closing(PostgresHostLeases(postgres_url, PostgresBounds())) as leases:
        leases.take(MINE, LONG_S)
        run_sql(postgres_url, set_back)
        assert rows(leases) == [MINE], "a living one is seen as before"
        assert leases.renew(MINE, LONG_S), "and goes on"
        run_sql(postgres_url, set_back)
        assert leases.renew(of("host-a", "second"), LONG_S), "who stands by follows a lost one"
        run_sql(postgres_url, set_back)
        leases.take(of("host-b"), LONG_S)
        (lost, _), now_s = leases.living(), leases.clock_s()
        assert lost.ends_s <= now_s + LONG_S


@pytest.mark.postgres
def test_rows_that_are_long_over_are_removed_from_the_database(postgres_url: str) -> None:
    open_log(postgres_url).close()
    leases = PostgresHostLeases(postgres_url, PostgresBounds())
    leases.take(MINE, -7_200.0)
    leases.take(of("host-b"), OVER_S)
    # Had it a row, another incarnation could have it as well: what is over is anybody's.
    assert rows(leases) == []
    assert [row[0] for row in leases._run("SELECT name FROM host_leases", [])] == [b"host-b"]
    leases.close()


@pytest.mark.postgres
def test_a_quarter_of_a_long_lease_may_pass_until_the_database_answers(postgres_url: str) -> None:
    open_log(postgres_url).close()
    answer_slowly(postgres_url)
    with closing(open_host_leases(postgres_url, lease_s=LONG_S)) as leases:
        leases.take(MINE, LONG_S)
        assert leases.renew(MINE, LONG_S)
    with closing(open_host_leases(postgres_url)) as leases, pytest.raises(LogUnavailable):
        leases.renew(MINE, LONG_S)


def test_a_connection_that_was_lost_is_made_anew(leases: HostLeases) -> None:
    leases.take(MINE, LONG_S)
    leases.close()
    assert rows(leases) == [MINE]


@pytest.mark.postgres
def test_a_connection_that_the_server_ended_fails_once_and_is_made_anew(postgres_url: str) -> None:
    with closing(open_log(postgres_url)), closing(open_host_leases(postgres_url)) as leases:
        leases.take(MINE, LONG_S)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        with pytest.raises(LogUnavailable):
            leases.living()
        assert rows(leases) == [MINE]


def test_a_database_that_is_not_there_is_an_error_of_the_log(tmp_path: Path) -> None:
    for dsn in (f"sqlite:{tmp_path}/none/log.db", "postgresql://poste@127.0.0.1:1/poste"):
        with pytest.raises(LogUnavailable):
            open_host_leases(dsn).living()


def test_the_token_is_for_the_owner_of_the_file_alone_and_not_printed(
    tmp_path: Path,
) -> None:
    leases = open_host_leases(f"sqlite:{tmp_path}/log.db")
    leases.take(MINE, LONG_S)
    assert (tmp_path / "log.db-hosts").stat().st_mode & 0o077 == 0
    assert repr(MINE.token) not in repr(MINE)
    leases.close()


def test_a_full_disk_keeps_no_host_from_its_lease(tmp_path: Path) -> None:
    leases = HostLeaseFile(tmp_path / "hosts")
    leases.take(MINE, LONG_S)
    taken = (tmp_path / "hosts").stat()
    for number in range(100):
        leases.take(of(f"host-{number}"), LONG_S)
    kept = (tmp_path / "hosts").stat()
    assert (kept.st_size, kept.st_blocks, kept.st_ino) == (
        taken.st_size,
        taken.st_blocks,
        taken.st_ino,
    )
    assert taken.st_blocks * 512 >= taken.st_size
    leases.close()


def test_a_disk_that_is_full_at_the_first_lease_leaves_the_next_one_its_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    leases = HostLeaseFile(tmp_path / "hosts")
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", is_full)
        with pytest.raises(LogUnavailable):
            leases.take(MINE, LONG_S)
    leases.take(MINE, LONG_S)
    assert rows(leases) == [MINE]
    leases.close()


def test_rows_from_before_the_machine_began_again_are_over(tmp_path: Path) -> None:
    before = HostLeaseFile(tmp_path / "hosts", lambda: 5_000.0)
    before.take(MINE, LONG_S)
    before.close()
    after = HostLeaseFile(tmp_path / "hosts", lambda: 10.0)
    assert rows(after) == []
    assert after.renew(of("host-a", "second"), LONG_S)
    after.close()


def test_a_host_that_is_gone_leaves_neither_its_name_nor_its_token_in_the_file(
    tmp_path: Path,
) -> None:
    leases = HostLeaseFile(tmp_path / "hosts")
    leases.take(MINE, LONG_S)
    for name in ("host-b", "zone:did:key:z6Mk"):
        leases.take(msgspec.structs.replace(ELSEWHERE, name=name), LONG_S)
    for name in ("host-b", "zone:did:key:z6Mk"):
        leases.leave(msgspec.structs.replace(ELSEWHERE, name=name))
    content = (tmp_path / "hosts").read_bytes()
    assert rows(leases) == [MINE]
    for gone in (b"host-b", b"did:key", ELSEWHERE.token, ELSEWHERE.incarnation.encode()):
        assert gone not in content
    leases.close()


def test_rows_that_were_not_written_whole_are_none_and_every_host_has_its_lease_again(
    tmp_path: Path,
) -> None:
    leases = HostLeaseFile(tmp_path / "hosts")
    leases.take(MINE, LONG_S)
    for torn in (b"\xff", b"SQLite format 3\0", b"\0\0\xff\xff" * 8):
        with (tmp_path / "hosts").open("r+b") as file:
            file.write(torn)
        assert rows(leases) == []
        assert leases.renew(MINE, LONG_S)
        assert rows(leases) == [MINE]
    content = (tmp_path / "hosts").read_bytes()
    (tmp_path / "hosts").write_bytes(content.replace(MINE.token, MINE.token[::-1]))
    assert rows(leases) == []
    leases.close()


def test_rows_in_another_layout_are_none_and_every_host_has_its_lease_again(tmp_path: Path) -> None:
    leases = HostLeaseFile(tmp_path / "hosts")
    leases.take(MINE, LONG_S)
    packed = msgspec.msgpack.encode([1.0, {"host-a": [5.0, ["host-a", "node"]]}])
    with (tmp_path / "hosts").open("r+b") as file:
        file.write(struct.pack(">II", len(packed), zlib.crc32(packed)) + packed)
    assert rows(leases) == []
    assert leases.renew(MINE, LONG_S)
    assert rows(leases) == [MINE]
    leases.close()


def test_a_process_that_has_the_file_for_long_makes_others_wait_for_an_end(tmp_path: Path) -> None:
    leases = HostLeaseFile(tmp_path / "hosts")
    leases.take(MINE, LONG_S)
    with (tmp_path / "hosts").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # to read it
        with pytest.raises(LogUnavailable):
            leases.living()
    assert rows(leases) == [MINE]
    leases.close()


def test_the_time_is_the_databases_and_none_where_it_has_no_clock_of_its_own(
    leases: HostLeases, log_url: str
) -> None:
    before_s = time.time()
    now_s = leases.clock_s()
    # PostgreSQL runs on this machine here.
    assert (now_s is None) == log_url.startswith("sqlite:")
    assert now_s is None or before_s <= now_s <= time.time()


@pytest.mark.postgres
def test_the_leases_of_the_first_builds_have_the_first_protocol(postgres_url: str) -> None:
    with closing(open_log(postgres_url)), closing(open_host_leases(postgres_url)) as leases:
        leases.take(MINE, LONG_S)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("ALTER TABLE host_leases DROP COLUMN protocol")
        with closing(open_log(postgres_url)):
            assert rows(leases) == [msgspec.structs.replace(MINE, protocol=1)]
