"""The order in which a socket in live mode gets what is fetched and what is pushed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path
from sys import getrefcount
from typing import Final, cast

import pytest
from aiohttp import web
from typing_extensions import override

from actors.core.commands import DeliverMessages, QueueEnvelopes, StartLive
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, EnvelopeQueued, EnvelopesWaiting, QueueState
from http_edge.didcomm.delivery import pump
from http_edge.didcomm.delivery.pump import Pump
from http_edge.didcomm.delivery.waiting import Wake
from http_edge.didcomm.envelopes.messages import AgentAccount, NewMessage
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.protocols.pickup import FORM_2, FORM_3, PickupForm
from http_edge.listener.body_reads import in_reading_thread
from http_edge.listener.connection import Connection
from http_edge.listener.outgoing import Outgoing
from http_edge.listener.transfers import Cut, Pace, Transfers
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.requests import COMMAND, Agents, agents_of
from tests.unit.didcomm.v2_agent import recipient
from tests.unit.didcomm.v2_mediator import AGENT, ALICE, ENVELOPES, OWN, PEER4, unpacked

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


class Frames(Outgoing):
    """The sizes of the frames to a client, in order; none is written."""

    def __init__(self) -> None:
        peer = cast("Connection", Reader())
        super().__init__(web.WebSocketResponse(), peer=peer, bytes_max=10_000)
        self.sizes: list[int] = []
        self.second = asyncio.Event()

    @override
    def put(self, frame: bytes) -> None:
        self.sizes.append(len(frame))
        if len(self.sizes) == 2:
            self.second.set()


async def never_read(_: Sequence[str]) -> bool:
    return await asyncio.Event().wait()


def pump_of(agents: Agents, outgoing: Outgoing | None = None) -> Pump:
    return Pump(
        DidComm(),
        ENVELOPES,
        agents,
        ACCOUNT,
        session=SESSION,
        outgoing=outgoing or Frames(),
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


async def test_what_is_fetched_while_an_answer_hands_out_messages_overtakes_nothing_held_back(
    tmp_path: Path,
) -> None:
    sent: list[bytes] = []

    def delivery(messages: Sequence[DeliveredMessage]) -> NewMessage:
        sent.extend(message.payload for message in messages)
        return NewMessage("messagepickup/2.0/delivery", {})

    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        wake, socket = Wake(), pump_of(agents)
        await agents.connect(AGENT.public)
        await agents.ask(ACCOUNT.did, StartLive("edge-0", SESSION), COMMAND, QueueState)
        live = asyncio.create_task(socket.live(wake, 0, ACCOUNT, delivery))
        await agents.answered(DeliverMessages, 1)
        socket.hold()
        socket.push(DeliveredMessage("pushed", "key", b"pushed", 1))
        # Several copies at once are not pushed, but fetched.
        copies = QueueEnvelopes("", [b"one", b"two"])
        await agents.ask(ACCOUNT.did, copies, COMMAND, EnvelopeQueued)
        wake.notify(EnvelopesWaiting())
        fetched = asyncio.create_task(agents.answered(DeliverMessages, 2))
        await asyncio.wait([fetched], timeout=0.3)
        assert sent == []
        socket.let_go()
        await fetched
        wake.close(0)
        await live
    assert sent == [b"pushed", b"one", b"two"]


@pytest.mark.parametrize("is_live", [True, False])
async def test_what_is_fetched_to_be_pushed_is_sent_before_a_request_hands_out_later_messages(
    tmp_path: Path, *, is_live: bool
) -> None:
    def delivery(_: Sequence[DeliveredMessage]) -> NewMessage:
        return NewMessage("messagepickup/2.0/delivery", {})

    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        wake, frames = Wake(), Frames()
        socket = pump_of(agents, frames)
        await agents.connect(AGENT.public)
        await agents.ask(ACCOUNT.did, StartLive("edge-0", SESSION), COMMAND, QueueState)
        await agents.ask(ACCOUNT.did, QueueEnvelopes("", [b"earlier"]), COMMAND, EnvelopeQueued)
        fetch = agents.hosts.hold(SESSION.encode())
        pushing = asyncio.create_task(
            socket.live(wake, 0, ACCOUNT, delivery)
            if is_live
            else socket.implicit(wake, never_read)
        )
        await fetch.arrived.wait()
        may_hand_out = asyncio.create_task(socket.sent())
        await asyncio.wait([may_hand_out], timeout=0.3)
        assert not may_hand_out.done()
        fetch.released.set()
        await may_hand_out
        assert len(frames.sizes) == 1
        wake.close(0)
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)


async def test_a_live_mode_that_is_asked_for_again_waits_for_a_slow_reader_before_it_fetches(
    tmp_path: Path,
) -> None:
    """Each fetch may take half of what a socket holds for its reader before it is cut off."""
    is_slow, is_read = asyncio.Event(), asyncio.Event()

    class Slow(Frames):
        @override
        async def written(self) -> None:
            is_slow.set()
            await is_read.wait()

    def delivery(_: Sequence[DeliveredMessage]) -> NewMessage:
        return NewMessage("messagepickup/2.0/delivery", {})

    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        socket = pump_of(agents, Slow())
        await agents.connect(AGENT.public)
        await agents.ask(ACCOUNT.did, StartLive("edge-0", SESSION), COMMAND, QueueState)
        for is_again in (False, True):
            wake = Wake()
            live = asyncio.create_task(socket.live(wake, 0, ACCOUNT, delivery))
            if is_again:
                await is_slow.wait()
            assert agents.counts[DeliverMessages] == is_again
            is_read.set()
            await agents.answered(DeliverMessages, 1 + is_again)
            wake.close(0)
            await live
            is_slow.clear()
            is_read.clear()


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
            else pushes.implicit(wake, never_read)
        )
        again = asyncio.create_task(agents.answered(DeliverMessages, 2))
        await asyncio.wait([pushing, again], return_when=asyncio.FIRST_COMPLETED)
        assert not pushing.done()
        wake.close(0)
        await asyncio.gather(again, pushing)


class KeptFrames(Frames):
    """The frames themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[bytes] = []

    @override
    def put(self, frame: bytes) -> None:
        self.frames.append(frame)


def references(those: Sequence[object]) -> set[int]:
    """To each of these in a list."""
    return {getrefcount(one) for one in those}


@pytest.mark.parametrize("is_read", [True, False])
async def test_what_comes_implicitly_is_not_kept_once_it_is_sent(
    tmp_path: Path, *, is_read: bool
) -> None:
    """Its reader may never answer a ping, and its socket may be idle for days."""
    sent, frames, ids = asyncio.Event(), KeptFrames(), list[Sequence[str]]()

    async def waits() -> bool:
        sent.set()
        return is_read or await asyncio.Event().wait()

    def read(message_ids: Sequence[str]) -> Awaitable[bool]:
        ids.append(message_ids)
        return waits()

    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        wake = Wake()
        await agents.connect(AGENT.public)
        for _ in range(20):
            one = QueueEnvelopes("", [bytes(100)])
            await agents.ask(ACCOUNT.did, one, COMMAND, EnvelopeQueued)
        pushing = asyncio.create_task(pump_of(agents, frames).implicit(wake, read))
        await sent.wait()
        await agents.gateway.drained()
        await asyncio.sleep(0)
        assert ([len(each) for each in ids], len(frames.frames)) == ([20], 20)
        assert references(frames.frames) == references(ids) == references([[]])
        pushing.cancel()
        await asyncio.gather(pushing, return_exceptions=True)


NEWER: Final = unpacked(ALICE.pack(ALICE.plaintext(PEER4), recipient(OWN, OWN.peer2), PEER4)).sender
HALF: Final = bytes(300_000)


@pytest.mark.parametrize("is_fetched", [True, False])
@pytest.mark.parametrize(("account", "form"), [(ACCOUNT, FORM_2), (NEWER, FORM_3)])
async def test_the_event_loop_packs_no_large_push_and_nothing_overtakes_it(
    tmp_path: Path, account: AgentAccount, form: PickupForm, *, is_fetched: bool
) -> None:
    frames, held = Frames(), threading.Event()
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        wake, socket = Wake(), pump_of(agents, frames)
        await agents.connect(AGENT.public)
        await agents.ask(ACCOUNT.did, StartLive("edge-0", SESSION), COMMAND, QueueState)
        if is_fetched:
            waiting = QueueEnvelopes("", [HALF, HALF])
            await agents.ask(ACCOUNT.did, waiting, COMMAND, EnvelopeQueued)
        working = asyncio.create_task(in_reading_thread(held.wait))
        live = asyncio.create_task(socket.live(wake, 0, account, form.live_delivery))
        try:
            await agents.answered(DeliverMessages, 1)
            if not is_fetched:
                for half in ("first half", "second half"):
                    socket.push(DeliveredMessage(half, "key", HALF, 1))
                await asyncio.sleep(0)
            socket.push(DeliveredMessage("small", "key", b"small", 2))
            second = asyncio.create_task(frames.second.wait())
            assert not (await asyncio.wait([second], timeout=0.3))[0]
            assert frames.sizes == []
        finally:
            held.set()
        await second
        wake.close(0)
        await asyncio.gather(live, working)
    assert frames.sizes[0] > 2 * len(HALF) > frames.sizes[1]
