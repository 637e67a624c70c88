"""Decisions on the envelopes that wait for a DIDComm agent (RFC 0212, RFC 0685, Aries queue 1.0).

Rules of this file: pure; a delivery leases envelopes and never removes them; a removal names ids
and ignores those that are not in the queue, and its answer does not tell whether such an id is
foreign, unknown or already removed. How envelopes get into the queue: ``actors.core.forwarded``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, takewhile
from typing import Final, TypeAlias

import msgspec

from actors.core.commands import (
    DeliverMessages,
    EndLive,
    PurgeQueue,
    QueryQueue,
    ReleaseLeases,
    RemoveMessages,
    SetQueuePolicy,
    StartLive,
)
from actors.core.decision import Accepted, Decision, DecisionContext, DeliveryRefs, Leasing
from actors.core.identity import Depth, Identity, QueuedMessage
from actors.core.leases import HELD_BACK, SET_ASIDE, Lease
from actors.core.limits import IdentityLimits
from actors.core.message_queue import is_full, removal, removals
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, Done, EnvelopesWaiting, Purged, QueuePolicy, QueueState
from actors.core.sessions import FROM_THE_FIRST
from eventstore.log.events import MessagesDelivered, QueuePolicySet

PURGED = "purged"
_Waiting: TypeAlias = tuple[str, QueuedMessage]
_NOTHING: Final = Depth(0, 0)
_SORTING: Final = 16
"""Sorting a waiting message by its age takes as long as passing over so many in their order."""
_NO_POLICY = QueuePolicy(
    will_queue=True, age_s_max=0, messages_max=0, message_bytes_max=0, bytes_max=0
)


def deliver(state: Identity, command: DeliverMessages, context: DecisionContext) -> Decision:
    """Lease waiting envelopes to the session, oldest first, and hand them out."""
    if command.live and context.live.session != command.session:
        return Refusal.LIVE_ELSEWHERE
    # A live session takes implicit pickup from the session that had it, which may ask once more.
    if command.implicit and (context.implicit or context.live.session) not in {"", command.session}:
        return Refusal.LIVE_ELSEWHERE
    chosen = _chosen(state, command, context)
    standing = queue_state(state, context, command.recipient_key)
    size_bytes = sum(message.size_bytes for _, message in chosen)
    # Others are passed over twice: for the envelopes, unless ids name them, and for the state.
    searches = 2 if command.message_ids is None else 1
    looked_at = searches * _others(state, command.recipient_key)
    if command.waits_for_turn and size_bytes > context.page_bytes_max:
        return Accepted(Delivery([], standing, is_large=True), looked_at=looked_at)
    refs = DeliveryRefs([message.version for _, message in chosen], size_bytes, standing)
    if not chosen or not command.lease_ms:
        return Accepted(refs, looked_at=looked_at)
    ids = [message_id for message_id, _ in chosen]
    delivered = MessagesDelivered(
        at_ms=context.now_ms, command=context.command, message_ids=ids, channel=command.channel
    )
    after = msgspec.structs.replace(
        standing,
        available=standing.available - sum(i not in context.leases for i in ids),
        last_delivered_ms=context.now_ms,
        version=standing.version + 1,
        set_aside=standing.set_aside + (len(ids) if command.sets_aside else 0),
    )
    session = SET_ASIDE if command.sets_aside else command.session
    lease = Lease(session, context.now_ms + command.lease_ms)
    refs = msgspec.structs.replace(refs, state=after)
    return Accepted(refs, [delivered], leasing=Leasing(ids, lease), looked_at=looked_at)


def remove(state: Identity, command: RemoveMessages, context: DecisionContext) -> Accepted:
    """Remove the waiting envelopes among the command's ids."""
    waiting = [i for i in dict.fromkeys(command.message_ids) if _is_envelope(state, i)]
    if not waiting:
        return Accepted(queue_state(state, context))
    removed = removal(state, waiting, command.reason, context)
    # If the live session or all sessions together held as many as they may, there is room again.
    limits = context.limits
    was_full = _leased(state, context) >= limits.leased_max or (
        context.live.session and _held_live(state, context) >= limits.live_in_flight_max
    )
    notice = EnvelopesWaiting() if was_full else None
    return Accepted(queue_state(state, context, gone=frozenset(waiting)), [removed], notice)


def purge(state: Identity, _command: PurgeQueue, context: DecisionContext) -> Accepted:
    """Remove all waiting messages, of every protocol."""
    ids = list(state.messages)
    return Accepted(Purged(len(ids)), removals(state, ids, PURGED, context))


def query(state: Identity, command: QueryQueue, context: DecisionContext) -> Accepted:
    """Answer with the queue's state."""
    standing = queue_state(state, context, command.recipient_key)
    return Accepted(standing, looked_at=_others(state, command.recipient_key))


def start_live(state: Identity, _command: StartLive, context: DecisionContext) -> Accepted:
    """Answer with the queue's state; the session's first fetch takes the live mode (RFC 0685)."""
    return Accepted(queue_state(state, context, live=True))


def end_live(state: Identity, command: EndLive, context: DecisionContext) -> Accepted:
    """Answer with the queue's state; the live mode ends if the session holds it (RFC 0685)."""
    held_by_another = context.live.session not in ("", command.session)
    return Accepted(queue_state(state, context, live=held_by_another))


def release_leases(
    _state: Identity, _command: ReleaseLeases, _context: DecisionContext
) -> Accepted:
    """Announce that the session's messages can be handed out again."""
    return Accepted(Done(), notice=EnvelopesWaiting())


def set_policy(state: Identity, command: SetQueuePolicy, context: DecisionContext) -> Accepted:
    """Change the owner's rules; waiting messages stay (queue 1.0, "Updating the queue status")."""
    now = state.policy or _NO_POLICY
    given = msgspec.structs.asdict(command).items()
    wanted = msgspec.structs.replace(now, **{n: rule for n, rule in given if rule is not None})
    reply = queue_state(state, context, own=wanted)
    if wanted == now:
        return Accepted(reply)
    changed = QueuePolicySet(
        at_ms=context.now_ms, command=context.command, **msgspec.structs.asdict(wanted)
    )
    return Accepted(msgspec.structs.replace(reply, version=reply.version + 1), [changed])


def queue_state(
    state: Identity,
    context: DecisionContext,
    recipient_key: str | None = None,
    *,
    live: bool | None = None,
    own: QueuePolicy | None = None,
    gone: frozenset[str] = frozenset(),
) -> QueueState:
    """The state of the queue of envelopes, or of one key's part of it.

    ``gone``: envelopes that a removal now takes from the whole queue.
    """
    depth = _depth(state, recipient_key)
    count = depth.messages - len(gone)
    # Most queues hold envelopes for one key only, so the first message at either end matches.
    waiting = partial(_of_key, state, recipient_key=recipient_key, gone=gone)
    oldest = next(waiting(state.envelopes), None) if count else None
    newest = next(waiting(reversed(state.envelopes)), None) if count else None
    leased = [
        lease.session
        for i, lease in context.leases.items()
        if _is_envelope(state, i)
        and i not in gone
        and recipient_key in (None, state.messages[i].recipient_key)
    ]
    return QueueState(
        messages=count,
        bytes=depth.bytes - sum(state.messages[i].size_bytes for i in gone),
        available=count - len(leased),
        oldest_ms=0 if oldest is None else oldest.at_ms,
        newest_ms=0 if newest is None else newest.at_ms,
        last_added_ms=state.last_added_ms,
        last_delivered_ms=state.last_delivered_ms,
        last_removed_ms=context.now_ms if gone else state.last_removed_ms,
        policy=_in_force(own or state.policy or _NO_POLICY, context.limits),
        live=bool(context.live.session) if live is None else live,
        version=state.version + (1 if gone else 0),
        held_back=leased.count(HELD_BACK),
        set_aside=leased.count(SET_ASIDE),
    )


def no_room(
    state: Identity, key: str, payloads: Sequence[bytes], context: DecisionContext
) -> Refusal | None:
    """Why these envelopes cannot all be queued for a key; None if they can."""
    limits, others = context.limits, len(payloads) - 1
    largest = size_bytes = len(payloads[0])
    if others:
        largest, size_bytes = max(map(len, payloads)), sum(map(len, payloads))
    rules = None if state.policy is None else _in_force(state.policy, limits)
    if largest > (limits if rules is None else rules).message_bytes_max:
        return Refusal.MESSAGE_TOO_LARGE
    # The sender is anonymous, so the share of the operator's bounds applies to the recipient key.
    messages_max, bytes_max = limits.queue_messages_max, limits.queue_bytes_max
    share, depths = limits.queue_sender_share_max, state.by_key
    if is_full(state, depths, key, size_bytes, messages_max, bytes_max, share, others):
        return Refusal.RECIPIENT_QUEUE_FULL
    if rules is None:
        return None
    if is_full(state, depths, key, size_bytes, rules.messages_max, rules.bytes_max, 1.0, others):
        return Refusal.RECIPIENT_QUEUE_FULL
    return None if rules.will_queue or context.listening else Refusal.NOT_QUEUING


def _in_force(own: QueuePolicy, limits: IdentityLimits) -> QueuePolicy:
    """The owner's rules within the operator's bounds."""
    if own is _NO_POLICY:
        return QueuePolicy(
            own.will_queue,
            limits.queue_age_s_max,
            limits.queue_messages_max,
            limits.message_bytes_max,
            limits.queue_bytes_max,
        )
    return QueuePolicy(
        own.will_queue,
        _stricter(own.age_s_max, limits.queue_age_s_max),
        _stricter(own.messages_max, limits.queue_messages_max),
        _stricter(own.message_bytes_max, limits.message_bytes_max),
        _stricter(own.bytes_max, limits.queue_bytes_max),
    )


def _stricter(own: int, bound: int) -> int:
    """The lower of two limits; 0 means no limit."""
    return min(own, bound) if own and bound else own or bound


def _chosen(state: Identity, command: DeliverMessages, context: DecisionContext) -> list[_Waiting]:
    """Choose the envelopes to hand out, within the bounds of command, live mode and leases."""
    limit, limits = command.limit, context.limits
    if command.live:
        limit = min(limit, limits.live_in_flight_max - _held_live(state, context))
    if command.lease_ms and command.message_ids is None:
        limit = min(limit, limits.leased_max - _leased(state, context))
    chosen: list[_Waiting] = []
    size_bytes = 0
    # Without room for any, none is looked for: a live session may have to be offered all there are.
    for message_id, message in _offered(state, command, context) if limit > 0 else ():
        if len(chosen) >= limit or (chosen and size_bytes + message.size_bytes > command.bytes_max):
            return chosen
        chosen.append((message_id, message))
        size_bytes += message.size_bytes
    return chosen if len(chosen) >= command.at_least else []


def _leased(state: Identity, context: DecisionContext) -> int:
    """How many waiting messages all sessions together hold."""
    return sum(
        lease.session != HELD_BACK and message_id in state.messages
        for message_id, lease in context.leases.items()
    )


def _held_live(state: Identity, context: DecisionContext) -> int:
    """How many waiting messages the live session holds."""
    return sum(
        lease.session == context.live.session and message_id in state.messages
        for message_id, lease in context.leases.items()
    )


def _offered(
    state: Identity, command: DeliverMessages, context: DecisionContext
) -> Iterator[_Waiting]:
    """The envelopes that may be handed out to the session, oldest first."""
    if command.message_ids is not None:
        named = [i for i in dict.fromkeys(command.message_ids) if _is_envelope(state, i)]
        offered: Iterator[_Waiting] = ((i, state.messages[i]) for i in named)
    elif not _depth(state, command.recipient_key).messages:
        offered = iter(())
    elif command.after_version and not (command.live and context.live.since == FROM_THE_FIRST):
        version = command.after_version
        until = _until(state, version, context.live.leased) if command.live else ()
        offered = chain(until, _since(state, version))
    else:
        offered = _envelopes(state)
    for message_id, message in offered:
        if command.recipient_key not in (None, message.recipient_key):
            continue
        lease = context.leases.get(message_id)
        if lease is None or (command.message_ids is not None and _may_name(command, lease)):
            yield message_id, message


def _may_name(command: DeliverMessages, lease: Lease) -> bool:
    """A read shows any message; a delivery repeats messages leased to its own session."""
    return not command.lease_ms or lease.session == command.session


def _until(state: Identity, version: int, leased: set[str]) -> Iterator[_Waiting]:
    """Those of the ``leased`` envelopes that were queued up to a version, oldest first."""
    if _SORTING * len(leased) > len(state.envelopes):
        ids: Iterable[str] = (i for i in state.envelopes if i in leased)
    else:
        found = (i for i in leased if _is_envelope(state, i))
        ids = sorted(found, key=lambda i: state.messages[i].version)
    waiting = ((i, state.messages[i]) for i in ids)
    return takewhile(lambda one: one[1].version <= version, waiting)


def _since(state: Identity, version: int) -> list[_Waiting]:
    """The envelopes queued after a version, found from the newest end."""
    found: list[_Waiting] = []
    for message_id in reversed(state.envelopes):
        message = state.messages[message_id]
        if message.version <= version:
            break
        found.append((message_id, message))
    found.reverse()
    return found


def _depth(state: Identity, recipient_key: str | None) -> Depth:
    if recipient_key is None:
        return Depth(len(state.envelopes), state.envelope_bytes)
    return state.by_key.get(recipient_key, _NOTHING)


def _others(state: Identity, recipient_key: str | None) -> int:
    """How many envelopes for others a search for a key's envelopes passes over at most."""
    if recipient_key is None or recipient_key not in state.by_key:
        return 0
    return len(state.envelopes) - state.by_key[recipient_key].messages


def _of_key(
    state: Identity, ids: Iterable[str], *, recipient_key: str | None, gone: frozenset[str]
) -> Iterator[QueuedMessage]:
    """The messages with these ids that are not gone, or those for one key."""
    ids = (i for i in ids if i not in gone) if gone else ids
    messages = map(state.messages.__getitem__, ids)
    return (m for m in messages if recipient_key in (None, m.recipient_key))


def _envelopes(state: Identity) -> Iterator[_Waiting]:
    return ((i, state.messages[i]) for i in state.envelopes)


def _is_envelope(state: Identity, message_id: str) -> bool:
    return message_id in state.envelopes


def is_held_back(message_id: str, context: DecisionContext) -> bool:
    """Has the sender of a waiting message delayed it?"""
    lease = context.leases.get(message_id)
    return lease is not None and lease.session == HELD_BACK
