"""DIDComm v1 plaintext messages: types, threads and the decorators that a mediator acts on.

RFC 0003 and RFC 0348 (types), RFC 0008 (threads), RFC 0092 (return route), RFC 0032 (timing),
RFC 0317 (please ack). A type has two spellings, which are one type; the older families are
answered in the spelling that they were asked in, because old agents know no other.
"""

from __future__ import annotations

import re
from typing import Final, Literal, TypeAlias

import msgspec

from http_edge.strict_json import JsonRefused, parse

Json: TypeAlias = dict[str, object]
ReturnRoute: TypeAlias = Literal["all", "thread", "none"]

NEW_PREFIX: Final = "https://didcomm.org/"
OLD_PREFIX: Final = "did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/"
ID_CHARS_MAX: Final = 256
"""A longer message or thread id is refused: it would be echoed, and is none that an agent makes."""
_DELAY_MS_MAX: Final = 600_000
"""RFC 0032: a delay beyond ten minutes should not be honoured."""
_TYPE: Final = re.compile(
    r"(?P<prefix>https://didcomm\.org/|did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/)"
    r"(?P<family>[a-z0-9._-]{1,64})/(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,3})"
    r"/(?P<name>[A-Za-z0-9._-]{1,64})\Z",
    re.ASCII,
)


class MessageType(msgspec.Struct, frozen=True):
    """A parsed message type, for example messagepickup / 2 / 0 / status-request."""

    prefix: str
    family: str
    major: int
    minor: int
    name: str

    @property
    def protocol(self) -> str:
        """The protocol identifier as it was spelled, without the message's name."""
        return f"{self.prefix}{self.family}/{self.major}.{self.minor}"

    def sibling(self, name: str) -> str:
        """The type of another message of the same protocol, in the same spelling."""
        return f"{self.protocol}/{name}"


class Message(msgspec.Struct, frozen=True):
    """A received message; ``body`` is the whole object, decorators included."""

    type: MessageType
    id: str
    body: Json

    @property
    def thread_id(self) -> str:
        """Its thread: what ``~thread`` says, else its own id (RFC 0008)."""
        return self._thread("thid") or self.id

    @property
    def parent_thread_id(self) -> str:
        """The thread that this one came out of, or empty (RFC 0008)."""
        return self._thread("pthid")

    @property
    def return_route(self) -> ReturnRoute:
        """What may come back on the connection that brought this message (RFC 0092)."""
        route = self._decorator("~transport").get("return_route")
        return route if route in {"all", "thread"} else "none"

    @property
    def return_route_thread(self) -> str:
        """The only thread that may come back, with return route ``thread`` (RFC 0092)."""
        thread = self._decorator("~transport").get("return_route_thread")
        fits = isinstance(thread, str) and len(thread) <= ID_CHARS_MAX
        return str(thread) if fits else self.thread_id

    @property
    def delay_ms(self) -> int | None:
        """How long the sender is ready to wait for the answer; None if it is not (RFC 0032)."""
        delay = self._decorator("~timing").get("delay_milli")
        if isinstance(delay, bool) or not isinstance(delay, int | float) or delay <= 0:
            return None
        return min(int(delay), _DELAY_MS_MAX)

    @property
    def please_ack(self) -> bool:
        """Does the sender ask for an acknowledgement (RFC 0317)?"""
        return "~please_ack" in self.body

    def text(self, name: str) -> str | None:
        """A member that is a string, or None."""
        value = self.body.get(name)
        return value if isinstance(value, str) else None

    def whole(self, name: str) -> int | None:
        """A member that is an integer (and not a boolean), or None."""
        value = self.body.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def _thread(self, name: str) -> str:
        value = self._decorator("~thread").get(name)
        return value if isinstance(value, str) and len(value) <= ID_CHARS_MAX else ""

    def _decorator(self, name: str) -> Json:
        value = self.body.get(name)
        return value if isinstance(value, dict) else {}


def read_type(text: object) -> MessageType | None:
    """A message type in either spelling (RFC 0348), or None."""
    found = _TYPE.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    prefix, family, major, minor, name = found.groups()
    return MessageType(prefix, family, int(major), int(minor), name)


def read_message(plaintext: bytes) -> Message | None:
    """A plaintext message, or None when it is not one: no JSON object, no type, no proper id."""
    try:
        body = parse(plaintext)
    except JsonRefused:
        return None
    if not isinstance(body, dict):
        return None
    kind, message_id = read_type(body.get("@type")), body.get("@id")
    if kind is None or not isinstance(message_id, str):
        return None
    return Message(kind, message_id, body) if 0 < len(message_id) <= ID_CHARS_MAX else None


def reply(to: Message, name: str, new_id: str, **members: object) -> Json:
    """A message ``name`` of the same protocol in the thread of ``to``.

    ``members`` come after type, id and thread.
    """
    thread = {"thid": to.thread_id}
    return {"@type": to.type.sibling(name), "@id": new_id, "~thread": thread, **members}
