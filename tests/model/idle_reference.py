"""Agents that are silent for too long, in the plainest form: what counts, and what ends."""

from __future__ import annotations

from math import ceil

from actors.core import commands as c
from actors.core import replies as r
from actors.core.refusals import Refusal
from eventstore.log.events import Seconds
from tests.model.agents_reference import LIMITS, NO_RULES, Agent

HOUR_MS = 3_600_000
AFTER_MS = LIMITS.idle_agents_age_s_max * 1000 + HOUR_MS
_BY_ITSELF = (
    c.Connect
    | c.GrantMediation
    | c.RotateAccount
    | c.SetQueuePolicy
    | c.AcknowledgeMessages
    | c.RemoveMessages
)


def is_traffic(command: c.Command, *, has_changed: bool, has_new_key: bool) -> bool:
    """Is what a command did traffic of the agent's own?"""
    match command:
        case c.UpdateKeylist():
            return has_new_key
        case c.SetPushDevice(device):
            return has_changed and device is not None
        case c.DeliverMessages(channel=channel):
            return has_changed and channel not in {"live", "outbound"}
        case _:
            return has_changed and isinstance(command, _BY_ITSELF)


def see(agent: Agent, now_ms: int) -> r.Reply | Refusal:
    """A message of the agent, which is recorded once an hour."""
    if agent.connection is None:
        return Refusal.NOT_CONNECTED
    if now_ms - agent.seen_ms >= HOUR_MS:
        agent.version += 1
        agent.seen_ms = now_ms
    return r.AgentNoted(agent.seen_ms + HOUR_MS)


def is_idle(agent: Agent, until_s: Seconds, now_ms: int) -> bool:
    """Did nothing come from the agent for so long, and does no registration say that it lives?"""
    known_ms = max(ceil(agent.seen_ms / HOUR_MS) * HOUR_MS, ceil(until_s * 1000))
    return agent.connection is not None and known_ms + AFTER_MS <= now_ms


def end(agent: Agent) -> r.Expired:
    """The account is over at once; what waits leaves afterwards."""
    over = [c.ClaimedKey(key, claim) for key, claim in agent.keylist.items()]
    agent.version += 1
    agent.keylist, agent.connection, agent.mediated = {}, None, False
    agent.own_rules, agent.refusing, agent.given_up = NO_RULES, False, []
    agent.device = None
    return r.Expired(0, 0, 0, agents=1, keys=over)


def left_behind(agent: Agent) -> list[str]:
    """The envelopes of an agent that has ended by itself."""
    gone = agent.connection is None
    return [m.message_id for m in agent.messages if gone and m.key is not None]
