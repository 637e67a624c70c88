"""The benchmarks of clusters, a little of each: they run to their end and lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import psycopg
import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]
CLEAN = {"lost": 0, "duplicated": 0, "unexpected": 0}


def benched(*words: str) -> dict[str, dict[str, Any]]:
    code = "from http_edge.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", *words, "--quick", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["machine"]["cores"] > 0
    return {line["name"]: line for line in report["measurements"]}


def test_shards_are_moved_under_load_and_two_nodes_are_compared_with_one() -> None:
    lines = benched("cluster", "--moves=20")
    for protocol in ("TWO_WAY_PRIVATE", "forwards"):
        figures = lines[f"{protocol}, two nodes"]["figures"]
        assert figures["ratio"] > 0
        assert {"edges", "hosts", "serve", "ray", "database"} <= {
            name.removesuffix("_cpu_s_per_1000") for name in figures
        }
    moved = lines["commands during moves"]["figures"]
    assert (moved["moves"], moved["moves_not_done"], moved["not_accepted"]) == (20, 0, 0)
    assert moved.items() >= CLEAN.items()


@pytest.mark.parametrize("which", ["cluster", "failover"])
def test_a_database_with_tables_is_refused(postgres_url: str, which: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE somebody_elses (a int)")
    code = "from http_edge.cli.main import main; main()"
    command = [sys.executable, "-c", code, "bench", which, f"--log={postgres_url}"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "not empty" in ended.stderr
    assert "Traceback" not in ended.stderr
