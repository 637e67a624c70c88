"""What real wallets do with a mediator, each scenario with agents and a mediator of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tests.interop.acapy import WALLET, AcaPyAgent
from tests.interop.mediators import Mediator, Poste
from tests.interop.recording_proxy import RecordingProxy
from tests.interop.wallets import Handshake, StepFailed, Wallet, require, service_of
from tests.interop.webhooks import Webhooks

MESSAGES: Final = 100
RETURN_S_MAX: Final = 90.0
_QUIET_S: Final = 3.0

NewMediator: TypeAlias = Callable[[Path], Mediator]


@dataclass(frozen=True, slots=True)
class Stage:
    """What every scenario is played with.

    Attributes:
        program: ``aca-py``.
        home: A new directory for all files of one scenario.
        handshake: How every two of them connect.
        mediator: The mediator, which runs.
        webhooks: Where the agents report what they received.
    """

    program: Path
    home: Path
    handshake: Handshake
    mediator: Mediator
    webhooks: Webhooks

    @asynccontextmanager
    async def wallet(self, name: str, proxy: RecordingProxy | None = None) -> AsyncIterator[Wallet]:
        """A wallet whose agent runs, behind a proxy or on its own."""
        agent = AcaPyAgent(
            self.program,
            self.home,
            name,
            flags=WALLET,
            webhook_url=self.webhooks.url(name),
            endpoint=proxy.url if proxy else "",
        )
        if proxy:
            proxy.before(agent.port)
        async with agent:
            yield Wallet(agent, self.webhooks, self.handshake)


@dataclass(frozen=True, slots=True)
class Acquainted:
    """Two wallets that are connected through the mediator, and their ids of the connection."""

    alice: Wallet
    bob: Wallet
    at_alice: str
    at_bob: str


async def acquaint(stage: Stage, alice: Wallet, bob: Wallet) -> Acquainted:
    """Bob enrols with the mediator and invites Alice, who reaches him through it alone.

    Raises:
        StepFailed: they did not come together, or Bob's invitation goes past the mediator.
    """
    offered = await stage.mediator.invitation(stage.handshake)
    await bob.enrol(offered)
    at_bob, invitation = await bob.invite()
    if service_of(invitation)["serviceEndpoint"] != service_of(offered)["serviceEndpoint"]:
        raise StepFailed("bob's invitation goes past the mediator")
    at_alice = await alice.accept(invitation)
    await bob.connected(at_bob)
    return Acquainted(alice, bob, at_alice, at_bob)


Scenario: TypeAlias = Callable[[Stage], Awaitable[str]]
"""Played to its end it returns its figures."""


async def one_mediated(stage: Stage) -> str:
    """Bob is behind the mediator, Alice is not; they write to each other."""
    async with stage.wallet("bob") as bob, stage.wallet("alice") as alice:
        await _write_to_each_other(await acquaint(stage, alice, bob))
    return "a message each way"


async def both_mediated(stage: Stage) -> str:
    """Both are behind the mediator; they write to each other."""
    async with stage.wallet("bob") as bob, stage.wallet("alice") as alice:
        await alice.enrol(await stage.mediator.invitation(stage.handshake))
        await _write_to_each_other(await acquaint(stage, alice, bob))
    return "a message each way"


async def away_while_killed(stage: Stage) -> str:
    """Bob is away, Alice writes, Poste is killed and starts again, Bob comes back.

    He receives everything once, and Poste hands it over in the order in which it took it.
    """
    poste = stage.mediator
    assert isinstance(poste, Poste)
    texts = [f"message {number}" for number in range(1, MESSAGES + 1)]
    async with (
        RecordingProxy() as proxy,
        stage.wallet("alice") as alice,
        stage.wallet("bob", proxy) as bob,
    ):
        pair = await acquaint(stage, alice, bob)
        await _write_to_each_other(pair)
        await proxy.close()
        await bob.agent.stop()
        before, started = poste.position(), time.monotonic()
        await alice.send(pair.at_alice, texts)
        sent = time.monotonic()
        await poste.kill_and_restart()
        restarted = time.monotonic()
        queued, handed_over = poste.queued(after=before), len(proxy.taken)
        require(len(set(queued)) == MESSAGES, f"the log holds {len(queued)} messages")
        await bob.agent.start()
        await proxy.open()
        returned = time.monotonic()
        await bob.receives(texts, RETURN_S_MAX)
        received = time.monotonic()
        await asyncio.sleep(_QUIET_S)  # in which a message that goes out twice would come
        _require_each_once(bob.received(), texts)
        known = set(queued)
        in_order = [taken for taken in proxy.taken[handed_over:] if taken in known]
        require(in_order == queued, "handed over in another order than queued, or twice")
        require(not poste.waiting(), f"{poste.waiting()} messages are still queued")
    return (
        f"{MESSAGES} taken in {sent - started:.1f} s, killed and ready again in "
        f"{restarted - sent:.1f} s, received {received - returned:.1f} s after the return"
    )


SCENARIOS: Final[dict[str, Scenario]] = {
    "one wallet behind the mediator": one_mediated,
    "both wallets behind the mediator": both_mediated,
}
"""What any mediator has to do, by what it shows."""
DURABLE: Final[dict[str, Scenario]] = {
    f"{MESSAGES} messages for an absent wallet, kill -9": away_while_killed,
}
"""What Poste has to do besides."""


@asynccontextmanager
async def staged(
    program: Path, home: Path, handshake: Handshake, mediator: NewMediator
) -> AsyncIterator[Stage]:
    """A stage with a new mediator; nothing is left running behind it."""
    async with AsyncExitStack() as stack:
        webhooks = await stack.enter_async_context(Webhooks())
        running = await stack.enter_async_context(mediator(home))
        yield Stage(program, home, handshake, running, webhooks)


async def _write_to_each_other(pair: Acquainted) -> None:
    await pair.alice.send(pair.at_alice, ["hello, Bob"])
    await pair.bob.receives(["hello, Bob"])
    await pair.bob.send(pair.at_bob, ["hello, Alice"])
    await pair.alice.receives(["hello, Alice"])


def _require_each_once(received: list[str], texts: list[str]) -> None:
    twice = [text for text in texts if received.count(text) > 1]
    require(not twice, f"{len(twice)} messages came more than once")
