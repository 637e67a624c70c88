"""A real export of some hundred rows, and what an attacker can do to its files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import base58
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.log.verify import Head
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import DataFile, Manifest, Signer, Verify
from eventstore.parquet.verify.export import ExportFinding, ExportSummary, verify_export
from eventstore.parquet.write.commit import write_data, write_manifest
from eventstore.parquet.write.exporter import Exporter, ExportOwner
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from tests.export.samples import DAY_MS, SEED, VERIFY, catalog_of
from tests.histories import MEDIATOR, START_MS, History, random_script

PUBLIC_KEY = signatures.public_key(SEED)
SIGNER = Signer(base58.b58encode(PUBLIC_KEY).decode(), partial(signatures.sign, SEED))
BEFORE_MIDNIGHT_MS = START_MS // DAY_MS * DAY_MS + DAY_MS - 500


def key_of(text: str) -> Verify:
    return partial(signatures.verify, base58.b58decode(text))


class SampleExport:
    """An export of both protocols and four partitions: single steps, and steps put together.

    The files that the compaction replaced still stand beside the new ones.
    """

    def __init__(self, folder: Path) -> None:
        self.place: ExportPlace = open_place(str(folder / "export"))
        self.log_url = f"sqlite:{folder / 'log.db'}"
        self._folder = folder / "export"
        with closing(open_log(self.log_url)) as log:
            history = History(log)
            exporter = Exporter(
                log, self.place, ExportOwner(MEDIATOR, 3), SIGNER, VERIFY, Bounds(rows_max=40)
            )
            with closing(exporter):
                for part in ("plain", "compacted", "over midnight", "after"):
                    if part == "over midnight":
                        history.now_ms = max(history.now_ms, BEFORE_MIDNIGHT_MS)
                    history.play(random_script(len(part), 45))
                    while exporter.step():
                        pass
                    if part == "compacted":
                        _compact(log, self.place, rows_max=120)
                        exporter.sweep()
                    elif part == "over midnight":
                        _compact(log, self.place, rows_max=200)
        catalog = catalog_of(self.place)
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
        forged = write_data(self.place, day, table)
        manifest = self.manifest_of(path)
        files = [forged if file.path == path else file for file in manifest.files]
        self.sign(manifest, files=files, rows=sum(file.rows for file in files))
        return forged

    def sign(self, manifest: Manifest, **members: Any) -> None:
        """Let the mediator's key say something else, and chain the later manifests to it."""
        index = self.manifests.index(manifest)
        link = manifest.previous
        for later in self.manifests[index:]:
            changed = replace(later, previous=link, signature="")
            if later is manifest:
                changed = replace(changed, **members)
            link = write_manifest(self.place, changed, SIGNER).link

    def check(
        self,
        verify: Verify | None = VERIFY,
        *,
        known_heads: dict[str, Head] | None = None,
        processes: int = 1,
    ) -> tuple[list[ExportFinding], ExportSummary]:
        *findings, summary = verify_export(
            self.place, verify, key_of=key_of, known_heads=known_heads, processes=processes
        )
        assert isinstance(summary, ExportSummary)
        found = [finding for finding in findings if isinstance(finding, ExportFinding)]
        assert summary.findings >= len(found) == len(findings)
        return found, summary


def _compact(log: EventLog, place: ExportPlace, rows_max: int) -> None:
    """Put small steps together, as an exporter with a larger bound does."""
    exporter = Exporter(
        log, place, ExportOwner(MEDIATOR, 3), SIGNER, VERIFY, Bounds(rows_max=rows_max)
    )
    with closing(exporter):
        exporter.compact(files_min=2)


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
