"""Decisions on envelopes that are forwarded to a DIDComm agent (RFC 0094, routing 2.0).

Rules of this file: pure; all envelopes of a message are queued or none, in its order, and each
counts in every bound. The times that the sender sets govern the queue and promise nothing about the
recipient: an expired message is not queued, and a delayed one is held back for its delay, unless
too many are, of this queue or of the host (``actors.core.leases``). An envelope for a live session
is queued and leased in one transaction and pushed whole: the session need not ask for it, and the
log is written once.
"""

from __future__ import annotations

from typing import Final

from actors.core.accounts import not_speaking
from actors.core.commands import QueueEnvelopes
from actors.core.decision import Accepted, Decision, DecisionContext, Leasing
from actors.core.envelopes import is_held_back, no_room
from actors.core.identity import Identity
from actors.core.leases import HELD_BACK, Lease
from actors.core.refusals import Refusal
from actors.core.replies import (
    DeliveredMessage,
    EnvelopeDelivered,
    EnvelopeQueued,
    EnvelopesWaiting,
    Refused,
)
from eventstore.log.events import (
    DIDCOMM,
    DIDCOMM_V2,
    Event,
    MessageExpirySet,
    MessageQueued,
    MessagesDelivered,
    QueueRefused,
)

DELAYED_MAX: Final = 100
"""Messages of one queue that are held back at once; further ones are handed out without a delay.
Every forward to a live session and every pickup passes over those that are held back: with 5,000
of them a forward took 1.0 instead of 0.007 ms of CPU to decide."""
LIVE: Final = "live"
"""The channel of deliveries to a live session."""


def queue_envelopes(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
    """Queue envelopes for a name in the keylist, or from the mediator itself for the agent."""
    key, payloads = command.recipient_key, command.payloads
    if state.connection is None or (key and key not in state.keylist):
        return Refusal.KEY_UNKNOWN if key else Refusal.NOT_CONNECTED
    if not key and not_speaking(state, context) is not None:
        # An answer to a DID that was given up: it would fill the queue of the one that replaced it.
        return Refusal.NOT_SPEAKING
    known = state.recent.get(context.command) if key else None
    if known is not None:
        # A retry: the sender does not know that one transaction has stored all envelopes.
        return Accepted(_reply(known, state, is_repeat=True))
    if 0 < command.expires_at_s <= context.now_s:
        return Refusal.MESSAGE_EXPIRED
    refusal = no_room(state, key, payloads, context)
    if refusal is not None:
        return _refused(state, key, refusal, context)
    message_id = context.fresh_id
    if len(payloads) == 1:
        ids, events = [message_id], [_queued(command, 0, message_id, context)]
    else:
        ids = [f"{message_id}.{number}" for number in range(len(payloads))]
        events = [_queued(command, number, each, context) for number, each in enumerate(ids)]
    if command.expires_at_s:
        events.append(_expiry(command, ids, context))
    reply = _reply(ids[-1], state)
    if command.delay_ms and _held_back(context) + len(ids) <= DELAYED_MAX:
        lease = Lease(HELD_BACK, context.now_ms + command.delay_ms)
        return Accepted(reply, events, leasing=Leasing(ids, lease))
    if len(ids) == 1 and _goes_live(state, len(payloads[0]), context):
        return _delivered_live(reply, events, command, context)
    return Accepted(reply, events, EnvelopesWaiting())


def _queued(
    command: QueueEnvelopes, number: int, message_id: str, context: DecisionContext
) -> Event:
    return MessageQueued(
        at_ms=context.now_ms,
        command=context.command,
        message_id=message_id,
        protocol=DIDCOMM if command.generation == 1 else DIDCOMM_V2,
        sender_did="",
        recipient_key=command.recipient_key,
        payload=context.content(command.payloads[number], number),
    )


def _expiry(command: QueueEnvelopes, ids: list[str], context: DecisionContext) -> Event:
    return MessageExpirySet(
        at_ms=context.now_ms,
        command=context.command,
        message_ids=ids,
        expires_at_s=command.expires_at_s,
    )


def _reply(message_id: str, state: Identity, *, is_repeat: bool = False) -> EnvelopeQueued:
    endpoint = "" if state.connection is None else state.connection.endpoint
    return EnvelopeQueued(message_id, bool(endpoint), state.push_device is not None, is_repeat)


def _refused(state: Identity, key: str, refusal: Refusal, context: DecisionContext) -> Decision:
    """Refuse a message; record only the first refusal until the queue changes."""
    if state.refusing:
        return refusal
    began = QueueRefused(
        at_ms=context.now_ms, command=context.command, recipient_key=key, reason=refusal.value
    )
    return Accepted(Refused(refusal), [began])


def _held_back(context: DecisionContext) -> int:
    return sum(lease.session == HELD_BACK for lease in context.leases.values())


def _goes_live(state: Identity, size_bytes: int, context: DecisionContext) -> bool:
    """Is a message to be leased and pushed to the live session as it is queued?

    Not if an earlier envelope still waits, or if the session holds too many unacknowledged ones.
    """
    live, limits = context.live, context.limits
    if not live.lease_ms:
        return False
    # Skip envelopes that senders delay: they do not show whether earlier ones still wait.
    newest = next((i for i in reversed(state.envelopes) if not is_held_back(i, context)), None)
    if (
        newest is not None
        and newest not in context.leases
        and state.messages[newest].version > live.since
    ):
        return False
    held = held_bytes = leased = 0
    for message_id, lease in context.leases.items():
        message = state.messages.get(message_id)
        if message is not None and lease.session != HELD_BACK:
            leased += 1
            if lease.session == live.session:
                held += 1
                held_bytes += message.size_bytes
    has_room = held < limits.live_in_flight_max and leased < limits.leased_max
    return has_room and (not held or held_bytes + size_bytes <= live.bytes_max)


def _delivered_live(
    reply: EnvelopeQueued,
    queued: list[Event],
    command: QueueEnvelopes,
    context: DecisionContext,
) -> Accepted:
    """Lease a queued envelope to the live session in the same transaction."""
    ids, (payload,), live = [reply.message_id], command.payloads, context.live
    delivered = MessagesDelivered(
        at_ms=context.now_ms, command=context.command, message_ids=ids, channel=LIVE
    )
    message = DeliveredMessage(reply.message_id, command.recipient_key, payload, context.now_ms)
    lease = Lease(live.session, context.now_ms + live.lease_ms)
    notice = EnvelopeDelivered(live.session, message)
    return Accepted(reply, [*queued, delivered], notice, Leasing(ids, lease))
