"""Asking the processes of a mediator: once in a while, and none of them holds up the others."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from actors.host import HostStats
from actors.host_report import HostReport
from actors.measures import HostMeasures, process_use
from http_edge.config import Settings
from http_edge.scrape import AskHost, Scrape


class Asked:
    """A host that tells something, unless it is made to fail, and is counted."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.with_log: list[bool] = []

    async def __call__(self, with_log: bool) -> bytes:
        self.with_log.append(with_log)
        if self.fails:
            raise RuntimeError("whatever Ray says")
        stats = HostStats("host-0")
        return msgspec.msgpack.encode(
            HostReport(stats=stats, measures=HostMeasures(), use=process_use())
        )


def scrape(*hosts: AskHost) -> Scrape:
    named = {f"host-{index}": host for index, host in enumerate(hosts)}
    return Scrape(Settings(), named, {}, clock=lambda: 0)


async def test_who_asks_often_makes_nobody_work_more() -> None:
    host = Asked()
    asking = scrape(host)
    seen = await asyncio.gather(*[asking.seen() for _ in range(20)])
    assert host.with_log == [True]
    assert all(one is seen[0] for one in seen)


async def test_a_process_that_fails_is_none_and_another_is_asked_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("http_edge.scrape._FRESH_S", 0.0)
    failing, working = Asked(fails=True), Asked()
    asking = scrape(failing, working)
    first = await asking.seen()
    assert [report is None for report in first.hosts.values()] == [True, False]
    await asking.seen()
    assert failing.with_log == [True, False]
    assert working.with_log == [False, True]
