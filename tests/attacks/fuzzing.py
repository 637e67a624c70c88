"""Fuzzing of both endpoints, over HTTP and sockets: ``python -m tests.attacks.fuzzing``.

A mediator runs in this process, without Ray. Valid commands, messages, envelopes and frames are
changed with their structure in mind, before and after they are signed and packed. Watched are
answers of 5xx other than 503, lines of errors in the log, and the memory of the process. Every
case follows from the seed and its number: ``--seed S --only N`` plays one again.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import logging
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import aiohttp
import msgspec
import orjson

from http_edge.didcomm.envelopes.keys import base58
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE as NEWER
from tests.attacks.changes import LONG, ODD, changed, written
from tests.attacks.newer_agent import NewerAgent
from tests.edge.didcomm.newer_wallets import connected
from tests.edge.didcomm.test_bad_input import KINDS, MEMBERS
from tests.edge.didcomm.wallet_network import (
    ENVELOPE,
    SERVICE,
    Bob,
    WalletNetwork,
    envelope_of,
)
from tests.edge.mediator import HandClock, Mediator
from tests.edge.raw_socket import TEXT, RawSocket, frame, raw_socket
from tests.edge.test_bad_input import ALICE, BOB, MALLORY, every_command
from tests.ports import free_port

SETTINGS: Final[dict[str, Any]] = {
    "rates": {
        "per_address_per_s": 0,
        "per_sender_per_s": 0,
        "public_reads_per_address_per_s": 0,
        "sockets_auth_per_address_per_s": 0,
        "registrations_per_s": 0,
        "registrations_per_address_per_s": 0,
    },
    "didcomm": {"delay_s_max": 0, "socket_first_message_s": 1},
    "outbound": {"enabled": False},
    "limits": {"body_read_s_max": 1, "keepalive_s": 2},
    "protocol": {"socket_auth_s": 1},
}
_ANSWER_S_MAX: Final = 20.0
_SOCKET_S_MAX: Final = 0.2
_AT_ONCE: Final = 4
_MIB: Final = 1_048_576
_DECORATORS: Final = {
    "~thread": {"thid": "1", "pthid": "2", "sender_order": 0},
    "~transport": {"return_route": "all", "return_route_thread": "1"},
    "~timing": {"delay_milli": 10, "expires_time": "2030-01-01T00:00:00Z"},
    "~please_ack": {"on": ["RECEIPT"]},
}


class Fault(msgspec.Struct, frozen=True):
    """A case that was answered as none may be, and how."""

    case: int
    kind: str
    answer: str


class Report(msgspec.Struct):
    """What fuzzing found; memory is in bytes, after a fifth of the time and at the end."""

    cases: int = 0
    seconds: float = 0.0
    answers: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    faults: list[Fault] = msgspec.field(default_factory=list)
    error_lines: list[str] = msgspec.field(default_factory=list)
    memory_early: int = 0
    memory_late: int = 0

    def table(self) -> str:
        """The report as text."""
        lines = [f"{'kind':<20} {'cases':>8}  answers"]
        for kind, answers in sorted(self.answers.items()):
            shown = ", ".join(f"{name} {count}" for name, count in answers.most_common(12))
            lines.append(f"{kind:<20} {answers.total():>8}  {shown}")
        lines += [f"FAULT case {each.case} {each.kind}: {each.answer}" for each in self.faults[:20]]
        lines += [f"ERROR LINE {each}" for each in self.error_lines[:20]]
        growth = (self.memory_late - self.memory_early) / _MIB
        lines.append(
            f"{self.cases} cases in {self.seconds:.0f} s:"
            f" {len(self.faults)} answers of 5xx but 503,"
            f" {len(self.error_lines)} error lines, memory {self.memory_early / _MIB:.0f}"
            f" → {self.memory_late / _MIB:.0f} MiB ({growth:+.1f})"
        )
        return "\n".join(lines)


# ---- cases


class Fuzzer:
    """One mediator under fuzzing, and two wallets that it knows: of DIDComm v1, and of v2."""

    def __init__(
        self, mediator: Mediator, network: WalletNetwork, bob: Bob, newer: NewerAgent, seed: int
    ) -> None:
        self._mediator = mediator
        self._network = network
        self._bob = bob
        self._newer = newer
        self._seed = seed
        self._commands = every_command(mediator)
        self._cases: dict[str, Callable[[random.Random], Awaitable[str]]] = {
            "command": self._command,
            "message": self._message,
            "envelope": self._envelope,
            "forward": self._forward,
            "message v2": self._newer_message,
            "envelope v2": self._newer_envelope,
            "forward v2": self._newer_forward,
            "HTTP": self._http,
            "socket Decentrl": self._decentrl_socket,
            "socket DIDComm": self._didcomm_socket,
        }
        self.report = Report()

    async def play(self, number: int) -> None:
        """One case; what it is follows from the seed and its number."""
        chance = random.Random(f"{self._seed} {number}")  # noqa: S311 - to be had again
        kind = chance.choice(list(self._cases))
        self._mediator.clock.advance(0.01)
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                answer = await self._cases[kind](chance)
        except TimeoutError:
            answer = "no answer"
        except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
            answer = type(error).__name__
        self.report.cases += 1
        self.report.answers.setdefault(kind, Counter())[answer] += 1
        if answer == "no answer" or (answer[:1] == "5" and answer[:3] != "503"):
            self.report.faults.append(Fault(number, kind, answer))

    async def _command(self, chance: random.Random) -> str:
        return await self._post("/", written(chance, self._signed(chance)), "application/json")

    def _signed(self, chance: random.Random) -> Any:
        payload, channel, to = chance.choice(self._commands)
        sender = chance.choice([ALICE, ALICE, BOB, MALLORY])
        if chance.random() < 0.7:
            payload = changed(chance, payload)
        try:
            command = self._mediator.command(sender, payload, channel=channel, to=to)
        except (ValueError, RecursionError):
            command = self._mediator.command(sender, None, channel=channel, to=to)
            command["payload"] = payload
        return changed(chance, command) if chance.random() < 0.3 else command

    def _packed(self, chance: random.Random) -> bytes:
        members = {name: chance.choice(ODD) for name in chance.sample(MEMBERS, 2)}
        message = {
            "@type": NEW_PREFIX + chance.choice(KINDS),
            "@id": f"message-{chance.randrange(10**9)}",
            **members,
            **_DECORATORS,
        }
        plain = written(chance, changed(chance, message))
        sender = chance.choice([self._bob.connection.key, self._bob.connection.key, None])
        return pack(plain, [SERVICE.public], sender)

    async def _message(self, chance: random.Random) -> str:
        return await self._post("/didcomm", self._packed(chance), ENVELOPE)

    def _broken_envelope(self, chance: random.Random) -> bytes:
        envelope = orjson.loads(self._packed(chance))
        if chance.random() < 0.5:
            text = envelope["protected"] + "=" * (-len(envelope["protected"]) % 4)
            header = json.loads(_unbase64(text))
            header["recipients"] *= chance.choice([1, 1, 2, 64, 65, 200])
            envelope["protected"] = _base64(written(chance, changed(chance, header)))
            return orjson.dumps(envelope)
        return written(chance, changed(chance, envelope))

    async def _envelope(self, chance: random.Random) -> str:
        return await self._post("/didcomm", self._broken_envelope(chance), ENVELOPE)

    async def _forward(self, chance: random.Random) -> str:
        inner = orjson.loads(envelope_of(self._bob.key, "hi"))
        message = {
            "@type": NEW_PREFIX + "routing/1.0/forward",
            "@id": "1",
            "to": chance.choice(
                [base58(self._bob.key), [base58(self._bob.key)], ["x"], "did:key:z"]
            ),
            "msg": inner,
        }
        plain = written(chance, changed(chance, message))
        return await self._post("/didcomm", pack(plain, [SERVICE.public], None), ENVELOPE)

    async def _newer_message(self, chance: random.Random) -> str:
        return await self._post("/didcomm", self._newer.packed(chance), NEWER)

    async def _newer_envelope(self, chance: random.Random) -> str:
        return await self._post("/didcomm", self._newer.broken_envelope(chance), NEWER)

    async def _newer_forward(self, chance: random.Random) -> str:
        return await self._post("/didcomm", self._newer.forward(chance), NEWER)

    async def _http(self, chance: random.Random) -> str:
        path = chance.choice(["/", "/public/", "/ws", "/didcomm", "/invitation", "/health", "/%00"])
        path += chance.choice(["", ALICE.did, "?page=-1", "?tags=%ff", "?page_size=9" + LONG, "%"])
        length = chance.choice(["0", "0", "0", "5", "-1", "9" * 20, "x", "3, 3"])
        body = chance.randbytes(chance.randrange(40))
        head = [
            f"{chance.choice(['GET', 'POST', 'PUT', 'OPTIONS', 'HEAD', 'X'])} {path} HTTP/1.1",
            "Host: x",
            f"Content-Length: {length}",
            *chance.sample(_HEADERS, chance.randrange(4)),
        ]
        reader, writer = await asyncio.open_connection("127.0.0.1", self._mediator.ports[0])
        try:
            text = "\r\n".join(head) + "\r\n\r\n"
            writer.write(text.encode("latin-1", "replace") + body)
            if chance.random() < 0.2:
                writer.write_eof()
            line = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(_SOCKET_S_MAX):
                    line = await reader.readline()
            return line.split(b" ")[1].decode() if b" " in line else "closed"
        finally:
            writer.transport.abort()

    async def _decentrl_socket(self, chance: random.Random) -> str:
        first = self._mediator.authenticate(ALICE)
        said = [frame(TEXT, orjson.dumps(first))] if chance.random() < 0.5 else []
        said += [self._frame(chance, written(chance, changed(chance, first))) for _ in range(4)]
        return await self._said("/ws", said)

    async def _didcomm_socket(self, chance: random.Random) -> str:
        newer = self._newer
        makers = [self._packed, self._broken_envelope, newer.packed, newer.broken_envelope]
        bodies = [chance.choice(makers)(chance) for _ in range(4)]
        return await self._said("/didcomm", [self._frame(chance, body) for body in bodies])

    def _frame(self, chance: random.Random, payload: bytes) -> bytes:
        payload = payload[:60_000]
        match chance.randrange(20):
            case 0:
                return chance.randbytes(chance.randrange(1, 20))
            case 1:
                return frame(chance.randrange(16), payload[:125], final=chance.random() < 0.5)
            case 2:
                return frame(8, chance.randbytes(chance.randrange(6)))
            case 3:
                half = len(payload) // 2
                return frame(TEXT, payload[:half], final=False) + frame(0, payload[half:])
            case 4:
                return frame(TEXT, payload, masked=chance.random() < 0.5)
            case 5:
                return frame(TEXT, payload)[: chance.randrange(1, 200)]
            case _:
                return frame(chance.choice([1, 2]), payload)

    async def _said(self, path: str, frames: list[bytes]) -> str:
        async with raw_socket(self._mediator.ports[0], path) as socket:
            await socket.say(*frames)
            return await _ended(socket)

    async def _post(self, path: str, body: bytes, media_type: str) -> str:
        headers = {"Content-Type": media_type}
        url = self._mediator.url(path)
        async with self._network.session.post(url, data=body, headers=headers) as answer:
            await answer.read()
            return str(answer.status)


_HEADERS: Final = [
    "Transfer-Encoding: chunked",
    "Content-Encoding: gzip",
    "Upgrade: websocket",
    "Connection: Upgrade",
    "Sec-WebSocket-Key: x",
    "Sec-WebSocket-Version: 99",
    "Sec-WebSocket-Protocol: a, b",
    "X-Request-Id: \xff\xfe",
    "Expect: 100-continue",
    "Content-Type: multipart/form-data",
    "X-Forwarded-For: [::1, ;;",
    "Cookie: " + "a" * 300,
    "Accept: text/html;q=x",
    "no colon",
]


async def _ended(socket: RawSocket) -> str:
    """With which code a socket was closed, as far as it was within a short time."""
    with suppress(TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        async with asyncio.timeout(_SOCKET_S_MAX):
            return f"closed {await socket.closing()}"
    return "open"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text)


# ---- running


class _Lines(logging.Handler):
    """Keeps the lines of errors."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.name}: {self.format(record)[-600:]}")


def _memory_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@asynccontextmanager
async def _fuzzer(folder: Path, seed: int) -> AsyncIterator[Fuzzer]:
    listen = f"127.0.0.1:{free_port()}"
    mediator = Mediator(
        folder, HandClock(), listen=listen, public_url=f"http://{listen}", **SETTINGS
    )
    await mediator.start()
    try:
        await mediator.register(ALICE, BOB)
        await mediator.befriend(BOB, ALICE)
        async with aiohttp.ClientSession() as session:
            network = WalletNetwork(mediator, session)
            wallet = await connected(network)
            newer = NewerAgent(wallet.connection, (await wallet.new_recipient()).did)
            yield Fuzzer(mediator, network, await network.bob(), newer, seed)
    finally:
        await mediator.stop()


async def run(
    *, seed: int, seconds: float = 600.0, cases: int = sys.maxsize, first: int = 0
) -> Report:
    """Play cases from ``first`` on, so many or so long, and say what was found."""
    lines = _Lines()
    logging.getLogger().addHandler(lines)
    try:
        with TemporaryDirectory() as folder:
            async with _fuzzer(Path(folder), seed) as fuzzer:
                report = await _run(fuzzer, seconds, range(first, min(first + cases, sys.maxsize)))
    finally:
        logging.getLogger().removeHandler(lines)
    report.error_lines = lines.lines
    return report


async def _run(fuzzer: Fuzzer, seconds: float, numbers: range) -> Report:
    began_s = time.monotonic()
    report, left = fuzzer.report, iter(numbers)

    async def worker() -> None:
        for number in left:
            passed_s = time.monotonic() - began_s
            if passed_s > seconds:
                return
            await fuzzer.play(number)
            if passed_s <= seconds / 5:
                report.memory_early = _memory_bytes()

    await asyncio.gather(*[worker() for _ in range(_AT_ONCE)])
    report.memory_late = _memory_bytes()
    report.seconds = time.monotonic() - began_s
    return report


def main() -> None:
    """The command line; the exit code is 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="the number of one case")
    chosen = parser.parse_args()
    one = {} if chosen.only is None else {"first": chosen.only, "cases": 1}
    report = asyncio.run(run(seed=chosen.seed, seconds=chosen.seconds, **one))
    print(report.table())  # noqa: T201 - the result
    sys.exit(bool(report.faults or report.error_lines))


if __name__ == "__main__":
    main()
