"""A request that ends at any of its awaits holds nothing from then on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.cut_off import cut_off
from tests.unit.didcomm.queue_holder import ALICE, Holder, running_holder

DELAYED: dict[str, Any] = {"~timing": {"delay_milli": 100}}


@pytest.mark.parametrize(
    ("kind", "members", "awaits_min"),
    [
        ("messagepickup/1.0/batch-pickup", {"batch_size": 2, **DELAYED}, 4),
        ("messagepickup/1.0/noop", DELAYED, 4),
        ("messagepickup/1.0/batch-pickup", {"batch_size": 2}, 1),
        ("messagepickup/2.0/delivery-request", {"limit": 2}, 1),
        ("queue/1.0/fetch-request", {"message_count_limit": 2}, 1),
    ],
)
async def test_a_request_for_messages_that_is_cut_off_at_an_await_gives_its_places_back(
    tmp_path: Path, kind: str, members: dict[str, Any], awaits_min: int
) -> None:
    async with running_holder(tmp_path, didcomm={"waiters_max": 4}) as holder, asyncio.timeout(30):
        await holder.connect(ALICE)
        at = 1
        while await cut_off(holder.outcome(ALICE, kind, **members), at):
            at += 1
            await over(holder)
            assert places(holder) == (4, 0, 0, 0)
        await over(holder)
        assert places(holder) == (4, 0, 0, 0)
        assert at > awaits_min


async def over(holder: Holder) -> None:
    """Return when the session of a request that was cut off has ended at its host."""
    await asyncio.sleep(0)
    await holder.hub.session_ended(ALICE.did)
    await holder.gateway.drained()


def places(holder: Holder) -> tuple[int, int, int, int]:
    """Free places of waiters, and those that wait: all, subscribers, and identities at hosts."""
    slots, hosts = holder.waiting._slots, holder.hosts.running.values()
    listening = sum(len(host._host.registry.sessions) for host in hosts)
    return slots.free, slots._held.total(), len(holder.hub), listening
