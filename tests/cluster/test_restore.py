"""``poste serve`` on what ``poste restore`` made of the export of a mediator that still runs."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from http_edge.cli.running_mediator import RunningMediator
from http_edge.clients.decentrl import MediatorClient
from http_edge.settings.settings import Settings
from tests.cluster.accounts import (
    befriend,
    client,
    message,
    newcomer,
    post,
    until,
    waiting_payloads,
)
from tests.cluster.commands import poste
from tests.cluster.server import MEDIATOR_DID, Server

pytestmark = pytest.mark.cluster


async def _exported(server: Server, *, has_fault: bool) -> dict[str, Any] | None:
    """What the status says of the export, if it has a fault or has caught up."""
    settings = Settings(data_dir=server.data_dir)
    answer = await asyncio.to_thread(RunningMediator(settings).ask, "GET", "/status")
    status: dict[str, Any] = answer["export"]
    if has_fault:
        return status if status["fault_age_s"] is not None else None
    return status if status["caught_up_age_s"] is not None and not status["fault"] else None


async def test_what_was_queued_before_is_fetched_from_the_restored_mediator(
    server: Server, mediator: MediatorClient, tmp_path: Path
) -> None:
    writer, reader = await newcomer(mediator, "writer"), await newcomer(mediator, "reader")
    await befriend(writer, reader)
    sent = message(writer, reader, "written before")
    assert (await post(mediator, sent))[0] == 200
    poste("export", "--data-dir", server.data_dir, "--to", tmp_path / "export")
    keys = server.data_dir / "mediator-keys.json"
    new = tmp_path / "new"
    poste("restore", "--from", tmp_path / "export", "--to", new, "--keys", keys)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("a file where a folder should be")
    to = {"export.to": str(elsewhere), "export.retry_s_max": "1"}
    with Server(new, did=MEDIATOR_DID, **to) as restored:
        async with client(restored.url) as again:
            assert await waiting_payloads(again.as_(reader.identity)) == ["written before"]
            status, answer = await post(again, sent)
            assert (status, answer["code"]) == (401, "DUPLICATE_NONCE")
            # The export has a fault all the while, and no client notices.
            await post(again, message(writer, reader, "written after"))
            found = await waiting_payloads(again.as_(reader.identity))
            assert found == ["written before", "written after"]

            fault = await until(partial(_exported, restored, has_fault=True))
            assert fault is not None
            assert fault["fault"]
            elsewhere.unlink()
            exported = await until(partial(_exported, restored, has_fault=False))
            assert exported is not None
            assert exported["rows_behind"] == 0
