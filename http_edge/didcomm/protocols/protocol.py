"""What a protocol is here: handlers by message name, and the table of all protocols.

A handler gets one authenticated message and sends commands to the identities; it never touches a
transport. What becomes of its answer (response body, socket, queue) is decided by ``inbound``, by
the return route that the message asked for.

Versions of types are RFC 0003's; their two spellings (RFC 0348) are one type.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from http_edge.didcomm.delivery.pump import LiveDelivery
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    Answer,
    InvalidMember,
    Message,
    MessageType,
)
from http_edge.didcomm.protocols.problems import Problem, report_of


class Request(msgspec.Struct, frozen=True):
    """One authenticated message on its way to a handler.

    ``sender`` is the account that packed it, proven by its envelope. ``command`` is the key of this
    message in the log, 16 bytes. ``session`` names the socket that brought it, or this one HTTP
    request. ``persistent``: its sender can be sent messages there at any time. ``routable``: a
    reply can go back at once; ``open_route``: so can whatever waits (RFC 0092, ``all``).
    ``patient``: it may wait for other messages as long as it asks to. ``live``: its sender is in
    live mode there.
    """

    message: Message
    sender: AgentAccount
    command: bytes
    session: str
    persistent: bool
    routable: bool
    open_route: bool = False
    patient: bool = True
    live: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What a handler made of a message.

    ``reply`` is the answer to the sender, or None. ``may_wait``: a reply that cannot go back at
    once is queued for the sender; a status and a delivery must not be (RFC 0685). ``envelope`` is
    a packed message that goes back as it is, in place of a reply. ``handed_over`` are the messages
    that leave the queue once this is written (protocols without acknowledgement). ``implicit``:
    over an open route, what waits may go back too, as it is (RFC 0092). ``live`` turns the live
    mode of the socket on or off; ``explicit`` marks a pickup protocol: its socket gets nothing
    implicitly from now on. ``refused`` is why nothing was changed, a short name for the operator;
    empty for what was done, and for what may have been. ``to_retry`` is why the same message is to
    be sent again; where no reply can go back the transport says it. So it says ``untold``, why a
    message was refused whose sender may await no answer and would take it as done.
    """

    reply: Answer | None = None
    may_wait: bool = True
    envelope: bytes | None = None
    handed_over: Sequence[str] = ()
    implicit: bool = False
    live: LiveModeChange | None = None
    explicit: bool = False
    refused: str = ""
    to_retry: Problem | None = None
    untold: Problem | None = None


class LiveModeChange(msgspec.Struct, frozen=True):
    """The live mode of a socket from now on: with a ``delivery`` it is on, without it off.

    When it is on, what was queued after ``version`` of the identity is sent.
    """

    delivery: LiveDelivery | None
    version: int = 0


Handler: TypeAlias = Callable[[Request], Awaitable[Outcome]]


class Family(msgspec.Struct, frozen=True):
    """A protocol in one major version.

    ``minors`` are the minor versions spoken, ascending. ``roles`` are ours. ``handlers`` are by
    message name; ``otherwise`` answers every other name, where the protocol says how.
    """

    name: str
    major: int
    minors: tuple[int, ...]
    roles: tuple[str, ...]
    handlers: Mapping[str, Handler]
    otherwise: Handler | None = None


NOTHING: Outcome = Outcome()
"""The message was taken; there is nothing to say."""


async def no_answer(_request: Request) -> Outcome:
    """Handles a message that needs none: problem reports above all (RFC 0035).

    Two agents that answered one another's problem reports would never end.
    """
    return NOTHING


def refusal(
    problem: Problem | InvalidMember,
    *,
    may_wait: bool = True,
    explicit: bool = False,
    is_own: bool = False,
) -> Outcome:
    """The outcome of a message that is refused: a problem report, and its name for the operator.

    A member that breaks a rule is named in the report with its rule. ``is_own``: the report is
    one of the protocol itself.
    """
    report, refused = report_of(problem, is_own=is_own)
    known = problem if isinstance(problem, Problem) else Problem.INVALID_MESSAGE
    return Outcome(
        reply=report,
        may_wait=may_wait,
        explicit=explicit,
        refused=refused,
        to_retry=known if known.who_retries == "you" else None,
    )


class ProtocolTable:
    """Finds the handler of a message by its type."""

    def __init__(self) -> None:
        self._families: dict[tuple[str, int], Family] = {}
        self._names: set[str] = set()

    def add(self, *families: Family) -> None:
        """Speak these protocols, too."""
        for family in families:
            self._families[family.name, family.major] = family
            self._names.add(family.name)

    def families(self) -> Sequence[Family]:
        """All protocols that are spoken, in the order in which they were added."""
        return list(self._families.values())

    def name_of(self, kind: MessageType) -> str:
        """A type as ``protocol/version/message``, with no part that the sender made up.

        The message is left out where it is not known, and all of it where the protocol is not.
        """
        family = self._families.get((kind.family, kind.major))
        if family is None:
            return ""
        minor = kind.minor if kind.minor in family.minors else family.minors[-1]
        protocol = f"{family.name}/{family.major}.{minor}"
        return f"{protocol}/{kind.name}" if kind.name in family.handlers else protocol

    def find(self, kind: MessageType) -> Handler | Problem:
        """The handler of a type, or what the sender did wrong.

        A minor version that is newer than ours is read as ours (RFC 0003).
        """
        family = self._families.get((kind.family, kind.major))
        if family is None:
            known = kind.family in self._names
            return Problem.VERSION_NOT_SUPPORTED if known else Problem.UNKNOWN_MESSAGE_TYPE
        handler = family.handlers.get(kind.name, family.otherwise)
        return Problem.UNKNOWN_MESSAGE_TYPE if handler is None else handler
