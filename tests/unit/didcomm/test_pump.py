"""The order in which a socket in live mode gets what is fetched and what is pushed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final, TypeVar, cast

from aiohttp import web

from actors.core.commands import Command
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueuePolicy, QueueState, Reply
from http_edge.didcomm.delivery.pump import Pump
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.envelopes.messages import NewMessage
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.identities import Identities
from http_edge.listener.outgoing import Outgoing
from http_edge.listener.transfers import Cut, Pace, Transfers
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.v2_mediator import AGENT, ENVELOPES

OLDER: Final = DeliveredMessage("older", "key", b"{}", 1)
NEWER: Final = DeliveredMessage("newer", "key", b"{}", 2)
EMPTY: Final = QueueState(
    0, 0, 0, 0, 0, 0, 0, 0, QueuePolicy(True, 0, 0, 0, 0), live=True, version=2
)
_R = TypeVar("_R", bound=Reply)


class Held(Identities):
    """A queue with one message, which is handed out when the test says so."""

    def __init__(self) -> None:
        self.door = asyncio.Event()

    async def ask(  # noqa: PLR0913 - as it is
        self,
        target: str,
        command: Command,
        key: bytes,
        reply: type[_R],
        *,
        can_linger: bool = False,
        by_owner: bool = False,
        by_mediator: bool = False,
    ) -> _R | Refusal:
        await self.door.wait()
        return cast("_R", Delivery([OLDER], EMPTY))


class Reader:
    """A client that is never cut off."""

    address = "203.0.113.1"
    leaving = Transfers(
        bytes_max=10_000, bytes_per_address_max=10_000, pace=Pace(1, 1, seconds_max=1)
    )

    def cut(self, cause: Cut) -> None:
        raise AssertionError(cause)


async def test_what_is_pushed_as_a_fetch_begins_follows_what_is_fetched() -> None:
    sent: list[list[DeliveredMessage]] = []
    queue, wake = Held(), Wake()
    pump = Pump(
        DidComm(),
        ENVELOPES,
        queue,
        agent_account(AGENT.public),
        session="socket",
        outgoing=Outgoing(web.WebSocketResponse(), peer=Reader(), bytes_max=10_000),
        new_id=lambda: "id",
    )

    def delivery(messages: Sequence[DeliveredMessage]) -> NewMessage:
        sent.append(list(messages))
        return NewMessage("messagepickup/2.0/delivery", {})

    live = asyncio.create_task(pump.live(wake, 0, agent_account(AGENT.public), delivery))
    pump.push(NEWER)
    handed_out = asyncio.Event()
    asyncio.get_running_loop().call_soon(handed_out.set)
    await handed_out.wait()
    assert sent == []
    wake.close(0)
    queue.door.set()
    await live
    assert sent == [[OLDER], [NEWER]]
