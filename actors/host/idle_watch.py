"""Since when a log has all traffic of agents: while the setting is off, their polls leave no row.

So silence of before counts for nothing. The moment from which on an age is in force is written
down in the log, beside its constants, by whichever host starts first. It begins anew when the age
becomes shorter, since traffic was recorded more coarsely until then, and after the setting was off.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from actors.core.limits import HostLimits
from eventstore.log.errors import LogError
from eventstore.log.event_log import EventLog

MARK: Final = "idle_agents_watched"
_LOG = logging.getLogger(__name__)


def watched(limits: HostLimits, log: EventLog, now_ms: int) -> HostLimits:
    """The limits with the moment from which on silence counts (``idle_agents_since_ms``).

    A log that does not answer now has none yet: the next start goes on with what is written down.
    """
    age_s = limits.identity.idle_agents_age_s_max
    try:
        since_ms = _watched_since_ms(log, age_s, now_ms)
    except LogError as error:
        _LOG.error("since when agents are watched is not known: %s", type(error).__name__)
        since_ms = now_ms
    identity = msgspec.structs.replace(limits.identity, idle_agents_since_ms=since_ms)
    return msgspec.structs.replace(limits, identity=identity)


def _watched_since_ms(log: EventLog, age_s: int, now_ms: int) -> int:
    known = log.settings().get(MARK)
    if not age_s:
        if known is not None:
            log.mark(MARK, None)
        return 0
    since_ms, longest_s = (now_ms, age_s) if known is None else map(int, known.split())
    if age_s < longest_s:
        since_ms = now_ms
    if known != (wanted := f"{since_ms} {age_s}"):
        log.mark(MARK, wanted)
    return since_ms
