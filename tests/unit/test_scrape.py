"""Asking the processes of a mediator: once in a while, and none of them holds up the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from actors.host_report import HostReport
from actors.host_stats import HostStats
from actors.measures import HostMeasures, process_use
from eventstore.log import LogFigures
from http_edge.config import Settings
from http_edge.config_export import Export
from http_edge.export_status import Reporter
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


async def test_the_export_of_each_database_is_behind_its_own_log(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        log="postgresql://one/a postgresql://one/b",
        export=Export(to=str(tmp_path / "export")),
    )
    for number in (0, 1):
        Reporter(tmp_path, lambda: 1_000, number).on_caught_up(40)

    def of_log(position: int) -> AskHost:
        async def told(_with_log: bool) -> bytes:
            log = LogFigures(
                log_position=position,
                identities=1,
                queue_messages=0,
                queue_bytes=0,
                queue_oldest_at_ms=None,
            )
            stats, measures = HostStats("host"), HostMeasures()
            report = HostReport(stats=stats, measures=measures, use=process_use(), log=log)
            return msgspec.msgpack.encode(report)

        return told

    hosts = {"host-0-0": of_log(47), "host-1-0": of_log(1_042)}
    seen = await Scrape(settings, hosts, {}, clock=lambda: 3_500).seen()
    assert seen.log is not None
    assert seen.log.log_position == 1_089
    behind = [(export["rows_behind"], export["caught_up_age_s"]) for export in seen.exports]
    assert behind == [(7, 2.5), (1_002, 2.5)]
