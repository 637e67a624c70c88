"""Messages of DIDComm as the mediator knows them, whatever version they are written in.

A version (``v1``) makes a ``Message`` of what it has unpacked, and the written form of an
``Answer`` or a ``NewMessage``. Protocols, delivery and transports know the types of this module
alone: no decorator, no spelling of a member that is the format's own.

A type (RFC 0003) has two spellings, which are one type (RFC 0348).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from functools import lru_cache
from types import MappingProxyType
from typing import Final, Literal, TypeAlias

import msgspec

from http_edge.didcomm.envelopes.keys import KeyPair

Json: TypeAlias = dict[str, object]
ReturnRoute: TypeAlias = Literal["all", "thread", "none"]
WhoRetries: TypeAlias = Literal["you", "none"]

NEW_PREFIX: Final = "https://didcomm.org/"
OLD_PREFIX: Final = "did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/"
QUESTION_TYPE: Final = "{type}"
"""In the code of a problem report: the type of the message that it is about."""
ID_CHARS_MAX: Final = 256
"""A longer message or thread id is refused: it would be echoed, and is none that an agent makes."""
_TYPE: Final = re.compile(
    r"(?P<prefix>https://didcomm\.org/|did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/)"
    r"(?P<family>[a-z0-9._-]{1,64})/(?P<major>[0-9]{1,3})\.(?P<minor>[0-9]{1,3})"
    r"/(?P<name>[A-Za-z0-9._-]{1,64})\Z",
    re.ASCII,
)
_TYPE_CHARS_MAX: Final = 256
"""No type of the form above is longer; a longer text must not stay in the cache."""
_DIGITS: Final = re.compile(r"[0-9]{1,15}\Z")
"""A count that every reader of JSON would take as a number."""
_TYPES_CACHED_MAX: Final = 1024
"""Types that are remembered, half a kilobyte each at most: most messages are of a few types."""
_NO_ATTACHMENTS: Final[Mapping[str, object]] = MappingProxyType({})


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

    def capped(self, minor_max: int | None) -> MessageType:
        """The type in the highest minor version that is spoken here (RFC 0003); None: any."""
        if minor_max is None or self.minor <= minor_max:
            return self
        return msgspec.structs.replace(self, minor=minor_max)


class InvalidMember(msgspec.Struct, frozen=True):
    """A member of a message that breaks a rule: its name and the rule, never its value.

    ``rule`` continues the sentence that ``member`` begins: "must be an integer, 0 or more".
    """

    member: str
    rule: str

    @property
    def sentence(self) -> str:
        """The member and its rule, for the sender."""
        return f"{self.member} {self.rule}"


class AgentAccount(msgspec.Struct, frozen=True):
    """An agent, proven by the envelope of a message: the identity that its queue belongs to.

    ``did`` names the identity; the message version derives it from the key that packed the
    message. ``version`` is that message version, and ``address`` is what it packs an answer to;
    nothing but the version reads it.
    """

    did: str
    version: str
    address: bytes


class DidRotation(msgspec.Struct, frozen=True):
    """A proven change of the sender's DID: its prior one is given up for another, or for none.

    ``prior_did`` and ``new_did`` are as the sender spells them; ``new_did`` is None where it ends
    the relationship. ``issued_at_s`` is when it rotated, Unix seconds. The version has verified
    that a key of ``prior_did`` signed this. ``prior_accounts`` are the identities that it may be
    here, the likeliest first: that of the key that signed, that of the prior DID.
    """

    prior_did: str
    new_did: str | None
    issued_at_s: int
    prior_accounts: Sequence[str] = ()


class Message(msgspec.Struct, frozen=True):
    """A received message.

    ``body`` holds the members of its protocol; what is no such member must not be looked up in it.
    ``thread_id`` is its own id where it begins a thread, ``parent_thread_id`` the thread that this
    one came out of, or empty (RFC 0008). ``return_route`` says what may come back on the
    connection that brought it, ``return_route_thread`` the only thread that may, with return route
    ``thread`` (RFC 0092). ``delay_ms`` is how long the sender is ready to wait for the answer, None
    if it is not (RFC 0032). ``wants_ack``: it asks for an acknowledgement (RFC 0317).
    ``attachments`` are by the member that they belong to, as written; ``signed.read_attachment``
    reads them. ``is_forward``: it carries an envelope for others, and has no other use.

    ``addressed_to`` is the DID of ours that the envelope was made for, ``sender_did`` the one that
    the sender says it is, both as spelled there; empty where the version names none. ``whole_did``
    is the latter in the form that carries its document, where that is another. After
    ``expires_at_s``, Unix seconds, the message is not to be handled. ``rotation``: the sender has
    changed its DID; ``is_prior_unproven``: it says so, and that is not proven; ``unknown_prior`` is
    the prior one where it has to be learned before that can be verified. ``acknowledges`` are the
    ids of messages of ours that it confirms. ``names_another``: it says for whom it is, and that is
    another, although our key opens it.
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
    acknowledges: Sequence[str] = ()
    names_another: bool = False

    def text(self, name: str) -> str | None:
        """A member that is a text; None where it is anything else."""
        value = self.body.get(name)
        return value if isinstance(value, str) else None

    def optional_text(self, name: str, chars_max: int) -> str | InvalidMember | None:
        """A text that is short enough to be echoed, or None where there is none."""
        value = self.body.get(name)
        if value is None or (isinstance(value, str) and len(value) <= chars_max):
            return value
        return InvalidMember(name, f"must be a text of at most {chars_max} characters")

    def count(
        self, name: str, default: int | None = None, *, or_digits: bool = False
    ) -> int | InvalidMember:
        """A member that counts something; ``default`` where it is missing or null.

        With ``or_digits`` a text of its digits is taken too.
        """
        value = self.body.get(name)
        value = default if value is None else value
        if or_digits and isinstance(value, str) and _DIGITS.match(value):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        return InvalidMember(name, "must be an integer, 0 or more")

    def flag(self, name: str) -> bool | InvalidMember:
        """A member that is true or false."""
        value = self.body.get(name)
        return value if isinstance(value, bool) else InvalidMember(name, "must be true or false")

    def items(self, name: str) -> list[object] | InvalidMember:
        """A member that is a list of anything."""
        value = self.body.get(name)
        return value if isinstance(value, list) else InvalidMember(name, "must be a list")

    def texts(self, name: str, items_max: int) -> list[str] | InvalidMember:
        """A member that is a list of at most ``items_max`` texts."""
        value = self.body.get(name)
        texts = [item for item in value if isinstance(item, str)] if isinstance(value, list) else []
        if not isinstance(value, list) or not len(texts) == len(value) <= items_max:
            return InvalidMember(name, f"must be a list of at most {items_max} texts")
        return texts


class Attachment(msgspec.Struct, frozen=True):
    """Content that goes with a message (RFC 0017).

    ``jws`` is a detached signature of ``content`` (``signed.sign_attachment``). ``inlined``: the
    content is a message, and stands in the attachment as JSON (pickup 1.0, RFC 0212).
    """

    id: str
    content: bytes
    media_type: str = ""
    jws: Json | None = None
    inlined: bool = False


class SignedValue(msgspec.Struct, frozen=True):
    """A member that is signed by ``key`` at a time in Unix seconds (RFC 0234)."""

    value: Json
    key: KeyPair
    at_s: int


class Reply(msgspec.Struct, frozen=True):
    """A message ``name`` of the protocol of the question, in its thread.

    ``attachments`` belong to the whole message, and an empty list of them is written as one; None
    is a message without. ``member_attachments`` belong to the member that they are listed by;
    ``signed`` are members with their signature. A question in a minor version above ``minor_max``
    is answered in that one (RFC 0003). ``names_parent``: the answer repeats the parent thread of
    the question.
    """

    name: str
    body: Json = msgspec.field(default_factory=dict)
    attachments: Sequence[Attachment] | None = None
    member_attachments: Mapping[str, Attachment | Sequence[Attachment]] = msgspec.field(
        default_factory=dict
    )
    signed: Mapping[str, SignedValue] = msgspec.field(default_factory=dict)
    minor_max: int | None = None
    names_parent: bool = False


class ProblemReport(msgspec.Struct, frozen=True):
    """What went wrong with the question: a code, and one sentence in English.

    ``code`` is of RFC 0035, ``code_2`` of report-problem 2.0; ``QUESTION_TYPE`` in it stands for
    the type of the question. ``is_own``: the report is a message of the protocol of the question
    instead of one of a protocol for reports alone (message-pickup 4.0), and its code is ``code_2``
    in every form.
    """

    code: str
    comment: str
    who_retries: WhoRetries
    code_2: str = "e.p.msg"
    is_own: bool = False

    def code_of(self, question: Message) -> str:
        """``code_2`` as it is written in the answer to a question."""
        return self.code_2.replace(QUESTION_TYPE, question.type.sibling(question.type.name))


class OpenReport(msgspec.Struct, frozen=True):
    """A problem report for a sender that is not proven, which anyone can read."""

    body: bytes
    media_type: str


class Acknowledgement(msgspec.Struct, frozen=True):
    """The question was received and handled (RFC 0015)."""


Answer: TypeAlias = Reply | ProblemReport | Acknowledgement


class NewMessage(msgspec.Struct, frozen=True):
    """A message of ours that answers none; ``kind`` is protocol, version and name.

    ``id`` is empty for one that may be any.
    """

    kind: str
    body: Json = msgspec.field(default_factory=dict)
    attachments: Sequence[Attachment] | None = None
    id: str = ""


class Forward(msgspec.Struct, frozen=True):
    """One or several messages to hand on.

    ``recipients`` are names that a queue may be known by, none twice: a key is in base58. Those
    that cannot be one are missing, so there may be none: the recipient is unknown here.
    ``payloads`` are the envelopes for them, JSON, one at least, to be queued in this order and all
    or none. After ``expires_at_s``, Unix seconds, they are of no use. They should wait for
    ``delay_ms`` before they are handed on.
    """

    recipients: Sequence[str]
    payloads: Sequence[bytes]
    expires_at_s: int | None = None
    delay_ms: int = 0


class Unpacked(msgspec.Struct, frozen=True):
    """An opened envelope of one message version; ``sender`` is None if none is proven.

    ``addressed_to`` is the DID of ours that it was made for, where the version has such. ``parsed``
    is the message as JSON, where the version had to look into it already.
    """

    version: str
    plaintext: bytes
    sender: AgentAccount | None
    addressed_to: str = ""
    parsed: Json | None = None


class ForOthers(msgspec.Struct, frozen=True):
    """An envelope for the owners of these names (see ``Forward``), none twice, and not for us.

    ``version`` is the message version that it is of.
    """

    recipients: Sequence[str]
    version: str = ""


class UnknownSender(msgspec.Struct, frozen=True):
    """An envelope that can be opened once ``did`` is learned: a hash, or one to be fetched."""

    did: str


class UnpackRefusal(Enum):
    """Why an envelope was not opened."""

    NOT_AN_ENVELOPE = auto()
    """Plaintext, an envelope of an unknown version or algorithm, or no sense at all."""
    NOT_FOR_US = auto()
    """None of its recipients is a key of ours."""
    UNDECRYPTABLE = auto()
    """It names a key of ours, and was made for another, was changed, or lacks something."""


def read_type(text: object) -> MessageType | None:
    """A message type in either spelling (RFC 0348), or None."""
    return _read_type(text) if isinstance(text, str) and len(text) <= _TYPE_CHARS_MAX else None


def read_any_type(text: object) -> MessageType | None:
    """A message type; one of a form that no protocol here has is of an unknown protocol.

    Of such a one the name alone is known, by which a problem report is not answered with another.
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
