"""One message that comes in, from its envelope to what goes back.

Unpack, find the protocol, let it answer, and decide where the answer goes: back on the connection
if the sender asked for that (RFC 0092), else into the sender's queue. A forward is different: its
sender is unknown, and what it carries goes into the queue of the recipient (RFC 0094). HTTP and
WebSocket both come through here, so a message means the same on both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property, partial
from hashlib import blake2b
from time import perf_counter
from typing import Final

import msgspec

from actors.core.commands import RemoveMessages
from actors.core.rate_limits import RateLimit
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued, QueueState
from actors.host.clock import Clock, NewId
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    ForOthers,
    Message,
    UnpackRefusal,
)
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.notifications import acknowledged
from http_edge.didcomm.protocols.problems import Problem, is_problem_report, report_of
from http_edge.didcomm.protocols.protocol import (
    NOTHING,
    Outcome,
    ProtocolTable,
    Request,
    refusal,
)
from http_edge.didcomm.protocols.routing import FORWARD, Forwarding
from http_edge.listener.address_charge import charge_unproven
from http_edge.listener.large_bodies import read_apart
from http_edge.settings.settings import DidComm
from http_edge.telemetry.edge_measures import DONE, UNKNOWN, EdgeMeasures
from http_edge.telemetry.refusal_counts import DIDCOMM, RefusalCounts

_COMMAND_BYTES: Final = 16
_DELIVERED: Final = "delivered"


class RejectionReason(Enum):
    """Why a message was not taken; the transport says so where the sender is unknown."""

    NOT_AN_ENVELOPE = "not-an-envelope"
    UNDECRYPTABLE = "undecryptable"
    NOT_A_MESSAGE = "not-a-message"
    ANONYMOUS = "anonymous"
    """Only a forward may come without a proven sender."""
    TOO_DEEP = "forward-too-deep"
    UNKNOWN_RECIPIENT = "unknown-recipient"
    """Only where the configuration says so; by default it looks like success."""
    QUEUE_FULL = "queue-full"
    MESSAGE_TOO_LARGE = "message-too-large"
    NOT_QUEUING = "not-queuing"
    RATE_LIMITED = "rate-limited"
    INSUFFICIENT_STORAGE = "insufficient-storage"
    """The mediator is short of disk: what is stored is refused until some is free."""
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or there is too much to do."""


class ReceivedMessage(msgspec.Struct, frozen=True):
    """What became of a message that was taken.

    ``back`` is the packed answer for this connection, or None. ``request`` and ``outcome`` are None
    for a forward.
    """

    back: bytes | None = None
    request: Request | None = None
    outcome: Outcome | None = None


class MessageRejection(msgspec.Struct, frozen=True):
    """A message that was not taken, and why.

    ``message`` and ``sender`` are given when its envelope proved who sent it: it can be answered.
    """

    reason: RejectionReason
    message: Message | None = None
    sender: AgentAccount | None = None


class ReturnScope(Enum):
    """What may go back to a sender on a transport, now (RFC 0092)."""

    NOTHING = "nothing"
    ANSWER = "answer"
    """The answer to this message."""
    EVERYTHING = "everything"
    """Whatever there is for it."""


class PeerState(msgspec.Struct, frozen=True):
    """What a transport has for a sender: see ``Request``."""

    persistent: bool = False
    patient: bool = True
    live: bool = False


class InboundTransport:
    """A connection that messages come in on: one HTTP request, or a socket with its memory."""

    def __init__(self, new_id: NewId) -> None:
        """A transport on which no return route was asked for yet."""
        self._new_session = new_id
        self._open: set[str] = set()
        self._threads: dict[str, set[str]] = {}

    @cached_property
    def session(self) -> str:
        """The session that holds leases of what is delivered here; a forward needs none."""
        return self._new_session()

    def follow(self, sender: AgentAccount, message: Message) -> ReturnScope:
        """What may go back to the sender on this transport (RFC 0092)?

        What a sender asked for is remembered up to a bound: keys cost nothing, memory does.
        """
        did, route = sender.did, message.return_route
        if route == "all":
            if len(self._open) < _SENDERS_MAX:
                self._open.add(did)
            return ReturnScope.EVERYTHING
        if did in self._open:
            return ReturnScope.EVERYTHING
        threads = self._threads.get(did)
        if route == "thread":
            if threads is None and len(self._threads) < _SENDERS_MAX:
                threads = self._threads[did] = set()
            if threads is not None and len(threads) < _THREADS_MAX:
                threads.add(message.return_route_thread)
            if message.return_route_thread == message.thread_id:
                return ReturnScope.ANSWER
        return ReturnScope.ANSWER if message.thread_id in (threads or ()) else ReturnScope.NOTHING

    def took(self) -> None:
        """A message was taken."""

    async def admit(self, sender: AgentAccount, message: Message, scope: ReturnScope) -> PeerState:  # noqa: ARG002
        """A message is about to be handled: what has this transport for its sender?"""
        return PeerState()


class _ForUs(msgspec.Struct, frozen=True):
    """A message for the mediator itself, and the account that packed it if that is proven."""

    message: Message
    sender: AgentAccount | None


class _ToForward(msgspec.Struct, frozen=True):
    """An envelope for the owners of these keys in base58."""

    keys: Sequence[str]
    payload: bytes


class _NotTaken(msgspec.Struct, frozen=True):
    """A message that could not be opened or read; ``name`` is ``forward`` if it got that far."""

    reason: RejectionReason
    name: str = ""


_SENDERS_MAX: Final = 64
"""Senders whose wishes for a return route one socket remembers."""
_THREADS_MAX: Final = 64
"""Threads that one sender names on one socket for return route ``thread``."""
_REJECTION_REASONS: Final = {
    Refusal.RECIPIENT_QUEUE_FULL: RejectionReason.QUEUE_FULL,
    Refusal.MESSAGE_TOO_LARGE: RejectionReason.MESSAGE_TOO_LARGE,
    Refusal.NOT_QUEUING: RejectionReason.NOT_QUEUING,
    Refusal.INSUFFICIENT_STORAGE: RejectionReason.INSUFFICIENT_STORAGE,
}
_UNPACK_REFUSALS: Final = {
    UnpackRefusal.NOT_AN_ENVELOPE: RejectionReason.NOT_AN_ENVELOPE,
    UnpackRefusal.NOT_FOR_US: RejectionReason.NOT_AN_ENVELOPE,
    UnpackRefusal.UNDECRYPTABLE: RejectionReason.UNDECRYPTABLE,
}
_REPORTED: Final = {
    RejectionReason.QUEUE_FULL: Problem.QUEUE_FULL,
    RejectionReason.MESSAGE_TOO_LARGE: Problem.MESSAGE_TOO_LARGE,
    RejectionReason.NOT_QUEUING: Problem.NOT_QUEUING,
    RejectionReason.INSUFFICIENT_STORAGE: Problem.INSUFFICIENT_STORAGE,
    RejectionReason.RATE_LIMITED: Problem.RATE_LIMITED,
}
"""What a message that was not taken is answered with in an envelope, if its sender is proven."""


class Inbound:
    """Takes messages of all connections of one edge."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: DidComm,
        envelopes: Envelopes,
        table: ProtocolTable,
        identities: Identities,
        forwarding: Forwarding,
        *,
        clock: Clock,
        new_id: NewId,
        senders: RateLimit,
        sender_seen: Callable[[str], None],
        refusals: RefusalCounts,
        measures: EdgeMeasures,
    ) -> None:
        """The way in, for messages in the versions of ``envelopes``.

        ``senders`` limits messages by sender; ``sender_seen`` is called with every sender's DID;
        ``refusals`` counts what is refused.
        """
        self._settings = settings
        self._envelopes = envelopes
        self._table = table
        self._identities = identities
        self._forwarding = forwarding
        self._clock = clock
        self._new_id = new_id
        self._senders = senders
        self._sender_seen = sender_seen
        self._refusals = refusals
        self._measures = measures

    async def receive(
        self, body: bytes, transport: InboundTransport
    ) -> ReceivedMessage | MessageRejection:
        """Take one message, whatever it holds."""
        started_s = perf_counter()
        command = blake2b(body, digest_size=_COMMAND_BYTES).digest()
        opened = await read_apart(len(body), partial(self._open, body))
        self._measures.decode.observe(perf_counter() - started_s)
        match opened:
            case _NotTaken(reason, name):
                charge_unproven(len(body))
                return MessageRejection(self.refused(reason, name))
            case _ToForward(keys, payload):
                queued = await self._forward(keys, payload, command, transport)
                return MessageRejection(queued) if isinstance(queued, RejectionReason) else queued
            case _ForUs(message, sender):
                return await self._answer(message, sender, command, transport)

    def _open(self, body: bytes) -> _ForUs | _ToForward | _NotTaken:
        """What is in a message, and whom it is for; counts nothing, for it may run in a thread."""
        depth_max = self._settings.forward_depth_max
        for depth in range(depth_max + 1):
            unpacked = self._envelopes.unpack(body)
            if isinstance(unpacked, ForOthers):
                # Not sealed to us but to those that we hold messages for, one or several.
                return _ToForward(unpacked.recipients, body)
            if isinstance(unpacked, UnpackRefusal):
                return _NotTaken(_UNPACK_REFUSALS[unpacked])
            message = self._envelopes.read(unpacked)
            if message is None:
                return _NotTaken(RejectionReason.NOT_A_MESSAGE)
            if not message.is_forward:
                return _ForUs(message, unpacked.sender)
            if depth == depth_max:
                break
            forward = self._envelopes.read_forward(
                message, recipients_max=self._settings.forward_recipients_max
            )
            if forward is None:
                return _NotTaken(RejectionReason.NOT_A_MESSAGE, FORWARD)
            if self._envelopes.own_recipient(message) not in forward.recipients:
                return _ToForward(forward.recipients, forward.payload)
            if len(forward.recipients) > 1:
                return _NotTaken(RejectionReason.NOT_A_MESSAGE, FORWARD)
            body = forward.payload
        return _NotTaken(RejectionReason.TOO_DEEP, FORWARD)

    def refused(
        self, rejection: RejectionReason, command: str = "", sender_did: str = ""
    ) -> RejectionReason:
        """Count a message that was not taken; ``sender_did`` only of a sender that is proven."""
        # Of an unknown outcome the message may have been taken.
        if rejection is not RejectionReason.TRY_AGAIN:
            self._refusals.count(DIDCOMM, command, rejection.value, sender_did)
        self._measures.commands.add(DIDCOMM, command or UNKNOWN, rejection.value)
        return rejection

    async def handed_over(self, request: Request, message_ids: Sequence[str]) -> None:
        """These messages were written: they leave the queue.

        If that fails their lease ends in time and they are offered once more.
        """
        await self._identities.ask(
            request.sender.did,
            RemoveMessages(list(message_ids), _DELIVERED),
            request.command,
            QueueState,
        )

    async def _forward(
        self, keys: Sequence[str], payload: bytes, command: bytes, transport: InboundTransport
    ) -> ReceivedMessage | RejectionReason:
        """Queue an envelope for each owner among its recipients, independently of one another."""
        if len(keys) > self._settings.forward_recipients_max:
            charge_unproven(len(payload))
            return self.refused(RejectionReason.NOT_A_MESSAGE, FORWARD)
        if len(keys) == 1:
            replies = [await self._forwarding.forward(keys[0], payload, command)]
        else:
            for _ in keys[1:]:
                charge_unproven(len(payload))
            replies = await self._forwarding.forward_to_all(keys, payload, command)
        return self._forwarded(replies, transport)

    def _forwarded(
        self, replies: Sequence[EnvelopeQueued | Refusal], transport: InboundTransport
    ) -> ReceivedMessage | RejectionReason:
        """The worst that happened decides: a sender that tries again loses nothing."""
        refusals = [reply for reply in replies if isinstance(reply, Refusal)]
        for each in refusals:
            if each is not Refusal.KEY_UNKNOWN:
                return self.refused(
                    _REJECTION_REASONS.get(each, RejectionReason.TRY_AGAIN), FORWARD
                )
        transport.took()
        if len(refusals) < len(replies):
            self._measures.commands.add(DIDCOMM, FORWARD, DONE)
            return ReceivedMessage()
        charge_unproven(0)
        # The operator learns of it, whatever the sender is answered.
        unknown = self.refused(RejectionReason.UNKNOWN_RECIPIENT, FORWARD)
        return ReceivedMessage() if self._settings.unknown_recipient == "accept" else unknown

    async def _answer(
        self,
        message: Message,
        sender: AgentAccount | None,
        command: bytes,
        transport: InboundTransport,
    ) -> ReceivedMessage | MessageRejection:
        name = self._table.name_of(message.type)
        if sender is None:
            charge_unproven(0)
            return MessageRejection(self.refused(RejectionReason.ANONYMOUS, name))
        if self._senders.take(sender.did, self._clock() / 1000) is not None:
            limited = self.refused(RejectionReason.RATE_LIMITED, name, sender.did)
            return MessageRejection(limited, message, sender)
        self._sender_seen(sender.did)
        scope = transport.follow(sender, message)
        peer_state = await transport.admit(sender, message, scope)
        request = Request(
            message,
            sender,
            command,
            transport.session,
            persistent=peer_state.persistent,
            routable=scope is not ReturnScope.NOTHING,
            open_route=scope is ReturnScope.EVERYTHING,
            patient=peer_state.patient,
            live=peer_state.live,
        )
        outcome = acknowledged(message, await self._outcome(request))
        if outcome.refused:
            self._refusals.count(DIDCOMM, name, outcome.refused, sender.did)
        back = await self._back(request, outcome)
        if isinstance(back, RejectionReason):
            return MessageRejection(back, message, sender)
        self._measures.commands.add(DIDCOMM, name or UNKNOWN, outcome.refused or DONE)
        return ReceivedMessage(back, request, outcome)

    async def _outcome(self, request: Request) -> Outcome:
        handler = self._table.find(request.message.type)
        if not isinstance(handler, Problem):
            return await handler(request)
        if is_problem_report(request.message.type) or request.message.type.name == "ack":
            return NOTHING
        return refusal(handler, may_wait=False)

    async def _back(self, request: Request, outcome: Outcome) -> bytes | RejectionReason | None:
        """What goes back on this connection; what cannot go back waits in the sender's queue.

        An answer that is lost is reported: its sender would wait for it.
        """
        if outcome.envelope is not None:
            return outcome.envelope
        if outcome.reply is None:
            return None
        packed = self._pack(outcome.reply, request.message, request.sender)
        if request.routable:
            return packed
        if not outcome.may_wait:
            return None
        queued = await self._forwarding.queue(request.sender.did, "", packed, request.command)
        if not isinstance(queued, Refusal) or queued is Refusal.NOT_CONNECTED:
            return None
        rejection = _REJECTION_REASONS.get(queued, RejectionReason.TRY_AGAIN)
        return self.refused(
            rejection, self._table.name_of(request.message.type), request.sender.did
        )

    def report(self, rejection: MessageRejection) -> bytes | None:
        """The packed problem report for the sender of a message that was not taken.

        None when the sender is not proven, so that there is no key to pack it for, and for a
        problem report, which is never answered with another.
        """
        message, sender = rejection.message, rejection.sender
        if message is None or sender is None or is_problem_report(message.type):
            return None
        report, _ = report_of(_REPORTED.get(rejection.reason, Problem.TRY_AGAIN))
        return self._pack(report, message, sender)

    def _pack(self, answer: Answer, question: Message, to: AgentAccount) -> bytes:
        return self._envelopes.answer(question, answer, to, self._new_id())
