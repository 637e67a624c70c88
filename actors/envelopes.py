"""Decisions on the envelopes that wait for a DIDComm agent (RFC 0212, RFC 0685, Aries queue 1.0).

Rules of this file: pure; handing out leases and never removes; a removal names ids, and an id that
is not in the queue, whether foreign, unknown or removed already, is ignored and never told apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final, TypeAlias

import msgspec

from actors.commands import (
    DeliverMessages,
    EndLive,
    QueryQueue,
    QueueEnvelope,
    RemoveMessages,
    SetQueuePolicy,
    StartLive,
)
from actors.decision import Accepted, Decision, DeliveryRefs, Leasing, Moment
from actors.evolution import DIDCOMM, retry_key
from actors.identity import Identity, KeyDepth, QueuedMessage
from actors.leases import Lease
from actors.live import goes_live, queued_live
from actors.message_queue import REMOVED_MAX, is_full
from actors.refusals import Refusal
from actors.replies import (
    EnvelopeQueued,
    EnvelopesWaiting,
    Purged,
    QueuePolicy,
    QueueState,
    Refused,
)
from eventstore.events import (
    Event,
    MessageQueued,
    MessagesDelivered,
    MessagesRemoved,
    QueuePolicySet,
    QueueRefused,
)

PURGED = "purged"
_Waiting: TypeAlias = tuple[str, QueuedMessage]
_NOTHING: Final = KeyDepth(0, 0)
_NO_POLICY = QueuePolicy(
    will_queue=True, age_s_max=0, messages_max=0, message_bytes_max=0, bytes_max=0
)


def queue_envelope(state: Identity, command: QueueEnvelope, moment: Moment) -> Decision:
    """Queue an envelope that was forwarded to a key of the keylist, or comes from the mediator."""
    if state.connection is None:
        return Refusal.KEY_UNKNOWN if command.recipient_key else Refusal.NOT_CONNECTED
    if command.recipient_key and command.recipient_key not in state.keylist:
        return Refusal.KEY_UNKNOWN
    known = state.recent.get(retry_key(moment.command, command.recipient_key))
    if known is not None:
        # The same bytes once more: the sender has not heard that they are safe.
        return Accepted(EnvelopeQueued(known, outbound=bool(state.connection.endpoint)))
    refusal = _refusal(state, command, moment)
    if refusal is not None:
        if state.refusing:
            return refusal
        refused = QueueRefused(
            at_ms=moment.now_ms,
            command=moment.command,
            recipient_key=command.recipient_key,
            reason=refusal.value,
        )
        return Accepted(Refused(refusal), [refused])
    queued = MessageQueued(
        at_ms=moment.now_ms,
        command=moment.command,
        message_id=moment.fresh_id,
        protocol=DIDCOMM,
        sender_did="",
        recipient_key=command.recipient_key,
        payload=command.payload,
    )
    reply = EnvelopeQueued(moment.fresh_id, outbound=bool(state.connection.endpoint))
    if goes_live(state, len(command.payload), moment):
        return queued_live(queued, reply, moment)
    return Accepted(reply, [queued], EnvelopesWaiting())


def deliver(state: Identity, command: DeliverMessages, moment: Moment) -> Decision:
    """Lease what waits to the session, oldest first, and hand it out."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    if command.live and moment.live.session != command.session:
        return Refusal.LIVE_ELSEWHERE
    chosen = _chosen(state, command, moment)
    standing = queue_state(state, moment, command.recipient_key)
    refs = DeliveryRefs(
        [message.version for _, message in chosen],
        sum(message.size_bytes for _, message in chosen),
        standing,
    )
    if not chosen or not command.lease_ms:
        return Accepted(refs)
    ids = [message_id for message_id, _ in chosen]
    delivered = MessagesDelivered(
        at_ms=moment.now_ms, command=moment.command, message_ids=ids, channel=command.channel
    )
    after = msgspec.structs.replace(
        standing,
        available=standing.available - sum(i not in moment.leases for i in ids),
        last_delivered_ms=moment.now_ms,
        version=standing.version + 1,
    )
    lease = Lease(command.session, moment.now_ms + command.lease_ms)
    refs = msgspec.structs.replace(refs, state=after)
    return Accepted(refs, [delivered], leasing=Leasing(ids, lease))


def remove(state: Identity, command: RemoveMessages, moment: Moment) -> Decision:
    """Remove the envelopes among these ids that wait here."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    waiting = [i for i in dict.fromkeys(command.message_ids) if _is_envelope(state, i)]
    if not waiting:
        return Accepted(queue_state(state, moment))
    removed = MessagesRemoved(
        at_ms=moment.now_ms, command=moment.command, message_ids=waiting, reason=command.reason
    )
    # A live session that had no room for more has some now.
    held = _held_live(state, moment)
    was_full = moment.live.session and held >= moment.limits.live_in_flight_max
    notice = EnvelopesWaiting() if was_full else None
    return Accepted(_state_without(state, frozenset(waiting), moment), [removed], notice)


def purge(state: Identity, moment: Moment) -> Accepted:
    """Remove everything that waits, of every protocol."""
    ids = list(state.messages)
    removed: list[Event] = [
        MessagesRemoved(
            at_ms=moment.now_ms, command=moment.command, message_ids=part, reason=PURGED
        )
        for start in range(0, len(ids), REMOVED_MAX)
        if (part := ids[start : start + REMOVED_MAX])
    ]
    return Accepted(Purged(len(ids)), removed)


def query(state: Identity, command: QueryQueue | StartLive | EndLive, moment: Moment) -> Decision:
    """How the queue stands; starting and ending the live mode answer it too (RFC 0685)."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    match command:
        case QueryQueue():
            return Accepted(queue_state(state, moment, command.recipient_key))
        case StartLive():
            return Accepted(queue_state(state, moment, live=True))
        case EndLive():
            held_by_another = moment.live.session not in ("", command.session)
            return Accepted(queue_state(state, moment, live=held_by_another))


def set_policy(state: Identity, command: SetQueuePolicy, moment: Moment) -> Decision:
    """Change the owner's own rules; what waits stays (queue 1.0, "Updating the queue status")."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    now = state.policy or _NO_POLICY
    wanted = QueuePolicy(
        now.will_queue if command.will_queue is None else command.will_queue,
        now.age_s_max if command.age_s_max is None else command.age_s_max,
        now.messages_max if command.messages_max is None else command.messages_max,
        now.message_bytes_max if command.message_bytes_max is None else command.message_bytes_max,
        now.bytes_max if command.bytes_max is None else command.bytes_max,
    )
    reply = queue_state(state, moment, own=wanted)
    if wanted == now:
        return Accepted(reply)
    changed = QueuePolicySet(
        at_ms=moment.now_ms,
        command=moment.command,
        will_queue=wanted.will_queue,
        age_s_max=wanted.age_s_max,
        messages_max=wanted.messages_max,
        message_bytes_max=wanted.message_bytes_max,
        bytes_max=wanted.bytes_max,
    )
    return Accepted(msgspec.structs.replace(reply, version=reply.version + 1), [changed])


def queue_state(
    state: Identity,
    moment: Moment,
    recipient_key: str | None = None,
    *,
    live: bool | None = None,
    own: QueuePolicy | None = None,
) -> QueueState:
    """How the queue of envelopes stands, of one key alone when it is named."""
    depth = _depth(state, recipient_key)
    # Most queues hold envelopes of one key alone: the first look from either end finds one.
    waiting = partial(_of_key, recipient_key=recipient_key)
    oldest = next(waiting(state.messages.values()), None) if depth.messages else None
    newest = next(waiting(reversed(state.messages.values())), None) if depth.messages else None
    leased = (m for i in moment.leases if (m := state.messages.get(i)) is not None)
    count, size_bytes = depth.messages, depth.bytes
    available = count - sum(1 for _ in waiting(leased))
    return QueueState(
        messages=count,
        bytes=size_bytes,
        available=available,
        oldest_ms=0 if oldest is None else oldest.at_ms,
        newest_ms=0 if newest is None else newest.at_ms,
        last_added_ms=state.last_added_ms,
        last_delivered_ms=state.last_delivered_ms,
        last_removed_ms=state.last_removed_ms,
        policy=_in_force(own or state.policy or _NO_POLICY, moment),
        live=bool(moment.live.session) if live is None else live,
        version=state.version,
    )


def _refusal(state: Identity, command: QueueEnvelope, moment: Moment) -> Refusal | None:
    rules = _in_force(state.policy or _NO_POLICY, moment)
    size_bytes = len(command.payload)
    if size_bytes > rules.message_bytes_max:
        return Refusal.MESSAGE_TOO_LARGE
    if is_full(state, size_bytes, rules.messages_max, rules.bytes_max):
        return Refusal.RECIPIENT_QUEUE_FULL
    if not rules.will_queue and not moment.listening:
        return Refusal.NOT_QUEUING
    return None


def _in_force(own: QueuePolicy, moment: Moment) -> QueuePolicy:
    """The owner's rules within the operator's bounds."""
    limits = moment.limits
    return QueuePolicy(
        own.will_queue,
        _stricter(own.age_s_max, limits.queue_age_s_max),
        _stricter(own.messages_max, limits.queue_messages_max),
        _stricter(own.message_bytes_max, limits.message_bytes_max),
        _stricter(own.bytes_max, limits.queue_bytes_max),
    )


def _stricter(own: int, bound: int) -> int:
    """The lower of two limits, where 0 is none."""
    return min(own, bound) if own and bound else own or bound


def _chosen(state: Identity, command: DeliverMessages, moment: Moment) -> list[_Waiting]:
    """What is handed out, within the bounds of the command, of live mode and of leases."""
    limit, limits = command.limit, moment.limits
    if command.live:
        limit = min(limit, limits.live_in_flight_max - _held_live(state, moment))
    if command.lease_ms and command.message_ids is None:
        leased = sum(message_id in state.messages for message_id in moment.leases)
        limit = min(limit, limits.leased_max - leased)
    chosen: list[_Waiting] = []
    size_bytes = 0
    for message_id, message in _offered(state, command, moment):
        if len(chosen) >= limit or (chosen and size_bytes + message.size_bytes > command.bytes_max):
            return chosen
        chosen.append((message_id, message))
        size_bytes += message.size_bytes
    return chosen if len(chosen) >= command.at_least else []


def _held_live(state: Identity, moment: Moment) -> int:
    """How many waiting messages the live session holds."""
    return sum(
        lease.session == moment.live.session and message_id in state.messages
        for message_id, lease in moment.leases.items()
    )


def _offered(state: Identity, command: DeliverMessages, moment: Moment) -> Iterator[_Waiting]:
    """What may be handed out to the session, oldest first."""
    if command.message_ids is not None:
        named = [i for i in dict.fromkeys(command.message_ids) if _is_envelope(state, i)]
        offered: Iterator[_Waiting] = ((i, state.messages[i]) for i in named)
    elif not _depth(state, command.recipient_key).messages:
        offered = iter(())
    elif command.after_version:
        offered = iter(_since(state, command.after_version))
    else:
        offered = _envelopes(state)
    for message_id, message in offered:
        if command.recipient_key not in (None, message.recipient_key):
            continue
        lease = moment.leases.get(message_id)
        if lease is None or (command.message_ids is not None and lease.session == command.session):
            yield message_id, message


def _since(state: Identity, version: int) -> list[_Waiting]:
    """The envelopes queued after a version, found from the newest end."""
    found: list[_Waiting] = []
    for message_id, message in reversed(state.messages.items()):
        if message.version <= version:
            break
        if message.is_envelope:
            found.append((message_id, message))
    found.reverse()
    return found


def _depth(state: Identity, recipient_key: str | None) -> KeyDepth:
    if recipient_key is None:
        return KeyDepth(state.envelopes, state.envelope_bytes)
    return state.by_key.get(recipient_key, _NOTHING)


def _of_key(
    messages: Iterable[QueuedMessage], *, recipient_key: str | None
) -> Iterator[QueuedMessage]:
    """The envelopes among these, of one key alone if it is named."""
    return (m for m in messages if m.is_envelope and recipient_key in (None, m.recipient_key))


def _envelopes(state: Identity) -> Iterator[_Waiting]:
    return ((i, m) for i, m in state.messages.items() if m.is_envelope)


def _is_envelope(state: Identity, message_id: str) -> bool:
    message = state.messages.get(message_id)
    return message is not None and message.is_envelope


def _state_without(state: Identity, gone: frozenset[str], moment: Moment) -> QueueState:
    """How the queue will stand without these messages."""
    standing = queue_state(state, moment)
    left = (m for i, m in _envelopes(state) if i not in gone)
    oldest = next(left, None)
    newest = next((m for i, m in reversed(state.messages.items()) if _stays(i, m, gone)), None)
    unleased = sum(message_id not in moment.leases for message_id in gone)
    return QueueState(
        messages=standing.messages - len(gone),
        bytes=standing.bytes - sum(state.messages[i].size_bytes for i in gone),
        available=standing.available - unleased,
        oldest_ms=0 if oldest is None else oldest.at_ms,
        newest_ms=0 if newest is None else newest.at_ms,
        last_added_ms=standing.last_added_ms,
        last_delivered_ms=standing.last_delivered_ms,
        last_removed_ms=moment.now_ms,
        policy=standing.policy,
        live=standing.live,
        version=standing.version + 1,
    )


def _stays(message_id: str, message: QueuedMessage, gone: frozenset[str]) -> bool:
    return message.is_envelope and message_id not in gone
