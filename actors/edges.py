"""Decisions on edges: what they tell of the commands that they refused.

An edge is no identity, but what it refused belongs into the log like everything else: sealed, and
exported. Its stream is the target ``edge:`` and its name. Rules of this file: pure; said twice, it
is recorded once.
"""

from __future__ import annotations

from actors.commands import CountRefusals
from actors.decision import Accepted, Moment
from actors.identity import Identity
from actors.replies import Done
from eventstore.events import RefusalsCounted


def count_refusals(state: Identity, command: CountRefusals, moment: Moment) -> Accepted:
    """Record the counts, unless this very command has been recorded already."""
    if moment.command in state.recent or not command.refusals:
        return Accepted(Done())
    counted = RefusalsCounted(
        at_ms=moment.now_ms,
        command=moment.command,
        edge=command.edge,
        since_ms=command.since_ms,
        until_ms=command.until_ms,
        refusals=command.refusals,
    )
    return Accepted(Done(), [counted])
