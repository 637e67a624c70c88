"""What the DIDComm benchmark does to a mediator, in small: everything queued is delivered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from http_edge.bench.envelopes import forwards, letters, routing_key_of
from http_edge.bench.live import at_a_pace, one_by_one
from http_edge.bench.mediator import Mailbox, mediator_at
from http_edge.bench.mediator import Mediator as Measured
from http_edge.bench.pickup import Way, drain
from http_edge.bench.registrations import register
from http_edge.bench.shots import fire
from http_edge.bench.subject import Costs
from http_edge.bench.target import Target
from http_edge.wallet import MediatorRefused
from tests.edge.mediator import HandClock, Mediator
from tests.edge.test_didcomm_walk import free_port

WALLETS = 3


class Beside(Measured):
    """A mediator in this process: asking it for its counters would wait for ourselves."""

    def costs(self) -> AbstractContextManager[Costs]:
        return nullcontext(Costs())


async def beside(mediator: Mediator) -> Measured:
    found = await mediator_at(Target.at(mediator.url()), None)
    return Beside(found.target, found.processes, found.invitation)


@pytest.fixture
async def measured(tmp_path: Path) -> AsyncIterator[Measured]:
    listen = f"127.0.0.1:{free_port()}"
    mediator = Mediator(tmp_path, HandClock(), listen=listen, public_url=f"http://{listen}")
    await mediator.start()
    try:
        yield await beside(mediator)
    finally:
        await mediator.stop()


async def registered(measured: Measured) -> list[Mailbox]:
    mailboxes, line = await register(measured, WALLETS)
    assert (line.count, len(mailboxes)) == (WALLETS, WALLETS)
    return mailboxes


async def test_registered_wallets_have_the_mediators_connection_and_key(
    measured: Measured,
) -> None:
    mailboxes = await registered(measured)
    assert {box.connection.mediator_key for box in mailboxes} == {measured.invitation.key}
    assert {routing_key_of(box) for box in mailboxes} == {measured.invitation.key}
    assert len({box.recipient.key.public for box in mailboxes}) == WALLETS


@pytest.mark.parametrize("way", ["HTTP", "WebSocket"])
@pytest.mark.parametrize("limit", [2, 100])
async def test_a_drain_takes_what_was_queued_and_leaves_nothing(
    measured: Measured, way: Way, limit: int
) -> None:
    mailboxes = await registered(measured)
    pool = forwards(letters(mailboxes, 7), routing_key_of(mailboxes[0]))
    shots = await fire(measured.target, pool, connections=2, seconds_max=30)
    assert shots.accepted == 7
    first = await drain(measured, mailboxes, limit=limit, way=way)
    again = await drain(measured, mailboxes, limit=limit, way=way)
    assert (first.figures["messages"], again.figures["messages"]) == (7, 0)
    assert first.count == (4 if limit == 2 else 3)  # deliveries: 3, 2 and 2 messages waited


async def test_live_deliveries_arrive_and_are_acknowledged(measured: Measured) -> None:
    mailboxes = await registered(measured)
    single = await one_by_one(measured, mailboxes[0], 3)
    assert (single.count, single.figures) == (3, {"unacknowledged": 0})
    paced = await at_a_pace(measured, mailboxes, count=9, per_s=300)
    assert (paced.count, paced.figures) == (9, {"missing": 0, "unacknowledged": 0})


async def test_a_mediator_that_invites_nobody_is_not_measured(tmp_path: Path) -> None:
    closed = Mediator(tmp_path, HandClock(), didcomm={"registration": "closed"})
    await closed.start()
    try:
        with pytest.raises(MediatorRefused, match="404"):
            await register(await beside(closed), 1)
    finally:
        await closed.stop()
