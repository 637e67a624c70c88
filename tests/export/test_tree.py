"""The tree over the seals of an export: written with it, kept whole, and made anew."""

from __future__ import annotations

import shutil
import tracemalloc
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.host.clock import system_clock
from eventstore.log.event_log import EventLog
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.faults import Fault
from eventstore.log.merkle import HASH_BYTES
from eventstore.log.streams import identity_stream
from eventstore.log.tiles import TILE_HASHES, Tile, TiledTree, tiles_of
from eventstore.log.tree_head import TreeHead, sign_head
from eventstore.log.verify import verify
from eventstore.parquet.errors import Damage, ExportDamaged, ExportRefused
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import Manifest, ManifestTree
from eventstore.parquet.tree import CHECKPOINT, TREE, head_in, read_tile, tile_path
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.verify.tree import TreeCheck
from eventstore.parquet.write.exporter import Exporter
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from tests.export.forging import SampleExport, exporter_of_sample
from tests.export.samples import (
    OWNER,
    SIGNED_BY,
    SIGNER,
    Growing,
    catalog_of,
    contents,
    did,
    export_all,
    exporter,
    leaves_of,
    registered,
)
from tests.export.test_earlier_release import golden
from tests.log.root_by_definition import by_definition
from tests.log.samples import SealedWriter, message


def head_of(place: ExportPlace) -> TreeHead:
    return head_in(place.read(CHECKPOINT), SIGNED_BY)


def assert_tree_is_that_of(log: EventLog, place: ExportPlace) -> None:
    """The newest head and all tiles that a proof may read are those of the log."""
    leaves = leaves_of(log)
    root = by_definition(leaves)
    assert head_of(place) == TreeHead(OWNER.mediator_did, len(leaves), root)
    for tile in tiles_of(len(leaves)):
        assert len(read_tile(place, tile)) == tile.size_bytes
    assert sound(place)


def sound(place: ExportPlace) -> bool:
    *findings, _ = verify_export(place, SIGNED_BY)
    return findings == []


def strays(place: ExportPlace) -> int:
    """How many files do not belong to an export, which has no other fault."""
    *findings, _ = verify_export(place, SIGNED_BY)
    faults = [one.fault for one in findings if isinstance(one, ExportFinding)]
    assert {*faults} <= {Damage.STRAY}
    return len(faults)


def step_to_end(export: Exporter) -> None:
    while export.step():
        pass


def seal_many(log: EventLog, seals: int) -> SealedWriter:
    writer = SealedWriter(log)
    for start in range(0, seals, 100):
        names = (f"shard-{number}" for number in range(min(100, seals - start)))
        writer.commit({name: [] for name in names})
    return writer


def manifest_with(tree: ManifestTree) -> Manifest:
    """A manifest that names a tree, and no files."""
    return Manifest(
        format=1,
        schema=1,
        first=1,
        last=2,
        rows=0,
        files=[],
        heads={},
        replaces=[],
        stands_for="",
        previous="",
        signed_by="",
        tree=tree,
    )


def test_every_manifest_names_the_tree_of_all_seals_up_to_its_end(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    Growing(sqlite_log).grow(30)
    export_all(sqlite_log, place)
    leaves = leaves_of(sqlite_log)
    size = 0
    for statement in catalog_of(place).statements:
        size += sum(file.types[SEAL_TOPIC] for file in statement.manifest.files)
        root = by_definition(leaves[:size])
        assert statement.manifest.tree == ManifestTree(size, root.hex())
    assert size == len(leaves) == 60
    assert_tree_is_that_of(sqlite_log, place)


def test_a_tree_that_grew_in_steps_is_the_one_that_was_written_at_once(
    sqlite_log: EventLog, tmp_path: Path
) -> None:
    at_once, in_steps = (open_place(str(tmp_path / name)) for name in ("once", "steps"))
    writer = seal_many(sqlite_log, 250)
    export_all(sqlite_log, in_steps)
    for _ in range(3):
        writer.commit({f"shard-{number}": [] for number in range(100)})
        export_all(sqlite_log, in_steps, Bounds(rows_max=7))
    export_all(sqlite_log, at_once, Bounds())
    assert_tree_is_that_of(sqlite_log, in_steps)
    assert_tree_is_that_of(sqlite_log, at_once)
    tiles = {path: file for path, file in contents(at_once).items() if path.startswith(TREE)}
    assert contents(in_steps).items() >= tiles.items()
    # Of a place that is full by now no tile is left that was not.
    assert list(in_steps.sizes(f"{TREE}/tile/0/000.p")) == []
    assert list(in_steps.sizes(f"{TREE}/tile/0/001.p")) == []


def test_drafts_of_tiles_that_a_kill_left_are_removed_at_the_next_start_or_once_reached(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    writer = seal_many(sqlite_log, 250)
    export_all(sqlite_log, place)
    reached = [Tile(0, 0, 253), Tile(1, 0, 7)]
    ahead = [Tile(0, 1, 44), Tile(0, 2, 3)]  # by steps that were larger
    for tile in (*reached, *ahead):
        path = Path(place.full_path(tile_path(tile)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_name(f".{path.name}.part").touch()
    assert strays(place) == 4
    exporter(sqlite_log, place).close()
    assert strays(place) == len(ahead)
    for _ in range(4):
        writer.commit({f"shard-{number}": [] for number in range(100)})
    export_all(sqlite_log, place, Bounds())
    assert_tree_is_that_of(sqlite_log, place)


def test_an_export_of_an_earlier_release_gets_its_tree(
    sqlite_log: EventLog, tmp_path: Path
) -> None:
    place = golden(tmp_path / "export")
    growing = Growing(sqlite_log, as_earlier=True)
    growing.grow(8)
    assert sound(place)
    export_all(sqlite_log, place)
    assert_tree_is_that_of(sqlite_log, place)
    growing.grow(5)
    export_all(sqlite_log, place)
    assert_tree_is_that_of(sqlite_log, place)
    with closing(exporter(sqlite_log, place, Bounds())) as export:
        export.compact(files_min=2)
    assert_tree_is_that_of(sqlite_log, place)


def test_a_manifest_that_names_another_tree_is_found_though_all_is_signed(
    tmp_path: Path,
) -> None:
    sample = SampleExport(tmp_path)
    for manifest in sample.manifests:
        size = sample.head_of(manifest).size
        with sample.tampered():
            sample.sign(manifest, tree=ManifestTree(size, bytes(32).hex()))
            found = {(one.fault, one.path) for one in sample.check()[0]}
        assert (Fault.WRONG_TREE, manifest.path) in found
    with sample.tampered(), closing(open_log(sample.log_url)) as log:
        last = sample.manifests[-1]
        sample.sign(last, tree=ManifestTree(sample.head_of(last).size, bytes(32).hex()))
        with pytest.raises(ExportDamaged, match="give another tree than it says"):
            exporter_of_sample(log, sample.place, rows_max=40)


@pytest.mark.parametrize("tree", [ManifestTree(-1, bytes(32).hex()), ManifestTree(1, "zz" * 32)])
def test_a_manifest_that_names_an_impossible_tree_is_found_though_all_is_signed(
    tmp_path: Path, tree: ManifestTree
) -> None:
    sample = SampleExport(tmp_path)
    manifest = sample.manifests[1]
    sample.sign(manifest, tree=tree)
    found = {(one.fault, one.path) for one in sample.check()[0]}
    assert (Damage.BROKEN_MANIFEST, manifest.path) in found


def test_a_pruned_manifest_whose_tree_full_tiles_do_not_give_is_named_and_no_tile(
    place: ExportPlace,
) -> None:
    leaves = [bytes([number]) * HASH_BYTES for number in range(TILE_HASHES)]
    tree, tiles = TiledTree().extended(leaves)
    for tile, content in tiles.items():
        place.write(tile_path(tile), content)
    for root, faults in ((tree.root().hex(), []), ("0" * 64, [Fault.WRONG_TREE])):
        said = manifest_with(ManifestTree(TILE_HASHES, root))
        found = [*TreeCheck(place).pass_over(said)]
        assert [(one.fault, one.path) for one in found] == [(fault, said.path) for fault in faults]


def test_tiles_that_a_pruned_manifest_names_and_are_not_there_cost_no_memory(
    tmp_path: Path,
) -> None:
    sample = SampleExport(tmp_path)
    said = ManifestTree(2**26, bytes(32).hex())
    check = TreeCheck(sample.place)
    tracemalloc.start()
    (found,) = check.pass_over(replace(sample.manifests[0], tree=said))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found.fault, found.path) == (Damage.MISSING, "tree/tile/0/001")
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(("steps", "is_compacted"), [(1, False), (2, False), (2, True)])
def test_an_export_without_a_signed_head_is_damaged_unless_it_has_only_begun(
    sqlite_log: EventLog, place: ExportPlace, steps: int, is_compacted: bool
) -> None:
    growing = Growing(sqlite_log)
    for _ in range(steps):
        growing.grow()
        export_all(sqlite_log, place)
    if is_compacted:
        with closing(exporter(sqlite_log, place, Bounds())) as export:
            assert export.compact(files_min=2)
    place.remove(CHECKPOINT)
    found = [
        (one.fault, one.path)
        for one in verify_export(place, SIGNED_BY)
        if isinstance(one, ExportFinding)
    ]
    assert found == [(Damage.MISSING, CHECKPOINT)] * (steps - 1)


@pytest.mark.parametrize("lost", ["last tiles", "all tiles", "all"])
def test_a_tree_that_was_lost_is_made_anew_from_the_rows(
    sqlite_log: EventLog, place: ExportPlace, lost: str
) -> None:
    seal_many(sqlite_log, 300)
    export_all(sqlite_log, place)
    folder = Path(place.root) / TREE
    if lost == "last tiles":
        place.remove(tile_path(Tile(0, 1, 44)))
    else:
        shutil.rmtree(folder / "tile")
    if lost == "all":
        place.remove(CHECKPOINT)
    assert not sound(place)
    export_all(sqlite_log, place)
    assert_tree_is_that_of(sqlite_log, place)


def test_an_old_head_that_was_put_back_is_a_finding_and_one_of_the_step_before_is_none(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing, notes = Growing(sqlite_log), []
    with closing(exporter(sqlite_log, place, Bounds())) as export:
        for _ in range(3):
            growing.commit({"shard-0": []})  # one seal for each step
            step_to_end(export)
            notes.append(place.read(CHECKPOINT))
    assert len(set(notes)) == 3
    for note, faults in zip(notes, ([Damage.ROLLED_BACK], [], []), strict=True):
        place.write(CHECKPOINT, note)
        *found, _ = verify_export(place, SIGNED_BY)
        assert [one.fault for one in found if isinstance(one, ExportFinding)] == faults


@pytest.mark.parametrize("is_longer", [False, True])
def test_an_older_tile_with_more_hashes_than_its_name_says_or_with_others_is_found(
    sqlite_log: EventLog, place: ExportPlace, *, is_longer: bool
) -> None:
    growing = Growing(sqlite_log)
    for _ in range(2):
        growing.grow()
        export_all(sqlite_log, place)
    tiles = (path for path in place.sizes(TREE) if ".p/" in path)
    older = min(tiles, key=lambda path: int(path.rpartition("/")[2]))
    hashes = place.read(older)
    place.write(older, hashes + bytes(32) if is_longer else bytes(len(hashes)))
    found = verify_export(place, SIGNED_BY)
    assert [(one.fault, one.path) for one in found if isinstance(one, ExportFinding)] == [
        (Damage.CHANGED, older)
    ]


def test_a_tile_that_was_changed_does_not_enter_the_tree(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(20)
    export_all(sqlite_log, place)
    path = tile_path(Tile(0, 0, 40))
    place.write(path, bytes(40 * 32))
    assert not sound(place)
    growing.grow(1)
    export_all(sqlite_log, place)
    assert_tree_is_that_of(sqlite_log, place)


def test_nothing_is_signed_that_contradicts_an_earlier_head(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    growing = Growing(sqlite_log)
    growing.grow(5)
    export_all(sqlite_log, place)
    for origin, size in ((OWNER.mediator_did, 3), (OWNER.mediator_did, 10), ("did:web:other", 0)):
        forked = sign_head(TreeHead(origin, size, bytes(32)), SIGNED_BY, SIGNER.sign)
        place.write(CHECKPOINT, forked)
        with pytest.raises(ExportRefused, match="not the beginning of the 10"):
            exporter(sqlite_log, place)
        assert place.read(CHECKPOINT) == forked
    ahead = sign_head(TreeHead(OWNER.mediator_did, 12, bytes(32)), SIGNED_BY, SIGNER.sign)
    place.write(CHECKPOINT, ahead)
    with closing(exporter(sqlite_log, place)) as export:
        growing.grow(2)
        with pytest.raises(ExportRefused, match="12 seals"):
            step_to_end(export)
    place.write(CHECKPOINT, b"damaged")
    export_all(sqlite_log, place)
    assert_tree_is_that_of(sqlite_log, place)


def test_a_log_and_export_that_were_rewritten_alike_contradict_a_head_that_was_held(
    tmp_path: Path,
) -> None:
    """Who has the mediator's key can make any history; each is sound in itself."""
    places = [open_place(str(tmp_path / name)) for name in ("genuine", "rewritten")]
    for place, payload in zip(places, (b"sent", b"forged"), strict=True):
        with closing(open_log(f"sqlite:{place.root}.db")) as log:
            writer = SealedWriter(log)
            for number, each in enumerate((payload, b"later")):
                queued = (identity_stream(did(number)), message(each, f"message-{number}"))
                writer.commit({"shard-0": [registered(number), queued]})
            assert len(list(verify(log))) == 1
            export_all(log, place)
        assert sound(place)
    held = {"held": places[0].read(CHECKPOINT)}
    found = [*verify_export(places[1], SIGNED_BY, witnessed=held)][:-1]
    assert [(one.fault, one.path) for one in found if isinstance(one, ExportFinding)] == [
        (Fault.WRONG_TREE, "held")
    ]


def test_each_database_has_a_tree_of_its_own(sqlite_log: EventLog, place: ExportPlace) -> None:
    Growing(sqlite_log).grow(2)
    owner = OWNER._replace(database=1)
    with closing(Exporter(sqlite_log, place, owner, SIGNER, clock=system_clock)) as export:
        export.step()
        note = export.head_note
    assert note == place.read(CHECKPOINT)
    assert head_of(place).origin == f"{OWNER.mediator_did}/db-1"
    assert sound(place)
