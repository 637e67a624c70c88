"""Registered agents of any protocol, as a load uses them, and the emptying of their queues."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, TypeVar

from http_edge.clients.decentrl import CommandRefused, Sources
from http_edge.clients.didcomm import MediatorRefused, ProblemReported
from http_edge.clients.load.closed_loop import Progress, no_progress

MESSAGE_BYTES: Final = 1024
PAGE_SIZE: Final = 100
SETUP_CONNECTIONS: Final = 16
SOURCES: Final = Sources()
_RATE_LIMITED: Final = 429
_PAUSES_MAX: Final = 20
_PAUSE_S: Final = 1.0
_PAUSE_S_MAX: Final = 10.0
_NS_PER_S: Final = 1_000_000_000

Member = TypeVar("Member")
Result = TypeVar("Result")


@dataclass(slots=True)
class Drained:
    """The result of emptying queues: messages, and the time of each page with its removal."""

    messages: int = 0
    latencies_ns: array[int] = field(default_factory=lambda: array("Q"))
    elapsed_s: float = 0.0


class Agents(ABC):
    """Registered agents of one protocol at one mediator."""

    media_type: str
    """The media type of messages."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """The URL to which messages are posted."""

    @abstractmethod
    def __len__(self) -> int:
        """How many agents have a queue."""

    @abstractmethod
    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        """Make ``count`` different messages of ``size_bytes``, for each recipient in turn."""

    @abstractmethod
    async def take_page(self, number: int, page_size: int) -> int:
        """Fetch and acknowledge a page of the queue of this agent; return its number of messages.

        Raises: ClientError, WalletError.
        """

    @abstractmethod
    async def leave(self) -> None:
        """Withdraw the registrations that can be withdrawn. Raises: ClientError, WalletError."""

    async def drain(
        self,
        *,
        connections: int,
        page_size: int = PAGE_SIZE,
        progress: Progress = no_progress,
    ) -> Drained:
        """Fetch and acknowledge all messages that wait for the agents. Raises as ``take_page``."""
        drained, clock = Drained(), time.perf_counter_ns
        started = clock()

        async def empty(number: int) -> None:
            while True:
                began = clock()
                count = await self.take_page(number, page_size)
                if not count:
                    return
                drained.latencies_ns.append(clock() - began)
                drained.messages += count
                progress(drained.messages)

        await each(range(len(self)), empty, connections, no_progress)
        drained.elapsed_s = (clock() - started) / _NS_PER_S
        return drained


async def each(
    members: Iterable[Member],
    work: Callable[[Member], Awaitable[Result]],
    connections: int,
    progress: Progress,
) -> list[Result]:
    """Run ``work`` for all members, ``connections`` at a time; return the results in order."""
    results: dict[int, Result] = {}
    shared = iter(enumerate(members))

    async def worker() -> None:
        for number, member in shared:
            results[number] = await work(member)
            progress(len(results))

    await asyncio.gather(*[worker() for _ in range(connections)])
    return [results[number] for number in sorted(results)]


async def patiently(once: Callable[[], Awaitable[Result]]) -> Result:
    """Call ``once``, again after a pause while a rate limit refuses it; return its result."""
    for _ in range(_PAUSES_MAX):
        try:
            return await once()
        except (CommandRefused, MediatorRefused) as error:
            status = error.http_status if isinstance(error, CommandRefused) else error.status
            if status != _RATE_LIMITED:
                raise
            pause_s = _PAUSE_S if error.retry_after_s is None else error.retry_after_s
        except ProblemReported as error:
            if not error.may_be_repeated:
                raise
            pause_s = _PAUSE_S
        await SOURCES.sleep(min(pause_s, _PAUSE_S_MAX))
    return await once()
