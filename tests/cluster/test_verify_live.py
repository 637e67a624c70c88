"""``poste verify --live`` beside a real mediator that goes on serving."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

import pytest

from http_edge.clients.decentrl import Account
from http_edge.server.exits import Exit
from tests.cluster.accounts import befriend, client, message, newcomer
from tests.cluster.server import Server, own_environment

pytestmark = [pytest.mark.cluster, pytest.mark.spark]
_PAUSE_S = 0.2
"""Between two messages: enough happens while memory is dumped and compared, and it costs little."""


async def verify(server: Server, export: Path, *more: str) -> tuple[int, Any, str]:
    """Exit code, JSON and stderr of ``poste verify --live``."""
    code = "from http_edge.cli.main import main; main()"
    options = ["--live", "--json", "--master", "local[1]", "--memory-mib", "512"]
    places = ["--data-dir", str(server.data_dir), "--from", str(export)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, "verify", *options, *places, *more,
        stdout=PIPE, stderr=PIPE, env=own_environment(),
    )  # fmt: skip
    out, err = await process.communicate()
    return process.returncode or 0, json.loads(out or b"null"), err.decode()


async def keep_writing(writer: Account, reader: Account, sent: list[str]) -> None:
    """Messages that come, and half of them that go, until it is cancelled."""
    while True:
        await writer.mediator.transport.post(message(writer, reader, f"number {len(sent)}"))
        sent.append(writer.identity.did)
        if len(sent) % 10 == 0:
            page = await reader.query_pending_events(page_size=5)
            await reader.acknowledge_pending_events([event.id for event in page.items])
        await asyncio.sleep(_PAUSE_S)


async def test_the_live_state_is_the_rebuilt_one_under_load_and_damage_is_found(
    tmp_path: Path,
) -> None:
    export = tmp_path / "export"
    settings = {"export.to": str(export), "export.lag_s_max": "1"}
    settings["limits.identity_idle_s"] = "0.5"  # some are in memory, some are not
    with Server(tmp_path / "data", **settings) as server:
        async with client(server.url) as mediator:
            writer, reader = [await newcomer(mediator, alias) for alias in ("w", "r")]
            idle = [await newcomer(mediator, f"idle-{n}") for n in range(3)]
            await befriend(writer, reader)
            sent: list[str] = []
            writing = asyncio.create_task(keep_writing(writer, reader, sent))
            try:
                code, said, err = await verify(server, export)
            finally:
                writing.cancel()
        assert (code, err) == (Exit.OK, ""), (said, err)
        assert said["findings"] == []
        compared = said["live"]
        assert compared["differences"] == 0
        assert compared["identities"] >= len(idle) + 2
        rows = {table["name"]: table["rows"] for table in compared["tables"]}
        assert min(rows[name] for name in ("registrations", "contracts", "queues", "nonces")) > 0
        assert len(sent) > 10
        first = min(export.rglob("*.parquet"))
        first.write_bytes(first.read_bytes()[::-1])
        code, said, _ = await verify(server, export)
        assert (code, said["live"]) == (Exit.FINDING, None)
        assert first.name in str(said["findings"])
