"""Finds the rows that name a message or an identity, and proves each before returning it.

The index (``eventstore.parquet.index``) gives their positions. An export of an earlier release has
no index: then all its files are read and compared with their signed SHA-256. The returned rows are
decoded from states that their seals prove (``eventstore.parquet.audit.sealed``): the look-up trusts
no column of a file. A changed file or index raises an error; it never leaves rows out of an answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.codec import decode, decode_rows
from eventstore.log.errors import CorruptRow, UnknownTopic
from eventstore.log.event_log import LogRow
from eventstore.log.pseudonyms import pseudonym_of
from eventstore.log.streams import stream_of
from eventstore.parquet.audit.sealed import SealedRows
from eventstore.parquet.catalog import require_named
from eventstore.parquet.columns import columns_of, identity_of, to_array
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.index import (
    OF_ENTRIES,
    OFFSET_BITS,
    entries_of,
    identity_key,
    message_key,
    positions_in,
    stream_key,
)
from eventstore.parquet.manifest import Manifest
from eventstore.parquet.opening import DatabaseExport
from eventstore.parquet.rows import log_rows, read_table
from eventstore.parquet.schema import SCHEMA

Row = Mapping[str, Any]
"""A row by the columns of the export, without ``state`` and ``command``."""
_NAMED_BY: Final = ("sender_did", "by_did", "owner_did")
_OF_REST: Final = (
    *("position", "shard", "stream", "identity", "version", "type", "type_version", "state"),
)
_REST_FILES_KEPT: Final = 4
"""Pruned files, of one day each, that stay in memory: some 20 MB each."""
_PAGE_ROWS: Final = 2_000
_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Found rows are decoded together up to these bounds, and then kept without their contents."""
_OF_NAMES: Final = ("identity", *_NAMED_BY, "refusals")


class FoundSeal(NamedTuple):
    """The seal that proves a row: where it is, and its digest."""

    position: int
    version: int
    digest: bytes


class FoundRow(NamedTuple):
    """A row that was found, the seal that proves it, and its database if the log has several.

    The seal is None for a row between pruned ones: the signature of its file proves it.
    """

    row: Row
    seal: FoundSeal | None
    database: int | None

    def place(self) -> dict[str, int]:
        """The fields that say where the row is: the database, if any, and the position."""
        named = {} if self.database is None else {"database": self.database}
        return named | {"position": self.row["position"]}


class _Proven(NamedTuple):
    """A proven row, with what the export says of its stream and partition."""

    row: LogRow
    identity: str | None
    partition: str
    path: str
    seal: FoundSeal | None


class Lookup:
    """Looks up rows of one export up to a position; a context manager."""

    def __init__(self, export: DatabaseExport, until: int, database: int | None = None) -> None:
        """``until`` is the last position to search; ``database`` is as in ``FoundRow``."""
        self._database = database
        self._place: ExportPlace = export.place
        self._catalog = export.catalog
        self._until = until
        self.sealed = SealedRows(export.place, export.catalog)
        self.removed = 0
        """The number of rows that were found in the index, but pruned."""
        self._named = lru_cache(maxsize=None)(self._name_by_first_row)
        self._rest = lru_cache(maxsize=_REST_FILES_KEPT)(self._rest_of)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the files."""
        self.sealed.__exit__(*error)

    def of_message(self, message_id: str) -> list[FoundRow]:
        """The rows that name a message, in the order of the log.

        Raises:
            ExportDamaged: a file, which it names, is not as it was signed.
            ExportUnavailable: the place cannot be read now.
        """
        found = self._at({message_key(message_id)})
        return [one for one in found if message_id in _messages_of(one.row)]

    def of_identities(self, names: Collection[str]) -> Iterator[FoundRow]:
        """Yield the rows of identities, and the rows that name one, in the order of the log.

        Raises as ``of_message``. A name is a DID, or ``key:…``, ``invitation:…``, ``edge:…``.
        """
        found = self._at({identity_key(name) for name in names})
        wanted = set(names)
        return (one for one in found if not wanted.isdisjoint(_names_of(one.row)))

    def _at(self, keys: Collection[int]) -> Iterator[FoundRow]:
        try:
            yield from self._rows_at(keys)
        except ExportDamaged as damage:
            require_named(self._place, damage)
            raise

    def _rows_at(self, keys: Collection[int]) -> Iterator[FoundRow]:
        """Yield the rows at the positions that the index names, a page at a time."""
        rows: list[_Proven] = []
        size_bytes = 0
        for position in self._positions(keys):
            found = self._row_at(position)
            if found is None:
                self.removed += 1
                continue
            rows.append(found)
            size_bytes += len(found.row.state) + len(found.row.content or b"")
            if len(rows) >= _PAGE_ROWS or size_bytes >= _PAGE_BYTES:
                yield from self._page(rows, keys)
                rows, size_bytes = [], 0
        yield from self._page(rows, keys)

    def _page(self, rows: Sequence[_Proven], keys: Collection[int]) -> Iterator[FoundRow]:
        for row, one in zip(self._decoded(rows), rows, strict=True):
            if _keys_of(row).isdisjoint(keys):
                why = f"names position {row['position']}, whose row is of something else"
                raise ExportDamaged(self._index_path(row["position"]), Damage.CHANGED, why)
            yield FoundRow(row, one.seal, self._database)

    def _row_at(self, position: int) -> _Proven | None:
        is_sealed = position > self._catalog.pruned_up_to
        return self._sealed(position) if is_sealed else self._stayed(position)

    def _sealed(self, position: int) -> _Proven:
        """Read the row at a position, and prove it by its seal."""
        transaction = self.sealed.at(position)
        row = next((one for one in transaction.rows if one.position == position), None)
        if row is None:
            why = f"names position {position}, where a seal is"
            raise ExportDamaged(self._index_path(position), Damage.CHANGED, why)
        named, partition = transaction.identities[position], transaction.sealed.partition
        seal = FoundSeal(
            transaction.seal.position, transaction.seal.version, transaction.sealed.digest
        )
        return _Proven(row, named, partition, transaction.path, seal)

    def _stayed(self, position: int) -> _Proven | None:
        """Read the row at a position in the pruned part; None if it was pruned.

        The signature of its whole file proves the row.
        """
        for file in self._catalog.statements[0].manifest.files:
            if file.first <= position <= file.last:
                table = self._rest(file.path)
                table = table.filter(pc.equal(table["position"], position))
                if table.num_rows:
                    named, shard = (table[name][0].as_py() for name in ("identity", "shard"))
                    return _Proven(log_rows(table)[0], named, shard, file.path, None)
        return None

    def _rest_of(self, path: str) -> pa.Table:
        files = self._catalog.statements[0].manifest.files
        return read_table(self._place, next(f for f in files if f.path == path), _OF_REST)

    def _positions(self, keys: Collection[int]) -> list[int]:
        index = self._catalog.index
        found = set(positions_in(self._place, index, sorted(keys)) if index else ())
        reached = index.last if index else 0
        wanted = pa.array(sorted(keys), pa.uint32())
        for statement in self._catalog.statements:
            if reached < statement.manifest.first <= self._until:
                found.update(self._scanned(statement.manifest, wanted))
        return sorted(position for position in found if position <= self._until)

    def _scanned(self, manifest: Manifest, keys: pa.Array) -> Iterator[int]:
        """Yield the positions of rows without an index, from the entries an index would have."""
        for file in manifest.files:
            entries = entries_of(read_table(self._place, file, OF_ENTRIES), manifest.first)
            found = pc.cast(pc.shift_right(entries, pa.scalar(OFFSET_BITS, pa.uint64())), "uint32")
            for entry in entries.filter(pc.is_in(found, keys)).to_pylist():
                yield manifest.first + (entry & ((1 << OFFSET_BITS) - 1))

    def _decoded(self, proven: Sequence[_Proven]) -> Iterator[dict[str, Any]]:
        """Yield rows by the columns of the export, made from their proven states."""
        rows = [one.row for one in proven]
        try:
            typed = columns_of(rows, decode_rows(rows))
        except (UnknownTopic, CorruptRow) as error:
            raise ExportDamaged(proven[0].path, Damage.UNKNOWN_EVENT, str(error)) from error
        schema = [field for field in SCHEMA if field.name in typed and field.name != "command"]
        columns = {f.name: to_array(typed[f.name], f.type, len(rows)).to_pylist() for f in schema}
        for number, one in enumerate(proven):
            row = one.row
            name, _, version = row.topic.rpartition(".")
            yield {
                **{column: values[number] for column, values in columns.items()},
                "position": row.position,
                "shard": one.partition,
                "stream": row.stream,
                "identity": self._identity(one),
                "version": row.version,
                "type": name,
                "type_version": int(version),
            }

    def _identity(self, proven: _Proven) -> str | None:
        row, named = proven.row, proven.identity
        if named is None:
            return self._named(row.stream)
        if stream_of(named) != row.stream:
            why = f"identity of the row at position {row.position} is not that of its stream"
            raise ExportDamaged(proven.path, Damage.CHANGED, why)
        return named

    def _name_by_first_row(self, stream: bytes) -> str | None:
        """The name that the first row of a stream gives it; None if it gives none."""
        for position in self._positions({stream_key(stream)}):
            found = self._row_at(position)
            if found and (found.row.stream, found.row.version) == (stream, 1):
                return identity_of(decode(found.row.topic, found.row.state), stream)
        return None

    def _index_path(self, position: int) -> str:
        index = self._catalog.index
        files = index.files if index else []
        found = [file.path for file in files if file.first <= position <= file.last]
        return found[0] if found else self._catalog.files[0].path

    def name_behind(self, pseudonym: str, key: bytes) -> str | None:
        """The name with this pseudonym, None if no row has one. Reads every row: no index has it.

        Raises as ``of_message``.
        """
        for file in self._catalog.files:
            rows = read_table(self._place, file, _OF_NAMES)
            names: set[str | None] = {
                name
                for column in ("identity", *_NAMED_BY)
                for name in rows[column].unique().to_pylist()
            }
            names |= {
                one["sender_did"]
                for some in rows["refusals"].drop_null().to_pylist()
                for one in some
            }
            for name in names:
                if name is not None and pseudonym_of(name, key) == pseudonym:
                    return name
        return None


def _messages_of(row: Row) -> Iterable[str]:
    return [row.get("message_id"), *(row.get("message_ids") or ())]


def _names_of(row: Row) -> Iterator[str | None]:
    """The names by which a look-up finds a row; see ``eventstore.parquet.index``."""
    yield row["identity"]
    yield from (row.get(column) for column in _NAMED_BY)
    yield from (refused["sender_did"] for refused in row.get("refusals") or ())


def _keys_of(row: Row) -> set[int]:
    names = [name for name in _names_of(row) if name]
    messages = [message for message in _messages_of(row) if message]
    keys = {*map(identity_key, names), *map(message_key, messages)}
    return keys | {stream_key(row["stream"])}
