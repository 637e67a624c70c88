"""The check of an export that was pruned: what it says of the rows that are gone, and of the rest.

``test_pruning.py`` has what a forger without the key can do to its files.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault, Head
from eventstore.log.tiles import (
    TILE_HASHES,
    Tile,
    TiledTree,
    hashes_in,
    partial_folder,
    tiles_of,
)
from eventstore.log.tree_head import TreeHead, sign_head
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import ManifestTree, heads_of
from eventstore.parquet.rows import read_table
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.tree import TREE, read_tile, tile_path, wider
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.table import TableWriter
from eventstore.stores.open_log import open_log
from tests.export.forging import with_value
from tests.export.leaving import LATER_MS, leave, played, prune
from tests.export.samples import OWNER, SIGNED_BY, SIGNER, catalog_of, export_all, sign_again

YOUNG_MS = 400_000


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, int]]:
    """Makes a history of so many acts, once: a log whose rows left, its archive, and its end."""

    @cache
    def made(acts: int) -> tuple[Path, int]:
        folder = tmp_path_factory.mktemp("history")
        with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
            history = played(log, acts)
            leave(log, open_place(str(folder / "export")))
        return folder, history.now_ms

    return made


@pytest.fixture
def acts() -> int:
    return 400


@pytest.fixture
def now_ms(histories: Callable[[int], tuple[Path, int]], acts: int, tmp_path: Path) -> int:
    """When a history ended of which the test has a copy."""
    folder, ended_ms = histories(acts)
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    return ended_ms


@pytest.fixture
def sqlite_log(now_ms: int, tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as opened:
        yield opened


@pytest.fixture
def pruned(now_ms: int, sqlite_log: EventLog, place: ExportPlace) -> Catalog:
    assert prune(sqlite_log, place, until_ms=now_ms - YOUNG_MS)
    return catalog_of(place)


def _sign(place: ExportPlace, catalog: Catalog, **members: Any) -> None:
    """Let the mediator's key say something else about what was pruned."""
    first, *others = catalog.statements
    forged = sign_again(place, replace(first.manifest, **members, signature=""))
    added = [file for file in forged.manifest.files if file not in first.manifest.files]
    removed = {f.path: f.bytes for f in first.manifest.files if f not in forged.manifest.files}
    writer = TableWriter(place, SIGNER, lambda: LATER_MS, versions_kept_s=0)
    writer.mark(writer.commit(catalog, [forged, *others], added=added, removed=removed))


def _faults(place: ExportPlace, marks: VerifiedMarks | None = None) -> list[Any]:
    found = verify_export(place, SIGNED_BY, marks=marks)
    return [one.fault for one in found if isinstance(one, ExportFinding)]


def _faults_signed(place: ExportPlace, catalog: Catalog, **members: Any) -> set[Any]:
    """The faults if the mediator's key says something else about what was pruned."""
    _sign(place, catalog, **members)
    return {*_faults(place)}


@pytest.mark.parametrize(("acts", "changed"), [(800, 0), (800, -1), (250, -1)])
def test_a_changed_tile_of_removed_seals_is_named_and_nothing_else(
    now_ms: int, sqlite_log: EventLog, place: ExportPlace, acts: int, changed: int
) -> None:
    """Only this tile has them: who removes it, as of another export, cannot make it again."""
    assert prune(sqlite_log, place, until_ms=now_ms - YOUNG_MS)
    tree = catalog_of(place).statements[0].manifest.tree
    assert isinstance(tree, ManifestTree)
    of_seals = [tile for tile in tiles_of(tree.size) if tile.level == 0]
    assert of_seals[-1].hashes < TILE_HASHES
    assert (len(of_seals) > 1) == (acts == 800)
    path = next(
        path
        for path in map(tile_path, wider(place, of_seals[changed]))
        if (Path(place.root) / path).exists()
    )
    first, _ = TiledTree().extended(hashes_in(read_tile(place, of_seals[0]))[:9])
    head = TreeHead(OWNER.mediator_did, first.size, first.root())
    held = {"held": sign_head(head, SIGNED_BY, SIGNER.sign)}
    assert len([*verify_export(place, SIGNED_BY, witnessed=held)]) == 1
    file = Path(place.root) / path
    content = file.read_bytes()
    file.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    found = list(verify_export(place, SIGNED_BY, witnessed=held))
    [finding] = [one for one in found if isinstance(one, ExportFinding)]
    assert (finding.fault, finding.path) == (Damage.CHANGED, path)
    assert "put a copy of it back" in str(finding.explanation)


@pytest.mark.parametrize("acts", [800])
def test_no_rows_leave_whose_seals_are_not_in_the_tiles(
    now_ms: int, sqlite_log: EventLog, place: ExportPlace
) -> None:
    """Until then the tiles can be made again from them."""
    assert prune(sqlite_log, place, until_ms=now_ms - 2 * YOUNG_MS)
    pruned = catalog_of(place).statements[0].manifest
    assert isinstance(pruned.tree, ManifestTree)
    path = tile_path(Tile(0, pruned.tree.size // TILE_HASHES))
    file = Path(place.root) / path
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ExportDamaged, match="no rows are removed"):
        prune(sqlite_log, place, until_ms=now_ms - YOUNG_MS)
    assert catalog_of(place).statements[0].manifest == pruned
    file.write_bytes(content)
    assert prune(sqlite_log, place, until_ms=now_ms - YOUNG_MS)
    assert _faults(place) == []


@pytest.mark.parametrize("acts", [800])
@pytest.mark.parametrize("is_of_removed", [False, True])
def test_an_exporter_writes_lost_tiles_again_but_none_of_removed_seals(
    now_ms: int, sqlite_log: EventLog, place: ExportPlace, is_of_removed: bool
) -> None:
    """The seals that are left would take the places of the first ones."""
    assert prune(sqlite_log, place, until_ms=now_ms - YOUNG_MS)
    first, *_, newest = (one.manifest.tree for one in catalog_of(place).statements)
    assert isinstance(first, ManifestTree)
    assert isinstance(newest, ManifestTree)
    assert newest.size // TILE_HASHES > first.size // TILE_HASHES
    tiles = Path(place.root) / tile_path(Tile(0, 0))
    kept = {file.name: file.read_bytes() for file in tiles.parent.iterdir() if file.is_file()}
    lost = Tile(0, newest.size // TILE_HASHES, newest.size % TILE_HASHES)
    place.remove(tile_path(lost))
    if is_of_removed:
        place.remove(tile_path(Tile(0, first.size // TILE_HASHES)))
        del kept[f"{first.size // TILE_HASHES:03}"]
        with pytest.raises(ExportDamaged, match="put copies of the damaged ones back"):
            export_all(sqlite_log, place)
    else:
        export_all(sqlite_log, place)
        assert _faults(place) == []
    written = {file.name: file.read_bytes() for file in tiles.parent.iterdir() if file.is_file()}
    assert written == kept
    assert not place.sizes(f"{TREE}/{partial_folder(Tile(0, 0))}")


def test_other_heads_than_those_of_the_rows_that_stayed_are_found(
    pruned: Catalog, place: ExportPlace
) -> None:
    heads = pruned.statements[0].manifest.heads
    name, head = next(iter(heads.items()))
    heads = heads | {name: replace(head, digest="00" * 32)}
    assert Fault.WRONG_HEAD in _faults_signed(place, pruned, heads=heads)


def test_versions_that_go_back_in_the_rows_that_stayed_are_found(
    pruned: Catalog, place: ExportPlace
) -> None:
    first, *others = pruned.statements[0].manifest.files
    rows = read_table(place, first, SCHEMA.names)
    streams = rows["stream"].to_pylist()
    again = next(n for n, stream in enumerate(streams) if stream in streams[:n])
    forged = write_data(place, first.day, with_value(rows, again, "version", 1), 0)
    assert Fault.VERSION_BREAK in _faults_signed(place, pruned, files=[forged, *others])


@pytest.mark.parametrize("is_verified", [False, True])
def test_a_lost_first_row_of_a_stream_is_found_in_the_rows_that_stayed(
    now_ms: int, sqlite_log: EventLog, place: ExportPlace, tmp_path: Path, is_verified: bool
) -> None:
    """Also where the rows before the pruning were verified, and their streams are known."""
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER) if is_verified else None
    assert _faults(place, marks) == []
    assert prune(sqlite_log, place, until_ms=now_ms - YOUNG_MS)
    pruned = catalog_of(place)
    first, *others = pruned.statements[0].manifest.files
    rows = read_table(place, first, SCHEMA.names)
    streams = rows["stream"].to_pylist()
    lost = next(n for n, stream in enumerate(streams) if stream in streams[n + 1 :])
    kept = pa.concat_tables([rows.slice(0, lost), rows.slice(lost + 1)])
    forged = write_data(place, first.day, kept, 0)
    manifest = pruned.statements[0].manifest
    _sign(place, pruned, files=[forged, *others], rows=manifest.rows - 1)
    place.remove(first.path)
    assert Fault.VERSION_BREAK in _faults(place, marks)


def test_a_known_head_is_compared_with_the_newest_seal_that_was_pruned(
    pruned: Catalog, place: ExportPlace
) -> None:
    manifest = pruned.statements[0].manifest
    name, newest = next(iter(heads_of(manifest.path, manifest).items()))
    for head, faults in (
        (newest, []),
        (Head(newest.version, bytes(32)), [Fault.MISSING_HEAD]),
        (Head(newest.version - 1, bytes(32)), []),  # its row may be gone
    ):
        found = verify_export(place, SIGNED_BY, known_heads={name: head})
        assert [one.fault for one in found if isinstance(one, ExportFinding)] == faults
