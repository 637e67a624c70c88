"""Checks the tree of an export, and heads of it that others hold, against the seals of its rows.

The check makes the tree again from all seals: its size and root must be those that each manifest
names, its hashes those of each tile, and every signed head must be an earlier state of it. After
lost rows the check continues at the next manifest whose tree the tiles give. Tiles beyond the tree,
which a stopped exporter leaves, do not count, and are never read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from eventstore.log.faults import Fault
from eventstore.log.merkle import HASH_BYTES
from eventstore.log.public_key import PublicKey
from eventstore.log.tiles import (
    TILE_HASHES,
    Tile,
    TiledTree,
    full_tiles,
    hashes_in,
    tiles_of,
    tree_at,
)
from eventstore.log.tree_head import TreeHead, is_origin_of
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import Manifest, ManifestTree, tree_said
from eventstore.parquet.tree import (
    CHECKPOINT,
    TREE,
    head_in,
    proven_consistency,
    read_tile,
    tile_at,
    tile_path,
    tree_by_tiles,
    wider,
)
from eventstore.parquet.verify.findings import ExportFinding, file_finding, finding_of

_READ_AT_ONCE: Final = 8


class TreeCheck:
    """Checks one tree. Manifests are joined in the order of the log."""

    def __init__(self, place: ExportPlace) -> None:
        """Read the newest head before everything else, so that the manifests read later cover it.

        Raises:
            ExportUnavailable: the place cannot be read now.
        """
        self._place = place
        self._note = place.read_if_there(CHECKPOINT)
        self._listed = place.sizes(TREE)
        self._tree: TiledTree | None = TiledTree()
        self._has_tiles = False
        self._heads_due = 0
        self._signed_before = 0
        self._is_damaged = False
        self._remedy = "remove tree/tile, and export again"

    @property
    def tree(self) -> ManifestTree | None:
        """The tree over all seals joined so far; None if some of them are not known."""
        return None if self._tree is None else tree_said(self._tree)

    def join(self, manifest: Manifest, leaves: Sequence[bytes] | None) -> Iterator[ExportFinding]:
        """Extend the tree by the seals of a manifest; ``leaves`` is None if they are unknown.

        Raises:
            ExportUnavailable: a tile cannot be read now.
        """
        said = manifest.tree
        self._has_tiles |= said is not None
        self._heads_due += 0 if said is None else 1 + len(manifest.replaces)
        if self._tree is not None:
            self._signed_before = self._tree.size
        if leaves is None or self._tree is None:
            self._tree = None if said is None else tree_by_tiles(self._place, said)
            return
        self._tree, new = self._tree.extended(leaves)
        if said is None:
            return  # of a release without trees
        if said != tree_said(self._tree):
            why = f"it names another tree than its {self._tree.size} seals give"
            yield _wrong(manifest.path, why, manifest.last)
        full = {tile: content for tile, content in new.items() if tile.hashes == TILE_HASHES}
        yield from self._check_tiles(full)

    def pass_over(self, manifest: Manifest) -> Iterator[ExportFinding]:
        """Pass over the pruned first manifest, and take its seals from the tiles.

        Memory: some 75 bytes for each seal. Raises as ``join``.
        """
        assert manifest.tree is not None
        self._remedy = "put a copy of it back: only tiles have the seals of removed rows"
        leaves: list[bytes] = []
        try:
            leaves = self._hashes_of(manifest.tree, level=0)
            changed = list(self._changed_tiles(manifest.tree, leaves))
        except ExportDamaged as error:
            changed = [error]
        if not changed:
            yield from self.join(manifest, leaves)
            return
        self._is_damaged = True
        yield from map(finding_of, changed)
        yield from self.join(manifest, None)

    def _hashes_of(self, tree: ManifestTree, level: int) -> list[bytes]:
        tiles = (tile for tile in tiles_of(tree.size) if tile.level == level)
        return [one for tile in tiles for one in hashes_in(read_tile(self._place, tile))]

    def _changed_tiles(
        self, tree: ManifestTree, leaves: Sequence[bytes]
    ) -> Iterator[ExportDamaged]:
        """Name the tiles of leaves that do not give the tree.

        The root of a full one is not the hash that the next level has; else it is the last one.
        """
        if tree_said(TiledTree().extended(leaves)[0]) == tree:
            return
        others = 0
        for number, root in enumerate(self._hashes_of(tree, level=1)):
            own = leaves[number * TILE_HASHES : (number + 1) * TILE_HASHES]
            if TiledTree().extended(own)[0].root() != root:
                others += 1
                yield self._changed(Tile(0, number))
        if tree.size % TILE_HASHES and not others:
            last = Tile(0, tree.size // TILE_HASHES, tree.size % TILE_HASHES)
            read = (tile for tile in wider(self._place, last) if tile_path(tile) in self._listed)
            yield self._changed(next(read, last))

    def check_again(self, manifest: Manifest, leaves: Sequence[bytes]) -> Iterator[ExportFinding]:
        """Check that the seals of a manifest joined before are those in the tree.

        Raises as ``join``.
        """
        said = manifest.tree
        if said is None or self._tree is None:
            return  # of a release without trees, or reported already
        head = TreeHead("", said.size, bytes.fromhex(said.root))
        try:
            # A manifest that names fewer seals than its rows have is not that of the tree either.
            size = max(0, said.size - len(leaves))
            before = tree_at(size, lambda tile: read_tile(self._place, tile))
            is_known = tree_said(before.extended(leaves)[0]) == said
            is_known = is_known and self._is_beginning(head, self._tree)
        except ExportDamaged as error:
            yield finding_of(error)
            return
        if not is_known:
            why = "its seals are not those that stood there when they were verified"
            yield _wrong(manifest.path, why, manifest.last)

    def end(self, key: PublicKey, mediator_did: str) -> Iterator[ExportFinding]:
        """Check the last tiles, and the newest head by the export's key. Raises as ``join``."""
        if self._tree is not None and self._has_tiles:
            last = {
                Tile(level, full_tiles(self._tree.size, level), len(hashes) // HASH_BYTES): hashes
                for level, hashes in enumerate(self._tree.edge)
                if hashes
            }
            yield from self._check_tiles(last)
            yield from self._check_others(self._tree, last)
        if self._note is not None:
            try:
                head = head_in(self._note, key)
            except ExportDamaged as error:
                yield finding_of(error)
            else:
                yield from self.check_head(CHECKPOINT, head, mediator_did)
                yield from self._check_newest(head)
        elif self._heads_due > 1:
            why = "the exporter signs the head of the tree after each step"
            yield file_finding(CHECKPOINT, Damage.MISSING, why)

    def _check_newest(self, head: TreeHead) -> Iterator[ExportFinding]:
        """Check that the published head stands for all steps but the last.

        The exporter signs a head after each step, so it may have been stopped before the last one.
        """
        is_old = self._tree is not None and head.size < self._signed_before
        if is_old and self._place.read_if_there(CHECKPOINT) == self._note:  # no exporter runs
            why = f"a head of {head.size} seals, although {self._signed_before} were signed later"
            yield file_finding(CHECKPOINT, Damage.ROLLED_BACK, why)

    def check_head(self, name: str, head: TreeHead, mediator_did: str) -> Iterator[ExportFinding]:
        """Check a signed head, known by this name, against the tree of all seals.

        If rows or tiles are damaged, which is reported, the head is not checked.
        """
        tree = self._tree
        if not is_origin_of(head.origin, mediator_did):
            why = f"a head of {head.origin}, the export is of {mediator_did}"
            yield file_finding(name, Damage.MISPLACED, why)
        elif tree is None or self._is_damaged:
            return
        elif head.size > tree.size:
            why = f"a head of {head.size} seals was signed, and the export ends with {tree.size}"
            yield file_finding(name, Fault.MISSING_HEAD, why)
        else:
            try:
                is_beginning = self._is_beginning(head, tree)
            except ExportDamaged as error:
                # Tiles of rows that were not read, because they were verified before or are lost.
                self._is_damaged = True
                yield finding_of(error)
                return
            if not is_beginning:
                why = f"a head of {head.size} seals was signed that are not this export's first"
                yield _wrong(name, why)

    def _is_beginning(self, head: TreeHead, tree: TiledTree) -> bool:
        if not self._has_tiles:
            return (head.size, head.root) == (tree.size, tree.root())
        newest = TreeHead(head.origin, tree.size, tree.root())
        return proven_consistency(self._place, head, newest) is not None

    def _check_tiles(self, tiles: Mapping[Tile, bytes]) -> Iterator[ExportFinding]:
        """Check that each tile has these hashes."""
        with ThreadPoolExecutor(_READ_AT_ONCE) as readers:
            for damage in readers.map(self._tile_damage, tiles, tiles.values()):
                if damage is not None:
                    self._is_damaged = True
                    yield finding_of(damage)

    def _tile_damage(self, tile: Tile, hashes: bytes) -> ExportDamaged | None:
        try:
            found = read_tile(self._place, tile)
        except ExportDamaged as error:
            return error
        if found == hashes:
            return None
        return self._changed(tile)

    def _changed(self, tile: Tile) -> ExportDamaged:
        why = f"its hashes are not those of the seals; {self._remedy}"
        return ExportDamaged(tile_path(tile), Damage.CHANGED, why)

    def _check_others(self, tree: TiledTree, last: Mapping[Tile, bytes]) -> Iterator[ExportFinding]:
        """Check that tiles of older heads are beginnings of the checked tiles; report strays."""
        edge = {(tile.level, tile.number): hashes for tile, hashes in last.items()}
        for path in sorted(self._listed.keys() & self._place.sizes(TREE).keys() - {CHECKPOINT}):
            tile = tile_at(path)
            if tile is None:
                why = "no tile has such a name: added, or left by an exporter that was stopped"
                yield file_finding(path, Damage.STRAY, why)
            elif tile.hashes < TILE_HASHES and tile not in last:
                full = Tile(tile.level, tile.number)
                is_full = tile.number < full_tiles(tree.size, tile.level)
                newer: bytes | None = edge.get((tile.level, tile.number), b"")
                # None: an exporter replaced it by the full tile, or it is reported.
                if is_full:
                    newer = self._place.read_if_there(tile_path(full), full.size_bytes)
                found = self._place.read_if_there(path, tile.size_bytes)
                if newer is not None and found is not None and not _agree(tile, found, newer):
                    why = "its hashes are not those of the tile that followed it"
                    yield file_finding(path, Damage.CHANGED, why)


def _agree(tile: Tile, found: bytes, newer: bytes) -> bool:
    """Whether a partial tile and the newer hashes at its place begin alike."""
    length = min(len(newer), tile.size_bytes)
    return len(found) == tile.size_bytes and found[:length] == newer[:length]


def _wrong(path: str, why: str, position: int | None = None) -> ExportFinding:
    return ExportFinding(fault=Fault.WRONG_TREE, path=path, last_position=position, explanation=why)
