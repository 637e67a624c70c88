"""Tells the hosts which agents are there, where the operator ends those that are silent for long.

Any message that an envelope proves to be an agent's is a sign of life, also one that asks nothing
of its identity. Its owner says when it needs to hear of the next one: a part of the age later
(``actors.core.idle_agents``). So most messages cost one look into a table.
"""

from __future__ import annotations

from typing import Final

from cachetools import LRUCache

from actors.core.commands import SeeAgent
from actors.core.refusals import Refusal
from actors.core.replies import AgentNoted
from actors.host.clock import Clock
from http_edge.didcomm.identities import Identities, speaker

_REFUSED_MS: Final = 3_600_000
"""Who is no agent, or does not speak for one, is not asked about again for an hour. Who becomes one
meanwhile does so by an event that counts itself."""
_REFUSED: Final = frozenset(
    {Refusal.NOT_CONNECTED, Refusal.NOT_SPEAKING, Refusal.SPEAKS_FOR_ANOTHER}
)


class Traffic:
    """Of the agents of one edge, when to tell of each again."""

    def __init__(
        self, identities: Identities, *, idle_agents_s: int, remembered_max: int, clock: Clock
    ) -> None:
        """Does nothing where ``idle_agents_s`` is 0; else it remembers so many, 200 bytes each."""
        self._identities = identities
        self._is_wanted = bool(idle_agents_s)
        self._clock = clock
        self._again_ms: LRUCache[tuple[str, str], int] = LRUCache(remembered_max)

    async def note(self, account: str, command: bytes) -> None:
        """A message of this account came, by the speaker of this context; its key in the log.

        If that cannot be recorded now, the next message tells of it.
        """
        who = account, speaker()
        if not self._is_wanted or self._clock() < self._again_ms.get(who, 0):
            return
        noted = await self._identities.ask(account, SeeAgent(), command, AgentNoted)
        if isinstance(noted, AgentNoted):
            self._again_ms[who] = noted.again_ms
        elif noted in _REFUSED:
            self._again_ms[who] = self._clock() + _REFUSED_MS
