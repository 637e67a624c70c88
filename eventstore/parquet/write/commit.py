"""Writes data files of an export and their manifests, and finds old files to remove."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from eventstore.parquet.catalog import Catalog
from eventstore.parquet.columns import types_in
from eventstore.parquet.files import INDEX, PART, SUMMARIES, ExportPlace
from eventstore.parquet.index import explained_by
from eventstore.parquet.manifest import (
    DataFile,
    Manifest,
    Signer,
    Statement,
    data_path,
    digest_for,
    is_data,
    is_manifest,
    positions_of,
    signed_manifest,
)
from eventstore.parquet.schema import PARQUET_OPTIONS

_AHEAD_S_MAX: Final = 86_400
"""More than the clocks of a store and of an exporter differ."""


def by_day(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each day (UTC) and its rows, earliest first; the order of rows stays."""
    days = table["recorded_at"].cast(pa.date32(), safe=False)
    found = sorted(days.unique().to_pylist())
    for day in found:
        rows = table if len(found) == 1 else table.filter(pc.equal(days, day))
        yield day.isoformat(), rows


def files_by_day(run: Iterable[Statement]) -> Iterator[tuple[str, list[DataFile]]]:
    """Yield each day and its data files in these manifests, earliest first."""
    files = [file for statement in run for file in statement.manifest.files]
    days = itertools.groupby(sorted(files, key=attrgetter("day", "first")), key=attrgetter("day"))
    return ((day, list(same_day)) for day, same_day in days)


def write_data(place: ExportPlace, day: str, table: pa.Table, version: int) -> DataFile:
    """Write the rows of one day, sorted by position; return the manifest's entry for the file.

    ``version`` is that of the table which will be the first to have the file.

    Raises:
        ExportUnavailable: the place cannot be written now.
    """
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **PARQUET_OPTIONS)
    content = sink.getvalue()
    first, last = table["position"][0].as_py(), table["position"][-1].as_py()
    sha256 = hashlib.sha256(content).hexdigest()
    path = data_path(day, first, last, digest_for(version, sha256))
    place.write(path, content)
    return DataFile(
        path=path,
        rows=table.num_rows,
        first=first,
        last=last,
        bytes=content.size,
        sha256=sha256,
        state_bytes=pc.sum(pc.binary_length(table["state"])).as_py(),
        types=types_in(table),
    )


def write_manifest(
    place: ExportPlace, manifest: Manifest, signer: Signer, version: int
) -> Statement:
    """Sign and write a manifest, which counts once the table has its files, in this version.

    Raises:
        ExportUnavailable: the place cannot be written now; the manifest may exist all the same.
    """
    complete, content = signed_manifest(manifest, signer.sign, version)
    place.write(complete.path, content)
    return Statement(complete, hashlib.sha256(content).hexdigest())


def removable(
    place: ExportPlace, catalog: Catalog, *, now_ms: int, replaced_kept_s: float
) -> list[str]:
    """Our files that do not count: replaced this long ago, or left by a kill.

    A file was replaced when the one that replaced it was written, by the clock of the store;
    ``now_ms`` is Unix milliseconds. A time far in the future is from a clock that was ahead.
    Manifests come before data files: a manifest never names a removed file.

    Raises:
        ExportUnavailable: the place cannot be read now.
    """
    kinds = (_is_beside, is_manifest, is_data, _is_part)
    ours = [path for is_kind in kinds for path in filter(is_kind, catalog.strays)]
    if not replaced_kept_s:
        return ours
    replacing = dict(_replacing(catalog, ours))
    written = dict(zip(replacing, place.written_s(list(replacing.values())), strict=True))
    now_s = now_ms / 1000
    since_s, until_s = now_s - replaced_kept_s, now_s + _AHEAD_S_MAX
    return [path for path in ours if not since_s < written.get(path, since_s) <= until_s]


def _is_beside(path: str) -> bool:
    return path.startswith((f"{SUMMARIES}/", f"{INDEX}/"))


def _is_part(path: str) -> bool:
    return path.endswith(PART)


def _replacing(catalog: Catalog, paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each of these files that was replaced, and the file that counts in its place."""
    merged = [s.manifest for s in catalog.statements if s.manifest.replaces]
    version, index = catalog.version, catalog.index
    for path in itertools.filterfalse(_is_part, paths):
        if is_manifest(path) or is_data(path):
            first, last = positions_of(path)
            by = next((m.path for m in merged if m.first <= first and last <= m.last), "")
        elif path.startswith(SUMMARIES):
            by = version.summary if version else ""
        else:
            by = explained_by(path, index) if index else ""
        if by:
            yield path, by
