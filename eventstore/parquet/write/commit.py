"""Writes what an export consists of: data files, and the manifests that make them count."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import PART, ExportPlace
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    Signer,
    Statement,
    data_path,
    is_data,
    is_manifest,
    link_of,
    positions_of,
    signed,
)
from eventstore.parquet.schema import PARQUET_OPTIONS


def by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each day (UTC) with its date, earliest first; the order of rows stays."""
    days = table["recorded_at"].cast(pa.date32(), safe=False)
    found = sorted(days.unique().to_pylist())
    for day in found:
        rows = table if len(found) == 1 else table.filter(pc.equal(days, day))
        yield day.isoformat(), rows


def write_data(place: ExportPlace, day: str, table: pa.Table) -> DataFile:
    """Write the rows of one day, sorted by position; what a manifest says about the file.

    Raises:
        ExportUnavailable: the place cannot be written now.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET_OPTIONS)
    content = sink.getvalue()
    first, last = table["position"][0].as_py(), table["position"][-1].as_py()
    path = data_path(day, first, last)
    place.write(path, content)
    counts = table.group_by(["type", "type_version"], use_threads=False)
    return DataFile(
        path=path,
        rows=table.num_rows,
        first=first,
        last=last,
        bytes=content.size,
        sha256=hashlib.sha256(content).hexdigest(),
        state_bytes=pc.sum(pc.binary_length(table["state"])).as_py(),
        types={
            f"{row['type']}.{row['type_version']}": row["count_all"]
            for row in counts.aggregate([([], "count_all")]).to_pylist()
        },
    )


def write_manifest(place: ExportPlace, manifest: Manifest, signer: Signer) -> Statement:
    """Sign and write a manifest: the commit of its files.

    Raises:
        ExportUnavailable: the place cannot be written now; the manifest may stand all the same.
    """
    complete, content = signed(manifest, signer.sign)
    place.write(complete.path, content)
    return Statement(complete, link_of(complete, content))


def sweep(place: ExportPlace, catalog: Catalog, *, replaced_kept_s: float = 0.0) -> None:
    """Remove our files that do not count: replaced so long ago, or left by a kill.

    Time is what passed between the writing of the manifest that replaced a file and that of the
    newest one. Manifests go first: a manifest never names a file that is gone.

    Raises:
        ExportUnavailable: the place cannot be written now.
    """
    kept = _replaced_lately(place, catalog, replaced_kept_s) if replaced_kept_s else []
    manifests = [path for path in catalog.strays if is_manifest(path)]
    data = [path for path in catalog.strays if is_data(path)]
    for path in manifests + data:
        first, last = positions_of(path)
        if not any(span.first <= first and last <= span.last for span in kept):
            place.remove(path)
    for path in catalog.strays:
        if path.endswith(PART):
            place.remove(path)


def _replaced_lately(place: ExportPlace, catalog: Catalog, kept_s: float) -> list[Manifest]:
    """The manifests that put others together, and were written less than ``kept_s`` ago."""
    manifests = [statement.manifest for statement in catalog.statements]
    written = place.written_s([manifest.path for manifest in manifests])
    since = max(written, default=0.0) - kept_s
    return [m for m, at in zip(manifests, written, strict=True) if m.replaces and at > since]
