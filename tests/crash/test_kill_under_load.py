"""Processes are killed under load: nothing that was acknowledged is lost, doubled or undone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.server import Server
from tests.crash.conftest import Report
from tests.crash.kill_under_load import run

pytestmark = [pytest.mark.crash, pytest.mark.cluster]
KILLS = int(os.environ.get("KILLS", "5"))
"""``python -m tests.crash.kill_under_load`` runs for longer."""
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.timeout(300 + 30 * KILLS)
async def test_no_kill_costs_an_acknowledged_message(tmp_path: Path, report: Report) -> None:
    with Server(tmp_path / "data") as server:
        outcomes = await run(server, KILLS, SEED)
    report(str(outcomes))
    assert outcomes.is_clean, outcomes
    assert outcomes.accepted >= 50 * KILLS


@pytest.mark.postgres
async def test_no_kill_costs_an_acknowledged_message_with_two_hosts_on_postgres(
    tmp_path: Path, postgres_url: str, report: Report
) -> None:
    settings = {"log": postgres_url, "hosts": "2", "edges": "2"}
    with Server(tmp_path / "data", **settings) as server:
        outcomes = await run(server, max(3, KILLS // 3), SEED)
    report(str(outcomes))
    assert outcomes.is_clean, outcomes
