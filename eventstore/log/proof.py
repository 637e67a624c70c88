"""Portable proofs: files that anybody can check with the mediator's public key alone. Pure.

``MessageProof`` has the rows of a message's life and links them to a signed head of the log's
tree: all rows of each seal that covers one of them, the seal, and the path from its leaf to the
root. ``ConsistencyProof`` shows that the tree of one signed head continues the tree of another.

A message proof shows that the log had these rows, sealed in this order, at the time of its head,
and that every later head has them too. It does not show that nothing else happened to the message.

A file is canonical JSON (RFC 8785) and a newline; another spelling of the same proof is refused.
Every byte of it is checked or follows from checked bytes, except signatures of others in a head. So
a proof can be reduced, by seals or by names, but never shows anything else.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import rfc8785

from eventstore.log.codec import decode_or_none, decode_seal
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import LogRow
from eventstore.log.events import (
    SEAL_TOPIC,
    AnyMessageQueued,
    AnyMessagesRemoved,
    BatchSealed,
    MessagesDelivered,
)
from eventstore.log.merkle import is_consistent, is_included
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.log.row_check import is_seal_of
from eventstore.log.signed_note import NoteRefused
from eventstore.log.streams import ERASED, STREAM_BYTES, identity_stream
from eventstore.log.tree_head import TreeHead, seal_leaf, verified_head

MESSAGE_FORMAT: Final = "poste-message-proof/1"
CONSISTENCY_FORMAT: Final = "poste-consistency-proof/1"
_END: Final = b"\n"


class ProvenRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the log: ``stream`` (16 bytes) in hexadecimal, ``state`` in base64."""

    stream: str
    version: int
    topic: str
    state: str


class ProvenSeal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A seal, the rows that it covers, and where it stands in the tree.

    ``position`` is the seal's position in the log, ``version`` its version in the stream of its
    partition, ``state`` its event in base64. ``index`` is the index of its leaf, ``inclusion`` the
    path from the leaf to the root, in base64.
    """

    position: int
    version: int
    state: str
    rows: list[ProvenRow]
    index: int
    inclusion: list[str]


class MessageProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proof of what the log recorded of one message, in the order of the log.

    ``identity`` is the DID in whose queue it was, or its erased form (``erased:`` and its stream);
    ``public_key`` the mediator's as a verifier key of signed notes; ``head`` a signed head, as it
    was published.
    """

    format: str
    message_id: str
    identity: str
    public_key: str
    head: str
    seals: list[ProvenSeal]


class ConsistencyProof(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The proof that the tree of head ``old`` is the beginning of the tree of head ``new``."""

    format: str
    public_key: str
    old: str
    new: str
    consistency: list[str]


Proof: TypeAlias = MessageProof | ConsistencyProof
_S = TypeVar("_S", bound=msgspec.Struct)


class ProofFault(Enum):
    """Why a proof proves nothing."""

    MALFORMED = "malformed"
    """The file is not of this kind, or not in canonical form."""
    UNKNOWN_FORMAT = "unknown-format"
    """The format is one that this release does not know."""
    OTHER_KEY = "other-key"
    """The proof was made with another key than the one that was named."""
    BAD_HEAD = "bad-head"
    """The head is malformed, or the key has not signed it."""
    BROKEN_SEAL = "broken-seal"
    """The seal does not match these rows: the seal or some of the rows were changed."""
    NOT_IN_TREE = "not-in-tree"
    """The path does not lead from the seal to the root of the head."""
    OTHER_MESSAGE = "other-message"
    """The rows are not those of the message, or not of this identity."""
    NOT_CONSISTENT = "not-consistent"
    """The older tree is not the beginning of the newer one, or the proof does not show it."""


class ProofRefused(Exception):
    """A proof that proves nothing.

    Attributes:
        fault: The kind of fault.
        why: What exactly is wrong.
    """

    def __init__(self, fault: ProofFault, why: str) -> None:
        super().__init__(f"{fault.value}: {why}")
        self.fault = fault
        self.why = why


class ProvenEvent(NamedTuple):
    """One thing that happened to a message; ``at_ms`` is Unix milliseconds by the owner's clock.

    ``event`` is queued, delivered or removed; ``by`` the protocol of the first, the channel of
    the second, the reason of the third. ``position`` is the seal's.
    """

    event: str
    at_ms: int
    by: str
    sender_did: str
    partition: str
    position: int
    seal_digest: bytes


class ProvenMessage(NamedTuple):
    """What a message proof shows; ``rows`` counts all its rows, those about other messages too."""

    message_id: str
    identity: str
    head: TreeHead
    key: PublicKey
    events: Sequence[ProvenEvent]
    rows: int


class ProvenConsistency(NamedTuple):
    """What a consistency proof shows."""

    old: TreeHead
    new: TreeHead
    key: PublicKey


def proof_bytes(proof: Proof) -> bytes:
    """The bytes of the file of a proof."""
    return rfc8785.dumps(msgspec.to_builtins(proof)) + _END


def check_proof(content: bytes, named: PublicKey | None) -> ProvenMessage | ProvenConsistency:
    """Check a proof, made with the key ``named``, and return what it shows.

    If ``named`` is None, the check uses the key in the proof, and nothing says whose key it is.

    Raises:
        ProofRefused: the proof shows nothing; the error says what is wrong.
    """
    proof = read_proof(content)
    key = _key(proof.public_key)
    if named is not None and named != key:
        why = f"made with the key {key.text}, but {named.text} was named"
        raise ProofRefused(ProofFault.OTHER_KEY, why)
    match proof:
        case MessageProof():
            return _checked_message(proof, key)
        case ConsistencyProof():
            return _checked_consistency(proof, key)


def read_proof(content: bytes) -> Proof:
    """Read a proof from its file; only the form of the proof is checked.

    Raises:
        ProofRefused: the file does not have this form.
    """
    try:
        members: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProofRefused(ProofFault.MALFORMED, "not JSON") from error
    named = members.get("format") if isinstance(members, dict) else None
    if not isinstance(named, str):
        raise ProofRefused(ProofFault.MALFORMED, "not a JSON object with a format")
    if named == MESSAGE_FORMAT:
        return _read(members, MessageProof, content)
    if named == CONSISTENCY_FORMAT:
        return _read(members, ConsistencyProof, content)
    why = f"this release knows {MESSAGE_FORMAT} and {CONSISTENCY_FORMAT}"
    raise ProofRefused(ProofFault.UNKNOWN_FORMAT, why)


def proven_seal(
    row: LogRow, rows: Sequence[LogRow], index: int, inclusion: Sequence[bytes]
) -> ProvenSeal:
    """Make the ``ProvenSeal`` of a seal, its rows, the index of its leaf, and its path."""
    return ProvenSeal(
        position=row.position,
        version=row.version,
        state=base64_of(row.state),
        rows=[
            ProvenRow(
                stream=one.stream.hex(),
                version=one.version,
                topic=one.topic,
                state=base64_of(one.state),
            )
            for one in rows
        ],
        index=index,
        inclusion=[*map(base64_of, inclusion)],
    )


def base64_of(some: bytes) -> str:
    """Bytes as proofs have them: base64 (RFC 4648 section 4)."""
    return base64.b64encode(some).decode("ascii")


def _read(members: object, kind: type[_S], content: bytes) -> _S:
    try:
        proof = msgspec.convert(members, kind)
        written = rfc8785.dumps(msgspec.to_builtins(proof)) + _END
    except (ValueError, TypeError, RecursionError) as error:
        raise ProofRefused(ProofFault.MALFORMED, str(error).splitlines()[0]) from error
    if written != content:
        raise ProofRefused(ProofFault.MALFORMED, "not in canonical form (RFC 8785)")
    return proof


def _checked_message(proof: MessageProof, key: PublicKey) -> ProvenMessage:
    head = _head(proof.head, key, proof.public_key)
    events: list[ProvenEvent] = []
    last = 0
    for one in proof.seals:
        if one.position <= last:
            raise ProofRefused(ProofFault.MALFORMED, "seals do not follow the order of the log")
        last = one.position
        rows, sealed = _sealed_rows(one)
        _check_inclusion(one, sealed, head)
        found = list(_events(proof, rows, sealed, one.position))
        if not found:
            why = (
                f"the rows sealed at position {one.position} do not concern message"
                f" {proof.message_id}"
            )
            raise ProofRefused(ProofFault.OTHER_MESSAGE, why)
        events += found
    if [event.event for event in events].count("queued") != 1 or events[0].event != "queued":
        why = "the history of a message must begin with queuing, once"
        raise ProofRefused(ProofFault.OTHER_MESSAGE, why)
    rows_in_all = sum(len(one.rows) for one in proof.seals)
    return ProvenMessage(proof.message_id, proof.identity, head, key, events, rows_in_all)


def _checked_consistency(proof: ConsistencyProof, key: PublicKey) -> ProvenConsistency:
    # Both are of one log: its origin is in the verifier key.
    old, new = (_head(text, key, proof.public_key) for text in (proof.old, proof.new))
    hashes = [_bytes(one) for one in proof.consistency]
    if not is_consistent(old.size, new.size, old.root, new.root, hashes):
        why = f"the proof does not show that the tree of {old.size} seals begins that of {new.size}"
        raise ProofRefused(ProofFault.NOT_CONSISTENT, why)
    return ProvenConsistency(old, new, key)


def _key(text: str) -> PublicKey:
    try:
        return read_public_key(text)
    except PublicKeyRefused as error:
        raise ProofRefused(ProofFault.MALFORMED, f"public_key: {error}") from error


def _head(note: str, key: PublicKey, verifier_key: str) -> TreeHead:
    try:
        head = verified_head(note.encode("utf-8"), key)
    except (NoteRefused, UnicodeEncodeError) as error:
        raise ProofRefused(ProofFault.BAD_HEAD, str(error)) from error
    if key.verifier_key(head.origin) != verifier_key:
        why = f"public_key is not written as {key.verifier_key(head.origin)}"
        raise ProofRefused(ProofFault.MALFORMED, why)
    return head


def _sealed_rows(one: ProvenSeal) -> tuple[list[LogRow], BatchSealed]:
    """The rows and the event of a seal, checked to match to the byte."""
    rows = [_row(row, one.position) for row in one.rows]
    row = LogRow(one.position, b"", one.version, SEAL_TOPIC, _bytes(one.state))
    try:
        sealed = decode_seal(row.state)
    except CorruptRow as error:
        raise ProofRefused(ProofFault.BROKEN_SEAL, f"at {one.position}: {error}") from error
    if not is_seal_of(rows, row, sealed):
        why = f"at position {one.position}: the seal does not match the {len(rows)} rows beside it"
        raise ProofRefused(ProofFault.BROKEN_SEAL, why)
    return rows, sealed


def _row(row: ProvenRow, position: int) -> LogRow:
    try:
        stream = bytes.fromhex(row.stream)
    except ValueError as error:
        raise ProofRefused(ProofFault.MALFORMED, "a stream is not hexadecimal") from error
    if stream.hex() != row.stream or len(stream) != STREAM_BYTES:
        why = f"a stream is not {STREAM_BYTES} bytes in small letters"
        raise ProofRefused(ProofFault.MALFORMED, why)
    return LogRow(position, stream, row.version, row.topic, _bytes(row.state))


def _bytes(text: str) -> bytes:
    try:
        some = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise ProofRefused(ProofFault.MALFORMED, "not base64") from error
    if base64_of(some) != text:
        raise ProofRefused(ProofFault.MALFORMED, "base64 that is not in canonical form")
    return some


def _check_inclusion(one: ProvenSeal, sealed: BatchSealed, head: TreeHead) -> None:
    path = [_bytes(sibling) for sibling in one.inclusion]
    try:
        leaf = seal_leaf(one.position, one.version, sealed)
    except ValueError as error:
        raise ProofRefused(ProofFault.NOT_IN_TREE, str(error)) from error
    if not is_included(leaf, one.index, head.size, path, head.root):
        why = (
            f"the proof does not show that the seal at position {one.position} is leaf {one.index}"
        )
        raise ProofRefused(ProofFault.NOT_IN_TREE, f"{why} of {head.size}")


def _events(
    proof: MessageProof, rows: Sequence[LogRow], sealed: BatchSealed, position: int
) -> Iterator[ProvenEvent]:
    """What the rows say of the message, if they stand in the stream of the identity."""
    for row in rows:
        event = decode_or_none(row.topic, row.state)
        match event:  # None is of another message, perhaps of a later release
            case AnyMessageQueued() if event.message_id == proof.message_id:
                what, by, sender = "queued", event.protocol, event.sender_did
            case MessagesDelivered() if proof.message_id in event.message_ids:
                what, by, sender = "delivered", event.channel, ""
            case AnyMessagesRemoved() if proof.message_id in event.message_ids:
                what, by, sender = "removed", event.reason, ""
            case _:
                continue
        of_erased = ERASED + row.stream.hex()
        if proof.identity != of_erased and identity_stream(proof.identity).bytes != row.stream:
            why = f"it was {what} in a queue of another identity than {proof.identity}"
            raise ProofRefused(ProofFault.OTHER_MESSAGE, why)
        yield ProvenEvent(what, event.at_ms, by, sender, sealed.partition, position, sealed.digest)
