"""Processing of one inbound message, from its envelope to the answer.

Unpack, find the protocol, let it answer, and decide where the answer goes: back on the connection
if the sender asked for that (RFC 0092), else into the sender's queue. A forward is different: its
sender is unknown, and its payload goes into the recipient's queue (RFC 0094). HTTP and WebSocket
both use this module, so a message means the same on both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

import msgspec

from actors.core.commands import QueueEnvelopes
from actors.core.rate_limits import RateLimit
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued
from actors.host.clock import Clock, new_id
from http_edge.didcomm.accounts import Accounts
from http_edge.didcomm.answer_times import AnswerTimes
from http_edge.didcomm.delivery.hand_out import packed
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    DidRotation,
    Message,
    OpenReport,
    ProblemReport,
)
from http_edge.didcomm.envelopes.recipient_names import ED25519, NO_NAME, name_form
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.identities import GIVEN_UP, TO_RETRY, Identities, speak_as
from http_edge.didcomm.inbound_transport import InboundTransport
from http_edge.didcomm.protocols.notifications import acknowledged
from http_edge.didcomm.protocols.problems import Problem, report_of
from http_edge.didcomm.protocols.protocol import (
    NOTHING,
    Outcome,
    ProtocolTable,
    Request,
    refusal,
)
from http_edge.didcomm.protocols.report_limit import ReportLimit
from http_edge.didcomm.protocols.routing import FORWARDS, Forwarding
from http_edge.didcomm.reading import ForUs, MessageReader, NotTaken, ToForward
from http_edge.didcomm.rejections import REPORTED, RejectionReason, reason_of, rejected_by
from http_edge.didcomm.traffic import Traffic
from http_edge.listener.address_charge import charge_answer, charge_opening, charge_unproven
from http_edge.settings.settings import DidComm
from http_edge.telemetry.edge_measures import DONE, UNKNOWN, EdgeMeasures
from http_edge.telemetry.refusal_counts import DIDCOMM, RefusalCounts

_LOG = logging.getLogger(__name__)
_COMMAND_BYTES: Final = 16
_UNSAID: Final = frozenset({Refusal.KEY_UNKNOWN, Refusal.MESSAGE_EXPIRED})
"""Refusals that would show which names are registered. A message that expires between the edge and
its host is accepted, as one that expires in the queue is."""


class ReceivedMessage(msgspec.Struct, frozen=True):
    """The result of an accepted message.

    ``back`` is the packed answer for this connection, or None. ``request`` and ``outcome`` are None
    for a forward.
    """

    back: bytes | None = None
    request: Request | None = None
    outcome: Outcome | None = None


class MessageRejection(msgspec.Struct, frozen=True):
    """The rejection of a message, with the reason.

    ``message`` and ``sender`` are set if the envelope proved the sender, who can then be answered.
    ``open_report`` is a problem report, if there is one, for a sender that is not proven.
    """

    reason: RejectionReason
    message: Message | None = None
    sender: AgentAccount | None = None
    open_report: OpenReport | None = None


class Inbound:
    """Processes the messages of all connections of one edge."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: DidComm,
        envelopes: Envelopes,
        reader: MessageReader,
        table: ProtocolTable,
        identities: Identities,
        forwarding: Forwarding,
        *,
        accounts: Accounts,
        traffic: Traffic,
        clock: Clock,
        senders: RateLimit,
        sender_seen: Callable[[str], None],
        refusals: RefusalCounts,
        measures: EdgeMeasures,
    ) -> None:
        """Process messages in the versions of ``envelopes``.

        ``senders`` limits messages by sender; ``sender_seen`` is called with every sender's DID;
        ``refusals`` counts refused messages.
        """
        self._settings = settings
        self._envelopes = envelopes
        self._table = table
        self._identities = identities
        self._forwarding = forwarding
        self._accounts = accounts
        self._traffic = traffic
        self._reader = reader
        self._times = AnswerTimes()
        self._reports = ReportLimit(settings)
        self._clock = clock
        self._senders = senders
        self._sender_seen = sender_seen
        self._refusals = refusals
        self._measures = measures
        self._misaddressed = 0

    async def receive(
        self, body: bytes, transport: InboundTransport
    ) -> ReceivedMessage | MessageRejection:
        """Process one message with any content."""
        arrived_s = self._times.now_s()
        command = blake2b(body, digest_size=_COMMAND_BYTES).digest()
        found = await self._reader.read(body, command)
        self._measures.decode.observe(self._times.now_s() - arrived_s)
        charge_opening(found.work)
        match found:
            case NotTaken(reason, name):
                if reason is not RejectionReason.TRY_AGAIN:
                    charge_unproven(len(body))
                if reason is RejectionReason.UNDECRYPTABLE:
                    await asyncio.sleep(self._times.left_unopened_s(arrived_s))
                return MessageRejection(self.rejected(reason, name))
            case ToForward():
                if found.forward is not None and found.forward.names_another:
                    self._note_misaddressed(FORWARDS[found.envelopes.generation])
                return await self._forward(found, command, arrived_s)
            case ForUs(message, sender):
                if message.is_prior_unproven:
                    # The answer time must not reveal whether the prior DID has an account.
                    await asyncio.sleep(self._times.left_unopened_s(arrived_s))
                return await self._answer(message, sender, command, transport)

    def rejected(
        self,
        rejection: RejectionReason,
        command: str = "",
        sender_did: str = "",
        *,
        form: str = "",
    ) -> RejectionReason:
        """Count a rejected message and return the reason; pass ``sender_did`` only if proven.

        ``form`` is the form of an unknown name, if that name is not a key of DIDComm v1.
        """
        # If the outcome is unknown, the message may have been accepted.
        if rejection is not RejectionReason.TRY_AGAIN:
            reason = f"{rejection.value}:{form}" if form else rejection.value
            self._refusals.count(DIDCOMM, command, reason, sender_did)
        self._measures.commands.add(DIDCOMM, command or UNKNOWN, rejection.value)
        return rejection

    def _note_misaddressed(self, name: str) -> None:
        """Count, for operators, a message that is accepted although it names another recipient.

        Log a line only each time the count doubles, because strangers send these messages.
        """
        self._measures.misaddressed.add(name or UNKNOWN)
        self._misaddressed += 1
        if self._misaddressed.bit_count() == 1:
            about = {"command": name or UNKNOWN, "so_far": self._misaddressed}
            _LOG.info("a message is addressed to another recipient", extra=about)

    async def _forward(
        self, found: ToForward, command: bytes, arrived_s: float
    ) -> ReceivedMessage | MessageRejection:
        """Queue the envelopes for each recipient's owner, independently of the other owners."""
        recipients, envelopes = found.recipients, found.envelopes
        size_bytes = len(envelopes.payloads[0])
        name = FORWARDS[envelopes.generation]
        if len(recipients) > self._settings.forward_recipients_max:
            charge_unproven(size_bytes)
            return MessageRejection(self.rejected(RejectionReason.NOT_A_MESSAGE, name))
        if 0 < envelopes.expires_at_s <= self._clock() / 1000:
            # Before the lookup: only the queue of a registered name would refuse it.
            charge_unproven(0)
            return MessageRejection(self.rejected(RejectionReason.EXPIRED, name))
        # Each further DID of a key is looked up like a further recipient.
        for _ in range(len(recipients) - 1 + sum(len(own) - 1 for own in found.dids.values())):
            charge_unproven(size_bytes)
        if len(recipients) == 1:
            first, dids = recipients[0], found.dids
            replies = [await self._forwarding.forward(first, envelopes, command, dids)]
        else:
            replies = await self._forwarding.forward_to_all(
                recipients, envelopes, command, found.dids
            )
        # The worst refusal decides the answer: a sender that tries again loses nothing.
        for each in replies:
            if isinstance(each, Refusal) and each not in _UNSAID:
                return MessageRejection(self.rejected(reason_of(each), name))
        if all(reply is Refusal.KEY_UNKNOWN for reply in replies):
            return await self._unknown_recipient(found, name, arrived_s)
        if any(isinstance(reply, EnvelopeQueued) and not reply.is_repeat for reply in replies):
            self._times.stored(arrived_s)
        else:  # Nothing was committed.
            await asyncio.sleep(self._times.left_as_stored_s(arrived_s))
        self._measures.commands.add(DIDCOMM, name, DONE)
        return ReceivedMessage()

    async def _unknown_recipient(
        self, found: ToForward, name: str, arrived_s: float
    ) -> ReceivedMessage | MessageRejection:
        """Answer a forward to an unknown name as the operator's setting says.

        The forward is counted by the form of its first recipient name, for the operator to see.
        """
        form = name_form(found.recipients[0]) if found.recipients else NO_NAME
        shown = "" if form in {ED25519, NO_NAME} else form
        unknown = self.rejected(RejectionReason.UNKNOWN_RECIPIENT, name, form=shown)
        choice = self._settings.unknown_recipient
        if choice != "accept" or form == NO_NAME:
            # Not for a name that may be registered: the rest of a rate is as good as an answer.
            charge_unproven(0)
        match choice:
            case "accept":
                await asyncio.sleep(self._times.left_as_stored_s(arrived_s))
                return ReceivedMessage()
            case "report" if found.forward is not None:
                report = report_of(Problem.UNKNOWN_RECIPIENT)
                version = self._envelopes.of(found.forward.version)
                written = version.report_openly(found.forward, report, new_id())
                return MessageRejection(unknown, open_report=written)
            case _:
                return MessageRejection(unknown)

    async def _answer(
        self,
        message: Message,
        sender: AgentAccount | None,
        command: bytes,
        transport: InboundTransport,
    ) -> ReceivedMessage | MessageRejection:
        kind = self._table.known(message.type)
        if kind is not message.type:
            message = msgspec.structs.replace(message, type=kind)
        name = self._table.name_of(message.type)
        if message.names_another:
            self._note_misaddressed(name)
        now_ms = self._clock()
        if message.expires_at_s is not None and message.expires_at_s <= now_ms / 1000:
            charge_unproven(0)
            expired = self.rejected(RejectionReason.EXPIRED, name, sender.did if sender else "")
            return MessageRejection(expired, message, sender)
        if message.rotation is not None and message.rotation.new_did is None:
            return await self._end(message.rotation, command, name)
        if sender is None:
            charge_unproven(0)
            return MessageRejection(self.rejected(RejectionReason.ANONYMOUS, name))
        if self._senders.take(sender.did, now_ms / 1000) is not None:
            limited = self.rejected(RejectionReason.RATE_LIMITED, name, sender.did)
            return MessageRejection(limited, message, sender)
        speak_as(sender.did)
        if message.rotation is not None:
            rotated = await self._accounts.rotate(message.rotation, sender, message, command)
            if rotated in TO_RETRY:
                return MessageRejection(self.rejected(reason_of(rotated), name), message, sender)
            if rotated is not None and rotated is not Refusal.NOT_CONNECTED:
                message = msgspec.structs.replace(message, is_prior_unproven=True)
        return await self._answer_account(message, sender, command, transport, name)

    async def _end(
        self, rotation: DidRotation, command: bytes, name: str
    ) -> ReceivedMessage | MessageRejection:
        """End the account of a sender that gave up its DID for none. Strangers learn nothing."""
        charge_unproven(0)
        ended = await self._accounts.end(rotation, command)
        if ended in TO_RETRY:
            return MessageRejection(self.rejected(reason_of(ended), name))
        self._measures.commands.add(DIDCOMM, name or UNKNOWN, DONE)
        return ReceivedMessage()

    async def _answer_account(
        self,
        message: Message,
        sender: AgentAccount,
        command: bytes,
        transport: InboundTransport,
        name: str,
    ) -> ReceivedMessage | MessageRejection:
        """Answer the account that the sender speaks for."""
        is_looked_up = self._accounts.is_moved(sender)
        handled = await self._handle(message, sender, command, transport)
        if not (is_looked_up or isinstance(handled, Refusal)) and self._accounts.is_moved(sender):
            found = await self._accounts.of(sender, command)
            if isinstance(found, Refusal):
                handled = found if handled[1].refused else handled
            elif found.did != handled[0].sender.did:
                # The sender turned out to speak for another DID's account: repeat for that account.
                # If it does not, another message of the sender began the lookup.
                handled = await self._handle(message, sender, command, transport)
        if isinstance(handled, Refusal):
            return MessageRejection(self.rejected(reason_of(handled), name), message, sender)
        request, outcome = handled
        account = request.sender
        outcome = acknowledged(message, outcome)
        if request.message.is_prior_unproven:
            outcome = _with_unproven_prior(outcome)
        if outcome.refused:
            self._refusals.count(DIDCOMM, name, outcome.refused, account.did)
            limited = self._reports.limited(account.did, outcome, self._clock() / 1000)
            if limited is None:
                # HTTP answers this with a status; a socket sends nothing more.
                self._measures.commands.add(DIDCOMM, name or UNKNOWN, outcome.refused)
                return MessageRejection(RejectionReason.RATE_LIMITED, None, account)
            outcome = limited
        back = await self._back(request, outcome, name)
        if isinstance(back, RejectionReason):
            return MessageRejection(back, message, account)
        # An unknown outcome is no refusal, but not known to be done either.
        result = rejected_by(outcome.to_retry).value if outcome.to_retry else DONE
        self._measures.commands.add(DIDCOMM, name or UNKNOWN, outcome.refused or result)
        return ReceivedMessage(back, request, outcome)

    async def _handle(
        self,
        message: Message,
        sender: AgentAccount,
        command: bytes,
        transport: InboundTransport,
    ) -> tuple[Request, Outcome] | Refusal:
        """Let the handler answer; return the request that it got and its outcome."""
        account = await self._accounts.of(sender, command)
        if isinstance(account, Refusal):
            return account
        if account.did != sender.did:
            # It speaks for its prior DID's account already, and needs no proof of that.
            message = msgspec.structs.replace(message, is_prior_unproven=False)
        self._sender_seen(account.did)
        peer = await transport.admit(account, message)
        request = Request(message, account, command, self._identities, transport.session, peer)
        outcome = await self._outcome(request)
        await self._traffic.note(account.did, command)
        return request, outcome

    async def _outcome(self, request: Request) -> Outcome:
        kind = request.message.type
        # Before a handler is looked for: pickup 1.0 answers every unknown name with a report.
        if kind.is_problem_report or kind.is_ack:
            return NOTHING
        handler = self._table.find(kind)
        if isinstance(handler, Problem):
            return refusal(handler, supported=self._table.supported(kind))
        return await handler(request)

    async def _back(
        self, request: Request, outcome: Outcome, name: str
    ) -> bytes | RejectionReason | None:
        """Return the answer for this connection; queue an answer that cannot go back on it.

        If the answer cannot be queued, return the reason, because the sender would wait for it.
        """
        if outcome.envelope is not None:
            return outcome.envelope
        if outcome.reply is None:
            return None
        answer = outcome.reply
        envelope = await packed(
            outcome.delivered_bytes, lambda: self._pack(answer, request.message, request.sender)
        )
        if not outcome.delivered_bytes:
            # A delivery was charged when its messages were read.
            charge_answer(len(envelope))
        if request.peer.routable:
            return envelope
        if not outcome.may_wait:
            if outcome.problem is None:
                return None
            # A request that failed, or may have, must not look done to a sender without a route.
            reason = rejected_by(outcome.problem)
            self._measures.commands.add(DIDCOMM, name or UNKNOWN, reason.value)
            return reason
        generation = self._envelopes.of(request.sender.version).generation
        queued = await self._forwarding.queue(
            request.sender.did, "", QueueEnvelopes("", [envelope], generation), request.command
        )
        # An answer for a sender without a queue is dropped.
        if not isinstance(queued, Refusal) or queued in GIVEN_UP or outcome.may_drop:
            return None
        return self.rejected(reason_of(queued), name, request.sender.did)

    def report(self, rejection: MessageRejection) -> bytes | None:
        """Return the packed problem report for the sender of a rejected message.

        None if the sender is not proven, so that there is no key to pack the report for; if the
        message is itself a problem report; and if the sender has had too many reports.
        """
        message, sender = rejection.message, rejection.sender
        if message is None or sender is None or message.type.is_problem_report:
            return None
        refused = refusal(REPORTED.get(rejection.reason, Problem.TRY_AGAIN))
        limited = self._reports.limited(sender.did, refused, self._clock() / 1000)
        if limited is None or limited.reply is None:
            return None
        return self._pack(limited.reply, message, sender)

    def _pack(self, answer: Answer, question: Message, to: AgentAccount) -> bytes:
        return self._envelopes.answer(question, answer, to, new_id())


def _with_unproven_prior(outcome: Outcome) -> Outcome:
    """Return the outcome of a message whose ``from_prior`` was not accepted.

    A sender that is not connected learns this, because it may expect the account of its prior DID.
    """
    report = outcome.reply
    if outcome.refused != Problem.NOT_CONNECTED.refused or not isinstance(report, ProblemReport):
        return outcome
    comment = f"{report.comment}; the from_prior of this message was not accepted"
    return msgspec.structs.replace(outcome, reply=msgspec.structs.replace(report, comment=comment))
