from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core.commands import DeliverMessages, QueryQueue
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.protocols import trust_ping
from http_edge.didcomm.protocols.protocol import NOTHING, Outcome, PeerState
from tests.unit.didcomm.requests import (
    NEW,
    OLD,
    agents_of,
    answer,
    message,
    outcome,
    request_of,
)
from tests.unit.didcomm.test_pump import pump_of
from tests.unit.didcomm.v2_mediator import AGENT

FAMILY, FAMILY_2 = trust_ping.families()


@pytest.mark.parametrize("prefix", [NEW, OLD])
@pytest.mark.parametrize(
    "members",
    [
        {},
        {"response_requested": True},
        {"response_requested": None},
        {"response_requested": "false"},
        {"response_requested": 0},
        {"response_resquested": False},
    ],
)
async def test_a_ping_is_answered_in_its_thread_and_spelling(
    prefix: str, members: dict[str, Any]
) -> None:
    ping = message("trust_ping/1.0/ping", prefix, comment="Hi", **members)
    assert await answer(FAMILY, ping) == {
        "@type": prefix + "trust_ping/1.0/ping_response",
        "@id": "reply-1",
        "~thread": {"thid": "message-1"},
    }


async def test_a_ping_that_wants_no_response_may_bring_a_waiting_message() -> None:
    ping = message("trust_ping/1.0/ping", response_requested=False)
    assert await outcome(FAMILY, ping) == Outcome(implicit=True)


async def test_the_answer_to_a_ping_may_wait_for_its_sender() -> None:
    assert (await outcome(FAMILY, message("trust_ping/1.0/ping"))).may_wait


async def test_a_response_is_not_answered() -> None:
    assert await outcome(FAMILY, message("trust_ping/1.0/ping_response")) == NOTHING


async def test_version_2_differs_in_its_spelling_alone() -> None:
    ping = message("trust-ping/2.0/ping")
    assert await answer(FAMILY_2, ping) == {
        "@type": NEW + "trust-ping/2.0/ping-response",
        "@id": "reply-1",
        "~thread": {"thid": "message-1"},
    }
    silent = message("trust-ping/2.0/ping", response_requested=False)
    assert await outcome(FAMILY_2, silent) == Outcome(implicit=True)
    assert await outcome(FAMILY_2, message("trust-ping/2.0/ping-response")) == NOTHING


@pytest.mark.parametrize("is_silent", [True, False])
async def test_a_ping_asks_about_its_queue_only_if_messages_may_begin_to_follow(
    tmp_path: Path, *, is_silent: bool
) -> None:
    async with agents_of(tmp_path) as agents:
        await agents.connect(AGENT.public)
        pump = pump_of(agents)
        http = PeerState(routable=True, open_route=True)
        socket = PeerState(routable=True, open_route=True, pump=pump)
        ping = message("trust_ping/1.0/ping", response_requested=not is_silent)

        async def asks(peer: PeerState) -> bool:
            agents.seen.clear()
            request = msgspec.structs.replace(request_of(ping, identities=agents), peer=peer)
            await FAMILY.handlers["ping"](request)
            return QueryQueue() in agents.seen

        async def all_arrived(_: Sequence[str]) -> bool:
            return True

        assert await asks(http) is is_silent
        assert not await asks(PeerState(routable=True))
        assert await asks(socket)
        assert not await asks(msgspec.structs.replace(socket, live=True))
        wake = Wake()
        implicit = asyncio.create_task(pump.implicit(wake, all_arrived))
        await agents.answered(DeliverMessages)
        assert not await asks(socket)
        wake.close(0)
        await implicit
