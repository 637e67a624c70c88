"""Whatever becomes of the files of an export: reading it names the file and says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.parquet.catalog import catalog_of as read_catalog
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import TABLE_LOG, ExportPlace
from eventstore.parquet.manifest import (
    ExportHead,
    Manifest,
    Signer,
    is_data,
    is_manifest,
    parse_statement,
    positions_of,
    signed,
)
from eventstore.parquet.opening import FileHashes
from http_edge.crypto import signatures
from tests.export.samples import (
    SIGNER,
    Growing,
    catalog_of,
    contents,
    export_all,
    exported_log,
    sign_again,
    whole_log,
    without_table,
)

OTHER_SEED = bytes(32)
OTHER = Signer(signatures.public_key(OTHER_SEED).hex(), partial(signatures.sign, OTHER_SEED))


class Export:
    """An export of four steps, and what can be done to it."""

    def __init__(self, place: ExportPlace) -> None:
        self.place = place
        catalog = catalog_of(place)
        self.manifests: Sequence[Manifest] = [s.manifest for s in catalog.statements]
        self.data = [file.path for file in catalog.files]
        self.named = [manifest.path for manifest in self.manifests]

    def flip(self, path: str, at: int = 200) -> None:
        content = bytearray(self.place.read(path))
        content[at] ^= 1
        self.place.write(path, bytes(content))

    def cut(self, path: str) -> None:
        self.place.write(path, self.place.read(path)[:-1])

    def swap(self, one: str, other: str) -> None:
        contents = self.place.read(one), self.place.read(other)
        self.place.write(other, contents[0])
        self.place.write(one, contents[1])

    def move(self, path: str, to: str) -> None:
        self.place.write(to, self.place.read(path))
        self.place.remove(path)

    def edit(self, path: str, **members: object) -> None:
        """Change members without signing again."""
        content: dict[str, Any] = json.loads(self.place.read(path))
        self.place.write(path, json.dumps(content | members).encode())

    def insert(self, path: str, *, before: bytes, members: bytes) -> None:
        self.place.write(path, self.place.read(path).replace(before, members + before))

    def sign(self, manifest: Manifest, signer: Signer = SIGNER, **members: Any) -> None:
        """Write a manifest that the mediator (or another) signed."""
        changed = replace(manifest, **members, signed_by=signer.signed_by, signature="")
        sign_again(self.place, changed, signer)

    def sign_file(self, manifest: Manifest, **members: Any) -> None:
        """Let a signed manifest say something else about its file."""
        self.sign(manifest, files=[replace(manifest.files[0], **members)])


@pytest.fixture
def export(sqlite_log: EventLog, place: ExportPlace) -> Export:
    Growing(sqlite_log).grow(8)
    export_all(sqlite_log, place)
    return Export(place)


@pytest.fixture
def old_export(export: Export) -> Export:
    """An export of an earlier release, where the manifests alone say what counts."""
    without_table(export.place)
    return export


Do = Callable[[Export], None]
CASES: dict[str, tuple[Do, Damage, Callable[[Export], str]]] = {
    "data missing": (
        lambda x: x.place.remove(x.data[1]), Damage.MISSING, lambda x: x.data[1]
    ),
    "data renamed": (
        lambda x: x.move(x.data[1], x.data[1].replace("date=2023", "date=2024")),
        Damage.MISSING,
        lambda x: x.data[1],
    ),
    "data truncated": (lambda x: x.cut(x.data[2]), Damage.TRUNCATED, lambda x: x.data[2]),
    "data changed": (lambda x: x.flip(x.data[3]), Damage.CHANGED, lambda x: x.data[3]),
    "data swapped": (
        lambda x: x.swap(x.data[0], x.data[1]), Damage.TRUNCATED, lambda x: x.data[0]
    ),
    "data listed twice": (
        lambda x: x.sign(
            x.manifests[3], files=x.manifests[3].files * 2, rows=2 * x.manifests[3].rows
        ),
        Damage.DUPLICATED,
        lambda x: x.data[3],
    ),
    "data of other positions": (
        lambda x: x.sign(x.manifests[3], files=x.manifests[2].files),
        Damage.MISPLACED,
        lambda x: x.data[2],
    ),
    "data named otherwise": (
        lambda x: x.sign_file(x.manifests[3], last=x.manifests[3].last - 1),
        Damage.MISPLACED,
        lambda x: x.data[3],
    ),
    "first manifest missing": (
        lambda x: x.place.remove(x.named[0]), Damage.GAP, lambda x: x.named[1]
    ),
    "manifest missing": (
        lambda x: x.place.remove(x.named[1]), Damage.GAP, lambda x: x.named[2]
    ),
    "manifests reordered": (
        lambda x: x.swap(x.named[1], x.named[2]), Damage.MISPLACED, lambda x: x.named[1]
    ),
    "manifest not JSON": (
        lambda x: x.cut(x.named[1]), Damage.BROKEN_MANIFEST, lambda x: x.named[1]
    ),
    "manifest not an object": (
        lambda x: x.place.write(x.named[1], b"[]"), Damage.BROKEN_MANIFEST, lambda x: x.named[1]
    ),
    "manifest nested without end": (
        lambda x: x.place.write(x.named[1], b"[" * 100_000),
        Damage.BROKEN_MANIFEST,
        lambda x: x.named[1],
    ),
    "manifest with a member more": (
        lambda x: x.edit(x.named[1], more=1), Damage.BROKEN_MANIFEST, lambda x: x.named[1]
    ),
    "manifest with a member that says nothing": (
        lambda x: x.insert(x.named[1], before=b'"replaces":', members=b'"pruned":null,'),
        Damage.BROKEN_MANIFEST,
        lambda x: x.named[1],
    ),
    "manifest changed": (
        lambda x: x.edit(x.named[1], rows=11), Damage.BAD_SIGNATURE, lambda x: x.named[1]
    ),
    "manifest of another mediator": (
        lambda x: x.sign(x.manifests[1], OTHER), Damage.BAD_SIGNATURE, lambda x: x.named[1]
    ),
    "manifest without signature": (
        lambda x: x.edit(x.named[1], signature=""), Damage.BAD_SIGNATURE, lambda x: x.named[1]
    ),
    "rows that contradict": (
        lambda x: x.sign(x.manifests[1], rows=11), Damage.BROKEN_MANIFEST, lambda x: x.named[1]
    ),
    "types that contradict": (
        lambda x: x.sign_file(x.manifests[1], types={"message-queued.1": 1}),
        Damage.BROKEN_MANIFEST,
        lambda x: x.named[1],
    ),
    "positions twice": (
        lambda x: x.sign(x.manifests[1], first=x.manifests[1].first - 1),
        Damage.OVERLAP,
        lambda x: replace(x.manifests[1], first=x.manifests[1].first - 1).path,
    ),
    "after another manifest": (
        lambda x: x.sign(x.manifests[1], previous="00"),
        Damage.BROKEN_CHAIN,
        lambda x: x.named[1],
    ),
    "signed anew with other heads": (
        lambda x: x.sign(x.manifests[1], heads={}), Damage.BROKEN_CHAIN, lambda x: x.named[2]
    ),
    "heads that are no digests": (
        lambda x: x.sign(
            x.manifests[3],
            heads={"shard-0": replace(x.manifests[3].heads["shard-0"], digest="x")},
        ),
        Damage.BROKEN_MANIFEST,
        lambda x: x.named[3],
    ),
    "another format": (
        lambda x: x.sign(x.manifests[3], format=2), Damage.UNKNOWN_FORMAT, lambda x: x.named[3]
    ),
    "another schema": (
        lambda x: x.sign(x.manifests[3], schema=2), Damage.UNKNOWN_FORMAT, lambda x: x.named[3]
    ),
    "an event version of a later release": (
        lambda x: x.sign_file(x.manifests[3], types={"message-queued.9": x.manifests[3].rows}),
        Damage.UNKNOWN_EVENT,
        lambda x: x.data[3],
    ),
    "head missing": (
        lambda x: x.place.remove("export.json"), Damage.MISSING, lambda _: "export.json"
    ),
    "head of another mediator": (
        lambda x: x.edit("export.json", mediator_did="did:web:x"),
        Damage.BAD_SIGNATURE,
        lambda _: "export.json",
    ),
    "head of another format": (
        lambda x: x.edit("export.json", format=3), Damage.UNKNOWN_FORMAT, lambda _: "export.json"
    ),
    "head not JSON": (
        lambda x: x.place.write("export.json", b"{"),
        Damage.BROKEN_MANIFEST,
        lambda _: "export.json",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_damage_is_named_with_its_file(old_export: Export, case: str) -> None:
    do, damage, path = CASES[case]
    do(old_export)
    with pytest.raises(ExportDamaged) as said:
        catalog_of(old_export.place)
    assert (said.value.damage, said.value.path) == (damage, path(old_export))
    assert str(said.value).startswith(said.value.path)


@pytest.mark.parametrize("case", CASES.keys() - {"positions twice"})
def test_with_a_table_damage_is_named_with_the_file_that_it_is_in(
    export: Export, case: str
) -> None:
    """The table says which manifests count: one more is none, and one that is another is damage."""
    do, _, path = CASES[case]
    before = contents(export.place)
    do(export)
    after = contents(export.place)
    with pytest.raises(ExportDamaged) as said:
        catalog_of(export.place)
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert said.value.path in {path(export), *changed}


def test_a_manifest_that_the_table_does_not_name_does_not_count(export: Export) -> None:
    rows = catalog_of(export.place).rows
    CASES["positions twice"][0](export)
    catalog = catalog_of(export.place)
    assert (catalog.rows, catalog.strays) == (rows, [CASES["positions twice"][2](export)])


def test_names_that_earlier_releases_gave_are_understood(export: Export) -> None:
    """Their rewritten files had a number in place of a hash."""
    plain = replace(export.manifests[1], digest=None)
    span = (plain.first, plain.last)
    for rewritten, suffix in ((None, ""), (2, "-r2"), (12, "-r12")):
        path = replace(plain, rewritten=rewritten).path
        assert path == f"manifests/{span[0]:020d}-{span[1]:020d}{suffix}.json"
        data = f"events/date=2030-12-31/events-{span[0]:020d}-{span[1]:020d}{suffix}.parquet"
        assert (is_manifest(path), is_data(data)) == (True, True)
        assert positions_of(path) == positions_of(data) == span


def test_every_flipped_bit_of_a_manifest_is_found(export: Export) -> None:
    path = export.named[1]
    size = len(export.place.read(path))
    for at in range(0, size, 23):
        export.flip(path, at)
        with pytest.raises(ExportDamaged):
            catalog_of(export.place)
        export.flip(path, at)
    assert catalog_of(export.place).last


def test_an_added_file_does_not_count_and_is_listed(export: Export, sqlite_log: EventLog) -> None:
    copy = export.data[0].replace("events-0", "events-1")
    beside = f"{TABLE_LOG}s/{Path(copy).name}"
    for path in (copy, beside):
        export.place.write(path, export.place.read(export.data[0]))
    catalog = catalog_of(export.place)
    assert catalog.strays == sorted([copy, beside])
    assert exported_log(export.place) == list(whole_log(sqlite_log))


def test_a_place_without_an_export_is_an_empty_catalog(place: ExportPlace) -> None:
    catalog = catalog_of(place)
    assert (catalog.head, catalog.files, catalog.last, catalog.rows) == (None, [], 0, 0)


def test_without_hashes_and_signatures_only_names_sizes_and_order_are_checked(
    export: Export,
) -> None:
    export.flip(export.data[0])
    place = export.place
    catalog = read_catalog(place, None)
    assert [file.path for file in catalog.files] == export.data
    with pytest.raises(ExportDamaged, match=export.data[0]):
        catalog_of(place)


@pytest.mark.parametrize("signature", [b"", b'"signature":"",'], ids=["none", "empty"])
def test_a_manifest_without_a_signature_is_refused_by_readers_without_a_key_too(
    old_export: Export, signature: bytes
) -> None:
    path = old_export.named[1]
    said, place = old_export.manifests[1].signature, old_export.place
    member = b'"signature":"%s",' % said.encode()
    assert place.read(path).count(member) == 1
    place.write(path, place.read(path).replace(member, signature))
    with pytest.raises(ExportDamaged) as refused:
        read_catalog(place, None)
    assert (refused.value.path, refused.value.damage) == (path, Damage.BROKEN_MANIFEST)


def test_a_number_that_json_cannot_carry_exactly_is_refused() -> None:
    head = ExportHead(format=1, schema=1, mediator_did="", shards=2**53 - 1, public_key="")
    _, stored = signed(head, lambda _: b"")
    assert parse_statement("export.json", stored, ExportHead).shards == 2**53 - 1
    with pytest.raises(ExportDamaged) as said:
        parse_statement("export.json", stored.replace(b"991", b"992"), ExportHead)
    assert said.value.damage is Damage.BROKEN_MANIFEST


def test_a_data_file_is_compared_with_its_hash_once_or_not_at_all(export: Export) -> None:
    files = catalog_of(export.place).files
    hashes = FileHashes()
    hashes.check(export.place, files[1:])
    export.flip(files[0].path)
    export.flip(files[1].path)
    hashes.check(export.place, files[1:])
    FileHashes(is_skipped=True).check(export.place, files)
    with pytest.raises(ExportDamaged) as said:
        hashes.check(export.place, files)
    assert (said.value.path, said.value.damage) == (files[0].path, Damage.CHANGED)
