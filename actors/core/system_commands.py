"""Decisions on commands that the mediator's own processes send: the placer and the edges.

The placer decides whether an identity belongs to its shard or is a partition of its own; load alone
does not undo an operator's order. An edge reports the commands that it refused. An edge is no
identity, but its refusals belong in the log like everything else, sealed and exported; its target
is ``edge:`` and its name.

Rules of this file: pure; a repeated command is recorded once.
"""

from __future__ import annotations

from actors.core.commands import (
    CloseSession,
    CountRefusals,
    DedicateIdentity,
    DedicationReason,
    Listen,
    OpenSession,
    ReleaseIdentity,
)
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.identity import Identity
from actors.core.refusals import Refusal
from actors.core.replies import Dedication, Done, Registered
from eventstore.log.events import IdentityDedicated, IdentityReleased, RefusalsCounted


def dedicate(state: Identity, command: DedicateIdentity, context: DecisionContext) -> Decision:
    """Make an identity that has registered or connected a partition of its own."""
    reason = state.dedicated_by
    if not state.is_known:
        return Refusal.RECIPIENT_NOT_REGISTERED
    if reason and command.by in {DedicationReason.LOAD, reason}:
        return Accepted(Dedication(reason, changed=False))
    dedicated = IdentityDedicated(
        at_ms=context.now_ms, command=context.command, did=context.target, reason=command.by.value
    )
    return Accepted(Dedication(command.by.value, changed=True), [dedicated])


def release(state: Identity, command: ReleaseIdentity, context: DecisionContext) -> Accepted:
    """Return the identity to its shard."""
    reason = state.dedicated_by
    if not reason or (reason == DedicationReason.OPERATOR and command.by is DedicationReason.LOAD):
        return Accepted(Dedication(reason, changed=False))
    released = IdentityReleased(
        at_ms=context.now_ms, command=context.command, did=context.target, reason=command.by.value
    )
    return Accepted(Dedication("", changed=True), [released])


def count_refusals(state: Identity, command: CountRefusals, context: DecisionContext) -> Accepted:
    """Record the counts, unless this command has already been recorded."""
    if context.command in state.recent or not command.refusals:
        return Accepted(Done())
    counted = RefusalsCounted(
        at_ms=context.now_ms,
        command=context.command,
        edge=command.edge,
        since_ms=command.since_ms,
        until_ms=command.until_ms,
        refusals=command.refusals,
    )
    return Accepted(Done(), [counted])


def open_session(state: Identity, _command: OpenSession, _context: DecisionContext) -> Accepted:
    """Answer an edge with a socket of the identity until when it is registered (10.2)."""
    return Accepted(Registered(state.registered_until_s))


def note_session(
    _state: Identity, _command: Listen | CloseSession, _context: DecisionContext
) -> Accepted:
    """Accept what the host notes of an edge: it waits for envelopes, or has no socket any more."""
    return Accepted(Done())
