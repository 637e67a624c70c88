"""Decisions on envelopes that go to a live session as they are queued (RFC 0685, live mode).

A message for a session that waits for it is queued and leased in one transaction, and pushed whole:
the session asks for nothing, and the log is written once. Pure.
"""

from __future__ import annotations

from typing import Final

from actors.decision import Accepted, Leasing, Moment
from actors.identity import Identity
from actors.leases import Lease
from actors.replies import DeliveredMessage, EnvelopeDelivered, EnvelopeQueued
from eventstore.events import MessageQueued, MessagesDelivered

LIVE: Final = "live"
"""The channel of what goes to a live session."""


def goes_live(state: Identity, size_bytes: int, moment: Moment) -> bool:
    """Is a message to go to the live session as it is queued, rather than be fetched by it?

    Not if something waits before it, or if the session holds too much that it did not acknowledge.
    """
    live, limits = moment.live, moment.limits
    if not live.lease_ms:
        return False
    newest = next(((i, m) for i, m in reversed(state.messages.items()) if m.is_envelope), None)
    if newest is not None and newest[1].version > live.since and newest[0] not in moment.leases:
        return False
    held = held_bytes = leased = 0
    for message_id, lease in moment.leases.items():
        message = state.messages.get(message_id)
        if message is not None:
            leased += 1
            if lease.session == live.session:
                held += 1
                held_bytes += message.size_bytes
    has_room = held < limits.live_in_flight_max and leased < limits.leased_max
    return has_room and (not held or held_bytes + size_bytes <= live.bytes_max)


def queued_live(queued: MessageQueued, reply: EnvelopeQueued, moment: Moment) -> Accepted:
    """Queued and leased in one transaction: the live session need not ask for it."""
    ids = [queued.message_id]
    delivered = MessagesDelivered(
        at_ms=moment.now_ms, command=moment.command, message_ids=ids, channel=LIVE
    )
    message = DeliveredMessage(
        queued.message_id, queued.recipient_key, queued.payload, moment.now_ms
    )
    live = moment.live
    lease = Lease(live.session, moment.now_ms + live.lease_ms)
    notice = EnvelopeDelivered(live.session, message)
    return Accepted(reply, [queued, delivered], notice, Leasing(ids, lease))
