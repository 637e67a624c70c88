"""Accounts that write to each other without pause, and the history of their answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import aiohttp

from http_edge.clients.decentrl import Account, MediatorClient
from tests.cluster.accounts import befriend, message, newcomer, post, waiting_payloads

_PAUSE_S = 0.1
_ANSWERED_S_MAX = 60.0


@dataclass
class Pair:
    """One who writes and one who reads, and what the writer was answered for each text."""

    writer: Account
    reader: Account
    accepted: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    accepted_at: float = 0.0
    slowest_s: float = 0.0


class Load:
    """Pairs who write as long as this context lasts, one message at a time each."""

    def __init__(self, pairs: Sequence[Pair], mediators: Sequence[MediatorClient]) -> None:
        self.pairs = pairs
        self._mediators = mediators
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    @classmethod
    async def of(cls, mediators: Sequence[MediatorClient], pairs: int) -> Self:
        """So many pairs of newcomers, each writing through one of the mediators in turn."""
        made = []
        for number in range(pairs):
            writer = await newcomer(mediators[0], f"writer-{number}")
            reader = await newcomer(mediators[0], f"reader-{number}")
            await befriend(writer, reader)
            made.append(Pair(writer, reader))
        return cls(made, mediators)

    async def __aenter__(self) -> Self:
        self._over = False
        self._tasks = [
            asyncio.create_task(self._write(pair, self._mediators[i % len(self._mediators)]))
            for i, pair in enumerate(self.pairs)
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    def write_to(self, *mediators: MediatorClient) -> None:
        """Have all accounts write through these mediators, in turn, from the next time on."""
        self._mediators = mediators

    def refusals(self) -> list[int]:
        """The answers that were no success; 0 where there was none."""
        return [status for pair in self.pairs for status in pair.answers if status != 200]

    async def answers(self, count: int, seconds_max: float = _ANSWERED_S_MAX) -> float:
        """Wait for so many more answers to each pair, whatever they are: the slowest, in seconds.

        An answer that is awaited when this is called counts with all of its time.
        """
        for pair in self.pairs:
            pair.slowest_s = 0.0
        wanted = [len(pair.answers) + count for pair in self.pairs]
        until = time.monotonic() + seconds_max
        while any(len(p.answers) < n for p, n in zip(self.pairs, wanted, strict=True)):
            assert time.monotonic() < until, "not all accounts are answered"
            await asyncio.sleep(_PAUSE_S)
        return max(pair.slowest_s for pair in self.pairs)

    async def served_again(self, since: float, seconds_max: float) -> float:
        """The seconds from ``since`` until each pair has had a message accepted."""
        until = since + seconds_max
        while any(pair.accepted_at < since for pair in self.pairs):
            assert time.monotonic() < until, "not all accounts are served again"
            await asyncio.sleep(_PAUSE_S)
        return max(pair.accepted_at for pair in self.pairs) - since

    async def check(self, mediator: MediatorClient | None = None) -> None:
        """Nothing accepted is lost, doubled or out of order; nothing else is there but unknowns.

        Readers ask the mediator that they came to, or this one.
        """
        for pair in self.pairs:
            reader = pair.reader if mediator is None else mediator.as_(pair.reader.identity)
            waiting = await waiting_payloads(reader)
            unknown = set(pair.unknown)
            assert [text for text in waiting if text not in unknown] == pair.accepted
            assert len(set(waiting)) == len(waiting)

    async def _write(self, pair: Pair, mediator: MediatorClient) -> None:
        while not self._over:
            text = str(len(pair.answers))
            asked_at = time.monotonic()
            try:
                status, _ = await post(mediator, message(pair.writer, pair.reader, text))
            except (aiohttp.ClientError, TimeoutError):
                status = 0
            pair.slowest_s = max(pair.slowest_s, time.monotonic() - asked_at)
            pair.answers.append(status)
            if status == 200:
                pair.accepted.append(text)
                pair.accepted_at = asked_at
            else:
                pair.unknown.append(text)
            await asyncio.sleep(_PAUSE_S)
