"""DIDComm v2 as a message version (``versions.MessageVersion``): agents with DIDs.

Nesting is bounded: an envelope holds a message, signed or not, and an anonymous envelope may hold
an authenticated one (DIDComm Messaging 2.1, "Allowed combinations"). Authcrypt proves the sender; a
signature alone proves the author, but not the recipient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final

import msgspec
import orjson

from http_edge.crypto.strict_json import object_in, parse
from http_edge.didcomm.envelopes.agent_documents import (
    FETCHED,
    AgentDocument,
    SeenDids,
    is_remembered,
    is_short,
    resolve_document,
)
from http_edge.didcomm.envelopes.key_agreement import StaticSecrets
from http_edge.didcomm.envelopes.keys import DID_KEY, did_key
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    ForOthers,
    Forward,
    Json,
    Message,
    OpenReport,
    ProblemReport,
    UnknownSender,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.own_dids import OwnDid, OwnDids
from http_edge.didcomm.envelopes.public_keys import PublicKey, read_multibase, write_multibase
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2 import envelope, plaintext
from http_edge.didcomm.envelopes.v2 import signed as jws
from http_edge.didcomm.envelopes.v2.forward import read_forward
from http_edge.didcomm.envelopes.v2.signed import (
    is_signed,
    read_from_prior,
    read_signed,
    signer_of,
)

MEDIA_TYPE: Final = envelope.MEDIA_TYPE
MEDIA_TYPES: Final = frozenset(
    {
        MEDIA_TYPE,
        plaintext.MEDIA_TYPE,
        jws.MEDIA_TYPE,
        "application/didcomm+encrypted",
    }
)
"""The media types that agents give an envelope."""
_SENDERS_MAX: Final = 2048
"""Senders' key ids remembered with their document, most of them 2 KiB each."""


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """The address for answers: the peer's key as it spells it, and our own DID."""

    kid: str
    key: str
    own_did: str

    @property
    def did(self) -> str:
        """The peer's DID as it spells it."""
        return self.kid.partition("#")[0]


class _Sender(msgspec.Struct, frozen=True):
    """The sender of a message: its DID and key id as spelled, its key, and its document.

    ``account`` is the DID of the sender's identity here.
    """

    did: str
    kid: str
    key: PublicKey
    keys: AgentDocument
    account: str


class _Opened(msgspec.Struct, frozen=True):
    """What was opened: its content, the DID of ours that it was for, and its sender.

    ``work`` is the number of key agreements and signature checks so far.
    """

    value: Json
    plaintext: bytes
    own: OwnDid
    sender: _Sender | None
    work: int


class V2:
    """The version for messages and envelopes of DIDComm v2 under the mediator's own DIDs."""

    name = plaintext.VERSION
    generation = 2
    """The generation of DIDComm; stored messages record it."""
    write = staticmethod(plaintext.write)
    write_answer = staticmethod(plaintext.write_answer)

    def __init__(
        self,
        own: OwnDids,
        now_s: Callable[[], int] | None = None,
        seen: SeenDids | None = None,
        parse_content: Callable[[bytes], object] = parse,
    ) -> None:
        """Pack and unpack with ``own``; with ``now_s``, our messages state their creation time.

        ``seen`` resolves the DIDs of agents, and remembers those that prove themselves.
        ``parse_content`` parses the JSON in envelopes; it raises ``JsonRefused``.
        """
        self._own = own
        self._secrets = StaticSecrets()
        self.seen = seen or SeenDids()
        self._now_s = now_s
        self._parse_content = parse_content

    def unpack(self, value: Json) -> Unpacked | ForOthers | UnknownSender | UnpackRejection | None:
        """Unpack a parsed envelope; None if it is of another version."""
        if not envelope.is_envelope(value):
            return None
        opened = self._open(value)
        if not isinstance(opened, _Opened):
            return opened
        if opened.sender is None and envelope.is_envelope(opened.value):
            inner = self._open(opened.value)
            if isinstance(inner, UnknownSender) or inner is UnpackRejection.NOT_A_MESSAGE:
                return inner
            if not isinstance(inner, _Opened) or inner.sender is None:
                # An inner envelope for others, or anonymous again, is not allowed.
                return UnpackRejection.UNDECRYPTABLE
            opened = msgspec.structs.replace(inner, work=opened.work + inner.work)
        if is_signed(opened.value):
            signed = self._signed(opened)
            if signed is None:
                return UnpackRejection.UNDECRYPTABLE
            opened = signed
        if opened.sender is not None:
            self.seen.remember(opened.sender.keys)
        account = None if opened.sender is None else _account(opened.sender, opened.own.did)
        return Unpacked(
            self.name, opened.plaintext, opened.value, account, opened.work, opened.own.did
        )

    def read(self, unpacked: Unpacked) -> Message | None:
        """Read an unpacked message; None if it is not a message, or names another sender."""
        value = unpacked.parsed
        message = plaintext.read(value, unpacked.addressed_to)
        if message is None:
            return None
        from_prior = value.get("from_prior")
        # Whose DID has changed does not matter for a forward.
        if from_prior is not None and not message.is_forward:
            message = self._rotated(message, from_prior)
        if not _is_consistent(message, unpacked.sender):
            return None
        if self._names_another(value.get("to")):
            message = msgspec.structs.replace(message, names_another=True)
        if not is_short(message.sender_did):
            return message
        known = self.seen.resolve(message.sender_did)
        whole_did = message.sender_did if known is None else known.did
        return msgspec.structs.replace(message, whole_did=whole_did)

    def _rotated(self, message: Message, from_prior: object) -> Message:
        """Return a message with what its ``from_prior`` proves.

        One that cannot be verified changes nothing: the agent repeats it until it is answered under
        its new DID, and its messages are valid anyway.
        """
        now_s = None if self._now_s is None else self._now_s()
        rotation = read_from_prior(from_prior, self.seen, self._is_own_did, now_s)
        if rotation is not None:
            return msgspec.structs.replace(message, rotation=rotation)
        prior = signer_of(from_prior)
        unknown = prior if self.seen.is_to_learn(prior) else ""
        return msgspec.structs.replace(message, is_prior_unproven=True, unknown_prior=unknown)

    def read_forward(self, message: Message, *, recipients_max: int) -> Forward | None:  # noqa: ARG002 - it names one
        """Read a forward; None if it cannot be followed."""
        return read_forward(message)

    def pack(self, message: Json, to: AgentAccount) -> bytes:
        """Pack a written message for an agent, which it names beside the DID of ours it knows."""
        address = _address(to)
        if self._now_s is not None:
            message = {**message, "created_time": self._now_s()}
        return self.seal(plaintext.addressed(message, address.own_did, address.did), to)

    def seal(self, message: bytes, to: AgentAccount) -> bytes:
        """Encrypt a text for an agent under the DID by which it knows us."""
        address = _address(to)
        key = read_multibase(address.key)
        own = self._own.by_kid.get(address.own_did)
        assert key is not None
        assert own is not None
        sender = envelope.Sender(own.agreement_kid, self._own.agreement, self._secrets)
        recipient = envelope.Recipient(address.kid, key)
        return envelope.seal(message, [recipient], sender)

    def report_openly(
        self, question: Message, report: ProblemReport, message_id: str
    ) -> OpenReport:
        """Write a signed report: anyone can read it and verify that it is ours."""
        own = self._own.by_kid.get(question.addressed_to)
        assert own is not None
        kid = own.signing_kid
        head: Json = {"typ": plaintext.MEDIA_TYPE, "from": kid.partition("#")[0]}
        if question.sender_did:
            head["to"] = [question.sender_did]
        written = self.write_answer(report, question, message_id)
        signed = jws.write_signed(orjson.dumps({**head, **written}), kid, self._own.key)
        return OpenReport(orjson.dumps(signed), jws.MEDIA_TYPE)

    def _names_another(self, to: object) -> bool:
        """Say whether a message names recipients, but no DID of ours in any spelling.

        Such a message is not refused: agents write a routing DID, or a key, in many ways.
        """
        if not isinstance(to, list) or not to:
            return False
        named = to[: envelope.RECIPIENTS_MAX]
        return not any(isinstance(each, str) and self._is_own_did(each) for each in named)

    def _is_own_did(self, text: str) -> bool:
        return text in self._own.by_kid or canonical_name(text) in self._own.names

    def _open(self, value: Json) -> _Opened | ForOthers | UnknownSender | UnpackRejection:
        """Open one envelope; one for others or of an unknown sender costs no key agreement."""
        sealed = envelope.parsed(value)
        if sealed is None:
            return UnpackRejection.NOT_AN_ENVELOPE
        ours = self._own.by_kid
        number = next((n for n, kid in enumerate(sealed.kids) if kid in ours), None)
        if number is None:
            return self._for_others(sealed.kids)
        own = ours[sealed.kids[number]]
        sender = self._sender(sealed.sender_kid) if sealed.sender_kid else None
        if sealed.sender_kid and sender is None:
            did = sealed.sender_kid.partition("#")[0]
            unknown = self.seen.is_to_learn(did)
            return UnknownSender(did) if unknown else UnpackRejection.UNDECRYPTABLE
        key = None if sender is None else sender.key
        opened = envelope.open_sealed(sealed, number, own.agreement, key, self._secrets)
        if opened is None:
            return UnpackRejection.UNDECRYPTABLE
        found = object_in(opened, self._parse_content)
        if found is None:
            return UnpackRejection.NOT_A_MESSAGE
        return _Opened(found, opened, own, sender, 1 if sender is None else 2)

    def _for_others(self, kids: Sequence[str]) -> ForOthers | UnpackRejection:
        """Return whose envelope this is, if none of its key ids is one of ours.

        A sender that took a wrong key of ours, or wrote no DID, has to learn it: no recipient can
        have these names.
        """
        names = list(dict.fromkeys(filter(None, map(canonical_name, kids))))
        others = [name for name in names if name not in self._own.names]
        if others:
            return ForOthers(others, self.name)
        return UnpackRejection.UNDECRYPTABLE if names else UnpackRejection.NOT_AN_ENVELOPE

    def _sender(self, kid: str) -> _Sender | None:
        """Return the sender with this key id, if its DID is known and lists it for agreement."""
        did = kid.partition("#")[0]
        if not did.startswith(FETCHED) and not is_short(did):
            return (_remembered_carried if is_remembered(kid) else _carried)(kid)
        keys = self.seen.resolve(did)
        return None if keys is None else _sender(kid, keys)

    def _signed(self, opened: _Opened) -> _Opened | None:
        """Return the signed message if the sender validly signed it and it names recipients."""
        signed = read_signed(opened.value, self.seen)
        value = None if signed is None else object_in(signed.payload, self._parse_content)
        if signed is None or value is None:
            return None
        # Without ``to`` the message could have been signed for anyone, and be passed on.
        if not isinstance(value.get("to"), list) or not _is_same(signed.did, value.get("from")):
            return None
        if opened.sender is not None and not _is_same(signed.did, opened.sender.did):
            return None
        work = opened.work + signed.signatures
        return _Opened(value, signed.payload, opened.own, opened.sender, work)


def agent_account(kid: str, keys: AgentDocument, own_did: str) -> AgentAccount | None:
    """Return the account of an agent that packs with the key ``kid`` for our DID ``own_did``.

    None if the agent's DID has no such key for key agreement.
    """
    sender = _sender(kid, keys)
    return None if sender is None else _account(sender, own_did)


def _carried(kid: str) -> _Sender | None:
    """Return the sender with this key id, if its DID contains its document."""
    did = kid.partition("#")[0]
    keys = resolve_document(did)
    return None if keys is None else _sender(kid, keys)


_remembered_carried: Final = lru_cache(_SENDERS_MAX)(_carried)


def _sender(kid: str, keys: AgentDocument) -> _Sender | None:
    """Return the sender with this key id in a document.

    The identity is the did:key of the signing key that maps to this key, if any, so that the same
    keys have the same identity in DIDComm v1. Else, and always if a web host may change the keys of
    the DID, the identity is the DID in its short form.
    """
    did, _, fragment = kid.partition("#")
    if not fragment and did.startswith(DID_KEY) and keys.agreement:
        fragment = next(iter(keys.agreement))
        kid = f"{did}#{fragment}"
    key = keys.agreement.get(fragment)
    if key is None:
        return None
    twin = None if did.startswith(FETCHED) else keys.signing_twin(key)
    return _Sender(did, kid, key, keys, keys.short if twin is None else did_key(twin))


def _account(sender: _Sender, own_did: str) -> AgentAccount:
    address = _Address(sender.kid, write_multibase(sender.key), own_did)
    return AgentAccount(sender.account, plaintext.VERSION, msgspec.msgpack.encode(address))


def _address(account: AgentAccount) -> _Address:
    return msgspec.msgpack.decode(account.address, type=_Address)


def _is_consistent(message: Message, packed_by: AgentAccount | None) -> bool:
    """Say whether ``from`` is the packing sender, and the new DID of ``from_prior``."""
    sender, rotation = message.sender_did, message.rotation
    if rotation is not None and rotation.new_did is not None:
        if not _is_same(rotation.new_did, sender):
            return False
    elif rotation is not None and packed_by is not None and not sender:
        # A sender that ends a relationship names no DID; its prior DID packs the last message.
        return _is_same(_address(packed_by).did, rotation.prior_did)
    return packed_by is None or _is_same(_address(packed_by).did, sender)


def _is_same(one: str, other: object) -> bool:
    """Say whether two spellings name one DID; a text without a name equals only itself."""
    name = canonical_name(other)
    return one == other or (name is not None and canonical_name(one) == name)
