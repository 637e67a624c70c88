"""Contents in a SQLite log: encrypted, each with a key of its own that is overwritten to erase it.

SQLite moves rows about within and between pages, and what it moved stays where it was until that
room is used again (measured, with ``PRAGMA secure_delete``: after one in four random histories).
So a content is not erased by deleting its row. Its key is its salt (``eventstore.log.content``),
and keys stand in rows that fill a page each, by position: such a row is overwritten in place, and
where SQLite moves it or gives it up the page is overwritten whole. The cipher is AES-128-GCM; a key
is used once, so its nonce is always the same.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from eventstore.log.content import SALT_BYTES

KEYS: Final = 248
"""Keys of a row: 3,968 bytes, more than half of the room in a page of 4,096."""
_NONCE: Final = bytes(12)
ROW_BYTES: Final = KEYS * SALT_BYTES
_NO_KEYS: Final = bytes(ROW_BYTES)
_ERASED: Final = bytes(SALT_BYTES)
TABLES: Final = (
    # By position, so that what is new stands at the end and what leaves together stood together.
    "CREATE TABLE IF NOT EXISTS contents (position INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS content_keys (page INTEGER PRIMARY KEY, keys BLOB NOT NULL)",
)
JOINED: Final = (
    "LEFT JOIN contents AS c ON c.position = e.rowid"
    f" LEFT JOIN content_keys ON page = c.position / {KEYS}"
)
"""Contents beside ``stored_events AS e``."""
KEY: Final = f"substr(keys, 1 + {SALT_BYTES} * (c.position % {KEYS}), {SALT_BYTES})"
"""The key of a content in such a query."""


def opened(content: object, key: object) -> bytes | None:
    """What was stored of a content, from its columns; None where there is none."""
    if content is None:
        return None
    # In SQLite a column takes any type. What was changed has no digest that fits.
    if type(content) is not bytes or type(key) is not bytes or len(key) != SALT_BYTES:
        return b""
    try:
        return key + AESGCM(key).decrypt(_NONCE, content, None)
    except InvalidTag:
        return b""


def keep(cursor: sqlite3.Cursor, stored: Sequence[tuple[int, bytes]]) -> None:
    """Keep what is to be stored of contents, in the order of their positions.

    Nothing was stored at any position from the first to the last of them.
    """
    cursor.executemany(
        "INSERT INTO contents (position, content) VALUES (?, ?)",
        [
            (position, AESGCM(one[:SALT_BYTES]).encrypt(_NONCE, one[SALT_BYTES:], None))
            for position, one in stored
        ],
    )
    for page, part in groupby(stored, key=lambda one: one[0] // KEYS):
        ones = list(part)
        first = ones[0][0]
        keys = bytearray((ones[-1][0] - first + 1) * SALT_BYTES)
        for position, one in ones:
            start = (position - first) * SALT_BYTES
            keys[start : start + SALT_BYTES] = one[:SALT_BYTES]
        row = _row(cursor, page)
        if row is None:
            new = "INSERT INTO content_keys (page, keys) VALUES (?, zeroblob(?))"
            _overwriting(cursor, new, [(page, ROW_BYTES)])
            row = _row(cursor, page)
            assert row is not None
        with row:
            row.seek(first % KEYS * SALT_BYTES)
            row.write(keys)


def erase(cursor: sqlite3.Cursor, positions: Iterable[int]) -> None:
    """Erase the contents at these positions that are there."""
    pages: defaultdict[int, list[int]] = defaultdict(list)
    for position in positions:
        pages[position // KEYS].append(position)
        cursor.execute("DELETE FROM contents WHERE position = ?", (position,))
    empty: list[tuple[int]] = []
    for page, those in pages.items():
        row = _row(cursor, page)
        if row is None:
            continue
        with row:
            for position in those:
                row.seek(position % KEYS * SALT_BYTES)
                row.write(_ERASED)
            row.seek(0)
            if row.read() == _NO_KEYS:
                empty.append((page,))
    if empty:
        _overwriting(cursor, "DELETE FROM content_keys WHERE page = ?", empty)


def _row(cursor: sqlite3.Cursor, page: int) -> sqlite3.Blob | None:
    """A row of keys, to be written in place; None if there is none."""
    try:
        return cursor.connection.blobopen("content_keys", "keys", page)
    except sqlite3.OperationalError:
        if list(cursor.execute("SELECT 1 FROM content_keys WHERE page = ?", (page,))):
            raise
        return None


def _overwriting(
    cursor: sqlite3.Cursor, statement: str, parameters: Sequence[tuple[int, ...]]
) -> None:
    """Change which rows of keys there are; pages that SQLite empties by this are overwritten."""
    cursor.execute("PRAGMA secure_delete = ON")
    cursor.executemany(statement, parameters)
    cursor.execute("PRAGMA secure_delete = OFF")
