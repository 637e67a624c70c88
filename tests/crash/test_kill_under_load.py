"""Whatever is killed when, nothing acknowledged is lost and nothing is done twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.history import History
from tests.crash.kill_under_load import kill_under_load

pytestmark = [pytest.mark.crash, pytest.mark.cluster, pytest.mark.timeout(600)]


def test_nothing_acknowledged_is_lost_whatever_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = kill_under_load(tmp_path / "data", kills=20)
    with capsys.disabled():
        print(f"\nSQLite: {outcome}")  # noqa: T201 - the figures are the point
    assert outcome.violations == []
    assert sum(outcome.kills.values()) == 20
    assert outcome.accepted >= 20 * 100
    assert outcome.unknown > 0
    assert outcome.replayed > 0


@pytest.mark.postgres
def test_nothing_acknowledged_is_lost_on_postgresql(
    tmp_path: Path, postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = kill_under_load(tmp_path / "data", kills=6, log=postgres_url)
    with capsys.disabled():
        print(f"\nPostgreSQL: {outcome}")  # noqa: T201 - the figures are the point
    assert outcome.violations == []
    assert outcome.accepted >= 6 * 100


def history() -> History:
    return History(
        sent={"1 a": b"", "2 b": b"", "3 c": b""},
        accepted={"id-1": "1 a", "id-2": "2 b"},
        unknown={"3 c"},
        delivered={"id-1": "1 a", "id-2": "2 b"},
    )


def test_the_check_accepts_a_history_that_holds() -> None:
    assert history().check() == []
    unknown_but_there = history()
    unknown_but_there.delivered["id-3"] = "3 c"
    assert unknown_but_there.check() == []


def test_the_check_finds_each_kind_of_planted_fault() -> None:
    lost = history()
    del lost.delivered["id-2"]
    assert lost.check() == ["lost: 2, acknowledged as id-2"]
    doubled = history()
    doubled.delivered["id-9"] = "1 a"
    assert doubled.check() == ["duplicated: 1"]
    invented = history()
    invented.delivered["id-9"] = "9 z"
    assert "invented: 9 z" in invented.check()
    undone = history()
    undone.saw_page({"id-1"}, [("id-1", "1 a")])
    assert undone.check() == ["id-1 came back after its removal"]
    changed = history()
    changed.saw_page(set(), [("id-1", "1 A")])
    assert "id-1 changed its bytes" in changed.check()
    turned = history()
    turned.saw_page(set(), [("id-2", "2 b"), ("id-1", "1 a")])
    assert turned.check() == ["out of order: [2, 1]"]
