"""The time since when a log records all signs of life of agents.

While the setting is off, polls of agents leave no row, so earlier silence does not count. The first
host that starts with an age writes the present time to the log, beside its constants. The time
starts again when the age becomes shorter, since signs of life were recorded more coarsely until
then, and after the setting was off.
"""

from __future__ import annotations

import logging
from typing import Final

import msgspec

from actors.core.limits import HostLimits
from actors.host.log_outage import reason
from eventstore.log.errors import LogError
from eventstore.log.event_log import EventLog

MARK: Final = "idle_agents_watched"
_LOG = logging.getLogger(__name__)


def watched(limits: HostLimits, log: EventLog, now_ms: int) -> HostLimits:
    """The limits with the time from which silence counts (``idle_agents_since_ms``).

    If the log does not answer, that time is now; the next start uses the time in the log again.
    """
    age_s = limits.identity.idle_agents_age_s_max
    try:
        since_ms = _watched_since_ms(log, age_s, now_ms)
    except LogError as error:
        _LOG.error("cannot read when the watch for idle agents began: %s", reason(error))
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
