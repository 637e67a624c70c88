"""What was acknowledged is in no file of a SQLite log any more, and the file becomes shorter."""

from __future__ import annotations

import gc
import os
import random
import signal
import sqlite3
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from sqlite3 import Cursor
from typing import Final
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec.structs import replace

from eventstore.log.codec import state_of
from eventstore.log.content import SALT_BYTES
from eventstore.log.event_log import ChangedRow, Departure, EventLog, Snapshot
from eventstore.log.events import MessageQueued
from eventstore.log.faults import Fault, Finding
from eventstore.log.seam import SEAM
from eventstore.log.verify import verify
from eventstore.stores import sqlite_contents
from eventstore.stores.open_log import open_log
from eventstore.stores.recorder_log import RecorderLog, rebuild_read_models
from eventstore.stores.sqlite_connections import connect, create_file
from eventstore.stores.sqlite_contents import COLUMNS, KEY_BYTES, KEYS, key_of
from eventstore.stores.sqlite_log import SqliteStore, open_sqlite_store
from eventstore.stores.sqlite_sizes import wal_bytes
from tests.log.samples import OTHER, OWNER, append, message, removed, save

DEADLINE_S: Final = 30.0
NUMBER: Final = 600
NAME: Final = "did:x:" + "longname" * 25
PART_OF_NAME: Final = b"    longnamelongname"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def opened(path: Path, *, within_s: float = 0.0) -> EventLog:
    if not path.exists():
        create_file(path)
    return RecorderLog(SqliteStore(path, erased_within_s=within_s))


class Keys:
    """Reads, beside a log, the keys that its contents are encrypted with."""

    def __init__(self, path: Path) -> None:
        self._connection = connect(path)

    def newest(self) -> list[bytes]:
        """The key of the newest content and, as long as there is one, the secret it is made of."""
        ((position, _, key, secret),) = self._connection.execute(
            f"SELECT {COLUMNS} FROM contents AS c"
            f" JOIN content_keys ON page = c.position / {KEYS} ORDER BY c.position DESC LIMIT 1"
        )
        is_made = secret != bytes(KEY_BYTES)
        return [key_of(secret, position), secret] if is_made else [key]

    def close(self) -> None:
        self._connection.close()


def newest_key(path: Path) -> list[bytes]:
    with closing(Keys(path)) as keys:
        return keys.newest()


def found_in(path: Path, *keys: bytes) -> list[str]:
    """The files of the directory that have a part of one of these in them."""
    parts = [key[4:12] for key in keys]
    files = {one.name: one.read_bytes() for one in sorted(path.parent.iterdir())}
    return [name for name, read in files.items() if any(part in read for part in parts)]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline


def fill_and_remove(log: EventLog, path: Path, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Messages of all sizes for two identities; most leave, in any order, between new ones.

    Returns the keys of what has left, with all secrets, and the salts of what waits.
    """
    chance = random.Random(seed)  # noqa: S311 - a repeatable choice, not a secret
    versions = {OWNER: 0, OTHER: 0}
    waiting: list[tuple[UUID, int, bytes]] = []
    gone: set[bytes] = set()
    kept: list[bytes] = []
    with closing(Keys(path)) as keys:
        for number in range(NUMBER):
            stream, salt = chance.choice([OWNER, OTHER]), chance.randbytes(SALT_BYTES)
            size = chance.choice([10, 300, 1_000, 1_100, 2_500, 9_000, 40_000])
            append(log, stream, message(bytes(size), salt=salt))
            key, *secret = keys.newest()
            gone.update(secret)
            versions[stream] += 1
            if number % 50:
                waiting.append((stream, versions[stream], key))
            else:
                kept.append(salt)
            while len(waiting) > (40 if number < NUMBER - 1 else 0):
                stream, version, key = waiting.pop(chance.randrange(len(waiting)))
                append(log, stream, removed([version], "id"))
                versions[stream] += 1
                gone.add(key)
    return list(gone), kept


@pytest.mark.parametrize("seed", range(4))
def test_what_was_removed_is_in_no_file_any_more(path: Path, seed: int) -> None:
    with closing(opened(path, within_s=1_000)) as log:
        gone, kept = fill_and_remove(log, path, seed)
        assert found_in(path, *gone) == ["log.db-wal"]
    assert found_in(path, *gone) == []
    with closing(opened(path)) as log:
        stored = log.read_contents(after=0, until=10_000).values()
        assert [one[:SALT_BYTES] for one in stored] == kept


def test_it_leaves_without_being_asked(path: Path) -> None:
    with closing(opened(path)) as log:
        append(log, OWNER, message(b"one"))
        first = newest_key(path)
        append(log, OWNER, message(b"two"))
        second, _ = newest_key(path)
        append(log, OWNER, removed([1], "id"))
        until(lambda: newest_key(path) == [second])
        until(lambda: not found_in(path, *first))
        assert found_in(path, second) == ["log.db"]


def test_what_leaves_as_the_last_of_its_neighbours_takes_their_row_with_it(path: Path) -> None:
    with closing(opened(path)) as log:
        append(log, OWNER, message(b"one"), message(b"two"))
        gone = newest_key(path)
        append(log, OWNER, removed([1], "id"), removed([2], "id"))
        with closing(connect(path)) as beside:
            until(lambda: not list(beside.execute("SELECT * FROM content_keys")))
        append(log, OWNER, message(b"three"))
        until(lambda: not found_in(path, *gone))
        assert len(log.read_contents(after=0, until=100)) == 1


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE content_keys SET keys = hex(zeroblob(1992))",  # text as long as the keys
        "UPDATE content_keys SET keys = substr(keys, 1, 20)",
        "UPDATE content_keys SET keys = 7",
        "DELETE FROM content_keys",
        "UPDATE contents SET content = 'text'",
        "UPDATE contents SET content = 7",
        "UPDATE contents SET content = substr(content, 1, 11)",
    ],
)
def test_a_changed_content_or_key_is_named_whatever_its_type(path: Path, change: str) -> None:
    with closing(opened(path)) as log:
        append(log, OWNER, message())
        with closing(connect(path)) as beside:
            beside.execute(change)
        assert [found.fault for found in verify(log) if isinstance(found, Finding)] == [
            Fault.WRONG_CONTENT,
            Fault.UNSEALED_ROWS,
        ]


def stored_in(path: Path) -> list[int]:
    """The positions of the contents in the table."""
    with closing(connect(path)) as beside:
        return [position for (position,) in beside.execute("SELECT position FROM contents")]


def test_an_erased_content_that_is_still_stored_is_read_by_none(path: Path) -> None:
    with closing(opened(path, within_s=1_000)) as log:
        append(log, OWNER, message(b"one"), message(b"two"), removed([1], "id"))
        assert stored_in(path) == [1, 2]
        for reader in (log, another := open_log(f"sqlite:{path}")):
            assert list(reader.read_contents(after=0, until=100)) == [2]
            rows = reader.read_rows(after=0, rows_max=10, bytes_max=10_000)
            assert [row.content is None for row in rows] == [True, False, True]
            records = reader.read_records({OWNER: [1, 2]})[OWNER]
            assert [record.content is None for record in records.values()] == [True, False]
        another.close()


def test_contents_that_a_backup_has_after_their_erasure_leave_it_when_it_is_opened(
    path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy" / "log.db"
    copy.parent.mkdir()
    with closing(opened(path, within_s=1_000)) as log:
        append(log, OWNER, message(b"one"), message(b"two"))
        gone = newest_key(path)
        append(log, OWNER, removed([2], "id"))
        with closing(connect(path)) as beside, closing(connect(copy)) as target:
            beside.backup(target)
    assert stored_in(copy) == [1, 2]
    with closing(opened(copy)):
        until(lambda: stored_in(copy) == [1])
    assert found_in(copy, *gone) == []


def test_a_row_leaves_for_the_archive_although_its_erased_content_is_still_stored(
    path: Path,
) -> None:
    with closing(opened(path, within_s=1_000)) as log:
        append(log, OWNER, message(b"one"), removed([1], "id"), message(b"two"))
        with closing(SqliteStore(path, to_read=True)) as store, store.writing() as session:
            assert session.remove_rows([1, 2, 3]) == 2
            assert session.log_rows(0, 10, 10_000)[0].position == 3
    assert stored_in(path) == [3]


def test_others_wait_for_the_removal_of_few_contents_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def remove(cursor: Cursor, positions: Sequence[int]) -> int:
        sizes.append(len(positions))
        return removes(cursor, positions)

    removes = sqlite_contents.remove
    monkeypatch.setattr(sqlite_contents, "remove", remove)
    with closing(opened(path)) as log:
        append(log, OWNER, *[message(b"m", f"message-{n}") for n in range(NUMBER)])
        append(log, OWNER, removed(range(1, NUMBER + 1), "id"))
        until(lambda: stored_in(path) == [])
    assert sizes == [256, 256, 88]


def test_what_is_erased_behind_a_pass_waits_for_the_next(path: Path) -> None:
    with closing(SqliteStore(path, erased_within_s=1_000)) as store:
        log = RecorderLog(store)
        append(log, OWNER, *[message(b"m", f"message-{n}") for n in range(NUMBER)])
        append(log, OWNER, removed(range(1, NUMBER + 1), "id"))
        with store.writer.transaction() as cursor:
            found = sqlite_contents.remove_erased(cursor, 300)
            assert found is not None
            assert found[1] == 556
            assert sqlite_contents.remove_erased(cursor, NUMBER) is None
        assert stored_in(path) == [*range(1, 301), *range(557, NUMBER + 1)]


def test_a_removal_overwrites_few_rows_of_keys_at_a_time(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removals: list[list[int]] = []

    def remove(cursor: Cursor, positions: Sequence[int]) -> int:
        removals.append([position // KEYS for position in positions])
        return removes(cursor, positions)

    removes = sqlite_contents.remove
    monkeypatch.setattr(sqlite_contents, "remove", remove)
    with closing(opened(path)) as log:
        append(log, OWNER, *[message(b"m", f"message-{n}") for n in range(20 * KEYS)])
        append(log, OWNER, removed(range(1, 20 * KEYS, KEYS // 2), "id"))
        until(lambda: len(removals) == 2)
    assert [len(set(pages)) for pages in removals] == [16, 4]


def test_a_removal_leaves_nothing_in_memory(path: Path) -> None:
    """The connection that removes stays open as long as the mediator serves."""
    with closing(SqliteStore(path, erased_within_s=1_000)) as store:
        before = references()
        for position in range(1, 200):
            with store.writer.transaction() as cursor:
                sqlite_contents.keep(cursor, [(position, b"content")])
            with store.writer.transaction() as cursor:
                sqlite_contents.remove(cursor, [position])
        assert references() - before < 20


def references() -> int:
    """How many weak references exist, in whatever list of a library."""
    gc.collect()
    return sum(type(one) is weakref.ref for one in gc.get_objects())


def test_a_removal_that_fails_is_tried_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = [sqlite3.OperationalError("disk I/O error"), sqlite3.OperationalError("full")]
    failures[1].sqlite_errorcode = sqlite3.SQLITE_FULL

    def remove(cursor: Cursor, positions: Sequence[int]) -> int:
        if failures:
            raise failures.pop()
        return removes(cursor, positions)

    removes = sqlite_contents.remove
    monkeypatch.setattr(sqlite_contents, "remove", remove)
    with closing(opened(path)) as log:
        append(log, OWNER, message(b"one"))
        gone = newest_key(path)
        append(log, OWNER, removed([1], "id"))
        until(lambda: not found_in(path, *gone))
    assert failures == []


def test_contents_of_the_release_before_are_read_erased_and_added_to(path: Path) -> None:
    salts = [random.Random(number).randbytes(SALT_BYTES) for number in (1, 2, 3)]  # noqa: S311
    with closing(opened(path)) as log:
        append(log, OWNER, *(message(b"text", salt=salt) for salt in salts))
        with closing(connect(path)) as beside:
            beside.execute("DELETE FROM contents")
            # As it wrote them: a nonce of zeros, and the salts as keys.
            beside.executemany(
                "INSERT INTO contents VALUES (?, ?)",
                [(n, AESGCM(s).encrypt(bytes(12), b"text", None)) for n, s in enumerate(salts, 1)],
            )
            row = bytes(SALT_BYTES) + b"".join(salts) + bytes(SALT_BYTES * (KEYS - 4))
            beside.execute("UPDATE content_keys SET keys = ?", (row,))
        stored = [salt + b"text" for salt in salts]
        assert list(log.read_contents(after=0, until=9).values()) == stored
        append(log, OWNER, removed([1], "id"))
        until(lambda: not found_in(path, salts[0]))
        assert found_in(path, salts[1]) == ["log.db"]
        append(log, OWNER, message(b"new", salt=salts[0]), removed([3], "id"))
        assert log.read_contents(after=0, until=9) == {2: stored[1], 5: salts[0] + b"new"}
        until(lambda: not found_in(path, *salts))


def test_a_content_itself_is_in_no_file_at_any_time(path: Path) -> None:
    text = b"what cannot be read without its key"
    with closing(opened(path, within_s=1_000)) as log:
        append(log, OWNER, message(text))
        assert not any(text in one.read_bytes() for one in path.parent.iterdir())


def test_a_reader_in_the_way_delays_it_and_no_command(path: Path) -> None:
    with closing(opened(path)) as log, closing(connect(path)) as reader:
        append(log, OWNER, message(b"one"))
        gone = newest_key(path)
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM contents").fetchone() == (1,)
        append(log, OWNER, removed([1], "id"))
        for version in range(3, 43, 2):
            append(log, OWNER, message(b"two"), removed([version], "id"))
        assert found_in(path, *gone)
        reader.execute("ROLLBACK")
        until(lambda: not found_in(path, *gone))


def _remove_and_be_killed(path: Path) -> None:
    log = opened(path, within_s=1_000)
    append(log, OWNER, message(b"one"))
    beside = path.with_name("keys")
    beside.write_bytes(b"".join(reversed(newest_key(path))))
    append(log, OWNER, removed([1], "id"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_left_goes_with_the_next_start(path: Path) -> None:
    child = get_context("spawn").Process(target=_remove_and_be_killed, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    kept = path.with_name("keys")
    secret = kept.read_bytes()[:KEY_BYTES]
    kept.unlink()
    assert found_in(path, secret) == ["log.db-wal"]
    with closing(opened(path)) as log:
        until(lambda: not found_in(path, secret))
        assert log.position() == 2


def test_who_opens_it_to_read_leaves_that_to_the_mediator_whose_commits_it_would_hold_up(
    path: Path,
) -> None:
    with closing(opened(path)) as log:
        append(log, OWNER, message(b"m"))
        before = wal_bytes(path)
        with closing(open_sqlite_store(path, to_read=True)) as read, read.reading() as session:
            assert session.log_rows(0, 10, 1_000)
        assert wal_bytes(path) == before > 0


def test_what_is_free_is_given_back_to_the_file_system(path: Path) -> None:
    with closing(opened(path)) as log:
        for version in range(1, 31):
            append(log, OWNER, message(bytes(1_000_000), f"{version}"))
        append(log, OWNER, removed(range(1, 30)))
        until(lambda: sum(one.stat().st_size for one in path.parent.iterdir()) < 20_000_000)
        assert len(log.read_contents(after=0, until=100)) == 1


def test_in_a_file_of_an_earlier_release_contents_are_erased_too(path: Path) -> None:
    with closing(connect(path)) as made:
        made.execute("CREATE TABLE anything (it)")
    with closing(open_log(f"sqlite:{path}")) as log:
        append(log, OWNER, message(b"one"))
        gone = newest_key(path)
        append(log, OWNER, removed([1], "id"))
    assert found_in(path, *gone) == []


def test_a_name_that_a_row_has_lost_is_in_no_file_any_more(path: Path) -> None:
    with closing(opened(path)) as log:
        append(log, OWNER, *[message(b"m", f"message-{n}") for n in range(50)])
        events = list(map(named, range(NUMBER)))
        append(log, OTHER, *events)
        rows = log.read_rows(after=50, rows_max=NUMBER, bytes_max=2**30)
        changes = [
            ChangedRow(row.stream, row.position, row.state, state_of(replace(event, sender_did="")))
            for row, event in zip(rows, events, strict=True)
        ]
        log.change_rows(changes)
        assert [row.state for row in log.read_rows(after=50, rows_max=NUMBER, bytes_max=2**30)] == [
            change.after for change in changes
        ]
        until(lambda: not found_in(path, PART_OF_NAME))


def named(number: int) -> MessageQueued:
    return replace(message(b"m", f"named-{number}"), sender_did=f"{NAME}{number}")


def test_names_in_rows_that_left_for_the_archive_are_in_no_file_any_more(path: Path) -> None:
    with closing(opened(path)) as log:
        append(log, OTHER, *map(named, range(NUMBER)))
        gone = list(range(1, NUMBER + 1))
        append(log, OTHER, removed(gone, *[f"named-{n}" for n in range(NUMBER)]))
        append(log, OWNER, message(b"m"))
    with closing(SqliteStore(path, erased_within_s=0.0)) as store:
        assert found_in(path, PART_OF_NAME) == ["log.db"]
        with store.writing() as session:
            assert session.remove_rows(gone) == NUMBER
        until(lambda: not found_in(path, PART_OF_NAME))


def keep_snapshot(log: EventLog, number: int, state: Snapshot) -> None:
    save(log, (UUID(int=number), state))


def keep_archived_state(log: EventLog, number: int, state: Snapshot) -> None:
    seam = log.settings().get(SEAM)
    log.let_leave(Departure(seam, f"{seam}+", (), [(UUID(int=number), state)]))


@pytest.mark.parametrize("keep", [keep_snapshot, keep_archived_state])
def test_names_in_a_state_that_was_replaced_are_in_no_file_any_more(
    path: Path, keep: Callable[[EventLog, int, Snapshot], None]
) -> None:
    chance = random.Random(1)  # noqa: S311 - a repeatable choice, not a secret
    with closing(opened(path)) as log:
        for version in range(300):
            names = NAME.encode() * chance.choice([1, 5, 30, 150])
            keep(log, chance.randrange(40), Snapshot(version, 1, names))
        for number in range(40):
            keep(log, number, Snapshot(NUMBER, 1, b"nameless"))
    assert found_in(path, PART_OF_NAME) == []


def test_names_in_snapshots_leave_the_file_with_the_read_models_that_are_made_anew(
    path: Path,
) -> None:
    with closing(opened(path)) as log:
        for number in range(40):
            keep_snapshot(log, number, Snapshot(1, 1, NAME.encode() * 30))
    assert found_in(path, PART_OF_NAME) == ["log.db"]
    with closing(SqliteStore(path)) as store:
        rebuild_read_models(store)
    assert found_in(path, PART_OF_NAME) == []


def test_contents_of_a_restore_that_begins_anew_cannot_be_read_any_more(path: Path) -> None:
    with closing(opened(path)) as log:
        append(log, OTHER, *[message(b"m", f"message-{n}") for n in range(NUMBER)])
        keys = newest_key(path)
    assert found_in(path, *keys) == ["log.db"]
    with closing(SqliteStore(path)) as store, store.writing() as session:
        session.clear()
    assert found_in(path, *keys) == []


def test_no_two_contents_of_one_position_have_the_same_nonce(path: Path) -> None:
    with closing(opened(path)), closing(sqlite3.connect(path)) as connection:
        cursor, nonces = connection.cursor(), set[tuple[bytes]]()
        for _ in range(2):
            sqlite_contents.keep(cursor, [(1, b"stored")])
            nonces.update(
                content[:12] for (content,) in cursor.execute("SELECT content FROM contents")
            )
            cursor.execute("DELETE FROM contents")
    assert len(nonces) == 2
