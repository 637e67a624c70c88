"""The order in which a socket in live mode gets what is fetched and what is pushed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest
from aiohttp import web

from actors.core.commands import DeliverMessages, QueueEnvelopes, StartLive
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, EnvelopeQueued, QueueState
from http_edge.didcomm.delivery import pump
from http_edge.didcomm.delivery.pump import Pump
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.envelopes.messages import NewMessage
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.listener.outgoing import Outgoing
from http_edge.listener.transfers import Cut, Pace, Transfers
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.requests import COMMAND, Agents, agents_of
from tests.unit.didcomm.v2_mediator import AGENT, ENVELOPES

SESSION: Final = "the session of a socket"
ACCOUNT: Final = agent_account(AGENT.public)


class Reader:
    """A client that is never cut off."""

    address = "203.0.113.1"
    leaving = Transfers(
        bytes_max=10_000, bytes_per_address_max=10_000, pace=Pace(1, 1, seconds_max=1)
    )

    def handled(self, size_bytes: int) -> None:
        raise AssertionError(size_bytes)

    def cut(self, cause: Cut) -> None:
        raise AssertionError(cause)


def pump_of(agents: Agents) -> Pump:
    return Pump(
        DidComm(),
        ENVELOPES,
        agents,
        ACCOUNT,
        session=SESSION,
        outgoing=Outgoing(web.WebSocketResponse(), peer=Reader(), bytes_max=10_000),
        new_id=lambda: "id",
    )


async def test_what_is_pushed_as_a_fetch_begins_follows_what_is_fetched(tmp_path: Path) -> None:
    sent: list[bytes] = []
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        wake = Wake()
        socket = pump_of(agents)

        def delivery(messages: Sequence[DeliveredMessage]) -> NewMessage:
            sent.extend(message.payload for message in messages)
            return NewMessage("messagepickup/2.0/delivery", {})

        await agents.connect(AGENT.public)
        await agents.ask(ACCOUNT.did, StartLive("edge-0", SESSION), COMMAND, QueueState)
        await agents.ask(ACCOUNT.did, QueueEnvelopes("", [b"older"]), COMMAND, EnvelopeQueued)
        fetch = agents.hosts.hold(SESSION.encode())
        live = asyncio.create_task(socket.live(wake, 0, ACCOUNT, delivery))
        socket.push(DeliveredMessage("newer", "key", b"newer", 2))
        await fetch.arrived.wait()
        assert sent == []
        wake.close(0)
        fetch.released.set()
        await live
    assert sent == [b"older", b"newer"]


@pytest.mark.parametrize("is_live", [True, False])
async def test_pushes_go_on_after_too_many_large_answers_to_their_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_live: bool
) -> None:
    monkeypatch.setattr(pump, "_RETRY_S", 0.001)
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        wake, pushes = Wake(), pump_of(agents)
        agents.refused[DeliverMessages] = Refusal.RATE_LIMITED
        pushing = asyncio.create_task(
            pushes.live(wake, 0, ACCOUNT, lambda _: NewMessage("messagepickup/2.0/delivery", {}))
            if is_live
            else pushes.implicit(wake, asyncio.Event().wait)
        )
        again = asyncio.create_task(agents.answered(DeliverMessages, 2))
        await asyncio.wait([pushing, again], return_when=asyncio.FIRST_COMPLETED)
        assert not pushing.done()
        wake.close(0)
        await asyncio.gather(again, pushing)
