"""Decisions on the envelopes of one DIDComm v2 message (routing 2.0).

Rules of this file: pure; all envelopes are queued or none, in the order of the message, and each
counts in every bound. The times that the sender sets govern the queue and promise nothing about the
recipient: an expired message is not queued, and a delayed one is held back for its delay, unless
too many are.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actors.core.commands import QueueEnvelopes
from actors.core.decision import Accepted, Decision, DecisionContext, Leasing
from actors.core.envelopes import envelope_queued, goes_live, no_room, queued_live, refused
from actors.core.evolve import DIDCOMM_V2
from actors.core.identity import Identity
from actors.core.leases import HELD_BACK, Lease
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopesWaiting
from eventstore.log.events import Event, MessageExpirySet, MessageQueued

DELAYED_MAX: Final = 100
"""Messages of one queue that are held back at once; further ones are handed out without a delay.
Every forward to a live session and every pickup passes over those that are held back: with 5,000
of them a forward took 1.0 instead of 0.007 ms of CPU to decide."""


def queue_envelopes(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
    """Queue envelopes for a name in the keylist, or from the mediator itself for the agent."""
    key = command.recipient_key
    if state.connection is None or (key and key not in state.keylist):
        return Refusal.KEY_UNKNOWN if key else Refusal.NOT_CONNECTED
    known = state.recent.get(context.command) if key else None
    if known is not None:
        # A retry: one transaction has stored all envelopes.
        return Accepted(envelope_queued(known, state))
    if 0 < command.expires_at_s <= context.now_s:
        return Refusal.MESSAGE_EXPIRED
    refusal = no_room(state, key, command.payloads, context)
    if refusal is not None:
        return refused(state, key, refusal, context)
    queued = _queued(command, context)
    ids = [each.message_id for each in queued]
    reply = envelope_queued(ids[-1], state)
    expiry = _expiry(command, ids, context)
    if command.delay_ms and _held_back(context) + len(ids) <= DELAYED_MAX:
        lease = Lease(HELD_BACK, context.now_ms + command.delay_ms)
        return Accepted(reply, [*queued, *expiry], leasing=Leasing(ids, lease))
    if len(queued) == 1 and goes_live(state, len(command.payloads[0]), context):
        live = queued_live(queued[0], reply, context)
        return msgspec.structs.replace(live, events=[*live.events, *expiry])
    return Accepted(reply, [*queued, *expiry], EnvelopesWaiting())


def _held_back(context: DecisionContext) -> int:
    return sum(lease.session == HELD_BACK for lease in context.leases.values())


def _queued(command: QueueEnvelopes, context: DecisionContext) -> list[MessageQueued]:
    several = len(command.payloads) > 1
    return [
        MessageQueued(
            at_ms=context.now_ms,
            command=context.command,
            message_id=f"{context.fresh_id}.{index}" if several else context.fresh_id,
            protocol=DIDCOMM_V2,
            sender_did="",
            recipient_key=command.recipient_key,
            payload=context.content(payload, index),
        )
        for index, payload in enumerate(command.payloads)
    ]


def _expiry(command: QueueEnvelopes, ids: list[str], context: DecisionContext) -> list[Event]:
    if not command.expires_at_s:
        return []
    return [
        MessageExpirySet(
            at_ms=context.now_ms,
            command=context.command,
            message_ids=ids,
            expires_at_s=command.expires_at_s,
        )
    ]
