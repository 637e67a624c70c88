"""Decisions on where an identity belongs: to its shard, or to itself as a partition of its own.

Rules of this file: pure; what an operator wants, load alone does not undo. Said twice, it is
recorded once.
"""

from __future__ import annotations

from actors.commands import DedicateIdentity, ReleaseIdentity, Wish
from actors.decision import Accepted, Decision, Moment
from actors.identity import Identity
from actors.refusals import Refusal
from actors.replies import Dedication
from eventstore.events import IdentityDedicated, IdentityReleased


def dedicate(did: str, state: Identity, command: DedicateIdentity, moment: Moment) -> Decision:
    """An identity that registered or connected becomes a partition of its own."""
    reason = state.dedicated_by
    if not state.is_known:
        return Refusal.RECIPIENT_NOT_REGISTERED
    if reason and command.by in {Wish.LOAD, reason}:
        return Accepted(Dedication(reason, changed=False))
    dedicated = IdentityDedicated(
        at_ms=moment.now_ms, command=moment.command, did=did, reason=command.by.value
    )
    return Accepted(Dedication(command.by.value, changed=True), [dedicated])


def release(did: str, state: Identity, command: ReleaseIdentity, moment: Moment) -> Decision:
    """The identity goes back to its shard."""
    reason = state.dedicated_by
    if not reason or (reason == Wish.OPERATOR and command.by is Wish.LOAD):
        return Accepted(Dedication(reason, changed=False))
    released = IdentityReleased(
        at_ms=moment.now_ms, command=moment.command, did=did, reason=command.by.value
    )
    return Accepted(Dedication("", changed=True), [released])
