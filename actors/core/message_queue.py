"""Decisions on the queue of waiting messages (DCTRL-0004 7.2, 8.7, 8.8).

Rules of this file: pure; a client removes a message only by acknowledging it. An acknowledgement
ignores ids that are not in the queue, and its answer does not tell whether such an id is foreign,
unknown or already acknowledged. DIDComm envelopes share this queue and its caps, but Decentrl
commands do not show them (``actors.core.envelopes``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import islice
from typing import Final

from actors.core.commands import AcknowledgeMessages, QueryMessages, QueueMessage
from actors.core.contracts import requests_acknowledged
from actors.core.decision import Accepted, Decision, DecisionContext, MessageRefs, answered_page
from actors.core.identity import Depth, Identity, QueuedMessage
from actors.core.refusals import Refusal
from actors.core.replies import Done, MessageAccepted, MessageArrived, WaitingMessage
from eventstore.log.events import DECENTRL, Event, MessageQueued, MessagesRemoved

ACKNOWLEDGED = "acknowledged"
DELIVERED = "delivered"
"""Removed without an acknowledgement, for lack of one in the protocol: it was handed over."""
EXPIRED = "expired"
LOST = "lost"
_EMPTY: Final = Depth(0, 0)
REMOVED_MAX = 10_000
"""Messages that one event made by the mediator itself removes: the size of a row is bounded."""


def is_full(  # noqa: PLR0913, PLR0917 - the hot path: a record of these would cost too much
    state: Identity,
    depths: dict[str, Depth],
    origin: str,
    size_bytes: int,
    messages_max: int,
    bytes_max: int,
    share: float,
    others: int = 0,
) -> bool:
    """Has the queue, all protocols together, no room for one more message of this size?

    One sender, or one recipient key, gets at most ``share`` of the room, but always one message.
    ``depths`` counts waiting messages by sender or by key; ``origin`` is the sender or key of this
    message. ``others`` more messages come with it, and ``size_bytes`` is the size of them all.
    """
    waiting, waiting_bytes = len(state.messages) + others, state.queue_bytes + size_bytes
    if waiting < messages_max * share and waiting_bytes <= bytes_max * share:
        return False  # no sender or key has more than the total
    if waiting >= messages_max or waiting_bytes > bytes_max:
        return True
    depth = depths.get(origin, _EMPTY) if others else depths.get(origin)
    return depth is not None and (
        depth.messages + others >= messages_max * share
        or depth.bytes + size_bytes > bytes_max * share
    )


def lapsed_messages(state: Identity, context: DecisionContext) -> MessagesRemoved | None:
    """The removal of messages that waited too long; None if there are none."""
    ids = due_messages(state, context)
    return removal(state, ids, EXPIRED, context) if ids else None


def due_messages(state: Identity, context: DecisionContext) -> list[str]:
    """A bounded number of messages past the operator's age, the owner's, or their own expiry.

    The owner's age and the sender's expiry apply to envelopes alone: Decentrl has neither.
    """
    ids = _too_old(state, context)
    if state.expires_first_s and state.expires_first_s <= context.expiring_s:
        passed = [i for i, at_s in state.expiring.items() if at_s <= context.expiring_s]
        ids = list(dict.fromkeys([*ids, *passed]))[:REMOVED_MAX]
    return ids


def removal(
    state: Identity, message_ids: list[str], reason: str, context: DecisionContext
) -> MessagesRemoved:
    """The event that removes these messages, all of which wait."""
    return MessagesRemoved(
        at_ms=context.now_ms,
        command=context.command,
        message_ids=message_ids,
        reason=reason,
        versions=[state.messages[message_id].version for message_id in message_ids],
    )


def removals(
    state: Identity, message_ids: list[str], reason: str, context: DecisionContext
) -> list[Event]:
    """The events that remove any number of messages, at most ``REMOVED_MAX`` per event."""
    return [
        removal(state, message_ids[start : start + REMOVED_MAX], reason, context)
        for start in range(0, len(message_ids), REMOVED_MAX)
    ]


def lost(state: Identity, versions: Collection[int], context: DecisionContext) -> list[Event]:
    """Remove waiting messages and contract requests that have no content to hand out.

    A log restored from an export has these: they were removed after the end of the export, and
    before their rows were exported.
    """
    ids = [i for i, message in state.messages.items() if message.version in versions]
    events = removals(state, ids, LOST, context)
    requests = [i for i, request in state.requests.items() if request.version in versions]
    if requests:
        events.append(requests_acknowledged(state, requests, context))
    return events


def _too_old(state: Identity, context: DecisionContext) -> list[str]:
    """Messages that waited longer than the operator's or the owner's age allows."""
    ids = _older(state, state.messages, context.limits.queue_age_s_max, context)
    own_s = state.policy.age_s_max if state.policy is not None else 0
    if own_s and state.envelopes:
        own = _older(state, state.envelopes, own_s, context)
        ids = list(dict.fromkeys([*ids, *own]))[:REMOVED_MAX]
    return ids


def _older(state: Identity, ids: Iterable[str], age_s: int, context: DecisionContext) -> list[str]:
    """The first of these messages, as far as they waited for longer; none if the age is 0."""
    older: list[str] = []
    if not age_s:
        return older
    before_ms = context.expiring_ms - age_s * 1000
    for message_id in ids:
        if state.messages[message_id].at_ms >= before_ms or len(older) == REMOVED_MAX:
            break
        older.append(message_id)
    return older


def queue_message(state: Identity, command: QueueMessage, context: DecisionContext) -> Decision:
    """Queue a message if a contract of the recipient allows its sender (7.2 steps 5 to 7).

    The recipient must own the contract, and it must name exactly these two parties, so a message
    to oneself has no contract.
    """
    sender, payload, now_ms = command.sender_did, command.payload, context.now_ms
    partner = state.correspondents.get(sender)
    if partner is None or sender == context.target or partner.until_s <= now_ms / 1000:
        return Refusal.COMMUNICATION_CONTRACT_NOT_FOUND
    limits = context.limits
    if is_full(
        state,
        state.by_sender,
        sender,
        len(payload),
        limits.queue_messages_max,
        limits.queue_bytes_max,
        limits.queue_sender_share_max,
    ):
        return Refusal.RECIPIENT_QUEUE_FULL
    message_id = context.fresh_id
    queued = MessageQueued(
        at_ms=now_ms,
        command=context.command,
        message_id=message_id,
        protocol=DECENTRL,
        sender_did=sender,
        recipient_key="",
        payload=context.content(payload),
    )
    waiting = WaitingMessage(message_id, sender, payload)
    return Accepted(MessageAccepted(message_id), [queued], MessageArrived(waiting))


def query_messages(state: Identity, command: QueryMessages, _context: DecisionContext) -> Decision:
    """Answer with a page of waiting messages in arrival order and the exact total (8.7)."""
    page, sender = command.page, command.sender_did
    total = len(state.messages) - len(state.envelopes)
    matching: Iterable[QueuedMessage] = state.messages.values()
    if state.envelopes:
        matching = (message for message in matching if not message.is_envelope)
    if sender is not None:
        total = state.by_sender.get(sender, _EMPTY).messages
        matching = (message for message in matching if message.sender_did == sender)
    # It stops at the last match: behind it may stand thousands of others.
    chosen = islice(matching, page.offset, min(page.offset + page.size, total))
    records = [(message.version, message.size_bytes) for message in chosen]
    return answered_page(MessageRefs, page, records, total)


def acknowledge_messages(
    state: Identity, command: AcknowledgeMessages, context: DecisionContext
) -> Accepted:
    """Remove the waiting messages among the command's ids (8.8)."""
    ids = dict.fromkeys(command.message_ids)
    waiting = [i for i in ids if i in state.messages and not state.messages[i].is_envelope]
    if not waiting:
        return Accepted(Done())
    return Accepted(Done(), [removal(state, waiting, ACKNOWLEDGED, context)])
