"""A round of a background task that hangs is shown, its first one and any later one."""

from __future__ import annotations

import itertools
import threading
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry

from actors.core.limits import HostLimits, RetentionPace
from actors.host.host import Host
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.measures import HostReport, UnderWay, families
from eventstore.log.event_log import EventLog

METRIC = "poste_host_round_seconds"
WAIT_S = 30


def _age_s(host: IdentityHost, task: str) -> float:
    report = msgspec.msgpack.decode(host.report(with_log=False), type=HostReport)
    (family,) = [each for each in report.families if each.name == METRIC]
    return {labels["task"]: value for _, labels, value in family.samples}[task]


def test_a_round_has_an_age_while_it_is_under_way_and_none_after_it_has_failed() -> None:
    registry, now_s = CollectorRegistry(), [100.0]
    tasks = ("expiry", "snapshots")
    rounds = UnderWay(METRIC, "of a round", tasks, registry, monotonic=lambda: now_s[0])

    def shown() -> list[float]:
        return [value for family in families(registry) for _, _, value in family.samples]

    assert shown() == [0, 0]
    with suppress(OSError), rounds.round("snapshots"):
        now_s[0] = 107.0
        assert shown() == [0, 7]
        raise OSError
    assert shown() == [0, 0]


@pytest.mark.parametrize("hung", [1, 3])
@pytest.mark.parametrize(
    ("task", "work"), [("expiry", "due_identities"), ("snapshots", "save_snapshots")]
)
def test_a_host_shows_a_task_that_hangs_in_its_first_round_or_a_later_one(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, task: str, work: str, hung: int
) -> None:
    hangs, goes_on, calls = threading.Event(), threading.Event(), itertools.count(1)

    def hang(*_said: Any, **_how: Any) -> list[Any]:
        if next(calls) >= hung:
            hangs.set()
            goes_on.wait(WAIT_S)
        return []

    monkeypatch.setattr(log, work, hang)
    monkeypatch.setattr(Host, "run_housekeeping", lambda _self: ["a snapshot that is due"])
    limits = HostLimits(retention=RetentionPace(look_s=0.001, pause_s=0.001))
    options = HostOptions("host-0", "", ["shard-0"], limits, shards=1)
    host = IdentityHost(options, lambda *_: None, log=log)
    try:
        for _ in range(hung):
            host.stats()  # the writer has due snapshots saved after it
        assert hangs.wait(WAIT_S)
        assert 0 < _age_s(host, task) < WAIT_S
    finally:
        goes_on.set()
        host.stop()
