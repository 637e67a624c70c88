"""The index of an export: the positions of the rows that name a message or an identity.

An entry has 64 bits. The high 32 bits are a key: a hash of the message id or the identity's name.
The low 32 bits are the position of a row that names it, counted from the file's first position. A
file has sorted entries in blocks, followed by a tree of the blocks' SHA-256. The signed statement
of the table's version has the root of each tree, so a reader reads and proves only a few blocks,
however large a file is.

The index only says where to look. Two names may share a hash, which costs one needless read of a
row; ``poste verify`` makes every file again from the rows, and so finds one that leaves out a row.

Keys are made of message ids and of names: an identity's DID, or ``key:…``, ``invitation:…``,
``edge:…``. A name's entries are the rows of its own stream, and other rows that name it as sender,
owner, giver or refused sender. The writer merges files (``eventstore.parquet.write.index``), so
their number grows with the logarithm of the log, and with the entries of a key that has millions.
"""

from __future__ import annotations

import hashlib
import re
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from operator import attrgetter
from typing import Annotated, Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from eventstore.log.events import SEAL_TYPE
from eventstore.log.streams import ERASED, NAMESPACE, stream_of
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import INDEX, ExportPlace, FileMissing

BLOCK_ENTRIES: Final = 8_192
"""64 KiB: the least that a look-up reads."""
NODE_CHILDREN: Final = 1_024
KEY_BITS: Final = 32
OFFSET_BITS: Final = 32
OF_ENTRIES: Final = (
    *("position", "stream", "type", "sender_did", "by_did", "owner_did"),
    *("message_id", "message_ids", "refusals"),
)
"""The columns from which entries are made."""
_ENTRY_BYTES: Final = 8
_CHILD: Final = struct.Struct("<Q32s")
_KEY: Final = struct.Struct("<I")
_STREAM_WORDS: Final = 4
_NAME: Final = re.compile(rf"{INDEX}/(\d{{20}})-(\d{{20}})-[0-9a-f]{{16}}")


class IndexFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file with the entries of the rows from ``first`` to ``last``.

    If several files index the same rows, each has the keys from its ``low`` up to the ``low`` of
    the next one. ``root`` is the root hash of the tree of its blocks (SHA-256, hexadecimal).
    """

    path: str
    first: int
    last: int
    low: int
    entries: Annotated[int, msgspec.Meta(ge=1)]
    root: str


class ExportIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The files that together have the entries of all rows up to ``last``, in their order."""

    last: int
    files: list[IndexFile]


def identity_key(name: str) -> int:
    """The key of an identity, which is the key of its stream."""
    if ERASED in name:
        return stream_key(stream_of(name))
    hashed = hashlib.sha1(NAMESPACE.bytes + b"identity:" + name.encode(), usedforsecurity=False)
    return stream_key(hashed.digest())


def stream_key(stream: bytes) -> int:
    """The key of a stream."""
    key: int = _KEY.unpack_from(stream)[0]
    return key


def message_key(message_id: str) -> int:
    """The key of a message id."""
    return stream_key(_message_hash(message_id))


def entries_of(rows: pa.Table, first: int) -> pa.UInt64Array:
    """The sorted entries of rows, for a file that begins at the position ``first``.

    Args:
        rows: with the columns ``OF_ENTRIES``.
        first: at most the position of the first row.
    """
    named = rows.select(list(OF_ENTRIES)).filter(pc.not_equal(rows["type"], SEAL_TYPE))
    columns = {name: named[name].combine_chunks() for name in OF_ENTRIES}
    offsets = pc.subtract(columns["position"], first)
    is_message = pc.equal(columns["type"], "message-queued")
    found = [
        (_stream_keys(columns["stream"]), offsets),
        _keys_of_names(pc.if_else(is_message, columns["sender_did"], None), offsets),
        _keys_of_names(columns["by_did"], offsets),
        _keys_of_names(columns["owner_did"], offsets),
        _keys_of_texts(columns["message_id"], offsets),
        _keys_of_texts(*_flattened(columns["message_ids"], offsets)),
        _keys_of_names(*_refused(columns["refusals"], offsets)),
    ]
    return sorted_entries([_entries(keys, at) for keys, at in found])


def sorted_entries(parts: Sequence[pa.UInt64Array]) -> pa.UInt64Array:
    """Merge arrays of entries into one sorted array."""
    entries = pa.concat_arrays([pa.array([], pa.uint64()), *parts])
    return entries.take(pc.array_sort_indices(entries))


def entries_in(entries: pa.UInt64Array, low: int, high: int) -> pa.UInt64Array:
    """The slice of sorted entries with ``low <= key < high``."""
    words = _words(entries)
    start, end = (bisect_left(words, bound << OFFSET_BITS) for bound in (low, high))
    return entries.slice(start, end - start)


def _words(entries: pa.UInt64Array) -> memoryview:
    """The memory of an array of entries."""
    if not len(entries):
        return memoryview(b"").cast("Q")
    start = entries.offset * _ENTRY_BYTES
    content = memoryview(entries.buffers()[1]).cast("B")
    return content[start : start + len(entries) * _ENTRY_BYTES].cast("Q")


def _stream_keys(streams: pa.Array) -> pa.Array:
    """The first four bytes of each stream, as numbers."""
    words = pa.Array.from_buffers(
        pa.uint32(),
        _STREAM_WORDS * len(streams),
        [None, streams.buffers()[1]],
        offset=_STREAM_WORDS * streams.offset,
    )
    return pc.list_element(pa.FixedSizeListArray.from_arrays(words, _STREAM_WORDS), 0)


def _keys_of_names(names: pa.Array, offsets: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The keys of named identities; each distinct name is hashed once, as most occur often."""
    is_there = pc.and_(pc.is_valid(names), pc.not_equal(names, ""))
    encoded = names.filter(is_there).dictionary_encode()
    keys = pa.array(map(identity_key, encoded.dictionary.to_pylist()), pa.uint32())
    return keys.take(encoded.indices), offsets.filter(is_there)


def _message_hash(message_id: str) -> bytes:
    return blake2b(message_id.encode(), digest_size=_KEY.size).digest()


def _keys_of_texts(texts: pa.Array, offsets: pa.Array) -> tuple[pa.Array, pa.Array]:
    is_there = pc.is_valid(texts)
    found = texts.filter(is_there).to_pylist()
    hashes = b"".join([_message_hash(text) for text in found])
    keys = pa.Array.from_buffers(pa.uint32(), len(found), [None, pa.py_buffer(hashes)])
    return keys, offsets.filter(is_there)


def _flattened(lists: pa.Array, offsets: pa.Array) -> tuple[pa.Array, pa.Array]:
    return pc.list_flatten(lists), offsets.take(pc.list_parent_indices(lists))


def _refused(refusals: pa.Array, offsets: pa.Array) -> tuple[pa.Array, pa.Array]:
    each, at = _flattened(refusals, offsets)
    return pc.struct_field(each, "sender_did"), at


def _entries(keys: pa.Array, offsets: pa.Array) -> pa.Array:
    high = pc.shift_left(pc.cast(keys, pa.uint64()), pa.scalar(OFFSET_BITS, pa.uint64()))
    return pc.bit_wise_or(high, pc.cast(offsets, pa.uint64()))


def encoded_index(entries: pa.UInt64Array) -> tuple[bytes, str]:
    """Encode sorted entries, at least one: the content of an index file, and its root hash."""
    blocks = _words(entries).cast("B")
    size = BLOCK_ENTRIES * _ENTRY_BYTES
    children = [
        _CHILD.pack(
            int.from_bytes(blocks[start : start + _ENTRY_BYTES], "little"),
            hashlib.sha256(blocks[start : start + size]).digest(),
        )
        for start in range(0, len(blocks), size)
    ]
    parts: list[bytes | memoryview] = [blocks]
    while True:
        nodes = [
            b"".join(children[start : start + NODE_CHILDREN])
            for start in range(0, len(children), NODE_CHILDREN)
        ]
        parts += nodes
        digests = [hashlib.sha256(node).digest() for node in nodes]
        if len(nodes) == 1:
            return b"".join(parts), digests[0].hex()
        children = [
            node[:_ENTRY_BYTES] + digest for node, digest in zip(nodes, digests, strict=True)
        ]


def index_path(first: int, last: int, digest: str) -> str:
    """The path of an index file; ``digest`` is ``digest_for`` its root."""
    return f"{INDEX}/{first:020d}-{last:020d}-{digest}"


def explained_by(path: str, index: ExportIndex) -> str:
    """The file of an index that is at a path, or that replaced it in a merge; empty for none."""
    found = _NAME.fullmatch(path)
    if found is None:
        return ""
    first, last = int(found[1]), int(found[2])
    explaining = (
        file.path
        for file in index.files
        if path == file.path
        or (file.first <= first and last <= file.last and (file.first, file.last) != (first, last))
    )
    return next(explaining, "")


class _Level(NamedTuple):
    """The location of the nodes of one level in a file; level 0 has the blocks of entries."""

    start: int
    node_bytes: int
    bytes: int


class IndexReader:
    """Reads one index file, and proves each block that it reads by the signed root."""

    def __init__(self, place: ExportPlace, file: IndexFile) -> None:
        self._place = place
        self._file = file
        self._levels = _levels(file.entries)
        self._read: dict[tuple[int, int], bytes] = {}

    def positions(self, key: int) -> list[int]:
        """The positions of rows with this key, including rows of other names with the same hash.

        Raises:
            ExportDamaged: the file is missing, or not the one that was signed.
            ExportUnavailable: the file cannot be read now.
        """
        mask = (1 << OFFSET_BITS) - 1
        return [
            self._file.first + (entry & mask)
            for entries in self._blocks(key << OFFSET_BITS, (key + 1) << OFFSET_BITS)
            for entry in entries
        ]

    def entries(self, low: int, high: int) -> Iterator[pa.UInt64Array]:
        """Yield the entries with ``low <= key < high``, in order. Raises as ``positions``."""
        for entries in self._blocks(low << OFFSET_BITS, high << OFFSET_BITS):
            size = len(entries)
            yield pa.Array.from_buffers(pa.uint64(), size, [None, pa.py_buffer(entries)])
        self._read = {key: node for key, node in self._read.items() if key[0]}

    def _blocks(self, low: int, high: int) -> Iterator[memoryview]:
        """Yield, for each block that has some, the entries from ``low`` to before ``high``."""
        root = (len(self._levels) - 1, 0)
        for number in self._descend(*root, bytes.fromhex(self._file.root), low, high):
            entries = memoryview(self._read[0, number]).cast("Q")
            found = entries[bisect_left(entries, low) : bisect_left(entries, high)]
            if len(found):
                yield found

    def _descend(
        self, level: int, number: int, digest: bytes, low: int, high: int
    ) -> Iterator[int]:
        """Yield the numbers of the blocks below a node that may have these entries; read them."""
        node = self._node(level, number, digest)
        if level == 0:
            yield number
            return
        children = list(_CHILD.iter_unpack(node))
        firsts = [first for first, _ in children]
        # Equal entries may be in two blocks.
        for index in range(max(0, bisect_left(firsts, low) - 1), len(children)):
            if firsts[index] >= high:
                return
            below = number * NODE_CHILDREN + index
            yield from self._descend(level - 1, below, children[index][1], low, high)

    def _node(self, level: int, number: int, digest: bytes) -> bytes:
        found = self._read.get((level, number))
        if found is not None:
            return found
        path, where = self._file.path, self._levels[level]
        offset = number * where.node_bytes
        length = min(where.node_bytes, where.bytes - offset)
        try:
            found = self._place.read_part(path, where.start + offset, length)
        except FileMissing as error:
            why = "a version of the table names it"
            raise ExportDamaged(path, Damage.MISSING, why) from error
        if hashlib.sha256(found).digest() != digest:
            why = f"block {number} of level {level} is not the one that was signed"
            raise ExportDamaged(path, Damage.CHANGED, why)
        self._read[level, number] = found
        return found


def positions_in(place: ExportPlace, index: ExportIndex, keys: Sequence[int]) -> list[int]:
    """The sorted positions of all rows with one of these keys.

    Raises:
        ExportDamaged: a file is missing, or not the one that was signed.
        ExportUnavailable: a file cannot be read now.
    """
    found: set[int] = set()
    for files in runs_of(index):
        lows = [file.low for file in files]
        readers = [IndexReader(place, file) for file in files]
        for key in keys:
            number = bisect_left(lows, key + 1) - 1
            if number >= 0:
                found.update(readers[number].positions(key))
    return sorted(found)


def runs_of(index: ExportIndex) -> list[list[IndexFile]]:
    """Group the files of an index by the rows that they index."""
    return [list(run) for _, run in groupby(index.files, key=attrgetter("first"))]


def index_bytes(entries: int) -> int:
    """The size of a file with this number of entries."""
    top = _levels(entries)[-1]
    return top.start + top.bytes


def _levels(entries: int) -> list[_Level]:
    count = -(-entries // BLOCK_ENTRIES)
    levels = [_Level(0, BLOCK_ENTRIES * _ENTRY_BYTES, entries * _ENTRY_BYTES)]
    while True:
        below = levels[-1]
        size = NODE_CHILDREN * _CHILD.size
        levels.append(_Level(below.start + below.bytes, size, count * _CHILD.size))
        count = -(-count // NODE_CHILDREN)
        if count == 1:
            return levels
