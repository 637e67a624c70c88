"""A real export of some hundred rows, and what an attacker can do to its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from actors.host.clock import system_clock
from eventstore.log.event_log import EventLog
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey
from eventstore.log.tree_head import TreeHead, sign_head
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.files import END, INDEX, SUMMARIES, TABLE_LOG, ExportPlace, open_place
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    ManifestTree,
    Signer,
    Statement,
)
from eventstore.parquet.tree import CHECKPOINT
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.exporter import Exporter, ExportOwner
from eventstore.parquet.write.step import Bounds
from eventstore.parquet.write.table import TableWriter
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from tests.export.samples import DAY_MS, SEED, VERIFY, sign_again
from tests.histories import MEDIATOR, START_MS, History, random_script

PUBLIC_KEY = signatures.public_key(SEED)
TRUSTED = PublicKey(PUBLIC_KEY)
SIGNER = Signer(TRUSTED.text, partial(signatures.sign, SEED))
BEFORE_MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS + DAY_MS - 500


class SampleExport:
    """An export of both protocols and four partitions: single steps, and steps put together.

    The files that the compaction replaced still stand beside the new ones. A summary and a
    checkpoint of the table were made on the way.
    """

    def __init__(self, folder: Path) -> None:
        shutil.copytree(_prepared().name, folder, dirs_exist_ok=True)
        self.place: ExportPlace = open_place(str(folder / "export"))
        self.log_url = f"sqlite:{folder / 'log.db'}"
        self._folder = folder / "export"
        catalog = catalog_of(self.place, VERIFY, is_whole=True)
        self.statements = catalog.statements
        self.manifests = [statement.manifest for statement in catalog.statements]
        self.strays = list(catalog.strays)
        self.files = {file.path: file for file in catalog.files}
        self.paths = sorted(self.place.sizes(""))
        self.contents = {path: self.place.read(path) for path in self.paths}
        self.tables = {
            path: pq.ParquetFile(pa.BufferReader(self.contents[path])).read() for path in self.files
        }

    @contextmanager
    def tampered(self) -> Iterator[SampleExport]:
        """Whatever is done to the files is undone at the end."""
        try:
            yield self
        finally:
            for path in self.place.sizes(""):
                if path not in self.contents:
                    (self._folder / path).unlink()
            for path, content in self.contents.items():
                self.put(path, content)

    def put(self, path: str, content: bytes) -> None:
        file = self._folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or file.read_bytes() != content:
            file.write_bytes(content)

    def remove(self, path: str) -> None:
        (self._folder / path).unlink()

    def manifest_of(self, path: str) -> Manifest:
        return next(m for m in self.manifests if any(file.path == path for file in m.files))

    def forge(self, path: str, change: Callable[[pa.Table], pa.Table]) -> DataFile:
        """Change the rows of a file, and sign everything again with the mediator's key."""
        table = change(self.tables[path])
        day = path.split("/")[1].removeprefix("date=")
        self.remove(path)
        forged = self._named_as(path, write_data(self.place, day, table, 0))
        manifest = self.manifest_of(path)
        files = [forged if file.path == path else file for file in manifest.files]
        self.sign(manifest, files=files, rows=sum(file.rows for file in files))
        return forged

    def _named_as(self, path: str, file: DataFile) -> DataFile:
        """Let a file's name have the hash that is in another one."""
        content, stem = self.place.read(file.path), file.path.rpartition("-")[0]
        self.remove(file.path)
        renamed = replace(file, path=f"{stem}-{path.rpartition('-')[2]}")
        self.put(renamed.path, content)
        return renamed

    def sign(self, manifest: Manifest, **members: Any) -> None:
        """Let the mediator's key say something else, and chain the later manifests to it."""
        index = self.manifests.index(manifest)
        link = manifest.previous
        signed = []
        for later in self.manifests[index:]:
            changed = replace(later, previous=link, signature="")
            if later is manifest:
                changed = replace(changed, **members)
            signed.append(sign_again(self.place, changed, SIGNER))
            link = signed[-1].link
        self.commit([*self.statements[:index], *signed])

    def commit(self, statements: Sequence[Statement], signer: Signer = SIGNER) -> None:
        """Let a table of one version have the files of these manifests, with all that is signed."""
        for path in self.place.sizes(""):
            if path.startswith((TABLE_LOG, SUMMARIES, INDEX)) or path == END:
                self.remove(path)
        writer = TableWriter(self.place, signer, lambda: START_MS, versions_kept_s=60)
        writer.mark(writer.create(Catalog(None, statements)))

    def head_of(self, manifest: Manifest) -> TreeHead:
        """The head of the tree at the end of a manifest."""
        assert isinstance(manifest.tree, ManifestTree)
        return TreeHead(MEDIATOR, manifest.tree.size, bytes.fromhex(manifest.tree.root))

    def put_back_head(self, manifest: Manifest) -> None:
        """Let the newest signed head be the one that was signed after this manifest."""
        self.put(CHECKPOINT, self.note_of(self.head_of(manifest)))

    def note_of(self, head: TreeHead) -> bytes:
        """A head as the mediator signs it."""
        return sign_head(head, TRUSTED, SIGNER.sign)

    def check(
        self,
        key: PublicKey | None = TRUSTED,
        *,
        known_heads: dict[str, Head] | None = None,
        witnessed: dict[str, bytes] | None = None,
    ) -> tuple[list[ExportFinding], ExportSummary]:
        *findings, summary = verify_export(
            self.place, key, known_heads=known_heads, witnessed=witnessed
        )
        assert isinstance(summary, ExportSummary)
        found = [finding for finding in findings if isinstance(finding, ExportFinding)]
        assert summary.findings >= len(found) == len(findings)
        return found, summary


@cache
def _prepared() -> TemporaryDirectory[str]:
    """A folder with the log and the export that all samples are copies of."""
    folder = TemporaryDirectory(prefix="sample-export-")
    place = open_place(f"{folder.name}/export")
    with (
        closing(open_log(f"sqlite:{folder.name}/log.db")) as log,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr("eventstore.parquet.write.table.SUMMARY_EVERY", 4)
        _grow(log, place)
    return folder


def _grow(log: EventLog, place: ExportPlace) -> None:
    history = History(log)
    with closing(exporter_of_sample(log, place, rows_max=40)) as exporter:
        for part in ("plain", "compacted", "over midnight", "after"):
            if part == "over midnight":
                history.now_ms = max(history.now_ms, BEFORE_MIDNIGHT_MS)
            history.play(random_script(len(part), 60))
            while exporter.step():
                pass
            if part == "compacted":
                _compact(log, place, rows_max=120)
                exporter.sweep()
            elif part == "over midnight":
                _compact(log, place, rows_max=200)
                exporter.sweep(replaced_kept_s=3_600)


def _compact(log: EventLog, place: ExportPlace, rows_max: int) -> None:
    """Put small steps together, as an exporter with a larger bound does."""
    with closing(exporter_of_sample(log, place, rows_max=rows_max)) as exporter:
        exporter.compact(files_min=2)


def exporter_of_sample(log: EventLog, place: ExportPlace, rows_max: int) -> Exporter:
    """An exporter of the log of a sample, with steps of so many rows."""
    owner, bounds = ExportOwner(MEDIATOR, 3), Bounds(rows_max=rows_max)
    return Exporter(log, place, owner, SIGNER, bounds, clock=system_clock)


def without(table: pa.Table, rows: Sequence[int]) -> pa.Table:
    """The table without these rows."""
    return table.take([row for row in range(table.num_rows) if row not in rows])


def with_value(table: pa.Table, row: int, column: str, value: Any) -> pa.Table:
    """The table with another value in one place."""
    values = table[column].to_pylist()
    values[row] = value
    field = table.schema.field(column)
    return table.set_column(
        table.schema.get_field_index(column), field, pa.array(values, field.type)
    )
