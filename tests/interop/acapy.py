"""A real ACA-Py agent in a process group of its own, and its admin interface.

The program is ``aca-py`` of aries-cloudagent 0.12 from a virtual environment of its own: its
requirements and ours cannot be met in one. Its wallet is an Askar store on SQLite.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from tests.ports import free_port

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 15.0
_ANSWER_S_MAX: Final = 30.0
_POLL_S: Final = 0.1
_LAST_LINES: Final = 15
_HOST: Final = "127.0.0.1"
_OK: Final = 200
_SENT: Final = "outbound-http:POST"
RAW_KEY: Final = "4k3R9mYnQ8pVbTz2XcWdFhJgLsKaMeNuPrSqTvUwXyZ7"
_OPEN: Final = ("--admin-insecure-mode", "--auto-accept-invites", "--auto-accept-requests")
WALLET: Final = ("--auto-ping-connection",)
"""What a wallet adds; the ping moves the other side of connections/1.0 to its last state."""
MEDIATOR: Final = ("--open-mediation",)
"""What a mediator adds: it grants mediation to any agent that asks."""


class AgentFailed(RuntimeError):
    """The agent did not start, or refused a request of its owner."""


class AcaPyAgent:
    """One agent; a context manager that starts it and leaves no process behind.

    The ports are chosen once, so an agent that starts again is found where it was, and ``home``
    outlives it with its wallet.

    Attributes:
        name: Its label, which its peers see.
        endpoint: Where its peers reach it.
        log: The file with all that it said, of every start.
    """

    def __init__(
        self,
        program: Path,
        home: Path,
        name: str,
        *,
        flags: Sequence[str] = WALLET,
        webhook_url: str = "",
        endpoint: str = "",
    ) -> None:
        self.name = name
        self.log = home / f"{name}.log"
        self.port = free_port()
        self.endpoint = endpoint or f"http://{_HOST}:{self.port}"
        admin = free_port()
        self._admin_url = f"http://{_HOST}:{admin}"
        self._home = home
        self._command = [
            str(program),
            "start",
            *("--label", name, "--endpoint", self.endpoint, "--no-ledger"),
            *("--inbound-transport", "http", _HOST, str(self.port)),
            *("--outbound-transport", "http"),
            *("--admin", _HOST, str(admin), *_OPEN),
            # The key as it is: no seconds go into deriving it from a password.
            *("--wallet-type", "askar", "--wallet-name", name, "--auto-provision"),
            *("--wallet-key-derivation-method", "RAW", "--wallet-key", RAW_KEY),
            # Counts what it has sent, and nothing but faults is written down.
            *("--timing", "--log-level", "warning"),
            *(("--webhook-url", webhook_url) if webhook_url else ()),
            *flags,
        ]
        self._process: asyncio.subprocess.Process | None = None
        self._client: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Start, and return when it is ready to work.

        Raises:
            AgentFailed: it ended, or took longer than READY_S_MAX.
        """
        self._home.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as words:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                env=_environment(self._home),
                start_new_session=True,
            )
        self._client = aiohttp.ClientSession(
            self._admin_url, timeout=aiohttp.ClientTimeout(total=_ANSWER_S_MAX)
        )
        try:
            async with asyncio.timeout(READY_S_MAX):
                while not await self._ready():
                    if self._process.returncode is not None:
                        raise AgentFailed(f"{self.name} ended: {self.last_words()}")
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AgentFailed(f"{self.name} is not ready: {self.last_words()}") from None

    async def stop(self) -> None:
        """End it, politely and after a while not, with everything that it started."""
        if self._client is not None:
            await self._client.close()
            self._client = None
        process, self._process = self._process, None
        if process is None:
            return
        try:
            signal_group(process.pid, signal.SIGTERM)
            async with asyncio.timeout(STOP_S_MAX):
                await process.wait()
        except TimeoutError:
            pass
        finally:
            # What it started and left behind is in its group.
            signal_group(process.pid, signal.SIGKILL)
            await process.wait()

    async def get(self, path: str) -> Any:
        """The answer of the admin interface to GET.

        Raises:
            AgentFailed: it is a refusal.
        """
        return await self._ask("GET", path, None, {})

    async def post(self, path: str, body: Mapping[str, object] | None = None, **query: str) -> Any:
        """The answer of the admin interface to POST.

        Raises:
            AgentFailed: it is a refusal.
        """
        return await self._ask("POST", path, body or {}, query)

    async def put(self, path: str) -> Any:
        """The answer of the admin interface to PUT.

        Raises:
            AgentFailed: it is a refusal.
        """
        return await self._ask("PUT", path, {}, {})

    async def posts_answered(self) -> int:
        """HTTP posts since the start that were answered: messages and webhooks."""
        counts = (await self.get("/status"))["timing"]["count"]
        return int(counts.get(_SENT, 0))

    async def posts_under_way(self) -> int:
        """Messages and webhooks that are being packed or posted now."""
        figures = (await self.get("/status"))["conductor"]
        return int(figures["out_encode"]) + int(figures["out_deliver"])

    def last_words(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:])

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _ready(self) -> bool:
        assert self._client is not None
        try:
            async with self._client.get("/status/ready") as response:
                return response.status == _OK
        except aiohttp.ClientError:
            return False

    async def _ask(
        self, method: str, path: str, body: object | None, query: Mapping[str, str]
    ) -> Any:
        assert self._client is not None, f"{self.name} is not running"
        async with self._client.request(method, path, json=body, params=query) as response:
            if not response.ok:
                text = await response.text()
                raise AgentFailed(f"{self.name}: {method} {path}: {response.status} {text}")
            return await response.json()


def _environment(home: Path) -> dict[str, str]:
    """The environment without what the shell has set for other agents, and without proxies."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ACAPY_") and not name.lower().endswith("_proxy")
    }
    return {**kept, "ACAPY_HOME": str(home)}


def signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
