"""Proofs of a small log, made from its rows alone."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

from msgspec.structs import replace

from eventstore.log.codec import decode_seal
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import SEAL_TOPIC, MessagesDelivered
from eventstore.log.merkle import Subtrees, consistency_proof, inclusion_proof
from eventstore.log.proof import (
    CONSISTENCY_FORMAT,
    MESSAGE_FORMAT,
    ConsistencyProof,
    MessageProof,
    base64_of,
    proven_seal,
)
from eventstore.log.public_key import PublicKey
from eventstore.log.tiles import Tile, TiledTree, subtrees_of
from eventstore.log.tree_head import TreeHead, seal_leaf, sign_head
from http_edge.crypto import signatures
from tests.log.samples import (
    AT_MS,
    COMMAND,
    OTHER,
    OWNER,
    OWNER_DID,
    SealedWriter,
    message,
    removed,
)

ORIGIN = "did:web:mediator.test"
SEED = bytes(range(32))
KEY = PublicKey(signatures.public_key(SEED))
SIGN = partial(signatures.sign, SEED)
MESSAGE_ID = "message-3"


class Sealed:
    """The seals of a log, each with the rows that it covers, and their tree."""

    def __init__(self, log: EventLog) -> None:
        rows = log.read_rows(after=0, rows_max=1_000_000, bytes_max=1_000_000_000)
        ends = [n for n, row in enumerate(rows) if row.topic == SEAL_TOPIC]
        self.sections = [rows[first + 1 : end] for first, end in pairwise([-1, *ends])]
        self.seals = [rows[end] for end in ends]
        leaves = [
            seal_leaf(row.position, row.version, decode_seal(row.state)) for row in self.seals
        ]
        self._tiles: dict[Tile, bytes] = {}
        self._trees = [TiledTree()]
        for leaf in leaves:
            tree, new = self._trees[-1].extended([leaf])
            self._tiles |= new
            self._trees.append(tree)

    @property
    def size(self) -> int:
        return len(self.seals)

    def subtrees(self, size: int) -> Subtrees:
        return subtrees_of(size, self._tiles.__getitem__)

    def note(self, size: int, *, origin: str = ORIGIN) -> str:
        head = TreeHead(origin, size, self._trees[size].root())
        return sign_head(head, KEY, SIGN).decode()

    def message_proof(self, message_id: str = MESSAGE_ID) -> MessageProof:
        found = [
            n for n, rows in enumerate(self.sections) if any(_is_of(r, message_id) for r in rows)
        ]
        return MessageProof(
            format=MESSAGE_FORMAT,
            message_id=message_id,
            identity=OWNER_DID,
            public_key=KEY.verifier_key(ORIGIN),
            head=self.note(self.size),
            seals=[
                proven_seal(
                    self.seals[n],
                    self.sections[n],
                    n,
                    inclusion_proof(n, self.size, self.subtrees(self.size)),
                )
                for n in found
            ],
        )

    def consistency_proof(self, old: int) -> ConsistencyProof:
        proof = consistency_proof(old, self.size, self.subtrees(self.size))
        return ConsistencyProof(
            format=CONSISTENCY_FORMAT,
            public_key=KEY.verifier_key(ORIGIN),
            old=self.note(old),
            new=self.note(self.size),
            consistency=[*map(base64_of, proof)],
        )


def _is_of(row: LogRow, message_id: str) -> bool:
    return message_id.encode() in row.state


def filled(log: EventLog) -> Sealed:
    """A log of two partitions in which one message is queued, delivered and acknowledged."""
    writer = SealedWriter(log)
    writer.commit({"shard-0": [(OWNER, message(b"first", "message-1"))], "shard-1": []})
    delivered = MessagesDelivered(
        at_ms=AT_MS + 1,
        command=COMMAND,
        message_ids=["message-1", MESSAGE_ID],
        channel="pickup/2.0",
    )
    gone = replace(removed([2], MESSAGE_ID), at_ms=AT_MS + 2)
    shared = [(OWNER, message(b"\x00\xff", MESSAGE_ID)), (OTHER, message(b"of another", "other"))]
    for part in (shared, [], [(OWNER, delivered)], [(OTHER, message(b"later", "later"))]):
        writer.commit({"shard-0": part, "shard-1": [(OTHER, message(b"x", "elsewhere"))]})
    writer.commit({"shard-0": [(OWNER, gone)]})
    writer.commit({"shard-1": []})
    return Sealed(log)
