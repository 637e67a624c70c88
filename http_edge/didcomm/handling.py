"""What a protocol family is: a table of handlers, each from a message to its outcome.

A handler sees one authenticated message and asks the identities; it never touches a transport.
What becomes of its answer (response body, socket, queue) is ``conversation``'s to decide, by the
return route that the message asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from http_edge.didcomm.messages import Json, Message


class Sender(msgspec.Struct, frozen=True):
    """Who packed a message, proven by its envelope: the key, and the identity that it is."""

    key: bytes
    did: str


class Asked(msgspec.Struct, frozen=True):
    """One authenticated message on its way to a handler.

    ``recipient_key`` is our key that it was packed to. ``command`` is the key of this message in
    the log, 16 bytes. ``session`` names the socket that brought it, or this one HTTP request.
    ``persistent``: its sender can be told things on its own there. ``routable``: a reply can go
    back at once; ``open_route``: so can whatever waits (RFC 0092, ``all``). ``patient``: it may
    wait for other messages as long as it asks to. ``live``: its sender is in live mode there.
    """

    message: Message
    sender: Sender
    recipient_key: bytes
    command: bytes
    session: str
    persistent: bool
    routable: bool
    open_route: bool = False
    patient: bool = True
    live: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What a handler made of a message.

    ``reply`` is a plaintext message for the sender, or None. ``may_wait``: a reply that cannot go
    back at once is queued for the sender; a status and a delivery must not be (RFC 0685).
    ``envelope`` is a packed message that goes back as it is, in place of a reply. ``handed_over``
    are the messages that leave the queue once this is written (protocols without acknowledgement).
    ``implicit``: over an open route, what waits may go back too, as it is (RFC 0092).
    ``live`` turns the live mode of the socket on or off; ``explicit`` marks a pickup protocol:
    its socket gets nothing implicitly from now on. ``refused`` is why nothing was changed, a short
    name for the operator; empty for what was done, and for what may have been.
    """

    reply: Json | None = None
    may_wait: bool = True
    envelope: bytes | None = None
    handed_over: Sequence[str] = ()
    implicit: bool = False
    live: Live | None = None
    explicit: bool = False
    refused: str = ""


class Live(msgspec.Struct, frozen=True):
    """The live mode of a socket from now on; when on, what was queued after ``version`` comes."""

    on: bool
    version: int = 0


Handler: TypeAlias = Callable[[Asked], Awaitable[Outcome]]


class Family(msgspec.Struct, frozen=True):
    """A protocol family in one major version.

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
