"""What a log takes is known without reading it, and so is how much it grows."""

from __future__ import annotations

import msgspec
import pytest

from actors.host.growth import Growth
from eventstore.log.event_log import EventLog, StorageFigures
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
