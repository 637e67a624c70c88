"""Identities over real hosts, and what a test may do to their commands on the way."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from typing_extensions import override

from actors.core.commands import Command
from actors.core.refusals import Refusal
from actors.core.replies import Reply
from http_edge.didcomm.identities import Identities
from http_edge.dispatch.gateway import Gateway
from tests.edge.mediator import WAIT_S

_R = TypeVar("_R", bound=Reply)


class WatchedIdentities(Identities):
    """Commands are seen and counted; by their kind they can be refused, or their answers lost."""

    def __init__(self, gateway: Gateway) -> None:
        super().__init__(gateway)
        self._answered = asyncio.Condition()
        self.seen: list[Command] = []
        self.under_way_most = 0
        """Most commands at once without an answer, if the caller of none was cancelled."""
        self.counts: Counter[type[Command]] = Counter()
        """Answers so far."""
        self.refused: dict[type[Command], Refusal] = {}
        """What is answered to commands that reach no host."""
        self.lost: set[type[Command]] = set()
        """Commands that have their effect and whose outcome remains unknown."""
        self.before_answer: dict[type[Command], Callable[[], Awaitable[None]]] = {}
        """What happens between the next answer to a kind of command and its arrival."""

    @override
    async def ask(
        self,
        target: str,
        command: Command,
        key: bytes,
        reply: type[_R],
        shard: str | None = None,
        **options: bool,
    ) -> _R | Refusal:
        kind = type(command)
        self.seen.append(command)
        self.under_way_most = max(self.under_way_most, len(self.seen) - self.counts.total())
        answer: _R | Refusal
        if kind in self.refused:
            answer = self.refused[kind]
        else:
            answer = await super().ask(target, command, key, reply, shard=shard, **options)
        if kind in self.lost:
            answer = Refusal.TEMPORARILY_UNAVAILABLE
        if kind in self.before_answer:
            await self.before_answer.pop(kind)()
        self.counts[kind] += 1
        async with self._answered:
            self._answered.notify_all()
        return answer

    async def answered(self, kind: type[Command], times: int = 1) -> None:
        """Return when so many commands of a kind have been answered."""
        async with asyncio.timeout(WAIT_S), self._answered:
            await self._answered.wait_for(lambda: self.counts[kind] >= times)
