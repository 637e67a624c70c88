"""Tiles: the hashes of a Merkle tree in files of 256, as transparency logs keep them. Pure.

The layout is that of C2SP tlog-tiles. Tile N of level 0 has the leaf hashes from
256 * N on; each hash of a tile of level L + 1 is the root of a full tile of level L. A full
tile never changes. The last tile of a level has fewer hashes and a name of its own for each number
of them; it may be removed once the full one is there. A proof reads two or three tiles for each
level, that is for each factor of 256 in the size of the tree.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from eventstore.log.merkle import HASH_BYTES, Subtrees, complete_root, tree_root

TILE_HEIGHT: Final = 8
TILE_HASHES: Final = 1 << TILE_HEIGHT
TILE_BYTES: Final = TILE_HASHES * HASH_BYTES
LEVELS: Final = 8
"""Enough for every number of leaves that has 64 bits."""
_DIGITS: Final = 1_000
_PATH: Final = re.compile(
    r"tile/([0-7])/((?:x\d{3}/)*)(\d{3})(?:\.p/([1-9]|[1-9]\d|1\d\d|2[0-4]\d|25[0-5]))?"
)


class Tile(NamedTuple):
    """The place of a tile: its level, its number in the level, how many hashes it has."""

    level: int
    number: int
    hashes: int = TILE_HASHES

    @property
    def size_bytes(self) -> int:
        """The size of its content."""
        return self.hashes * HASH_BYTES

    @property
    def path(self) -> str:
        """Its path: ``tile/0/x001/x234/067``, and ``.p/`` with the number of hashes if not full."""
        partial = f"/{self.hashes}" if self.hashes < TILE_HASHES else ""
        return f"{partial_folder(self) if partial else _full_path(self)}{partial}"


ReadTile: TypeAlias = Callable[[Tile], bytes]
"""The content of a tile, all of it: its hashes, one after the other, 32 bytes each."""


def partial_folder(tile: Tile) -> str:
    """The folder of all tiles of this place that are not full."""
    return f"{_full_path(tile)}.p"


def tile_of(path: str) -> Tile | None:
    """The tile with this path; None if no tile has it."""
    found = _PATH.fullmatch(path)
    if found is None:
        return None
    level, above, last, hashes = found.groups()
    index = int("".join(above.replace("x", "").split("/")) + last)
    tile = Tile(int(level), index, int(hashes or TILE_HASHES))
    return tile if tile.path == path else None


def full_tiles(size: int, level: int) -> int:
    """How many full tiles of a level a tree of this size has."""
    return size >> (TILE_HEIGHT * (level + 1))


def tiles_of(size: int) -> Iterator[Tile]:
    """All tiles of a tree of this size, those of a level in their order."""
    for level in range(LEVELS):
        hashes = size >> (TILE_HEIGHT * level)
        yield from (Tile(level, index) for index in range(hashes // TILE_HASHES))
        if hashes % TILE_HASHES:
            yield Tile(level, hashes // TILE_HASHES, hashes % TILE_HASHES)


class TiledTree(NamedTuple):
    """The part of a tree in tiles that its growth needs: the last tile of each level.

    ``edge`` has the hashes of the last tile of each level, from level 0 on; empty if that tile is
    full.
    """

    size: int = 0
    edge: tuple[bytes, ...] = (b"",) * LEVELS

    def extended(self, leaves: Sequence[bytes]) -> tuple[TiledTree, Mapping[Tile, bytes]]:
        """The tree with these leaf hashes appended, and the tiles that this adds."""
        new: dict[Tile, bytes] = {}
        edge: list[bytes] = []
        added: Sequence[bytes] = leaves
        first = self.size
        for level, last in enumerate(self.edge):
            hashes = last + b"".join(added)
            number = first // TILE_HASHES
            roots: list[bytes] = []
            for start in range(0, len(hashes) - TILE_BYTES + 1, TILE_BYTES):
                full = hashes[start : start + TILE_BYTES]
                new[Tile(level, number + len(roots))] = full
                roots.append(complete_root(hashes_in(full)))
            rest = hashes[len(roots) * TILE_BYTES :]
            if rest and added:
                new[Tile(level, number + len(roots), len(rest) // HASH_BYTES)] = rest
            edge.append(rest)
            first, added = number, roots
        return TiledTree(self.size + len(leaves), tuple(edge)), new

    def root(self) -> bytes:
        """The root of the tree."""
        return tree_root(self.size, subtrees_of(self.size, lambda last: self.edge[last.level]))


def tree_at(size: int, read: ReadTile) -> TiledTree:
    """Read the tree of this size from its last tiles, at most one for each level."""
    edge = [b""] * LEVELS
    for level in range(LEVELS):
        hashes = size >> (TILE_HEIGHT * level)
        if hashes % TILE_HASHES:
            edge[level] = read(Tile(level, hashes // TILE_HASHES, hashes % TILE_HASHES))
    return TiledTree(size, tuple(edge))


def subtrees_of(size: int, read: ReadTile) -> Subtrees:
    """The complete subtrees of a tree of this size; each tile is read once."""
    tiles: dict[tuple[int, int], bytes] = {}

    def subtree(height: int, index: int) -> bytes:
        level, above = divmod(height, TILE_HEIGHT)
        first = index << above
        number = first // TILE_HASHES
        content = tiles.get((level, number))
        if content is None:
            hashes = (size >> (TILE_HEIGHT * level)) - number * TILE_HASHES
            tile = Tile(level, number, min(hashes, TILE_HASHES))
            content = tiles[level, number] = read(tile)
        start = first % TILE_HASHES * HASH_BYTES
        return complete_root(hashes_in(content[start : start + (HASH_BYTES << above)]))

    return subtree


def _full_path(tile: Tile) -> str:
    digits, rest = [f"{tile.number % _DIGITS:03d}"], tile.number // _DIGITS
    while rest:
        digits.append(f"x{rest % _DIGITS:03d}")
        rest //= _DIGITS
    return f"tile/{tile.level}/{'/'.join(reversed(digits))}"


def hashes_in(content: bytes) -> list[bytes]:
    """The hashes in the content of a tile."""
    return [content[i : i + HASH_BYTES] for i in range(0, len(content), HASH_BYTES)]
