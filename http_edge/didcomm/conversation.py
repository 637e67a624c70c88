"""One message of DIDComm v1, from its envelope to what goes back.

Unpack, find the family, let it answer, and decide where the answer goes: back on the connection if
the sender asked for that (RFC 0092), else into the sender's queue. A forward is different: its
sender is nobody, and what it carries goes into the queue of the recipient (RFC 0094). Both fronts,
HTTP and WebSocket, come through here, so a message means the same on both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from enum import Enum
from functools import cached_property
from hashlib import blake2b
from time import perf_counter
from typing import Final

import msgspec
import orjson

from actors.clock import Clock, NewId
from actors.commands import RemoveMessages
from actors.refusals import Refusal
from actors.replies import EnvelopeQueued, QueueState
from http_edge.config import DidComm
from http_edge.didcomm import envelope
from http_edge.didcomm.acknowledgement import acknowledged
from http_edge.didcomm.families import routing
from http_edge.didcomm.families.table import Table
from http_edge.didcomm.forwarding import Forwarding
from http_edge.didcomm.handling import NOTHING, Asked, Outcome, Sender
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.keys import KeyPair, base58, did_key
from http_edge.didcomm.messages import Json, Message, read_message
from http_edge.didcomm.problems import Problem, is_problem_report, problem_report
from http_edge.edge_report import DONE, UNKNOWN, EdgeMeasures
from http_edge.rate_limits import RateLimit
from http_edge.refusal_counts import DIDCOMM, RefusalCounts

_COMMAND_BYTES: Final = 16
_DELIVERED: Final = "delivered"
_FORWARD: Final = "routing/1.0/forward"


class Trouble(Enum):
    """Why a message was not taken, told by the transport: the sender is nobody that we know."""

    NOT_AN_ENVELOPE = "not-an-envelope"
    UNDECRYPTABLE = "undecryptable"
    NOT_A_MESSAGE = "not-a-message"
    ANONYMOUS = "anonymous"
    """Only a forward may come from nobody."""
    TOO_DEEP = "forward-too-deep"
    UNKNOWN_RECIPIENT = "unknown-recipient"
    """Only where the configuration says so; by default it looks like success."""
    QUEUE_FULL = "queue-full"
    MESSAGE_TOO_LARGE = "message-too-large"
    NOT_QUEUING = "not-queuing"
    RATE_LIMITED = "rate-limited"
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or there is too much to do."""


class Heard(msgspec.Struct, frozen=True):
    """What became of a message that was taken.

    ``back`` is the packed answer for this connection, or None. ``asked`` and ``outcome`` are None
    for a forward.
    """

    back: bytes | None = None
    asked: Asked | None = None
    outcome: Outcome | None = None


class Route(Enum):
    """What may go back to a sender on a line, now (RFC 0092)."""

    NOTHING = "nothing"
    ANSWER = "answer"
    """The answer to this message."""
    EVERYTHING = "everything"
    """Whatever there is for it."""


class Standing(msgspec.Struct, frozen=True):
    """What a line has for a sender: see ``Asked``."""

    persistent: bool = False
    patient: bool = True
    live: bool = False


class Line:
    """A connection that messages come in on: one HTTP request, or a socket with its memory."""

    def __init__(self, new_id: NewId) -> None:
        """A line on which nobody has asked for anything yet."""
        self._new_session = new_id
        self._open: set[str] = set()
        self._threads: dict[str, set[str]] = {}

    @cached_property
    def session(self) -> str:
        """Who holds what is delivered on this line; most lines bring a forward and need none."""
        return self._new_session()

    def follow(self, sender: Sender, message: Message) -> Route:
        """What may go back to the sender on this line (RFC 0092)?

        A line remembers what a sender asked for, up to a bound: keys cost nothing, memory does.
        """
        did, route = sender.did, message.return_route
        if route == "all":
            if len(self._open) < _SENDERS_MAX:
                self._open.add(did)
            return Route.EVERYTHING
        if did in self._open:
            return Route.EVERYTHING
        threads = self._threads.get(did)
        if route == "thread":
            if threads is None and len(self._threads) < _SENDERS_MAX:
                threads = self._threads[did] = set()
            if threads is not None and len(threads) < _THREADS_MAX:
                threads.add(message.return_route_thread)
            if message.return_route_thread == message.thread_id:
                return Route.ANSWER
        return Route.ANSWER if message.thread_id in (threads or ()) else Route.NOTHING

    def took(self) -> None:
        """A message was taken."""

    async def admit(self, sender: Sender, message: Message, route: Route) -> Standing:  # noqa: ARG002
        """A message is about to be handled: what has this line for its sender?"""
        return Standing()


class _ForUs(msgspec.Struct, frozen=True):
    """A message for the mediator itself, out of its envelope."""

    message: Message
    unpacked: envelope.Unpacked


class _ForOthers(msgspec.Struct, frozen=True):
    """An envelope for the owners of these keys in base58."""

    keys: Sequence[str]
    payload: bytes


_SENDERS_MAX: Final = 64
"""Senders whose wishes for a return route one socket remembers."""
_THREADS_MAX: Final = 64
"""Threads that one sender names on one socket for return route ``thread``."""
_TROUBLES: Final = {
    Refusal.RECIPIENT_QUEUE_FULL: Trouble.QUEUE_FULL,
    Refusal.MESSAGE_TOO_LARGE: Trouble.MESSAGE_TOO_LARGE,
    Refusal.NOT_QUEUING: Trouble.NOT_QUEUING,
}


class Conversation:
    """Takes messages of all connections of one edge."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: DidComm,
        key: KeyPair,
        table: Table,
        identities: Identities,
        forwarding: Forwarding,
        *,
        clock: Clock,
        new_id: NewId,
        senders: RateLimit,
        heard_from: Callable[[str], None],
        refusals: RefusalCounts,
        measures: EdgeMeasures,
    ) -> None:
        """A conversation under the mediator's one key.

        ``senders`` limits messages by sender; ``heard_from`` is told of every sender's DID;
        ``refusals`` counts what is refused.
        """
        self._settings = settings
        self._key = key
        self._keys = {key.public: key}
        self._table = table
        self._identities = identities
        self._forwarding = forwarding
        self._clock = clock
        self._new_id = new_id
        self._senders = senders
        self._heard_from = heard_from
        self._refusals = refusals
        self._measures = measures

    async def hear(self, body: bytes, line: Line) -> Heard | Trouble:
        """Take one message, whatever it holds."""
        started_s = perf_counter()
        command = blake2b(body, digest_size=_COMMAND_BYTES).digest()
        opened = self._open(body)
        self._measures.decode.observe(perf_counter() - started_s)
        match opened:
            case Trouble():
                return opened
            case _ForOthers(keys, payload):
                return await self._hand_on(keys, payload, command, line)
            case _ForUs(message, unpacked):
                return await self._answer(message, unpacked, command, line)

    def _open(self, body: bytes) -> _ForUs | _ForOthers | Trouble:
        """What is in a message, and whom it is for."""
        depth_max = self._settings.forward_depth_max
        for depth in range(depth_max + 1):
            sealed = envelope.recipients(body)
            unpacked = envelope.unpack(sealed, self._keys)
            if unpacked is envelope.Refused.NOT_FOR_US:
                assert sealed is not None
                # Not sealed to us but to those that we hold messages for, one or several.
                keys = [base58(kid) for kid in dict.fromkeys(sealed.kids)]
                return _ForOthers(keys, body)
            if isinstance(unpacked, envelope.Refused):
                undecryptable = unpacked is envelope.Refused.UNDECRYPTABLE
                return self.refused(
                    Trouble.UNDECRYPTABLE if undecryptable else Trouble.NOT_AN_ENVELOPE
                )
            message = read_message(unpacked.plaintext)
            if message is None:
                return self.refused(Trouble.NOT_A_MESSAGE)
            if not _is_forward(message):
                return _ForUs(message, unpacked)
            if depth == depth_max:
                break
            forward = routing.read_forward(
                message, recipients_max=self._settings.forward_recipients_max
            )
            if forward is None:
                return self.refused(Trouble.NOT_A_MESSAGE, _FORWARD)
            if base58(self._key.public) not in forward.recipients:
                return _ForOthers(forward.recipients, forward.payload)
            if len(forward.recipients) > 1:
                return self.refused(Trouble.NOT_A_MESSAGE, _FORWARD)
            body = forward.payload
        return self.refused(Trouble.TOO_DEEP, _FORWARD)

    def refused(self, trouble: Trouble, command: str = "", sender_did: str = "") -> Trouble:
        """Count a message that was not taken; ``sender_did`` only of a sender that is proven."""
        if trouble is not Trouble.TRY_AGAIN:  # whose outcome is unknown: it may have been taken
            self._refusals.count(DIDCOMM, command, trouble.value, sender_did)
        self._measures.commands.add(DIDCOMM, command or UNKNOWN, trouble.value)
        return trouble

    async def handed_over(self, asked: Asked, message_ids: Sequence[str]) -> None:
        """These messages were written: they leave the queue.

        If that fails their lease ends in time and they are offered once more.
        """
        await self._identities.ask(
            asked.sender.did,
            RemoveMessages(list(message_ids), _DELIVERED),
            asked.command,
            QueueState,
        )

    async def _hand_on(
        self, keys: Sequence[str], payload: bytes, command: bytes, line: Line
    ) -> Heard | Trouble:
        """Queue an envelope for each of its recipients, independently of one another."""
        if len(keys) > self._settings.forward_recipients_max:
            return self.refused(Trouble.NOT_A_MESSAGE, _FORWARD)
        if len(keys) == 1:
            replies = [await self._forwarding.forward(keys[0], payload, command)]
        else:
            replies = await asyncio.gather(
                *[self._forwarding.forward(key, payload, command) for key in keys]
            )
        return self._verdict(replies, line)

    def _verdict(self, replies: Sequence[EnvelopeQueued | Refusal], line: Line) -> Heard | Trouble:
        """The worst that happened decides: a sender that tries again loses nothing."""
        refusals = [reply for reply in replies if isinstance(reply, Refusal)]
        for refusal in refusals:
            if refusal is not Refusal.KEY_UNKNOWN:
                return self.refused(_TROUBLES.get(refusal, Trouble.TRY_AGAIN), _FORWARD)
        line.took()
        if len(refusals) < len(replies):
            self._measures.commands.add(DIDCOMM, _FORWARD, DONE)
            return Heard()
        # The operator hears of it, whatever the sender is told.
        unknown = self.refused(Trouble.UNKNOWN_RECIPIENT, _FORWARD)
        return Heard() if self._settings.unknown_recipient == "accept" else unknown

    async def _answer(
        self, message: Message, unpacked: envelope.Unpacked, command: bytes, line: Line
    ) -> Heard | Trouble:
        key = unpacked.sender_key
        if key is None:
            return self.refused(Trouble.ANONYMOUS, self._table.name_of(message.type))
        sender = Sender(key, did_key(key))
        if self._senders.take(sender.did, self._clock() / 1000) is not None:
            limited = self._table.name_of(message.type)
            return self.refused(Trouble.RATE_LIMITED, limited, sender.did)
        self._heard_from(sender.did)
        route = line.follow(sender, message)
        standing = await line.admit(sender, message, route)
        asked = Asked(
            message,
            sender,
            unpacked.recipient_key,
            command,
            line.session,
            persistent=standing.persistent,
            routable=route is not Route.NOTHING,
            open_route=route is Route.EVERYTHING,
            patient=standing.patient,
            live=standing.live,
        )
        outcome = acknowledged(message, await self._outcome(asked), self._new_id)
        name = self._table.name_of(message.type)
        if outcome.refused:
            self._refusals.count(DIDCOMM, name, outcome.refused, sender.did)
        back = await self._back(asked, outcome)
        if isinstance(back, Trouble):
            return back
        self._measures.commands.add(DIDCOMM, name or UNKNOWN, outcome.refused or DONE)
        return Heard(back, asked, outcome)

    async def _outcome(self, asked: Asked) -> Outcome:
        handler = self._table.find(asked.message.type)
        if not isinstance(handler, Problem):
            return await handler(asked)
        if is_problem_report(asked.message.type) or asked.message.type.name == "ack":
            return NOTHING
        report = problem_report(asked.message, handler, self._new_id())
        return Outcome(reply=report, may_wait=False, refused=handler.refused)

    async def _back(self, asked: Asked, outcome: Outcome) -> bytes | Trouble | None:
        """What goes back on this connection; what cannot go back waits in the sender's queue.

        An answer that is lost is told: its sender would wait for it.
        """
        if outcome.envelope is not None:
            return outcome.envelope
        if outcome.reply is None:
            return None
        packed = self.pack(outcome.reply, asked.sender)
        if asked.routable:
            return packed
        if not outcome.may_wait:
            return None
        queued = await self._forwarding.queue(asked.sender.did, "", packed, asked.command)
        if not isinstance(queued, Refusal) or queued is Refusal.NOT_CONNECTED:
            return None
        trouble = _TROUBLES.get(queued, Trouble.TRY_AGAIN)
        return self.refused(trouble, self._table.name_of(asked.message.type), asked.sender.did)

    def pack(self, message: Json, to: Sender) -> bytes:
        """A message of ours, packed for an agent."""
        return envelope.pack(orjson.dumps(message), [to.key], self._key)


def _is_forward(message: Message) -> bool:
    kind = message.type
    return (kind.family, kind.major, kind.name) == (routing.FAMILY.name, 1, routing.FORWARD)
