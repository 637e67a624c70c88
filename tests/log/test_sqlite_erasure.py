"""What was acknowledged is in no file of a SQLite log any more, and the file becomes shorter."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path
from typing import Final
from uuid import UUID

import pytest

from eventstore.log.content import SALT_BYTES
from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from eventstore.stores.recorder_log import RecorderLog
from eventstore.stores.sqlite_connections import connect, create_file
from eventstore.stores.sqlite_log import SqliteStore
from tests.log.samples import OTHER, OWNER, append, message, removed

DEADLINE_S: Final = 30.0
NUMBER: Final = 600


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


def opened(path: Path, *, within_s: float = 0.0) -> EventLog:
    if not path.exists():
        create_file(path)
    return RecorderLog(SqliteStore(path, erased_within_s=within_s))


def keys() -> Iterator[bytes]:
    """Salts that are all different, which the contents are encrypted with."""
    chance = random.Random(1)  # noqa: S311 - a repeatable choice, not a secret
    while True:
        yield chance.randbytes(SALT_BYTES)


def found_in(path: Path, *salts: bytes) -> list[str]:
    """The files of the directory that have a part of one of these in them."""
    parts = [salt[4:12] for salt in salts]
    files = {one.name: one.read_bytes() for one in sorted(path.parent.iterdir())}
    return [name for name, read in files.items() if any(part in read for part in parts)]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline


def fill_and_remove(log: EventLog, seed: int) -> tuple[list[bytes], list[bytes]]:
    """Messages of all sizes for two identities; most leave, in any order, between new ones.

    Returns the keys of what has left and of what waits.
    """
    chance = random.Random(seed)  # noqa: S311 - a repeatable choice, not a secret
    salts = keys()
    versions = {OWNER: 0, OTHER: 0}
    waiting: list[tuple[UUID, int, bytes]] = []
    gone: list[bytes] = []
    kept: list[bytes] = []
    for number in range(NUMBER):
        stream, salt = chance.choice([OWNER, OTHER]), next(salts)
        size = chance.choice([10, 300, 1_000, 1_100, 2_500, 9_000, 40_000])
        append(log, stream, message(bytes(size), salt=salt))
        versions[stream] += 1
        if number % 50:
            waiting.append((stream, versions[stream], salt))
        else:
            kept.append(salt)
        while len(waiting) > (40 if number < NUMBER - 1 else 0):
            stream, version, salt = waiting.pop(chance.randrange(len(waiting)))
            append(log, stream, removed([version], "id"))
            versions[stream] += 1
            gone.append(salt)
    return gone, kept


@pytest.mark.parametrize("seed", range(4))
def test_what_was_removed_is_in_no_file_any_more(path: Path, seed: int) -> None:
    with closing(opened(path, within_s=1_000)) as log:
        gone, kept = fill_and_remove(log, seed)
        assert found_in(path, *gone) == ["log.db-wal"]
    assert found_in(path, *gone) == []
    with closing(opened(path)) as log:
        assert all(found_in(path, salt) == ["log.db"] for salt in kept)
        stored = log.read_contents(after=0, until=10_000).values()
        assert [one[:SALT_BYTES] for one in stored] == kept


def test_it_leaves_without_being_asked(path: Path) -> None:
    first, second = itertools.islice(keys(), 2)
    with closing(opened(path)) as log:
        append(log, OWNER, message(b"one", salt=first), message(b"two", salt=second))
        append(log, OWNER, removed([1], "id"))
        until(lambda: not found_in(path, first))
        assert found_in(path, second) == ["log.db"]


def test_a_content_itself_is_in_no_file_at_any_time(path: Path) -> None:
    text = b"what cannot be read without its key"
    with closing(opened(path, within_s=1_000)) as log:
        append(log, OWNER, message(text))
        assert not any(text in one.read_bytes() for one in path.parent.iterdir())


def test_a_reader_in_the_way_delays_it_and_no_command(path: Path) -> None:
    (salt,) = itertools.islice(keys(), 1)
    with closing(opened(path)) as log, closing(connect(path)) as reader:
        append(log, OWNER, message(b"one", salt=salt))
        reader.execute("BEGIN")
        assert reader.execute("SELECT COUNT(*) FROM contents").fetchone() == (1,)
        append(log, OWNER, removed([1], "id"))
        for version in range(3, 43, 2):
            append(log, OWNER, message(b"two"), removed([version], "id"))
        assert found_in(path, salt)
        reader.execute("ROLLBACK")
        until(lambda: not found_in(path, salt))


def _remove_and_be_killed(path: Path) -> None:
    log = opened(path, within_s=1_000)
    append(log, OWNER, message(b"one", salt=next(keys())))
    append(log, OWNER, removed([1], "id"))
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_killed_process_left_goes_with_the_next_start(path: Path) -> None:
    child = get_context("spawn").Process(target=_remove_and_be_killed, args=(path,))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    salt = next(keys())
    assert found_in(path, salt) == ["log.db-wal"]
    with closing(opened(path)) as log:
        until(lambda: not found_in(path, salt))
        assert log.position() == 2


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
    salt = next(keys())
    with closing(open_log(f"sqlite:{path}")) as log:
        append(log, OWNER, message(b"one", salt=salt))
        append(log, OWNER, removed([1], "id"))
    assert found_in(path, salt) == []
