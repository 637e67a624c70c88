"""The parts of evidence: statements, rows, seals, the tree over seals, heads. No line of Poste."""

import base64
import hashlib
import json
import struct
import sys
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from nacl.exceptions import BadSignatureError
from nacl.signing import VerifyKey

STREAMS = uuid.uuid5(uuid.NAMESPACE_URL, "urn:poste-restante:stream")
CONTENTS = {"encrypted_contract_request", "payload", "event"}  # in types whose version is 2
NAMES = {  # the fields with names, by type
    "identity-registered": "did contract",
    "identity-dedicated": "did",
    "identity-released": "did",
    "contract-stored": "requestor_did recipient_did contract",
    "contract-requested": "sender_did",
    "message-queued": "sender_did recipient_key",
    "queue-refused": "recipient_key",
    "connection-established": "did peer_did label endpoint routing_keys invitation_id",
    "keylist-updated": "added removed",
    "key-claimed": "key owner_did",
    "key-released": "key",
    "push-device-set": "device_token device_platform",
    "speaker-named": "did account_did",
    "account-rotated": "speaker_did prior_did",
    "account-ended": "prior_did",
    "invitation-used": "invitation_id by_did",
    "refusals-counted": "refusals",
    "event-saved": "sender_did recipient_did encrypted_tags",
    "event-tags-updated": "encrypted_tags",
    "public-event-published": "channel_id tags",
    "public-events-deleted": "channel_id",
}
STATEMENTS = {  # the members of each, besides its signature
    "export.json": "format schema mediator_did shards public_key",
    "end.json": "format schema version commit checkpoint position complete_position"
    " complete_until_ms signed_by",
    "a manifest": "format schema first last rows files heads replaces stands_for previous"
    " signed_by tree rewritten contents pruned digest",
    "a commit": "format schema version position files manifest since summary summary_sha256"
    " previous checkpoint signed_by index",
}
STREAM_BYTES = 16
SEAL_FIELDS = 9
Digest = msgspec.msgpack.Ext


def require(holds: object, where: str, why: str) -> None:
    """Stop at the first thing that is wrong, and name it."""
    if not holds:
        sys.exit(f"{where}: {why}")


def stream_of(kind: str, name: str) -> bytes:
    """The stream of an ``identity`` or a ``partition``."""
    return uuid.uuid5(STREAMS, f"{kind}:{name}").bytes


def sha256(*parts: bytes) -> bytes:
    """SHA-256 over the parts, one after the other."""
    return hashlib.sha256(b"".join(parts)).digest()


def canonical(members: object) -> bytes:
    """RFC 8785, for texts and whole numbers."""
    text = json.dumps(members, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def require_signed(key: bytes, where: str, signed: bytes, signature: bytes) -> None:
    """Stop if the key has not signed these bytes."""
    try:
        VerifyKey(key).verify(signed, signature)
    except (BadSignatureError, ValueError):
        sys.exit(f"{where}: the key has not signed it")


def statement(key: bytes, kind: str, where: str, content: bytes) -> Any:
    """Read a signed statement: canonical JSON, signed without its member ``signature``.

    The key also signs contracts, whose members a stranger chooses: none of them is a statement.
    """
    said = json.loads(content)
    require(canonical(said) == content, where, "it is not canonical JSON")
    signature = bytes.fromhex(said.pop("signature"))
    require_signed(key, where, canonical(said), signature)
    other = ", ".join(sorted(set(said) - set(STATEMENTS[kind].split())))
    require(not other, where, f"it has members that are none of such a statement: {other}")
    return said


def covered(name: Any) -> Any:
    """What a seal covers of a name, or of a list of names: digests in their place."""
    if isinstance(name, list):  # in a record, which is a list, the fourth field is a name
        return [
            [*one[:3], covered(one[3]), *one[4:]] if isinstance(one, list) else covered(one)
            for one in name
        ]
    if isinstance(name, str) and name:
        return Digest(1, stream_of("identity", name))
    return Digest(1, sha256(name)) if isinstance(name, bytes) and name else name


def digests_in(name: Any) -> Iterator[bytes]:
    """The digests that stand where erased names stood."""
    if isinstance(name, list):
        for one in name:
            yield from digests_in(one)
    elif isinstance(name, Digest):
        yield bytes(name.data)


class Row:
    """A row of the log: a fact and, if it was exported with it, the content of the fact."""

    def __init__(
        self, position: int, stream: bytes, version: int, topic: str, state: bytes
    ) -> None:
        self.where, self.position, self.stream = f"position {position}", position, stream
        self.version, self.topic, self.kind = version, topic, topic.rpartition(".")[0]
        end = 5 + int.from_bytes(state[1:5], "big") if state[:1] == b"\xc6" else 0
        self.fact, self.has_content = state[end:], end > 0
        self.event = msgspec.msgpack.decode(self.fact)
        same = msgspec.msgpack.encode(self.event) == self.fact
        require(same, self.where, "its state is not written as states are")
        if end:
            digest, size = next(self.event[field] for field in CONTENTS if field in self.event)
            is_its_own = (digest, size) == (sha256(state[5:end]), end - 5 - 16)
            require(is_its_own, self.where, "its content is another one")
        names = {field: self.event[field] for field in NAMES.get(self.kind, "").split()}
        sealed = self.event | {field: covered(name) for field, name in names.items()}
        self.sealed = msgspec.msgpack.encode(sealed)
        gone = {field: [*digests_in(name)] for field, name in names.items()}
        if self.kind in ("key-claimed", "invitation-used", "contract-stored"):
            owners = {field: gone[field] for field in gone if field.endswith("_did")}
            gone = owners if any(owners.values()) else gone  # other names leave with an owner's
        is_free = self.kind == "key-released"  # its key may leave in any case
        self.gone = [] if is_free else [one for found in gone.values() for one in found]


def leaf_of(seal: Row, rows: Iterable[Row]) -> bytes:
    """Check that a seal is the seal of these rows; return its leaf hash in the tree."""
    event, rows, digests = seal.event, list(rows), []
    name, nonces = event["partition"].encode(), event["nonces"]
    head = struct.pack(">QQQI", event["epoch"], event["at_ms"], event["window_ms"], len(name))
    for begin in (b"poste seal over redacted states\n", b""):  # earlier releases: without it
        parts = [begin, event["previous"], head, name, struct.pack(">I", len(nonces)), nonces]
        for row in rows:
            require(len(row.stream) == STREAM_BYTES, row.where, "its stream is no UUID")
            state, topic = row.sealed if begin else row.fact, row.topic.encode()
            sizes = struct.pack(">16sQII", row.stream, row.version, len(topic), len(state))
            parts += [sizes, topic, state]
        digests.append(sha256(*parts))
    is_bare = len(event) == SEAL_FIELDS and event["command"] == b""  # the digest has no command
    is_of_rows = is_bare and event["rows"] == len(rows) and event["digest"] in digests
    require(is_of_rows, seal.where, "the seal is not that of the rows before it")
    numbers = struct.pack(">BQQQ", 1, seal.position, seal.version, event["epoch"])
    return sha256(b"\0", numbers, event["digest"], name)


class Tree:
    """A Merkle tree of RFC 6962, as the roots of its complete subtrees, the largest first."""

    def __init__(self) -> None:
        self.size, self.subtrees, self.roots = 0, list[tuple[int, bytes]](), {0: sha256()}

    def append(self, leaf: bytes) -> None:
        """Append a leaf hash, and remember the root."""
        self.size, size = self.size + 1, 1
        while self.subtrees and self.subtrees[-1][0] == size:
            leaf, size = sha256(b"\1", self.subtrees.pop()[1], leaf), 2 * size
        self.subtrees.append((size, leaf))
        for _, left in self.subtrees[-2::-1]:
            leaf = sha256(b"\1", left, leaf)
        self.roots[self.size] = leaf


def root_by(leaf: bytes, index: int, size: int, path: Iterable[str]) -> bytes:
    """The root to which an inclusion proof leads (RFC 9162, 2.1.3.2)."""
    last = size - 1
    for sibling in map(base64.b64decode, path):
        if index % 2 or index == last:
            leaf = sha256(b"\1", sibling, leaf)
            while index % 2 == 0 and index:
                index, last = index // 2, last // 2
        else:
            leaf = sha256(b"\1", leaf, sibling)
        index, last = index // 2, last // 2
    return leaf if index == last == 0 else b""


def read_head(key: bytes, where: str, note: str) -> tuple[str, int, bytes]:
    """The origin, size and root in a signed head (C2SP tlog-checkpoint)."""
    text, _, signatures = note.rpartition("\n\n")
    origin, size, root = text.split("\n")[:3]
    key_id = sha256(f"{origin}\n\1".encode(), key)[:4]
    lines = [line.split(" ") for line in signatures.splitlines()]
    signed = [base64.b64decode(one) for _, name, one in lines if name == origin]
    own = [one[4:] for one in signed if one[:4] == key_id]
    require_signed(key, where, f"{text}\n".encode(), own[0] if own else b"")
    return origin, int(size), base64.b64decode(root)
