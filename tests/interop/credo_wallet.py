"""A real Credo agent as a wallet, in a Node process of its own (``credo/wallet.mjs``)."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from enum import Enum
from pathlib import Path
from typing import Any, Final, Self

from tests.interop.acapy import RAW_KEY, STOP_S_MAX, signal_group
from tests.interop.parts import CREDO, Credo, credo_environment
from tests.interop.wallets import Handshake, StepFailed

ANSWER_S_MAX: Final = 60.0
_LINE_BYTES_MAX: Final = 1 << 20
_HANDSHAKES: Final = {
    Handshake.CONNECTIONS: "https://didcomm.org/connections/1.x",
    Handshake.DID_EXCHANGE: "https://didcomm.org/didexchange/1.x",
}


class Strategy(Enum):
    """How a Credo wallet fetches its messages; the values are Credo's names."""

    PICKUP_1 = "PickUpV1"
    PICKUP_2 = "PickUpV2"
    LIVE = "PickUpV2LiveMode"
    IMPLICIT = "Implicit"

    @property
    def has_socket(self) -> bool:
        """Does the wallet hold a WebSocket to its mediator?"""
        return self in {Strategy.LIVE, Strategy.IMPLICIT}


class CredoWallet:
    """One wallet; a context manager that starts it and leaves no process behind.

    ``home`` outlives it with its keys: it can be stopped and started again.

    Attributes:
        received: Every text that came, as often and in the order in which it came.
    """

    def __init__(self, version: Credo, home: Path, name: str, strategy: Strategy) -> None:
        self.name = name
        self.strategy = strategy
        self.received: list[str] = []
        self._home = home / name
        self._log = home / f"{name}.log"
        self._version = version
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._news = asyncio.Condition()

    async def start(self) -> None:
        """Start; a wallet that has a mediator picks up its messages from now on.

        Raises:
            StepFailed: it does not start.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as words:
            self._process = await asyncio.create_subprocess_exec(
                "node",
                str(CREDO / "wallet.mjs"),
                *(self._version.value, str(self._home), self.name, RAW_KEY, self.strategy.value),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=words,
                env=credo_environment(),
                limit=_LINE_BYTES_MAX,
                start_new_session=True,
            )
        self._reading = asyncio.get_running_loop().create_task(self._read(self._process))
        await self._ask("start")

    async def stop(self) -> None:
        """Let it shut down, and end its process whether it did or not."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            async with asyncio.timeout(STOP_S_MAX):
                process.stdin.write(_command(0, "stop"))
                process.stdin.close()
                await process.wait()
        except (TimeoutError, ConnectionError):
            pass
        finally:
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()
            if self._reading is not None:
                await self._reading

    async def enrol(self, invitation_url: str) -> None:
        """Connect to a mediator, ask for mediation, and pick up messages from now on."""
        await self._ask("enrol", invitation_url)

    async def meet(self, other: CredoWallet, handshake: Handshake) -> tuple[str, str]:
        """Invite another wallet and wait for the connection: its id here, and there."""
        invitation, url = await self._ask("invite", _HANDSHAKES[handshake])
        there = await other._ask("accept", url)
        here = await self._ask("connected", invitation)
        return here, there

    async def send(self, connection: str, texts: list[str]) -> None:
        """Send basic messages, each once the one before was taken."""
        for text in texts:
            await self._ask("send", connection, text)

    async def disclosed(self, protocol: str) -> list[str]:
        """Ask its mediator for a protocol (RFC 0031): the protocols that it discloses."""
        found: list[str] = await self._ask("disclosed", protocol)
        return found

    async def set_device(
        self, service: str, token: str | None, platform: str | None
    ) -> dict[str, Any]:
        """Name its device at a push service, None for no device: the mediator's answer.

        Raises:
            StepFailed: none came.
        """
        answer: dict[str, Any] = await self._ask("setDevice", service, token, platform)
        return answer

    async def device(self, service: str) -> dict[str, Any]:
        """Ask for its device at a push service: the mediator's answer.

        Raises:
            StepFailed: none came.
        """
        answer: dict[str, Any] = await self._ask("device", service)
        return answer

    async def receives(self, wanted: list[str], seconds_max: float) -> None:
        """Wait until so many texts have come as are wanted.

        Raises:
            StepFailed: fewer came in time, or others, or in another order.
        """
        try:
            async with asyncio.timeout(seconds_max), self._news:
                await self._news.wait_for(lambda: len(self.received) >= len(wanted))
        except TimeoutError:
            pass
        if self.received != wanted:
            missing, came = set(wanted) - set(self.received), len(self.received)
            raise StepFailed(
                f"{self.name}: {came} of {len(wanted)} came, {len(missing)} are missing, "
                f"{came - len(set(self.received))} came again, or in another order"
            )

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _ask(self, command: str, *values: str | None) -> Any:
        assert self._process is not None, f"{self.name} is not running"
        assert self._process.stdin is not None
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(_command(number, command, *values))
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                answered = await answer
        except TimeoutError:
            raise StepFailed(f"{self.name}: {command}: no answer") from None
        finally:
            del self._answers[number]
        if "error" in answered:
            raise StepFailed(f"{self.name}: {command}: {answered['error']}")
        return answered["result"]

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            said = json.loads(line)
            if "received" in said:
                async with self._news:
                    self.received.append(said["received"])
                    self._news.notify_all()
            elif said["id"] in self._answers:
                self._answers[said["id"]].set_result(said)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_result({"error": "the process ended"})


def _command(number: int, command: str, *values: str | None) -> bytes:
    return json.dumps({"id": number, "do": command, "with": values}).encode() + b"\n"
