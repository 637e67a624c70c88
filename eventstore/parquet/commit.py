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


def sweep(place: ExportPlace, catalog: Catalog) -> None:
    """Remove our files that do not count: replaced, or left by a kill.

    Manifests go first: a manifest never names a file that is gone.

    Raises:
        ExportUnavailable: the place cannot be written now.
    """
    manifests = [path for path in catalog.strays if is_manifest(path)]
    others = [path for path in catalog.strays if is_data(path) or path.endswith(PART)]
    for path in manifests + others:
        place.remove(path)
