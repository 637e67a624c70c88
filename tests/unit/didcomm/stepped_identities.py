"""The real core without hosts, whose requests go on step by step in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, Final, TypeVar, cast

from actors.core.commands import Command, Connect, Connection, GrantMediation, UpdateKeylist
from actors.core.decide import decide
from actors.core.decision import Accepted, DecisionContext
from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import Reply
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.keylists import KeyChanges
from tests.unit.didcomm.requests import COMMAND

OWNER: Final = "did:key:owner"
KEY: Final = "key"
ADD: Final = KeyChanges([KEY], [])
REMOVE: Final = KeyChanges([], [KEY])
_R = TypeVar("_R", bound=Reply)
_REQUEST: ContextVar[str] = ContextVar("request", default="later")


class Stepped(Identities):
    """The real core without hosts; every question waits until it is let through."""

    def __init__(self) -> None:
        self.states: dict[str, Identity] = {}
        self.refused: dict[str, Refusal] = {}
        """Why the keylist refuses the updates of a request, by its name."""
        self.lost: set[str] = set()
        """Requests whose updates are carried out without an answer."""
        self._doors = {"later": asyncio.Semaphore(0)}
        self._at_doors: set[str] = set()
        self._requests: dict[str, asyncio.Task[Any]] = {}

    def decide(self, target: str, command: Command) -> Reply | Refusal:
        """Ask at once."""
        state = self.states.setdefault(target, Identity())
        decision = decide(
            state, command, DecisionContext(target, 1, COMMAND, "id", b"secret", IdentityLimits())
        )
        if isinstance(decision, Refusal):
            return decision
        assert isinstance(decision, Accepted)
        for event in decision.events:
            evolve(state, event)
        return cast("Reply", decision.reply)

    async def ask(  # noqa: PLR0913 - as it is
        self,
        target: str,
        command: Command,
        key: bytes,
        reply: type[_R],
        *,
        can_linger: bool = False,
        by_owner: bool = False,
        by_mediator: bool = False,
        adds: bool = False,
        shard: str | None = None,
    ) -> _R | Refusal:
        self._at_doors.add(_REQUEST.get())
        await self._doors[_REQUEST.get()].acquire()
        refused = self.refused.get(_REQUEST.get())
        is_refused = refused is not None and isinstance(command, UpdateKeylist)
        answer = refused if is_refused else self.decide(target, command)
        if _REQUEST.get() in self.lost and isinstance(command, UpdateKeylist):
            answer = Refusal.TEMPORARILY_UNAVAILABLE
        assert isinstance(answer, Refusal | reply)
        return answer

    def start(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A request whose questions wait behind an event of its own."""
        self._doors[name] = asyncio.Semaphore(0)
        # Tasks that a request starts take its name along.
        context = copy_context()
        context.run(_REQUEST.set, name)
        self._requests[name] = asyncio.create_task(work, context=context)
        return self._requests[name]

    def follow(self, task: asyncio.Task[Any]) -> None:
        """Let the questions of a task that no request waits for through as ``later``."""
        self._requests["later"] = task

    async def settled(self, *, but: set[asyncio.Task[Any]]) -> None:
        """Let through all that tasks ask for which no request waits, until there are none."""
        async with asyncio.timeout(10):
            while asyncio.all_tasks() - but:
                self._doors["later"].release()
                await asyncio.sleep(0)

    async def step(self, name: str) -> None:
        """Let one question of a request through, and the request go on to its next."""
        self._at_doors.discard(name)
        self._doors[name].release()
        async with asyncio.timeout(10):
            while name not in self._at_doors and not self._requests[name].done():  # noqa: ASYNC110 - its tasks
                await asyncio.sleep(0)


async def mediated(identities: Stepped | None = None) -> Stepped:
    """Identities with an owner that may have a keylist."""
    identities = identities or Stepped()
    identities.decide(OWNER, Connect(Connection("did:x", "", "", [], "didexchange/1.1", "")))
    identities.decide(OWNER, GrantMediation())
    return identities
