"""Keeps the tree over the seals of a log: its tiles, and the newest signed head.

Tiles written before their manifest counts may be written again: the same log gives the same hashes.
A partial tile is removed once the full one counts; a draft of one that a kill left, at the next
start, or once the tree has reached its place. If the last tiles are missing, in an export of an
earlier release or after damage, the tree is made anew from the rows; in a pruned export, from the
tiles of removed seals on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from eventstore.log.tiles import (
    TILE_HASHES,
    Tile,
    TiledTree,
    full_tiles,
    hashes_in,
    partial_folder,
    tiles_of,
)
from eventstore.log.tree_head import TreeHead, sign_head
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.errors import Damage, ExportDamaged, ExportRefused
from eventstore.parquet.files import PART, ExportPlace
from eventstore.parquet.manifest import Manifest, Signer, tree_said
from eventstore.parquet.tree import (
    CHECKPOINT,
    TREE,
    head_in,
    proven_consistency,
    read_tile,
    seal_leaves,
    tile_path,
    tree_by_tiles,
)


def require_tiles(
    place: ExportPlace, old: Sequence[Manifest], after_part: Callable[[], None]
) -> None:
    """Refuse an export whose tiles lack seals of these first manifests, unless pruned before.

    ``after_part`` is called after each tile that is read.

    Raises:
        ExportDamaged: the tiles do not give the tree that the last manifest names.
        ExportUnavailable: the place cannot be read now.
    """
    first, said = old[0], old[-1].tree
    assert said is not None
    tree: TiledTree | None = TiledTree()
    if first.tree is not None and first.is_pruned:
        tree = tree_by_tiles(place, first.tree)
    for tile in tiles_of(said.size):
        begin = tile.number * TILE_HASHES
        if tree is not None and tile.level == 0 and begin + tile.hashes > tree.size:
            hashes = hashes_in(read_tile(place, tile))
            tree, _ = tree.extended(hashes[max(0, tree.size - begin) :])
            after_part()
    if tree is None or tree_said(tree) != said:
        why = "changed tiles; no rows are removed, because only tiles would have their seals then"
        raise ExportDamaged(f"{TREE}/tile", Damage.CHANGED, why)


class TreeWriter:
    """The tree of one export. Not safe for several threads.

    Attributes:
        note: The newest signed head, None before the first one.
    """

    def __init__(self, place: ExportPlace, origin: str, signer: Signer) -> None:
        """``origin`` names the tree's log (``eventstore.log.tree_head.origin_of``)."""
        self.note: bytes | None = None
        self._place = place
        self._origin = origin
        self._sign = signer.sign
        self._key = signer.key
        self._tree = TiledTree()
        self._published: TreeHead | None = None
        self._is_followed = False
        """Whether the tree was proven to continue the last published head."""

    def resume(self, catalog: Catalog) -> None:
        """Continue from the tree that counts now; publish its head if it is not published yet.

        Raises:
            ExportDamaged: rows of the export are not those that its manifests name.
            ExportRefused: an earlier signed head is not of this log.
            ExportUnavailable: the place cannot be read or written now.
        """
        said = catalog.statements[-1].manifest.tree if catalog.statements else None
        if catalog.statements and said != tree_said(self._tree):
            found = None if said is None else tree_by_tiles(self._place, said)
            self._tree = self._remade(catalog) if found is None else found
        if self._published is None:
            self._take_published()
        try:
            self.publish()
        except ExportDamaged:  # a tile that the previous head needs is missing
            self._tree = self._remade(catalog)
            self.publish()
        self._remove_left(self._tree)

    def extended(self, leaves: Sequence[bytes]) -> TiledTree:
        """Extend the tree by these leaves; its tiles are durable when this returns.

        Raises:
            ExportUnavailable: the place cannot be written now.
        """
        return self._written(self._tree, leaves)

    def take(self, tree: TiledTree) -> None:
        """Continue from this tree, whose manifest counts, and publish its head.

        Raises as ``resume``.
        """
        before, self._tree = self._tree, tree
        self.publish()
        self._remove_left(before)

    def _remove_left(self, before: TiledTree) -> None:
        """Remove partial tiles of places that are full by now, and drafts that a kill left.

        Only the places that the tree has reached since ``before`` are listed, whatever its size.
        """
        for level, last in enumerate(before.edge):
            begin, end = (full_tiles(tree.size, level) for tree in (before, self._tree))
            # A killed step may have left drafts at a place where a later one has only a full tile.
            with_drafts, without = range(begin, end + 1), range(begin, end)[: bool(last)]
            for number in with_drafts if self._place.is_local else without:
                folder = partial_folder(Tile(level, number))
                for path in self._place.sizes(f"{TREE}/{folder}"):
                    if number < end or path.endswith(PART):
                        self._place.remove(path)

    def _written(self, tree: TiledTree, leaves: Sequence[bytes]) -> TiledTree:
        larger, tiles = tree.extended(leaves)
        self._place.write_all({tile_path(tile): content for tile, content in tiles.items()})
        return larger

    def _remade(self, catalog: Catalog) -> TiledTree:
        """Write all tiles again, but those of removed seals: only they have these."""
        tree = TiledTree()
        for statement in catalog.statements:
            manifest = statement.manifest
            if manifest.is_pruned:
                tree = self._of_removed(manifest)
                continue
            tree = self._written(tree, seal_leaves(self._place, manifest))
            if manifest.tree not in {None, tree_said(tree)}:
                why = "the seals up to its end give another tree than it says"
                raise ExportDamaged(manifest.path, Damage.BROKEN_MANIFEST, why)
        return tree

    def _of_removed(self, manifest: Manifest) -> TiledTree:
        assert manifest.tree is not None
        tree = tree_by_tiles(self._place, manifest.tree)
        if tree is None:
            why = "only tiles have the seals of removed rows: put copies of the damaged ones back"
            raise ExportDamaged(f"{TREE}/tile", Damage.CHANGED, why)
        return tree

    def _take_published(self) -> None:
        """Read the last published head; a damaged one is ignored, and written anew later."""
        self.note = self._place.read_if_there(CHECKPOINT)
        if self.note is not None:
            with suppress(ExportDamaged):
                self._published = head_in(self.note, self._key)

    def publish(self) -> None:
        """Write the newest head, also if an exporter that was paused wrote an earlier one since.

        Raises as ``resume``.
        """
        head = TreeHead(self._origin, self._tree.size, self._tree.root())
        published = self._published
        if published is not None:
            if published.size > head.size:
                return  # the export was put back, and is catching up with this head
            if not self._is_followed:
                self._check_followed(published, head)
        note = sign_head(head, self._key, self._sign)
        self._place.write(CHECKPOINT, note)
        self.note, self._published, self._is_followed = note, head, True

    def _check_followed(self, published: TreeHead, head: TreeHead) -> None:
        """Refuse to sign a head that contradicts the published one."""
        if proven_consistency(self._place, published, head) is None:
            raise ExportRefused(
                f"{CHECKPOINT} of {self._place.address()} was signed for {published.size} seals of"
                f" {published.origin}, not the beginning of the {head.size} of {head.origin}"
            )
        self._is_followed = True
