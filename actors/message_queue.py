"""Decisions on the queue of waiting messages (DCTRL-0004 7.2, 8.7, 8.8).

Rules of this file: pure; only an acknowledgement removes a message; an id that is not in the
queue, whether foreign, unknown or already acknowledged, is ignored and never told apart.
"""

from __future__ import annotations

from itertools import islice

from actors.commands import AcknowledgeMessages, QueryMessages, QueueMessage
from actors.decision import Accepted, Decision, MessageRefs, Moment
from actors.identity import Identity
from actors.refusals import Refusal
from actors.replies import Done, MessageAccepted, MessageArrived, WaitingMessage
from eventstore.events import MessageQueued, MessagesRemoved

DECENTRL = "decentrl"
ACKNOWLEDGED = "acknowledged"


def queue_message(did: str, state: Identity, command: QueueMessage, moment: Moment) -> Decision:
    """Queue a message if a contract of the recipient allows its sender (7.2 steps 5 to 7).

    The contract must be owned by the recipient and name exactly these two parties, so a message
    to oneself finds none.
    """
    if not state.is_registered(moment.now_s):
        return Refusal.RECIPIENT_NOT_REGISTERED
    contract_until_s = state.correspondents.get(command.sender_did, 0)
    if command.sender_did == did or contract_until_s <= moment.now_s:
        return Refusal.COMMUNICATION_CONTRACT_NOT_FOUND
    limits = moment.limits
    if (
        len(state.messages) >= limits.queue_messages_max
        or state.queue_bytes + len(command.payload) > limits.queue_bytes_max
    ):
        return Refusal.RECIPIENT_QUEUE_FULL
    queued = MessageQueued(
        at_ms=moment.now_ms,
        command=moment.command,
        message_id=moment.fresh_id,
        protocol=DECENTRL,
        sender_did=command.sender_did,
        recipient_key="",
        payload=command.payload,
    )
    waiting = WaitingMessage(moment.fresh_id, command.sender_did, command.payload)
    return Accepted(MessageAccepted(moment.fresh_id), [queued], MessageArrived(waiting))


def query_messages(state: Identity, command: QueryMessages) -> Accepted:
    """A page of waiting messages in arrival order, with the exact total (8.7)."""
    page, sender = command.page, command.sender_did
    total = len(state.messages)
    matching = iter(state.messages.values())
    if sender is not None:
        found = [m for m in matching if m.sender_did == sender]
        total, matching = len(found), iter(found)
    chosen = list(islice(matching, page.offset, page.offset + page.size))
    versions = [message.version for message in chosen]
    return Accepted(MessageRefs(versions, total, sum(m.size_bytes for m in chosen)))


def acknowledge_messages(state: Identity, command: AcknowledgeMessages, moment: Moment) -> Accepted:
    """Remove the messages among these ids that wait here (8.8)."""
    waiting = [i for i in dict.fromkeys(command.message_ids) if i in state.messages]
    if not waiting:
        return Accepted(Done())
    removed = MessagesRemoved(
        at_ms=moment.now_ms, command=moment.command, message_ids=waiting, reason=ACKNOWLEDGED
    )
    return Accepted(Done(), [removed])
