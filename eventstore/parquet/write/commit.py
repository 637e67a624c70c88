"""Writes data files of an export and their manifests, and finds old files to remove."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import INDEX, PART, SUMMARIES, ExportPlace
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    Signer,
    Statement,
    data_path,
    is_data,
    is_manifest,
    positions_of,
    signed_manifest,
    statement_of,
)
from eventstore.parquet.schema import PARQUET_OPTIONS


def by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each day (UTC) and its rows, earliest first; the order of rows stays."""
    days = table["recorded_at"].cast(pa.date32(), safe=False)
    found = sorted(days.unique().to_pylist())
    for day in found:
        rows = table if len(found) == 1 else table.filter(pc.equal(days, day))
        yield day.isoformat(), rows


def write_data(place: ExportPlace, day: str, table: pa.Table) -> DataFile:
    """Write the rows of one day, sorted by position; return the manifest's entry for the file.

    Raises:
        ExportUnavailable: the place cannot be written now.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET_OPTIONS)
    content = sink.getvalue()
    first, last = table["position"][0].as_py(), table["position"][-1].as_py()
    sha256 = hashlib.sha256(content).hexdigest()
    path = data_path(day, first, last, sha256)
    place.write(path, content)
    counts = table.group_by(["type", "type_version"], use_threads=False)
    return DataFile(
        path=path,
        rows=table.num_rows,
        first=first,
        last=last,
        bytes=content.size,
        sha256=sha256,
        state_bytes=pc.sum(pc.binary_length(table["state"])).as_py(),
        types={
            f"{row['type']}.{row['type_version']}": row["count_all"]
            for row in counts.aggregate([([], "count_all")]).to_pylist()
        },
    )


def write_manifest(place: ExportPlace, manifest: Manifest, signer: Signer) -> Statement:
    """Sign and write a manifest, which counts once the table has its files.

    Raises:
        ExportUnavailable: the place cannot be written now; the manifest may exist all the same.
    """
    complete, content = signed_manifest(manifest, signer.sign)
    place.write(complete.path, content)
    return statement_of(complete, content)


def removable(
    place: ExportPlace, catalog: Catalog, *, now_ms: int, replaced_kept_s: float
) -> list[str]:
    """Our files that do not count: replaced this long ago, or left by a kill.

    A file was replaced when the manifest that replaced it was written, by the clock of the store;
    ``now_ms`` is Unix milliseconds. Manifests come first: a manifest never names a removed file.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    folders = (f"{SUMMARIES}/", f"{INDEX}/")
    beside = [path for path in catalog.strays if path.startswith(folders)]
    manifests = [path for path in catalog.strays if is_manifest(path)]
    data = [path for path in catalog.strays if is_data(path)]
    since_s = now_ms / 1000 - replaced_kept_s
    kept = _replaced_lately(place, catalog, manifests + data, since_s) if replaced_kept_s else []
    parts = [path for path in catalog.strays if path.endswith(PART)]
    return [*_old(place, catalog, beside, replaced_kept_s),
            *(path for path in manifests + data if not _is_inside(path, kept)), *parts]  # fmt: skip


def _old(
    place: ExportPlace, catalog: Catalog, paths: Sequence[str], kept_s: float
) -> Iterator[str]:
    """Yield the files written ``kept_s`` before the newest manifest, or earlier."""
    if not paths or not catalog.statements:
        return
    newest, *written = place.written_s([catalog.statements[-1].manifest.path, *paths])
    for path, at in zip(paths, written, strict=True):
        if at <= newest - kept_s:
            yield path


def _replaced_lately(
    place: ExportPlace, catalog: Catalog, paths: Sequence[str], since_s: float
) -> list[tuple[int, int]]:
    """The spans of manifests written after ``since_s`` whose replaced files still exist."""
    manifests = [s.manifest for s in catalog.statements if s.manifest.replaces]
    spans = [(manifest.first, manifest.last) for manifest in manifests]
    found = {span: m.path for span, m in zip(spans, manifests, strict=True)
             if any(_is_inside(path, [span]) for path in paths)}  # fmt: skip
    written = place.written_s(list(found.values()))
    return [span for span, at in zip(found, written, strict=True) if at > since_s]


def _is_inside(path: str, spans: Sequence[tuple[int, int]]) -> bool:
    first, last = positions_of(path)
    return any(start <= first and last <= end for start, end in spans)
