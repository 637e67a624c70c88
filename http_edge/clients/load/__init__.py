"""A load on a running mediator: agents of either protocol, prepared messages, a closed loop.

The agents are ordinary clients: they register, write to each other and fetch waiting messages, as
any client may. Make messages before the clock runs. A refused message is counted by its code and
not sent again; any other request that meets a rate limit is repeated after a pause.
"""

from http_edge.clients.load.agents import MESSAGE_BYTES, Agents, Drained
from http_edge.clients.load.closed_loop import (
    LoadResult,
    Post,
    Progress,
    closed_loop,
    http_posts,
    no_progress,
    refusal_of,
)
from http_edge.clients.load.decentrl_agents import REGISTERED_S, DecentrlAgents, Pair
from http_edge.clients.load.didcomm_agents import (
    DidComm2Agents,
    DidCommAgents,
    Mailbox,
    Mailbox2,
)

__all__ = [
    "MESSAGE_BYTES",
    "REGISTERED_S",
    "Agents",
    "DecentrlAgents",
    "DidComm2Agents",
    "DidCommAgents",
    "Drained",
    "LoadResult",
    "Mailbox",
    "Mailbox2",
    "Pair",
    "Post",
    "Progress",
    "closed_loop",
    "http_posts",
    "no_progress",
    "refusal_of",
]
