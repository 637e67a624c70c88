"""What Credo wallets do with Poste, by every strategy of pickup and through a failing network."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.interop.credo_wallet import CredoWallet, Strategy
from tests.interop.mediators import Poste
from tests.interop.parts import Credo
from tests.interop.tunnel import Tunnel
from tests.interop.wallets import Handshake, StepFailed

BURST: Final = 20
"""Messages for a wallet whose socket is gone."""
WAITING: Final = 50
"""Messages that wait for an absent wallet while the mediator is killed."""
RETURN_S_MAX: Final = 20.0
"""A lease takes 30 s: what comes in less has not waited for the end of one."""
_REMOVED_S_MAX: Final = 20.0
_QUIET_S: Final = 2.0
_POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Stage:
    """A mediator behind a tunnel, and Alice, who writes to every wallet of the scenarios."""

    version: Credo
    home: Path
    handshake: Handshake
    poste: Poste
    tunnel: Tunnel
    alice: CredoWallet


@dataclass(slots=True)
class _Talk:
    """What Alice writes to Bob, and what he has to have received."""

    alice: CredoWallet
    bob: CredoWallet
    connection: str
    sent: list[str] = field(default_factory=list)

    async def write(self, what: str, number: int) -> None:
        texts = [f"{what} {index}" for index in range(1, number + 1)]
        await self.alice.send(self.connection, texts)
        self.sent += texts

    async def all_arrived(self) -> float:
        """Wait until everything has come once and in order: the seconds that it took."""
        started = time.monotonic()
        await self.bob.receives(self.sent, RETURN_S_MAX)
        took_s = time.monotonic() - started
        await asyncio.sleep(_QUIET_S)  # in which a message that goes out twice would come
        await self.bob.receives(self.sent, 0)
        return took_s


@asynccontextmanager
async def staged(version: Credo, home: Path, handshake: Handshake) -> AsyncIterator[Stage]:
    """A stage with a new mediator; nothing is left running behind it."""
    async with (
        Tunnel() as tunnel,
        Poste(home, listen=tunnel.listen, public_url=tunnel.url) as poste,
        CredoWallet(version, home, "alice", Strategy.PICKUP_2) as alice,
    ):
        await alice.enrol(await poste.invitation_url(handshake))
        yield Stage(version, home, handshake, poste, tunnel, alice)


async def pick_up(stage: Stage, strategy: Strategy) -> str:
    """Bob receives each message once and in order, whatever happens to his network and to Poste.

    Raises:
        StepFailed: he does not.
    """
    name = f"bob-{strategy.value.lower()}"
    async with CredoWallet(stage.version, stage.home, name, strategy) as bob:
        await bob.enrol(await stage.poste.invitation_url(stage.handshake))
        there, here = await bob.meet(stage.alice, stage.handshake)
        talk = _Talk(stage.alice, bob, here)
        await talk.write("hello", 1)
        figures = [f"hello {await talk.all_arrived():.1f} s"]
        answered = [*stage.alice.received, f"hello from {name}"]
        await bob.send(there, answered[-1:])
        await stage.alice.receives(answered, RETURN_S_MAX)
        if strategy.has_socket:
            for fault in ("cut", "half-open"):
                with _without_sockets(stage.tunnel, fault):
                    await talk.write(fault, BURST)
                figures.append(f"{BURST} after {fault} {await talk.all_arrived():.1f} s")
        await bob.stop()
        await talk.write("waiting", WAITING)
        await stage.poste.kill_and_restart()
        await bob.start()
        figures.append(f"{WAITING} after kill -9 {await talk.all_arrived():.1f} s")
        await _nothing_left(stage.poste)
    return ", ".join(figures)


@contextmanager
def _without_sockets(tunnel: Tunnel, fault: str) -> Iterator[None]:
    """Every WebSocket is cut, or left half-open, and none can be opened until the end."""
    tunnel.refuses_sockets = True
    tunnel.cut() if fault == "cut" else tunnel.freeze()
    try:
        yield
    finally:
        tunnel.refuses_sockets = False


async def _nothing_left(poste: Poste) -> None:
    """Acknowledgements come behind the messages: wait until every queue is empty."""
    try:
        async with asyncio.timeout(_REMOVED_S_MAX):
            while True:
                if not poste.waiting():
                    return
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise StepFailed(f"{poste.waiting()} messages are still queued") from None
