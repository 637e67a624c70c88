"""Decisions on idle agents: when an agent was last seen, and when it has been silent too long.

A DIDComm agent has no registration that expires, so any message of its own is its sign of life.
Most requests of wallets store nothing, and a poll must not write a row each time. So the last sign
of life is recorded coarsely (``seen_every_s``), and an agent gets that much more time: its account
never ends before the operator's age has passed without a message.

One event ends the account, whatever the agent has; from then on nothing is queued for it. Waiting
envelopes are removed afterwards, in bounded steps (``actors.core.retention``), and an edge releases
the claims of its keys. Rules of this file: pure; events are recorded only if the operator has
idle agents end.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from actors.core.commands import ClaimedKey, SeeAgent
from actors.core.decision import Accepted, DecisionContext
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from actors.core.message_queue import removal
from actors.core.replies import AgentNoted, EnvelopesWaiting, Expired
from eventstore.log.events import AccountExpired, AgentSeen, Event
from eventstore.log.signs_of_life import idle_since_ms

IDLE: Final = "idle"
_PARTS: Final = 8
"""Parts of the age: the most rows, in that time, for an agent that only polls."""
_SEEN_EVERY_S_MIN: Final = 3_600


def seen_every_s(age_s: int) -> int:
    """Seconds between two recorded signs of life, from the operator's age of idle agents."""
    return max(_SEEN_EVERY_S_MIN, age_s // _PARTS)


def ends_after_ms(limits: IdentityLimits) -> int:
    """Milliseconds after the last recorded sign of life at which an agent ends; 0 for never."""
    age_s = limits.idle_agents_age_s_max
    return (age_s + seen_every_s(age_s)) * 1000 if age_s else 0


def see(state: Identity, _command: SeeAgent, context: DecisionContext) -> Accepted:
    """Record a sign of life of the agent, unless one was recorded recently."""
    every_ms = seen_every_s(context.limits.idle_agents_age_s_max) * 1000
    events: list[Event] = []
    seen_ms = state.seen_ms
    if context.limits.idle_agents_age_s_max and context.now_ms - seen_ms >= every_ms:
        seen_ms = context.now_ms
        events.append(AgentSeen(at_ms=seen_ms, command=context.command))
    return Accepted(AgentNoted(seen_ms + every_ms), events)


def idle_from_ms(state: Identity) -> int | None:
    """Since when an agent has been silent (``idle_since_ms``); None for any other identity."""
    if state.connection is None:
        return None
    return idle_since_ms(state.seen_ms, state.registered_until_s)


def is_idle(state: Identity, context: DecisionContext) -> bool:
    """Has the agent been silent for longer than the operator waits?"""
    after_ms, since_ms = ends_after_ms(context.limits), idle_from_ms(state)
    if not after_ms or since_ms is None:
        return False
    return max(since_ms, context.limits.idle_agents_since_ms) + after_ms <= context.expiring_ms


def end(state: Identity, context: DecisionContext) -> Accepted:
    """End the account of an idle agent."""
    over = AccountExpired(at_ms=context.now_ms, command=context.command, reason=IDLE)
    keys = [ClaimedKey(key, claim) for key, claim in state.keylist.items()]
    # A wake-up, as with every end of an account: what waits for messages asks, and is refused.
    return Accepted(Expired(0, 0, 0, agents=1, keys=keys), [over], EnvelopesWaiting())


def has_left_envelopes(state: Identity) -> bool:
    """Do envelopes wait for an idle agent whose account has ended?

    Every other end of an account empties the queue first.
    """
    return bool(state.envelopes) and state.connection is None


def remove_left(state: Identity, records_max: int, context: DecisionContext) -> Accepted:
    """Remove up to ``records_max`` of these envelopes."""
    ids = list(islice(state.envelopes, records_max))
    return Accepted(Expired(len(ids), 0, 0), [removal(state, ids, IDLE, context)])
