"""Who looks for hosts finds those of each database, whatever another database does."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from functools import partial
from typing import cast

import pytest

from actors.core.partitioning import HOST_PREFIX
from actors.host import host_finder
from actors.host.connected_host import Caller
from actors.host.host_finder import HostFinder
from actors.host.port import HostUnavailable
from actors.placement.membership import LeasedHosts
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import LEASE_S_MAX, HostLease, HostLeases
from eventstore.stores.postgres_bounds import PostgresBounds
from eventstore.stores.postgres_host_leases import PostgresHostLeases
from tests.cluster.accounts import until

ANSWERED_S_MAX = 5.0
HANGS_S = 30.0
_DEFAULT_THREADS_MAX = 32
"""Of asyncio, whatever the machine."""


class Rows:
    """The rows in a database that hangs, or is not there, for as long as a test wants."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.answers = threading.Event()
        self.answers.set()
        self.is_there = True
        self.has_cut_off = False
        """Has the database ended the connection that the next read uses?"""
        self.reads = 0
        self.read = threading.Event()
        """Set when a read begins."""

    def living(self) -> Sequence[HostLease]:
        self.reads += 1
        self.read.set()
        self.answers.wait(HANGS_S)
        was_cut_off, self.has_cut_off = self.has_cut_off, False
        if was_cut_off or not self.is_there:
            raise LogUnavailable("away")
        return [HostLease(name, "node", name, "127.0.0.1", 1, b"token") for name in self.names]

    def clock_s(self) -> float:
        return len(self.living())


def finder_of(*databases: Rows, answer_s_max: float = ANSWERED_S_MAX) -> HostFinder:
    leases = [cast("HostLeases", rows) for rows in databases]
    return HostFinder(leases, answer_s_max=answer_s_max)


async def found(finder: HostFinder) -> set[str]:
    async with asyncio.timeout(ANSWERED_S_MAX):
        return set(await finder.living())


async def test_a_database_that_hangs_is_believed_and_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works, hangs = Rows("a"), Rows("b")
    finder = finder_of(works, hangs)

    async def finds(*names: str) -> bool:
        return await found(finder) == {*names}

    async def only_one_hangs() -> bool:
        return [*finder._reads] == [1]

    assert await finds("a", "b")
    monkeypatch.setattr(host_finder, "_READ_S_MAX", 0.01)
    hangs.answers.clear()
    hangs.names, reads = ("c",), hangs.reads
    try:
        works.names = ("a", "d")
        await until(lambda: finds("a", "b", "d"))
        await until(only_one_hangs)
        works.names = ("d",)
        monkeypatch.setattr(host_finder, "_READ_S_MAX", HANGS_S)
        assert await finds("b", "d"), "it is not waited for again"
        assert hangs.reads == reads + 1
    finally:
        hangs.answers.set()

    await until(lambda: finds("c", "d"))


async def test_a_database_that_has_never_answered_holds_up_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    works, hangs = Rows("a"), Rows("b")
    hangs.answers.clear()
    finder = finder_of(works, hangs)
    monkeypatch.setattr(host_finder, "_READ_S_MAX", 0.01)
    try:
        assert await found(finder) == {"a"}
        monkeypatch.setattr(host_finder, "_READ_S_MAX", HANGS_S)
        assert await finder.find("a") is not None, "it is not waited for again"
        with pytest.raises(HostUnavailable):
            await finder.find("b")
    finally:
        hangs.answers.set()

    async def is_read() -> bool:
        return await found(finder) == {"a", "b"}

    await until(is_read)
    assert await finder.find("c") is None


async def test_a_database_that_hangs_or_is_not_there_is_known_from_one_that_answers() -> None:
    rows = Rows()
    finder = finder_of(rows)
    assert await finder.is_there(0)
    rows.is_there = False
    assert not await finder.is_there(0)
    rows.is_there = True
    rows.answers.clear()
    try:
        assert not await finder_of(rows, answer_s_max=0.01).is_there(0)
    finally:
        rows.answers.set()


async def test_a_database_that_was_restarted_since_it_was_asked_last_is_there() -> None:
    """A node that stops gives its shards away, though its connection ended long before."""
    rows = Rows()
    finder = finder_of(rows)
    rows.has_cut_off = True
    assert await finder.is_there(0)


async def test_a_database_that_answers_late_is_there_though_its_rows_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_finder, "_READ_S_MAX", 0.0)
    rows = Rows()
    rows.answers.clear()
    asking = asyncio.create_task(finder_of(rows).is_there(0))
    assert await asyncio.to_thread(rows.read.wait, ANSWERED_S_MAX)
    rows.answers.set()
    assert await asking


async def test_databases_that_never_answer_take_no_thread_from_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/none"
        leases = partial(PostgresHostLeases, url, PostgresBounds(), lease_s=LEASE_S_MAX)
        hanging = [HostFinder([leases()], answer_s_max=0.01) for _ in range(_DEFAULT_THREADS_MAX)]
        assert not any(await asyncio.gather(*[finder.is_there(0) for finder in hanging]))
        works = finder_of(Rows("a"))
        assert await works.is_there(0)
        assert await found(works) == {"a"}
    for finder in hanging:
        finder.close()


async def test_the_placer_of_a_database_sees_its_rows_alone_and_needs_an_answer_of_it_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_finder, "_READ_S_MAX", 0.01)
    rows, foreign = Rows("host-a-0-0", "placer-0"), Rows("host-a-0", "host-of-another-log")
    finder, caller = finder_of(rows, foreign), Caller("placer", 1.0)
    hosts = [LeasedHosts(HOST_PREFIX, finder, caller, database) for database in range(2)]
    foreign.answers.clear()
    try:
        assert await hosts[0].names() == {"host-a-0-0"}
        with pytest.raises(HostUnavailable):
            await hosts[1].names()
    finally:
        foreign.answers.set()

    async def is_read() -> bool:
        return "host-a-0" in await found(finder)

    await until(is_read)
    assert await hosts[0].names() == {"host-a-0-0"}
    foreign.is_there = False
    assert await hosts[1].names() == {*foreign.names}, "its last rows stay valid"


async def test_as_long_as_no_host_is_known_a_database_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_finder, "_READ_S_MAX", 0.0)
    away = Rows("a")
    away.is_there = False
    finder = finder_of(away)
    with pytest.raises(HostUnavailable):
        await finder.living()
    away.is_there = True
    away.answers.clear()
    away.read.clear()
    finding = asyncio.create_task(found(finder))
    assert await asyncio.to_thread(away.read.wait, ANSWERED_S_MAX)
    assert not finding.done()
    away.answers.set()
    assert await finding == {"a"}
