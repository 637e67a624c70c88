"""The list of dedicated identities is not believed if it was read before or during a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from actors.core.partitioning import dedicated_host_name
from actors.host.port import A, HostQuestion, ListDedicated
from actors.placement.port import Placed
from tests.unit.actors.cluster_of_hosts import LocalCluster
from tests.unit.actors.test_dedicated_places import (
    DID,
    WAIT_S,
    cluster,
    dedicate,
    own,
    serves,
)

__all__ = ["cluster"]


async def test_a_list_that_was_read_while_an_identity_goes_back_is_not_believed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await dedicate(cluster) is Placed.DONE
    host = cluster.hosts[dedicated_host_name(DID, "a")]
    stored, answers, submit = threading.Event(), threading.Event(), host.submit

    def submit_slowly(edge: str, batch: bytes) -> bytes:
        answer = submit(edge, batch)
        stored.set()
        answers.wait(WAIT_S)
        return answer

    monkeypatch.setattr(host, "submit", submit_slowly)
    order = asyncio.create_task(cluster.placer.dedicated.release(DID))
    await asyncio.to_thread(stored.wait, WAIT_S)
    try:
        for _ in range(6):
            await cluster.look(1)
            table = await cluster.placer.table(-1, seconds_max=0)
            assert table.dedicated is not None
            assert DID in table.dedicated or table.returned.get(DID)
    finally:
        answers.set()
        assert await order is Placed.DONE
    assert await serves(cluster)


async def test_a_list_that_was_read_before_an_identity_went_back_is_not_believed(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await dedicate(cluster) is Placed.DONE
    was_read, answers = threading.Event(), threading.Event()
    for host in (cluster.hosts["host-a-0"], cluster.hosts["host-b-0"]):

        def ask_slowly(question: HostQuestion[A], ask: Callable[..., A] = host.ask) -> A:
            answer = ask(question)
            if isinstance(question, ListDedicated):
                was_read.set()
                answers.wait(WAIT_S)
            return answer

        monkeypatch.setattr(host, "ask", ask_slowly)
    reading = asyncio.create_task(cluster.placer.dedicated._list.read(cluster.now_s))
    await asyncio.to_thread(was_read.wait, WAIT_S)
    try:
        assert await cluster.placer.dedicated.release(DID) is Placed.DONE
    finally:
        answers.set()
        await reading
    await cluster.look(0)
    assert await own(cluster) == {}
    assert await serves(cluster)


async def test_the_list_is_read_again_after_a_change(cluster: LocalCluster) -> None:
    assert await dedicate(cluster) is Placed.DONE
    known = cluster.placer.dedicated._list
    known.known = {}
    await known.read(cluster.now_s)
    assert list(known.known) == [DID]
    assert not known.is_due(cluster.now_s)
