"""Makes proofs for others (``eventstore.log.proof``) from the files of an export.

A proof needs a group of rows for each seal, and a few tiles. It is checked before it is handed out,
so that damage of the export is found here and not by the proof's recipient.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from eventstore.log.databases import databases_among, folder_of_database
from eventstore.log.merkle import EMPTY_ROOT
from eventstore.log.proof import (
    CONSISTENCY_FORMAT,
    MESSAGE_FORMAT,
    ConsistencyProof,
    MessageProof,
    ProofRefused,
    ProvenSeal,
    base64_of,
    check_proof,
    proof_bytes,
    proven_seal,
)
from eventstore.log.public_key import PublicKey, read_public_key
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tree_head import TreeHead, read_head, verified_head
from eventstore.parquet.audit.sealed import SealedRows
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.databases import exports_in
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import HEAD, ExportPlace, open_place
from eventstore.parquet.manifest import ExportHead, verified_statement
from eventstore.parquet.tree import CHECKPOINT, head_in, proven_consistency


def message_proof(
    place: ExportPlace,
    catalog: Catalog,
    key: PublicKey,
    message_id: str,
    identity: str,
    seals: Collection[int],
) -> MessageProof:
    """Prove what the log recorded of a message.

    Args:
        place: where the export is.
        catalog: what it holds; not newer than the newest head.
        key: the key that signed the export.
        message_id: the id of the message.
        identity: the DID in whose queue the message was, or its erased form.
        seals: positions of the seals that cover its rows.

    Raises:
        ExportDamaged: names the file and says why nothing can be proven with it.
        ExportUnavailable: the place cannot be read now, or has no head yet that covers these seals.
    """
    note = place.read_if_there(CHECKPOINT)
    if note is None:
        why = "there is no signed head yet: the next poste export makes one"
        raise ExportUnavailable(CHECKPOINT, why)
    head = head_in(note, key)
    with SealedRows(place, catalog) as sealed:
        proven = [_proven(sealed, one, head) for one in sorted({*seals})]
    proof = MessageProof(
        format=MESSAGE_FORMAT,
        message_id=message_id,
        identity=identity,
        public_key=key.verifier_key(head.origin),
        head=note.decode(),
        seals=proven,
    )
    _check(proof, key)
    return proof


class NotConsistent(Exception):
    """A signed head is not the beginning of another one, or not one of this export."""


def consistency_in(
    target: str, old: bytes, new: bytes, signer: PublicKey | None
) -> ConsistencyProof:
    """Prove that the head in the note ``old`` is the beginning of the head in ``new``.

    Args:
        target: the path or URI of the export, or of the exports of all databases.
        old: the signed note of a head.
        new: the signed note of a later head.
        signer: the key that signed both; None for the key that the export names.

    Raises:
        NoteRefused: one of the notes has no head that this key has signed; says which.
        PublicKeyRefused: the export names no usable key.
        NotConsistent: the older head is not the beginning of the newer one; says why.
        ExportDamaged: a part of the tree is missing or changed.
        ExportUnavailable: there is no export, or the export cannot be read now.
    """
    with _naming("newer"):
        place = _place_of(target, read_head(new).origin)
    key = signer or _own_key(place)
    with _naming("older"):
        older = verified_head(old, key)
    with _naming("newer"):
        newer = verified_head(new, key)
    note = place.read_if_there(CHECKPOINT)
    published = TreeHead(newer.origin, 0, EMPTY_ROOT) if note is None else head_in(note, key)
    if newer.size > published.size:
        raise NotConsistent(
            f"the export ends with {published.size} seals, but the newer head has {newer.size}"
        )
    is_known = proven_consistency(place, newer, published) is not None
    hashes = proven_consistency(place, older, newer) if is_known else None
    if hashes is None:
        why = f"{older.size} seals of {older.origin} are not the first"
        raise NotConsistent(f"{why} of the {newer.size} of {newer.origin}")
    return ConsistencyProof(
        format=CONSISTENCY_FORMAT,
        public_key=key.verifier_key(newer.origin),
        old=old.decode(),
        new=new.decode(),
        consistency=[*map(base64_of, hashes)],
    )


@contextmanager
def _naming(which: str) -> Iterator[None]:
    try:
        yield
    except NoteRefused as error:
        raise NoteRefused(f"the {which} head: {error}") from error


def _place_of(target: str, origin: str) -> ExportPlace:
    """The export of the database that an origin names."""
    targets = exports_in(target)
    if not targets:
        raise ExportUnavailable(open_place(target).address(), "there is no export here")
    number = databases_among([origin.partition("/")[2]])
    named = folder_of_database(target, number - 1) if number else target
    return open_place(named if named in targets else targets[0])


def _own_key(place: ExportPlace) -> PublicKey:
    content = place.read_named(HEAD, "every export has one")
    return read_public_key(verified_statement(HEAD, content, ExportHead, None).public_key)


def _proven(sealed: SealedRows, position: int, head: TreeHead) -> ProvenSeal:
    found = sealed.at(position)
    if found.seal.position != position:
        raise ExportDamaged(found.path, Damage.CHANGED, f"no seal is at position {position}")
    if found.leaf >= head.size:
        why = f"has {head.size} seals yet, and the message is behind them: try again soon"
        raise ExportUnavailable(CHECKPOINT, why)
    inclusion = sealed.inclusion(found.leaf, head.size)
    return proven_seal(found.seal, found.rows, found.leaf, inclusion)


def _check(proof: MessageProof, key: PublicKey) -> None:
    try:
        check_proof(proof_bytes(proof), key)
    except ProofRefused as error:
        why = f"the export cannot prove anything ({error}): see poste verify"
        raise ExportDamaged(CHECKPOINT, Damage.CHANGED, why) from error
