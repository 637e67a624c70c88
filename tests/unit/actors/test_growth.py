"""What a log takes is known without reading it, and so is how much it grows."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core.limits import HostLimits, RetentionPace
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.measures import Growth, LogWatch
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import DueIdentity, EventLog, StorageFigures
from tests.unit.actors.given import HandClock

_FIGURES = StorageFigures(
    facts_bytes=1, contents_bytes=1, read_models_bytes=1, wal_bytes=1, free_bytes=1, used_bytes=4
)
HOUR_MS = 3_600_000


def test_growth_is_that_of_the_last_day(
    log: EventLog, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = [1_000]
    monkeypatch.setattr(
        log, "storage", lambda: msgspec.structs.replace(_FIGURES, used_bytes=used[0])
    )
    growth = Growth(log, clock)
    growth.look()
    clock.now_ms += 599_999
    growth.look()
    assert growth.bytes_per_day is None
    clock.now_ms += 1
    growth.look()  # less than a minute after the last
    assert growth.bytes_per_day is None
    for _ in range(48):
        clock.now_ms += HOUR_MS
        used[0] += 10
        growth.look()
    assert growth.bytes_per_day == pytest.approx(240)
    for _ in range(24):
        clock.now_ms += HOUR_MS
        used[0] -= 5
        growth.look()
    assert growth.bytes_per_day == pytest.approx(-120)


def test_what_is_due_is_found_although_the_size_of_the_log_cannot_be_measured(
    log: EventLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failed, found = threading.Event(), threading.Event()
    find = log.due_identities

    def fail() -> StorageFigures:
        failed.set()
        raise LogUnavailable("no answer in time")

    def due(*said: Any, **how: Any) -> Sequence[DueIdentity]:
        if failed.is_set():
            found.set()
        return find(*said, **how)

    monkeypatch.setattr(log, "storage", fail)
    monkeypatch.setattr(log, "due_identities", due)
    limits = HostLimits(retention=RetentionPace(look_s=0.01))
    options = HostOptions("host-0", "", ["shard-0"], limits, shards=1)
    host = IdentityHost(options, lambda *_: None, log=log)
    try:
        assert found.wait(10)
        assert host.stats().growth_bytes_per_day is None
        said = "the size of the log is not known: LogUnavailable: no answer in time"
        assert said in caplog.messages
    finally:
        host.stop()


def test_a_host_answers_although_the_wal_cannot_be_looked_at(
    log: EventLog, clock: HandClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = HostOptions("host-0", "", ["shard-0"], HostLimits())
    host = IdentityHost(options, lambda *_: None, log=log)
    watch = LogWatch(log)
    wal = tmp_path / "log.db-wal"
    wal.rename(tmp_path / "moved")
    wal.symlink_to(wal)  # open connections have the file still
    try:
        Growth(log, clock).look()
        assert watch.storage(30) is None
        assert host.stats().storage is None
    finally:
        watch.close()
        host.stop()
    (said,) = [line for line in caplog.messages if line.startswith("the size of the log")]
    assert said.endswith("log.db-wal cannot be looked at: Too many levels of symbolic links")
