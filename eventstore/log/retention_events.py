"""The events of an agent's silence: that it was there, and that it was not for too long.

The part of ``eventstore.log.events`` that makes an idle agent end; the same rules hold here.
"""

from __future__ import annotations

from eventstore.log.event_registry import Event, released


@released("agent-seen.1")
class AgentSeen(Event, frozen=True, kw_only=True):
    """A message of the agent itself came, as its envelope proved; what it asked stores nothing.

    Recorded only where the operator ends idle agents, and for each once in a part of that age: a
    poll writes no row.
    """


@released("account-expired.1")
class AccountExpired(Event, frozen=True, kw_only=True):
    """The account of an agent is over: connection, mediation, keylist, and rules of its queue.

    ``reason`` is idle: nothing came from the agent for as long as the operator waits. What waits
    for it leaves by the events behind this one. Who comes back begins anew.
    """

    reason: str
