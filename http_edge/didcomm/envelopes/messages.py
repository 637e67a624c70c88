"""DIDComm messages as the mediator sees them, whatever version they are written in.

A version (``v1``, ``v2``) makes a ``Message`` from an unpacked plaintext, and writes an ``Answer``
or a ``NewMessage`` in its own form. Protocols, delivery and transports know only the types of this
module: no decorators, and no version's spelling of a member.

The two spellings of a message type (RFC 0003) are one type (RFC 0348).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from http_edge.crypto.strict_json import INTEGER_MAX
from http_edge.didcomm.envelopes.keys import KeyPair

Json: TypeAlias = dict[str, object]
ReturnRoute: TypeAlias = Literal["all", "thread", "none"]
WhoRetries: TypeAlias = Literal["you", "none"]

NEW_PREFIX: Final = "https://didcomm.org/"
OLD_PREFIX: Final = "did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/"
QUESTION_TYPE: Final = "{type}"
"""Placeholder in a problem report's code for the type of the message that the report is about."""
ID_CHARS_MAX: Final = 256
"""A longer message id is refused and a longer thread id ignored: it would be echoed, and no agent
makes such an id."""
_TYPE: Final = re.compile(
    r"(?P<prefix>https://didcomm\.org/|did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/)"
    r"(?P<family>[A-Za-z0-9._-]{1,64})/(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,3})"
    r"/(?P<name>[A-Za-z0-9._-]{1,64})\Z",
    re.ASCII,
)
_TYPE_CHARS_MAX: Final = 256
"""No type of the form above is longer; a longer text must not stay in the cache."""
_DIGITS: Final = re.compile(r"[0-9]{1,15}\Z")
"""A count that every reader of JSON would take as a number."""
_TYPES_CACHED_MAX: Final = 1024
"""Remembered types, at most half a kilobyte each: most messages are of a few types."""
_NO_ATTACHMENTS: Final[Mapping[str, object]] = MappingProxyType({})


_PUNCTUATION: Final = str.maketrans("", "", "._-")


@lru_cache(maxsize=_TYPES_CACHED_MAX)
def folded(name: str) -> str:
    """Return the name of a protocol or message as types are compared: without case and punctuation.

    DIDComm Messaging 2.1, "Message Type URI".
    """
    return name.translate(_PUNCTUATION).lower()


def read_whole(value: object) -> int | None:
    """Return an integer; None for any other value.

    A text of digits counts as its number, because the Identus wallet for iOS writes limits so.
    ``10.0`` is 10 as well: JSON has one kind of number, and some languages write all of them so.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= INTEGER_MAX:
        return int(value)
    if isinstance(value, str) and _DIGITS.match(value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class MessageType(msgspec.Struct, frozen=True):
    """A parsed message type, for example messagepickup / 2 / 0 / status-request.

    ``spelled`` is the protocol's name as the sender spells it, if that is not ``family``.
    """

    prefix: str
    family: str
    major: int
    minor: int
    name: str
    spelled: str = ""

    @property
    def protocol(self) -> str:
        """The protocol identifier as spelled, without the message name."""
        return f"{self.prefix}{self.spelled or self.family}/{self.major}.{self.minor}"

    def is_named(self, family: str, major: int, name: str) -> bool:
        """Whether it is this message of this protocol, whose names are ``folded``."""
        return self.major == major and (folded(self.family), folded(self.name)) == (family, name)

    def sibling(self, name: str) -> str:
        """Return the type of another message of the same protocol, in the same spelling."""
        return f"{self.protocol}/{name}"

    @property
    def is_problem_report(self) -> bool:
        """Whether it is a problem report of any protocol, never answered with another."""
        return folded(self.name) == "problemreport"

    @property
    def is_ack(self) -> bool:
        """Whether it is an ack of any protocol, which nothing answers."""
        return folded(self.name) == "ack"

    def capped(self, minor_max: int) -> MessageType:
        """Return the type with its minor version capped."""
        if self.minor <= minor_max:
            return self
        return msgspec.structs.replace(self, minor=minor_max)


class InvalidMember(msgspec.Struct, frozen=True):
    """A message member that breaks a rule: its name and the rule, never its value.

    ``rule`` continues the sentence that ``member`` begins: "must be an integer, 0 or more".
    """

    member: str
    rule: str

    @property
    def sentence(self) -> str:
        """A sentence for the sender: the member and its rule."""
        return f"{self.member} {self.rule}"


class AgentAccount(msgspec.Struct, frozen=True):
    """An agent, proven by the envelope of a message: the identity that its queue belongs to.

    ``did`` names the identity; the message version derives it from the key that packed the
    message. ``version`` is that message version; it packs answers to ``address``, which only the
    version reads.
    """

    did: str
    version: str
    address: bytes


class DidRotation(msgspec.Struct, frozen=True):
    """A proven change of the sender's DID: the prior DID is given up for another, or for none.

    ``prior_did`` and ``new_did`` are as the sender spells them; ``new_did`` is None if the sender
    ends the relationship. ``issued_at_s`` is the time of the rotation in Unix seconds. The version
    has verified that a key of ``prior_did`` signed the change. ``prior_accounts`` are the
    identities that the prior DID may have here, the likeliest first: that of the signing key, if
    the DID packs with this key, then that of the DID.
    """

    prior_did: str
    new_did: str | None
    issued_at_s: int
    prior_accounts: Sequence[str] = ()


class Message(msgspec.Struct, frozen=True):
    """A received message.

    ``body`` holds the members of the message's protocol; look up no other members in it.
    ``id`` is empty if the message has none, which DIDComm v1 permits. ``thread_id`` is the
    message's own id if it begins a thread; ``parent_thread_id`` is the thread that its thread came
    from, or empty (RFC 0008). ``return_route`` says what may go back on the
    message's connection, ``return_route_thread`` the only thread that may, with return route
    ``thread`` (RFC 0092). ``delay_ms`` is how long the sender will wait for the answer, None if it
    will not wait (RFC 0032). ``wants_ack``: the sender asks for an acknowledgement (RFC 0317).
    ``attachments`` are as written, by the member that they belong to; ``signed.read_attachment``
    reads them. ``is_forward``: the message only carries an envelope for others.

    ``addressed_to`` is the DID of ours that the envelope was made for; ``sender_did`` is the DID
    that the sender names as its own; both as spelled, and empty if the version names none.
    ``whole_did`` is the long form of ``sender_did``, which contains its document, if the sender
    used the short form. After ``expires_at_s``, Unix seconds, the message must not be handled.
    ``rotation``: the sender has changed its DID; ``is_prior_unproven``: the sender claims a change
    that is not proven, or was refused; ``unknown_prior`` is the prior DID if it has to be learned
    before the change can be verified. ``names_another``: the message names only other recipients,
    although our key opens it.
    """

    version: str
    type: MessageType
    id: str
    body: Json
    thread_id: str = ""
    parent_thread_id: str = ""
    return_route: ReturnRoute = "none"
    return_route_thread: str = ""
    delay_ms: int | None = None
    wants_ack: bool = False
    attachments: Mapping[str, object] = _NO_ATTACHMENTS
    is_forward: bool = False
    addressed_to: str = ""
    sender_did: str = ""
    whole_did: str = ""
    expires_at_s: int | None = None
    rotation: DidRotation | None = None
    is_prior_unproven: bool = False
    unknown_prior: str = ""
    names_another: bool = False

    def text(self, name: str) -> str | None:
        """Return a member that is a text; None for anything else."""
        value = self.body.get(name)
        return value if isinstance(value, str) else None

    def optional_text(self, name: str, chars_max: int) -> str | InvalidMember | None:
        """Return a text that is short enough to be echoed, or None if there is none."""
        value = self.body.get(name)
        if value is None or (isinstance(value, str) and len(value) <= chars_max):
            return value
        return InvalidMember(name, f"must be a text of at most {chars_max} characters")

    def count(self, name: str, default: int | None = None) -> int | InvalidMember:
        """Return a member that is a count; ``default`` if it is missing or null."""
        value = self.body.get(name)
        count = read_whole(default if value is None else value)
        if count is not None and count >= 0:
            return count
        return InvalidMember(name, "must be an integer, 0 or more")

    def flag(self, name: str) -> bool | InvalidMember:
        """Return a member that is true or false."""
        value = self.body.get(name)
        return value if isinstance(value, bool) else InvalidMember(name, "must be true or false")

    def items(self, name: str) -> list[object] | InvalidMember:
        """Return a member that is a list of anything."""
        value = self.body.get(name)
        return value if isinstance(value, list) else InvalidMember(name, "must be a list")

    def texts(self, name: str, items_max: int) -> list[str] | InvalidMember:
        """Return a member that is a list of at most ``items_max`` texts."""
        value = self.body.get(name)
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not isinstance(value, list) or not len(texts) == len(value) <= items_max:
            return InvalidMember(name, f"must be a list of at most {items_max} texts")
        return texts


class Attachment(msgspec.Struct, frozen=True):
    """Content that goes with a message (RFC 0017).

    ``jws`` is a detached signature of ``content`` (``signed.sign_attachment``). ``inlined``: the
    content is a message, written into the attachment as JSON (pickup 1.0, RFC 0212).
    """

    id: str
    content: bytes
    media_type: str = ""
    jws: Json | None = None
    inlined: bool = False


Attachments: TypeAlias = Mapping[str, Attachment | Sequence[Attachment]]
"""Attachments by the member that they belong to; those of the whole message by the empty text."""


class SignedValue(msgspec.Struct, frozen=True):
    """A member to be signed by ``key``; ``at_s`` is the time in Unix seconds (RFC 0234)."""

    value: Json
    key: KeyPair
    at_s: int


class Reply(msgspec.Struct, frozen=True):
    """An answer: the message ``name`` of the question's protocol, in the question's thread.

    ``signed`` are members to be signed. ``names_parent``: the answer repeats the parent thread of
    the question. ``delivered_bytes``: the length of all messages of the queue in it.
    """

    name: str
    body: Json = msgspec.field(default_factory=dict)
    attachments: Attachments = msgspec.field(default_factory=dict)
    signed: Mapping[str, SignedValue] = msgspec.field(default_factory=dict)
    names_parent: bool = False
    delivered_bytes: int = 0


class ProblemReport(msgspec.Struct, frozen=True):
    """What went wrong with the question: a code, and one sentence in English.

    ``code`` is the code of RFC 0035, ``code_2`` that of report-problem 2.0, in which
    ``QUESTION_TYPE`` stands for the type of the question. ``is_own``: the report is a message of
    the question's own protocol (message-pickup 4.0), not of a report protocol, and its code is
    ``code_2`` in every version.
    """

    code: str
    comment: str
    who_retries: WhoRetries
    code_2: str = "e.p.msg"
    is_own: bool = False

    def code_of(self, question: Message) -> str:
        """Return ``code_2`` as written in the answer to ``question``."""
        return self.code_2.replace(QUESTION_TYPE, question.type.sibling(question.type.name))


class OpenReport(msgspec.Struct, frozen=True):
    """A problem report that anyone can read, for a sender that is not proven."""

    body: bytes
    media_type: str


class Acknowledgement(msgspec.Struct, frozen=True):
    """The question was received and handled (RFC 0015)."""


Answer: TypeAlias = Reply | ProblemReport | Acknowledgement


class NewMessage(msgspec.Struct, frozen=True):
    """An unsolicited message of ours; ``kind`` is protocol, version and name.

    If ``id`` is empty, the message gets a new id when it is written.
    """

    kind: str
    body: Json = msgspec.field(default_factory=dict)
    attachments: Attachments = msgspec.field(default_factory=dict)
    id: str = ""


class Forward(msgspec.Struct, frozen=True):
    """One or more envelopes to forward.

    ``recipients`` are names of queues (``recipient_names``), none twice: a key is in base58. Texts
    that are no valid name are left out, so the list may be empty: the recipient is unknown here.
    ``payloads`` are the envelopes as JSON, at least one, to be queued in this order, all or none.
    They expire at ``expires_at_s``, Unix seconds, and should wait for ``delay_ms`` before they are
    handed on. ``dids`` are the names by their DIDs, none twice, of recipients that ``recipients``
    names by their keys: a DID URL of a key has both, and its owner may have registered either.
    """

    recipients: Sequence[str]
    payloads: Sequence[bytes]
    expires_at_s: int | None = None
    delay_ms: int = 0
    dids: Mapping[str, Sequence[str]] = {}


class Unpacked(msgspec.Struct, frozen=True):
    """An opened envelope of one message version; ``sender`` is None if none is proven.

    ``addressed_to`` is the DID of ours that the envelope was made for, if the version has DIDs.
    ``parsed`` is the plaintext as JSON. ``work`` is the number of key agreements and signature
    checks that opening it takes.
    """

    version: str
    plaintext: bytes
    parsed: Json
    sender: AgentAccount | None
    work: int
    addressed_to: str = ""


class ForOthers(msgspec.Struct, frozen=True):
    """An envelope not for us but for the owners of these names (see ``Forward``), none twice.

    ``version`` is the envelope's message version.
    """

    recipients: Sequence[str]
    version: str


class UnknownSender(msgspec.Struct, frozen=True):
    """An envelope that can be opened once ``did``, a hash or a web DID, is learned."""

    did: str


class UnpackRejection(Enum):
    """Why an envelope was not opened."""

    NOT_AN_ENVELOPE = auto()
    """The body is plaintext, or an envelope of an unknown version or algorithm, or garbage."""
    UNDECRYPTABLE = auto()
    """It names a key or a DID of ours, but was made for another key, was changed, or is incomplete.
    """
    NOT_A_MESSAGE = auto()
    """It was opened, and does not contain a JSON object."""


def read_type(text: object) -> MessageType | None:
    """Parse a message type in either spelling (RFC 0348), or return None."""
    return _read_type(text) if isinstance(text, str) and len(text) <= _TYPE_CHARS_MAX else None


def read_any_type(text: object) -> MessageType | None:
    """Parse a message type; a type of another form becomes that of an unknown protocol.

    Of such a type only the name is known, which prevents a problem report in answer to another.
    """
    kind = read_type(text)
    if kind is None and isinstance(text, str) and 0 < len(text) <= _TYPE_CHARS_MAX:
        return MessageType(text, "", 0, 0, text.rpartition("/")[2])
    return kind


@lru_cache(_TYPES_CACHED_MAX)
def _read_type(text: str) -> MessageType | None:
    found = _TYPE.match(text)
    if found is None:
        return None
    prefix, family, major, minor, name = found.groups()
    return MessageType(prefix, family, int(major), int(minor), name)


def read_id(members: Mapping[str, object], name: str) -> str:
    """Return a member that is an id of a thread; empty for anything else."""
    found = members.get(name)
    return found if isinstance(found, str) and len(found) <= ID_CHARS_MAX else ""


def read_return_route(members: Mapping[str, object]) -> ReturnRoute:
    """Return the member ``return_route`` (RFC 0092)."""
    # Compared, not looked up in a set: a list as value could not be hashed.
    match members.get("return_route"):
        case "all":
            return "all"
        case "thread":
            return "thread"
        case _:
            return "none"
