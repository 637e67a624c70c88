"""The Merkle tree over the seals of an export: its tiles, and the newest signed head of it.

The folder ``tree`` has the files of a transparency log (C2SP tlog-tiles): ``checkpoint``, the
newest signed head, and ``tile/…``. Readers need not trust the tiles: changed hashes give another
root than the signed head. The exporter writes tiles before the manifest that names the size and
root of the tree, and the head after that manifest counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.codec import decode_seal
from eventstore.log.errors import CorruptRow
from eventstore.log.events import SEAL_TYPE
from eventstore.log.merkle import Subtrees, consistency_proof, is_consistent
from eventstore.log.public_key import PublicKey
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tiles import (
    TILE_HASHES,
    Tile,
    TiledTree,
    partial_folder,
    subtrees_of,
    tile_of,
    tree_at,
)
from eventstore.log.tree_head import TreeHead, seal_leaf, verified_head
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import Manifest, ManifestTree, tree_said
from eventstore.parquet.rows import read_table

TREE: Final = "tree"
CHECKPOINT: Final = f"{TREE}/checkpoint"
"""The note of the newest signed head."""
_OF_SEALS: Final = ("position", "version", "type", "state")


def tile_path(tile: Tile) -> str:
    """The path of a tile in an export."""
    return f"{TREE}/{tile.path}"


def tile_at(path: str) -> Tile | None:
    """The tile at this path of an export; None if the path is not a tile's."""
    return tile_of(path.removeprefix(f"{TREE}/")) if path.startswith(f"{TREE}/") else None


def read_tile(place: ExportPlace, tile: Tile) -> bytes:
    """Read the hashes of a tile, from a fuller tile at its place if a partial one is missing.

    Raises:
        ExportDamaged: the tile is missing, or has another length.
        ExportUnavailable: it cannot be read now.
    """
    for found in wider(place, tile):
        content = place.read_if_there(tile_path(found), found.size_bytes)
        if content is None:
            continue
        if len(content) != found.size_bytes:
            why = f"{len(content)} bytes, a tile of {found.hashes} hashes has {found.size_bytes}"
            raise ExportDamaged(tile_path(found), Damage.TRUNCATED, why)
        return content[: tile.size_bytes]
    raise ExportDamaged(tile_path(tile), Damage.MISSING, "a part of the tree over the seals")


def seal_leaves(place: ExportPlace, manifest: Manifest) -> list[bytes]:
    """The leaf hashes of the seals of a manifest, in the order of the log, from its rows.

    Raises:
        ExportDamaged: a file is not what the manifest says, or a seal cannot be understood.
        ExportUnavailable: a file cannot be read now.
    """
    tables = []
    for file in manifest.files:
        table = read_table(place, file, _OF_SEALS)
        tables.append(table.filter(pc.equal(table["type"], SEAL_TYPE)))
    seals = pa.concat_tables(tables).sort_by("position")
    columns = (seals[name].to_pylist() for name in ("position", "version", "state"))
    try:
        return [
            seal_leaf(position, version, decode_seal(state))
            for position, version, state in zip(*columns, strict=True)
        ]
    except (ValueError, CorruptRow) as error:
        raise ExportDamaged(manifest.path, Damage.CHANGED, f"a seal: {error}") from error


def tiles_in(place: ExportPlace, size: int) -> Subtrees:
    """The complete subtrees of the tree of this size; reading them raises as ``read_tile``."""
    return subtrees_of(size, lambda tile: read_tile(place, tile))


def tree_by_tiles(place: ExportPlace, said: ManifestTree) -> TiledTree | None:
    """The tree of this size and root, read from its tiles; None if they do not give it.

    Raises:
        ExportUnavailable: a tile cannot be read now.
    """
    try:
        tree = tree_at(said.size, lambda tile: read_tile(place, tile))
    except ExportDamaged:
        return None
    return tree if tree_said(tree) == said else None


def head_in(note: bytes, key: PublicKey) -> TreeHead:
    """The verified head in a note of an export.

    Raises:
        ExportDamaged: the note has no head, or this key has not signed it.
    """
    try:
        return verified_head(note, key)
    except NoteRefused as error:
        raise ExportDamaged(CHECKPOINT, Damage.BAD_SIGNATURE, str(error)) from error


def check_not_cut(note: bytes, key: PublicKey, newest: Manifest | None) -> None:
    """Refuse an export whose published head stands for more seals than its newest manifest.

    The exporter signs a head only after committing the version that has its seals. Manifests of
    earlier releases name no tree, so they are not compared.

    Raises:
        ExportDamaged: the export was put back to an earlier state, or the key has not signed the
            head.
    """
    head = head_in(note, key)
    said = ManifestTree(0, "") if newest is None else newest.tree
    if said is not None and head.size > said.size:
        why = f"a head of {head.size} seals was signed, and the export ends with {said.size}"
        raise ExportDamaged(CHECKPOINT, Damage.ROLLED_BACK, why)


def proven_consistency(place: ExportPlace, old: TreeHead, new: TreeHead) -> Sequence[bytes] | None:
    """Prove that ``old`` is the beginning of ``new``, a head of this export; None if it is not.

    Raises:
        ExportDamaged: a part of the tree is missing, cut or changed.
        ExportUnavailable: the place cannot be read now.
    """
    if old.origin != new.origin or old.size > new.size:
        return None
    proof = consistency_proof(old.size, new.size, tiles_in(place, new.size))
    if is_consistent(old.size, new.size, old.root, new.root, proof):
        return proof
    # Changed tiles make a genuine head look like this: they must not accuse its signer.
    root = tree_at(old.size, lambda tile: read_tile(place, tile)).root()
    if not is_consistent(old.size, new.size, root, new.root, proof):
        why = f"with the first {old.size} seals it does not give the root of {new.size}"
        raise ExportDamaged(f"{TREE}/tile", Damage.CHANGED, why)
    return None


def wider(place: ExportPlace, tile: Tile) -> Iterator[Tile]:
    """The tile itself, then the tiles at the same place with more hashes.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    yield tile
    if tile.hashes == TILE_HASHES:
        return
    yield Tile(tile.level, tile.number)
    listed = map(tile_at, place.sizes(f"{TREE}/{partial_folder(tile)}"))
    yield from sorted(found for found in listed if found is not None and found > tile)
