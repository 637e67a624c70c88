"""A closed loop: each connection posts the next message when its last one is answered."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

import aiohttp
import msgspec
import orjson

ANSWER_S_MAX: Final = 30.0
_REPORTED_EVERY: Final = 64
_SUCCESS: Final = range(200, 300)
_CODE_BYTES_MAX: Final = 4_096
_NS_PER_S: Final = 1_000_000_000

Progress: TypeAlias = Callable[[int], None]
"""Called with the number of items that are done so far."""
Post: TypeAlias = Callable[[bytes], Awaitable[str | None]]
"""Posts one message over a connection of its own; returns None if it was accepted, else why not."""


def no_progress(_done: int) -> None:
    """Ignore progress."""


class LoadResult(msgspec.Struct, frozen=True):
    """The measurements of a closed loop.

    Attributes:
        latencies_ns: Nanoseconds of each accepted message, as packed unsigned 64-bit numbers.
        refused: The numbers of messages that were not accepted, by status and code.
        elapsed_s: Seconds from the first request to the last answer.
        cpu_s: CPU seconds of the load's own process in that time.
    """

    latencies_ns: bytes
    refused: dict[str, int]
    elapsed_s: float
    cpu_s: float

    @property
    def latencies(self) -> array[int]:
        """Nanoseconds of each accepted message."""
        return array("Q", self.latencies_ns)

    @property
    def accepted(self) -> int:
        """The number of accepted messages."""
        return len(self.latencies_ns) // 8


async def closed_loop(
    posts: Sequence[Post],
    bodies: Iterable[bytes],
    *,
    seconds_max: float,
    progress: Progress = no_progress,
) -> LoadResult:
    """Post all bodies, one at a time on each connection, until done or out of time.

    Raises: as ``Post``; the posts of this module count every failure as a refusal.
    """
    latencies, refused = array("Q"), Counter[str]()
    shared, clock, answered = iter(bodies), time.perf_counter_ns, 0
    started, cpu_started_s = clock(), time.process_time()
    deadline = started + int(seconds_max * _NS_PER_S)

    async def work(post: Post) -> None:
        nonlocal answered
        for body in shared:
            sent = clock()
            if sent > deadline:
                return
            refusal = await post(body)
            if refusal is None:
                latencies.append(clock() - sent)
            else:
                refused[refusal] += 1
            answered += 1
            if not answered % _REPORTED_EVERY:
                progress(answered)

    await asyncio.gather(*map(work, posts))
    return LoadResult(
        latencies.tobytes(),
        dict(refused),
        (clock() - started) / _NS_PER_S,
        time.process_time() - cpu_started_s,
    )


def percentile(ordered: Sequence[int], percent: int) -> int:
    """The value that ``percent`` of the ordered ones, of one at least, do not exceed."""
    return ordered[-(-len(ordered) * percent // 100) - 1]  # by nearest rank


@asynccontextmanager
async def http_posts(
    endpoint: str, media_type: str, connections: int
) -> AsyncIterator[Sequence[Post]]:
    """Posts over ``connections`` keep-alive connections; a failed request counts as a refusal."""
    headers = {"Content-Type": media_type}
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=ANSWER_S_MAX),
    ) as session:

        async def post(body: bytes) -> str | None:
            try:
                async with session.post(
                    endpoint, data=body, headers=headers, allow_redirects=False
                ) as response:
                    return refusal_of(response.status, await response.read())
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                return f"no answer: {type(error).__name__}"

        yield [post] * connections


def refusal_of(status: int, answer: bytes) -> str | None:
    """None for a success, else the status, with the code in the answer if it has one."""
    if status in _SUCCESS:
        return None
    try:
        said = orjson.loads(answer[:_CODE_BYTES_MAX])
    except orjson.JSONDecodeError:
        said = None
    code = (said.get("code") or said.get("error")) if isinstance(said, dict) else None
    return f"{status} {code}" if isinstance(code, str) else f"{status}"
