"""Processes are killed while wallets of every generation pick up: every promise of theirs holds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.cluster.server import Server
from tests.crash.conftest import Report
from tests.crash.wallets_under_kills import SETTINGS, run

pytestmark = [pytest.mark.crash, pytest.mark.cluster]
KILLS = int(os.environ.get("KILLS", "5"))
"""``python -m tests.crash.wallets_under_kills`` runs for longer."""
SEED = int(os.environ.get("SEED", "1"))


@pytest.mark.timeout(300 + 30 * KILLS)
async def test_no_kill_costs_a_wallet_a_message_a_key_or_a_rule(
    tmp_path: Path, report: Report
) -> None:
    kills = max(3, KILLS // 2)
    with Server(tmp_path / "data", **SETTINGS) as server:
        outcomes = await run(server, kills, SEED)
    report(str(outcomes))
    assert outcomes.is_clean, str(outcomes)
    assert outcomes.accepted >= 30 * kills


@pytest.mark.postgres
@pytest.mark.timeout(300 + 30 * KILLS)
async def test_no_kill_costs_a_wallet_anything_with_two_hosts_and_two_edges_on_postgres(
    tmp_path: Path, postgres_url: str, report: Report
) -> None:
    settings = SETTINGS | {"log": postgres_url, "hosts": "2", "edges": "2"}
    with Server(tmp_path / "data", **settings) as server:
        outcomes = await run(server, max(3, KILLS // 6), SEED)
    report(str(outcomes))
    assert outcomes.is_clean, str(outcomes)
