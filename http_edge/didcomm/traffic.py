"""Reports of agents' traffic to the hosts, if the operator ends agents that are silent for long.

Any message that an envelope proves to be an agent's is a sign of life, even one that asks nothing
of its identity. The identity's owner says when it needs the next report: a part of the idle age
later (``actors.core.idle_agents``). So most messages cost one lookup in a table.
"""

from __future__ import annotations

from typing import Final

from cachetools import LRUCache

from actors.core.commands import SeeAgent
from actors.core.idle_agents import seen_every_s
from actors.core.replies import AgentNoted
from actors.host.clock import Clock
from http_edge.didcomm.identities import GIVEN_UP, NO_ACCOUNT, Identities, speaker

_REFUSED_MS: Final = 3_600_000
"""A sender that is no agent, or does not speak for one, is not reported again for an hour. If it
becomes an agent meanwhile, the event that makes it one counts as a sign of life."""


class Traffic:
    """Reports the agents of one edge, and remembers when each is due again."""

    def __init__(
        self, identities: Identities, *, idle_agents_s: int, remembered_max: int, clock: Clock
    ) -> None:
        """Report nothing if ``idle_agents_s`` is 0.

        Remember up to ``remembered_max`` agents, 200 bytes each.
        """
        self._identities = identities
        self._is_wanted = bool(idle_agents_s)
        self._longest_ms = max(_REFUSED_MS, seen_every_s(idle_agents_s) * 1000)
        self._clock = clock
        self._again_ms: LRUCache[tuple[str, str], int] = LRUCache(remembered_max)

    async def note(self, account: str, command: bytes) -> None:
        """Report a message of ``account``, sent by this context's speaker, if a report is due.

        ``command`` is the message's key in the log. If the report fails, the next message repeats
        it.
        """
        who = account, speaker()
        now_ms = self._clock()
        # A time further ahead than the longest pause was set by a clock that ran fast.
        if not self._is_wanted or 0 < self._again_ms.get(who, 0) - now_ms <= self._longest_ms:
            return
        noted = await self._identities.ask(account, SeeAgent(), command, AgentNoted)
        if isinstance(noted, AgentNoted):
            self._again_ms[who] = min(noted.again_ms, now_ms + self._longest_ms)
        elif noted in NO_ACCOUNT | GIVEN_UP:
            self._again_ms[who] = now_ms + _REFUSED_MS
