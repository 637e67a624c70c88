"""Protocols as handlers by message name, and the table of all protocols.

A handler gets one authenticated message and sends commands to the identities; it never touches a
transport. ``inbound`` decides where the handler's answer goes (response body, socket, queue), by
the return route that the message asked for.

Message types are versioned as in RFC 0003; all spellings of a type are one type: the two prefixes
(RFC 0348), and names that differ in case and punctuation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

import msgspec

from actors.core.commands import Command, RemoveMessages
from actors.core.message_queue import DELIVERED
from actors.core.refusals import Refusal
from actors.core.replies import QueueState, Reply
from http_edge.didcomm.delivery.pump import LiveDelivery, Pump
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    InvalidMember,
    Message,
    MessageType,
    folded,
)
from http_edge.didcomm.envelopes.messages import Reply as ReplyMessage
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.problems import Problem, problem_of, report_of

_R = TypeVar("_R", bound=Reply)


class PeerState(msgspec.Struct, frozen=True):
    """What the transport of a message offers its sender.

    ``routable``: a reply can go back at once; ``open_route``: waiting messages can, too (RFC 0092,
    ``all``). ``patient``: the request may long-poll for as long as it asks to. ``live``: the sender
    is in live mode on this session. ``pump``: what else sends the sender's messages on this
    session; None if the session cannot carry messages to the sender at any time.
    """

    routable: bool = False
    open_route: bool = False
    patient: bool = True
    live: bool = False
    pump: Pump | None = None


class Request(msgspec.Struct, frozen=True):
    """One authenticated message on its way to a handler.

    ``sender`` is the account that packed the message, proven by its envelope. ``command`` is the
    key of the message in the log, 16 bytes: that of all commands that the handler sends to
    ``identities``. ``session`` names the socket that the message came on, or its HTTP request.
    """

    message: Message
    sender: AgentAccount
    command: bytes
    identities: Identities
    session: str
    peer: PeerState

    async def ask(self, target: str, command: Command, reply: type[_R]) -> _R | Refusal:
        """Send a command that the message causes, which is not charged to an account."""
        return await self.identities.ask(target, command, self.command, reply)

    async def ask_account(
        self, command: Command, reply: type[_R], *, can_linger: bool = False
    ) -> _R | Refusal:
        """Send a command to the sender's own account, which its host charges for the work."""
        return await self.identities.ask(
            self.sender.did, command, self.command, reply, can_linger=can_linger, by_owner=True
        )


async def hand_over(
    identities: Identities, did: str, command: bytes, message_ids: Sequence[str]
) -> None:
    """Remove messages from the queue of ``did`` after they were written.

    ``command`` is the key in the log of the message that asked for them. If the removal fails,
    their lease ends in time and they are offered again.
    """
    await identities.ask(did, RemoveMessages([*message_ids], DELIVERED), command, QueueState)


class Outcome(msgspec.Struct, frozen=True):
    """The result of a handler.

    ``reply`` is the answer to the sender, or None. ``may_wait``: a reply that cannot go back at
    once is queued for the sender; a status and a delivery must not be (RFC 0685). ``may_drop``: the
    change was made, so a reply that the queue does not take is dropped, or the message would look
    refused. ``envelope`` is a packed message that goes back unchanged, in place of a reply.
    ``handed_over`` are the messages that leave the queue once the answer is written (protocols
    without acknowledgement).
    ``implicit``: over an open route, waiting messages may go back unchanged, too (RFC 0092).
    ``live`` turns the live mode of the socket on or off. ``refused`` is a short name for the
    operator that says why nothing was changed; empty if the change was made, or may have been.
    ``problem`` is what the transport says if no reply can go back: why the sender should send the
    same message again, or why one was refused whose sender may await no answer.
    """

    reply: Answer | None = None
    may_wait: bool = True
    may_drop: bool = False
    envelope: bytes | None = None
    handed_over: Sequence[str] = ()
    implicit: bool = False
    live: LiveModeChange | None = None
    refused: str = ""
    problem: Problem | None = None

    @property
    def to_retry(self) -> Problem | None:
        """Why the sender should send the same message again, or None if it should not."""
        return self.problem if self.problem and self.problem.who_retries == "you" else None

    @property
    def delivered_bytes(self) -> int:
        """The length of all messages of the queue in the reply."""
        return self.reply.delivered_bytes if isinstance(self.reply, ReplyMessage) else 0


class LiveModeChange(msgspec.Struct, frozen=True):
    """A change of a socket's live mode: on if there is a ``delivery``, else off.

    When live mode is on, the socket gets messages queued after ``version`` of the identity.
    """

    delivery: LiveDelivery | None
    version: int = 0


Handler: TypeAlias = Callable[[Request], Awaitable[Outcome]]


class Family(msgspec.Struct, frozen=True):
    """A protocol in one major version.

    ``minors`` are the supported minor versions, ascending. ``roles`` are the mediator's.
    ``handlers`` are by message name; ``otherwise`` answers every other name, if the protocol says
    how.
    """

    name: str
    major: int
    minors: tuple[int, ...]
    roles: tuple[str, ...]
    handlers: Mapping[str, Handler]
    otherwise: Handler | None = None


NOTHING: Outcome = Outcome()
"""The message was accepted and needs no answer."""
NOT_DONE: Outcome = Outcome()
"""The message was accepted, but without a return route it did nothing; it is not acknowledged."""


async def no_answer(_request: Request) -> Outcome:
    """Handle a message that needs no answer: problem reports above all (RFC 0035).

    Two agents that answered one another's problem reports would never stop.
    """
    return NOTHING


def with_route(handler: Handler) -> Handler:
    """Return a handler that does nothing unless its answer can go back at once."""

    async def handle(request: Request) -> Outcome:
        return await handler(request) if request.peer.routable else NOT_DONE

    return handle


def refusal(
    problem: Problem | InvalidMember | Refusal,
    *,
    may_wait: bool = True,
    is_own: bool = False,
    supported: Sequence[str] = (),
) -> Outcome:
    """Return the outcome of a refused message: a problem report, and its name for the operator.

    The report names a member that breaks a rule, and the rule, or what is ``supported``.
    ``is_own``: the report is a message of the protocol itself.
    """
    if isinstance(problem, Refusal):
        problem = problem_of(problem)
    known = problem if isinstance(problem, Problem) else Problem.INVALID_MESSAGE
    return Outcome(
        reply=report_of(problem, is_own=is_own, supported=supported),
        may_wait=may_wait,
        refused=known.refused,
        problem=known if known.who_retries == "you" else None,
    )


class ProtocolTable:
    """Finds the handler of a message by its type."""

    def __init__(self) -> None:
        self._families: dict[tuple[str, int], Family] = {}

    def add(self, *families: Family) -> None:
        """Add these protocols."""
        self._families |= {(folded(family.name), family.major): family for family in families}

    def families(self) -> Sequence[Family]:
        """Return all protocols in the order in which they were added."""
        return list(self._families.values())

    def name_of(self, kind: MessageType) -> str:
        """Return a type as ``protocol/version/message``, with no part that the sender made up.

        The message name is left out if it is unknown; the result is empty if the protocol is.
        """
        family = self._of(kind)
        if family is None:
            return ""
        minor = kind.minor if kind.minor in family.minors else family.minors[-1]
        protocol = f"{family.name}/{family.major}.{minor}"
        return f"{protocol}/{kind.name}" if kind.name in family.handlers else protocol

    def known(self, kind: MessageType) -> MessageType:
        """Return a type in the latest minor version that both sides know (RFC 0003).

        A message of a newer minor version is read and answered in ours. The names are as we spell
        them; an answer spells the protocol as the sender does.
        """
        family = self._of(kind)
        if family is None:
            return kind
        wanted = folded(kind.name)
        name = next((each for each in family.handlers if folded(each) == wanted), kind.name)
        known = kind.capped(family.minors[-1])
        if (family.name, name) == (kind.family, kind.name):
            return known
        return msgspec.structs.replace(known, family=family.name, name=name, spelled=kind.family)

    def find(self, kind: MessageType) -> Handler | Problem:
        """Return the handler of a type, or the sender's mistake."""
        family = self._of(kind)
        if family is None:
            is_known = folded(kind.family) in {name for name, _ in self._families}
            return Problem.VERSION_NOT_SUPPORTED if is_known else Problem.UNKNOWN_MESSAGE_TYPE
        handler = family.handlers.get(kind.name, family.otherwise)
        return Problem.UNKNOWN_MESSAGE_TYPE if handler is None else handler

    def supported(self, kind: MessageType) -> Sequence[str]:
        """Return the messages of the type's protocol; if its version is unknown, the known ones."""
        family = self._of(kind)
        if family is not None:
            return list(family.handlers)
        return [
            f"{known.name}/{known.major}.{minor}"
            for known in self.families()
            if folded(known.name) == folded(kind.family)
            for minor in known.minors
        ]

    def _of(self, kind: MessageType) -> Family | None:
        return self._families.get((folded(kind.family), kind.major))
