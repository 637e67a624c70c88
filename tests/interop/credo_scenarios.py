"""What Credo wallets do with Poste: every strategy of pickup, a failing network, notifications."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.interop.credo_wallet import CredoWallet, Strategy
from tests.interop.mediators import Poste
from tests.interop.parts import Credo
from tests.interop.tunnel import Tunnel
from tests.interop.wallets import Handshake, StepFailed, require
from tests.unit.outbound.agent_host import AgentHost, agent_host

BURST: Final = 20
"""Messages for a wallet whose socket is gone."""
WAITING: Final = 50
"""Messages that wait for an absent wallet while the mediator is killed."""
RETURN_S_MAX: Final = 20.0
"""A lease takes 30 s: what comes in less has not waited for the end of one."""
_PUSH: Final = "https://didcomm.org/push-notifications-"
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
    push: AgentHost


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
        agent_host() as push,
        Poste(
            home,
            listen=tunnel.listen,
            public_url=tunnel.url,
            **{
                "push.webhook_url": f"http://127.0.0.1:{push.port}/push",
                "push.delay_s": "0",
                "push.interval_s": "0.1",
            },
        ) as poste,
        CredoWallet(version, home, "alice", Strategy.PICKUP_2) as alice,
    ):
        await alice.enrol(await poste.invitation_url(handshake))
        yield Stage(version, home, handshake, poste, tunnel, alice, push)


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


@dataclass(frozen=True, slots=True)
class Device:
    """Bob's device at a push service, and how his wallet removes it: by a token and a platform."""

    service: str
    platform: str | None
    removal: tuple[str | None, str | None]


async def notify(stage: Stage, device: Device, strategy: Strategy) -> str:
    """Bob's device is notified once of a message while he is away, and not any more once removed.

    Raises:
        StepFailed: it is not.
    """
    service, token, before = device.service, f"bob-{device.service}", len(stage.push.received)
    async with CredoWallet(stage.version, stage.home, token, strategy) as bob:
        await bob.enrol(await stage.poste.invitation_url(stage.handshake))
        _, here = await bob.meet(stage.alice, stage.handshake)
        talk = _Talk(stage.alice, bob, here)
        protocol = f"{_PUSH}{service}/1.0"
        require(await bob.disclosed(protocol) == [protocol], "the protocol is not disclosed")
        await _removes(bob, service, (None, None))
        _require_ack(await bob.set_device(service, token, device.platform))
        answer = await bob.device(service)
        require(answer.get("device_token") == token, f"not device-info: {answer}")
        await bob.stop()
        await talk.write("notified", 1)
        expected = {
            "@type": f"{_PUSH}{service}",
            "device_token": token,
            "device_platform": device.platform or "",
            "waiting": 1,
        }
        notified = (await stage.push.notifications(before + 1))[before:]
        require(notified == [expected], f"notified {notified}")
        await bob.start()
        await talk.all_arrived()
        await _removes(bob, service, device.removal)
        await bob.stop()
        await talk.write("not notified", 1)
        await asyncio.sleep(_QUIET_S)  # in which a notification would come
        require(len(stage.push.received) == before + 1, "notified again")
        await bob.start()
        await talk.all_arrived()
        await _nothing_left(stage.poste)
    return "1 notification for 2 messages"


async def _removes(bob: CredoWallet, service: str, removal: tuple[str | None, str | None]) -> None:
    """Bob removes his device, and understands the report that he has none."""
    _require_ack(await bob.set_device(service, *removal))
    answer = await bob.device(service)
    code = answer.get("description", {}).get("code")
    require(code == "not-registered-for-push-notifications", f"not reported: {answer}")


def _require_ack(answer: Mapping[str, Any]) -> None:
    require(answer["@type"].endswith("/ack"), f"no ack: {answer}")


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


def scenarios(version: Credo) -> Mapping[str, Callable[[Stage], Awaitable[str]]]:
    """What the wallets of a version can do, by what it shows."""
    found = {each.value: partial(pick_up, strategy=each) for each in Strategy}
    if version is not Credo.V0_5:
        return found  # @credo-ts/push-notifications is for Credo 0.5 alone
    fcm = Device("fcm", "android", removal=("", "android"))  # as BC Wallet does
    apns = Device("apns", None, removal=(None, None))
    return {
        **found,
        "push notifications, FCM": partial(notify, device=fcm, strategy=Strategy.LIVE),
        "push notifications, APNs": partial(notify, device=apns, strategy=Strategy.PICKUP_2),
    }
