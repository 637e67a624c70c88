"""The tree against its definition in RFC 6962, against published values, and its proofs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.log.merkle import (
    EMPTY_ROOT,
    consistency_proof,
    inclusion_proof,
    is_consistent,
    is_included,
    leaf_hash,
    node_hash,
)
from eventstore.log.tiles import (
    LEVELS,
    TILE_HASHES,
    Tile,
    TiledTree,
    subtrees_of,
    tile_of,
    tiles_of,
    tree_at,
)
from tests.log.root_by_definition import by_definition

ENTRIES = [
    bytes.fromhex(entry)
    for entry in (
        *("", "00", "10", "2021", "3031", "40414243"),
        *("5051525354555657", "606162636465666768696a6b6c6d6e6f"),
    )
]
"""The entries with which implementations of RFC 6962 test themselves, and their roots by size."""
ROOTS = (
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
SIBLING_OF_7 = "bc1a0643b12e4d2d7c77918f44e0f4f79a838b6cf9ec5b5c283e1f4d88599e6b"
NODE_7_8 = "ca854ea128ed050b41b35ffc1b87b8eb2bde461e9e3b5596ece6b9d5975a0ae0"
NODE_3_4 = "5f083f0a1a33ca076a95279832580db3e0ef4584bdff1f54c8a360f50de3031e"
INCLUSION = {
    (0, 1): [],
    (2, 3): [ROOTS[2]],
    (1, 5): [ROOTS[1], NODE_3_4, SIBLING_OF_7],
    (5, 8): [SIBLING_OF_7, NODE_7_8, ROOTS[4]],
}
CONSISTENCY = {
    (2, 5): [NODE_3_4, SIBLING_OF_7],
    (6, 8): [
        "0ebc5d3437fbe2db158b9f126a1d118e308181031d0a949f8dededebc558ef6a",
        NODE_7_8,
        ROOTS[4],
    ],
}
trees = st.lists(st.binary(max_size=3), max_size=70).map(lambda some: [*map(leaf_hash, some)])


class Tiles:
    """A tree in tiles, which were added in parts."""

    def __init__(self, leaves: Sequence[bytes], cuts: Sequence[int] = ()) -> None:
        self.tiles: dict[Tile, bytes] = {}
        self.tree = TiledTree()
        places = [0, *sorted(min(cut, len(leaves)) for cut in cuts), len(leaves)]
        for first, end in pairwise(places):
            self.tree, new = self.tree.extended(leaves[first:end])
            assert self.tiles.keys().isdisjoint(new)
            self.tiles |= new

    def read(self, tile: Tile) -> bytes:
        return self.tiles[tile]

    def subtree(self, height: int, index: int) -> bytes:
        return subtrees_of(self.tree.size, self.read)(height, index)


LEAVES = [*map(leaf_hash, ENTRIES)]
NUMBERED = [leaf_hash(number.to_bytes(4, "big")) for number in range(70_000)]


def test_the_published_roots_are_met_at_every_size() -> None:
    assert [Tiles(LEAVES[:size]).tree.root().hex() for size in range(9)] == [*ROOTS]
    assert EMPTY_ROOT.hex() == ROOTS[0]


@pytest.mark.parametrize(("index", "size"), INCLUSION)
def test_the_published_inclusion_proofs_are_made(index: int, size: int) -> None:
    proof = inclusion_proof(index, size, Tiles(LEAVES[:size]).subtree)
    assert [sibling.hex() for sibling in proof] == INCLUSION[index, size]


@pytest.mark.parametrize(("old", "new"), CONSISTENCY)
def test_the_published_consistency_proofs_are_made(old: int, new: int) -> None:
    proof = consistency_proof(old, new, Tiles(LEAVES[:new]).subtree)
    assert [one.hex() for one in proof] == CONSISTENCY[old, new]


@given(trees, st.lists(st.integers(0, 70), max_size=4))
def test_a_root_is_that_of_the_definition_however_the_tree_grew(
    leaves: list[bytes], cuts: list[int]
) -> None:
    assert Tiles(leaves, cuts).tree.root() == by_definition(leaves)


@given(trees.filter(bool), st.data())
def test_every_leaf_is_shown_to_be_where_it_is_and_nowhere_else(
    leaves: list[bytes], data: st.DataObject
) -> None:
    size = len(leaves)
    index = data.draw(st.integers(0, size - 1))
    proof = inclusion_proof(index, size, Tiles(leaves).subtree)
    root = by_definition(leaves)
    assert len(proof) <= (size - 1).bit_length()
    assert is_included(leaves[index], index, size, proof, root)
    for other in range(-1, size + 1):
        if other != index and not (0 <= other < size and leaves[other] == leaves[index]):
            assert not is_included(leaves[index], other, size, proof, root)
    assert not is_included(leaf_hash(b"another"), index, size, proof, root)
    assert not is_included(leaves[index], index, size, [*proof, root], root)
    for at in range(len(proof)):
        changed = [*proof[:at], leaf_hash(proof[at]), *proof[at + 1 :]]
        assert not is_included(leaves[index], index, size, changed, root)
        assert not is_included(leaves[index], index, size, proof[:at] + proof[at + 1 :], root)


@given(trees, st.data())
def test_an_older_tree_is_shown_to_be_the_beginning_and_no_other_is(
    leaves: list[bytes], data: st.DataObject
) -> None:
    new = len(leaves)
    old = data.draw(st.integers(0, new))
    tiles = Tiles(leaves)
    proof = consistency_proof(old, new, tiles.subtree)
    old_root, new_root = by_definition(leaves[:old]), by_definition(leaves)
    assert len(proof) <= new.bit_length() + 1
    assert is_consistent(old, new, old_root, new_root, proof)
    assert not is_consistent(old, new, leaf_hash(old_root), new_root, proof)
    assert not is_consistent(old, new, old_root, new_root, [*proof, new_root])
    if old:
        assert not is_consistent(old, new, old_root, leaf_hash(new_root), proof)
    for at in range(len(proof)):
        changed = [*proof[:at], leaf_hash(proof[at]), *proof[at + 1 :]]
        assert not is_consistent(old, new, old_root, new_root, changed)
        assert not is_consistent(old, new, old_root, new_root, proof[:at] + proof[at + 1 :])


def test_no_proof_of_what_cannot_be_is_made_or_believed() -> None:
    tiles = Tiles(LEAVES)
    for index, size in ((8, 8), (-1, 8), (0, 0)):
        with pytest.raises(ValueError, match="no leaf"):
            inclusion_proof(index, size, tiles.subtree)
    for old, new in ((9, 8), (-1, 8)):
        with pytest.raises(ValueError, match="no beginning"):
            consistency_proof(old, new, tiles.subtree)
    for old, new, proof in ((2, 1, []), (-1, 1, LEAVES[:1])):
        assert not is_consistent(old, new, LEAVES[0], LEAVES[0], proof)
    assert not is_consistent(3, 8, LEAVES[0], LEAVES[1], [])
    for root in (EMPTY_ROOT, LEAVES[0]):
        assert not is_consistent(0, 0, root, LEAVES[0], [])


def test_a_proof_for_a_tree_of_another_size_is_none() -> None:
    first, second, third, fourth = LEAVES[:4]
    pair = node_hash(first, second)
    assert not is_included(first, 0, 2, [], first)
    assert not is_included(second, 0, 1, [first], pair)
    assert not is_consistent(1, 8, first, first, [])
    old, new = node_hash(pair, third), node_hash(pair, node_hash(third, fourth))
    assert is_consistent(3, 4, old, new, [third, fourth, pair])
    old, new = node_hash(first, old), node_hash(first, new)
    assert not is_consistent(3, 4, old, new, [third, fourth, pair, first])


@pytest.mark.parametrize("size", [255, 256, 257, 511, 65_536, 65_537, 70_000])
def test_large_trees_are_whole_tiles_and_one_that_is_not_for_each_level(size: int) -> None:
    leaves = NUMBERED[:size]
    tiles = Tiles(leaves, [1, 255, 256, 300, 65_530])
    assert {tile: len(tiles.tiles[tile]) for tile in tiles_of(size)} == {
        tile: tile.hashes * 32 for tile in tiles_of(size)
    }
    assert tree_at(size, tiles.read) == tiles.tree
    root = by_definition(leaves)
    assert tiles.tree.root() == root
    read_tiles: set[Tile] = set()

    def read(tile: Tile) -> bytes:
        read_tiles.add(tile)
        return tiles.tiles[tile]

    for index in (0, size // 3, size - 1):
        proof = inclusion_proof(index, size, subtrees_of(size, read))
        assert is_included(leaves[index], index, size, proof, root)
    assert len(read_tiles) <= 3 * 5
    for old in (1, 200, size // 2, size - 1):
        proof = consistency_proof(old, size, tiles.subtree)
        assert is_consistent(old, size, by_definition(leaves[:old]), root, proof)


def test_the_tiles_of_the_example_of_the_specification() -> None:
    found = list(tiles_of(70_000))
    partial = [tile for tile in found if tile.hashes < TILE_HASHES]
    assert partial == [Tile(0, 273, 112), Tile(1, 1, 17), Tile(2, 0, 1)]
    assert len(found) == 273 + 1 + 1 + 1 + 1
    assert list(tiles_of(256)) == [Tile(0, 0), Tile(1, 0, 1)]
    assert Tile(0, 1_234_067).path == "tile/0/x001/x234/067"
    assert Tile(2, 0, 1).path == "tile/2/000.p/1"


@given(st.integers(0, LEVELS - 1), st.integers(0, 2**56), st.integers(1, TILE_HASHES))
def test_a_path_names_one_tile(level: int, index: int, hashes: int) -> None:
    tile = Tile(level, index, hashes)
    assert tile_of(tile.path) == tile


@pytest.mark.parametrize(
    "path",
    [
        *("tile/0/0", "tile/8/000", "tile/0/x000/001", "tile/0/001.p/0", "tile/0/001.p/256"),
        *("tile/0/001.p/01", "tile/0/001/002", "tile/00/001", "checkpoint", "tile/0/000 "),
    ],
)
def test_no_other_path_names_a_tile(path: str) -> None:
    assert tile_of(path) is None


def test_a_leaf_and_a_node_are_never_the_same() -> None:
    assert leaf_hash(LEAVES[0] + LEAVES[1]) != node_hash(LEAVES[0], LEAVES[1])
