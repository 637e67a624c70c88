"""Contents in a SQLite log: encrypted, each with a key of its own that is overwritten to erase it.

An erasure has two steps. The transaction with the event that erases contents adds their positions
to the table ``erased``, and no reader gets these contents from then on. Half a minute later they
are removed, those of many transactions together in the order of their positions: contents that
leave at about the same time mostly lie in the same pages, and so do their keys, so each page is
written once and not once for each transaction. The next start completes what a crash interrupts.

SQLite moves rows within and between pages, and the old bytes stay where they were until that room
is used again (measured, with ``PRAGMA secure_delete``: after one in four random histories). So
deleting its row does not make a content unreadable. Its key stands in a row that fills a page,
together with the keys of adjacent positions: a removal overwrites such a row in place, and when
SQLite moves the row or gives it up, the whole page is overwritten.

Until the first removal in such a row, the row has one secret in place of the keys, which are
derived from the secret (BLAKE2b, RFC 7693, keyed with the secret, of the position). So an append
writes a row of keys once and then only reads it. The first removal replaces the secret with the
keys themselves, except those that it overwrites.

The cipher is AES-128-GCM. The nonce stands before the ciphertext, and is new in each transaction: a
transaction that fails leaves its positions, and so its keys, to the next.

Rows of an earlier release are shorter: their keys are the salts of the contents, which are not
part of the ciphertext (``eventstore.log.content``), and their nonces are zeros. They are read as
they are, and replaced when a content is added at their positions.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from itertools import chain, groupby, islice
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_BYTES: Final = 16
KEYS: Final = 248
"""Keys of a row: 3,968 bytes, more than half of the room in a page of 4,096."""
_NONCE_BYTES: Final = 12
_OF_SALTS_BYTES: Final = KEYS * KEY_BYTES
"""A row of an earlier release: keys, and no room for a secret."""
_OF_SALTS_NONCE: Final = bytes(_NONCE_BYTES)
ROW_BYTES: Final = _OF_SALTS_BYTES + KEY_BYTES
"""The keys, and then their secret as long as there is one."""
_NO_KEY: Final = bytes(KEY_BYTES)
_AT_POSITIONS: Final = "FROM contents WHERE position IN (SELECT value FROM json_each(?))"
_SIZE: Final = f"SELECT coalesce(sum(length(content)), 0) {_AT_POSITIONS}"
# With RETURNING, SQLite copies each page that the statement changes into a temporary file first.
_DELETE: Final = f"DELETE {_AT_POSITIONS}"
_FORGET: Final = "DELETE FROM erased WHERE position IN (SELECT value FROM json_each(?))"
TABLES: Final = (
    # By position: new contents go to the end, and contents that leave together lie together.
    "CREATE TABLE IF NOT EXISTS contents (position INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    "CREATE TABLE IF NOT EXISTS content_keys (page INTEGER PRIMARY KEY, keys BLOB NOT NULL)",
    # The erased contents that are still stored.
    "CREATE TABLE IF NOT EXISTS erased (position INTEGER PRIMARY KEY)",
)
NOT_ERASED: Final = "NOT EXISTS (SELECT 1 FROM erased WHERE erased.position = c.position)"
"""The condition that ``contents AS c`` are not erased."""
JOINED: Final = (
    f"LEFT JOIN contents AS c ON c.position = e.rowid AND {NOT_ERASED}"
    f" LEFT JOIN content_keys ON page = c.position / {KEYS}"
)
"""Contents beside ``stored_events AS e``."""
COLUMNS: Final = (
    f"c.position, content, substr(keys, 1 + {KEY_BYTES} * (c.position % {KEYS}), {KEY_BYTES}),"
    f" substr(keys, 1 + {_OF_SALTS_BYTES})"
)
"""The columns of such a query that ``opened`` takes."""
_REMOVED_AT_ONCE: Final = 256
_PAGES_AT_ONCE: Final = 16
"""Contents that are removed in one transaction, and the rows of keys that they may have: 1 to 4 ms,
for which others wait."""
_LEFT: Final = "SELECT 1 FROM contents WHERE position >= ? AND position < ? LIMIT 1"
_OF_PAGE: Final = "SELECT position, content FROM contents WHERE position >= ? AND position < ?"


def key_of(secret: bytes, position: int) -> bytes:
    """The key at a position, derived from the 16-byte secret of its row."""
    return blake2b(b"%d" % position, key=secret, digest_size=KEY_BYTES).digest()


def opened(position: int, content: object, key: object, secret: object) -> bytes | None:
    """Decrypt the stored content in ``COLUMNS``; None if there is none."""
    if content is None:
        return None
    # A column in SQLite may hold any type. No digest fits the empty result for altered data.
    if type(content) is not bytes or type(key) is not bytes:
        return b""
    try:
        if secret == b"":
            return key + AESGCM(key).decrypt(_OF_SALTS_NONCE, content, None)
        if type(secret) is bytes and secret != _NO_KEY:
            key = key_of(secret[:KEY_BYTES], position)
        return AESGCM(key).decrypt(content[:_NONCE_BYTES], content[_NONCE_BYTES:], None)
    except (InvalidTag, ValueError):
        return b""


def keep(cursor: sqlite3.Cursor, stored: Sequence[tuple[int, bytes]]) -> int:
    """Store contents, in the order of their positions; return how many bytes they take.

    No content is stored yet at any position from the first to the last of them.
    """
    nonce = os.urandom(_NONCE_BYTES)
    kept: list[tuple[int, bytes]] = []
    for page, part in groupby(stored, key=lambda one: one[0] // KEYS):
        keys = _keys(cursor, page)
        secret = _secret_in(keys)
        for position, one in part:
            key = keys[_place(position)] if secret is None else key_of(secret, position)
            kept.append((position, nonce + AESGCM(key).encrypt(nonce, one, None)))
    cursor.executemany("INSERT INTO contents (position, content) VALUES (?, ?)", kept)
    return sum(len(content) for _, content in kept)


def remove_erased(cursor: sqlite3.Cursor, after: int) -> tuple[int, int] | None:
    """Remove some of the erased contents, the first ones after a position.

    Returns:
        How many bytes they took and the last position; None if there is none after ``after``.
    """
    find = "SELECT position FROM erased WHERE position > ? ORDER BY position LIMIT ?"
    positions = [position for (position,) in cursor.execute(find, (after, _REMOVED_AT_ONCE))]
    if not positions:
        return None
    by_page = groupby(positions, key=lambda position: position // KEYS)
    parts = (list(part) for _, part in islice(by_page, _PAGES_AT_ONCE))
    some = list(chain.from_iterable(parts))
    return remove(cursor, some), some[-1]


def remove(cursor: sqlite3.Cursor, positions: Iterable[int]) -> int:
    """Remove the contents, if any, at these positions; return how many bytes they took.

    They are erased and removed then, so they are no longer among the erased that are still stored.
    """
    pages: defaultdict[int, list[int]] = defaultdict(list)
    for position in positions:
        pages[position // KEYS].append(position)
    places = json.dumps(list(chain.from_iterable(pages.values())))
    ((size_bytes,),) = cursor.execute(_SIZE, (places,)).fetchall()
    with _not_overwriting(cursor):
        cursor.execute(_DELETE, (places,))
    cursor.execute(_FORGET, (places,))
    changed: list[tuple[bytes, int]] = []
    empty: list[tuple[int]] = []
    for page, those in pages.items():
        keys = _keys_of(cursor, page)
        if keys is None:
            continue
        if list(cursor.execute(_LEFT, _ends(page))):
            changed.append((_without(keys, page, those), page))
        else:
            changed.append((bytes(len(keys)), page))
            empty.append((page,))
    # As long as before, so SQLite overwrites them in place. Not by ``blobopen``: a connection of
    # Python remembers each blob that it ever opened.
    cursor.executemany("UPDATE content_keys SET keys = ? WHERE page = ?", changed)
    cursor.executemany("DELETE FROM content_keys WHERE page = ?", empty)
    return int(size_bytes)


def _without(keys: bytes, page: int, positions: Sequence[int]) -> bytes:
    """A row of keys, each by itself and without those at these positions."""
    secret = _secret_in(keys)
    changed = bytearray(keys if secret is None else _made_of(secret, page))
    for position in positions:
        changed[_place(position)] = _NO_KEY
    return bytes(changed)


def _made_of(secret: bytes, page: int) -> bytes:
    """A row of the keys that are derived from a secret, without the secret."""
    return b"".join(key_of(secret, position) for position in range(*_ends(page))) + _NO_KEY


def _keys(cursor: sqlite3.Cursor, page: int) -> bytes:
    """A row of keys, made if there is none."""
    found = _keys_of(cursor, page)
    if found is not None and len(found) == ROW_BYTES:
        return found
    keys = bytes(_OF_SALTS_BYTES) + os.urandom(KEY_BYTES)
    cursor.execute("REPLACE INTO content_keys (page, keys) VALUES (?, ?)", (page, keys))
    if found is not None:
        _encrypt_anew(cursor, page, found, keys)
    return keys


def _keys_of(cursor: sqlite3.Cursor, page: int) -> bytes | None:
    """A row of keys as it is stored; None if there is none, or no keys in it."""
    find = "SELECT keys FROM content_keys WHERE page = ? AND typeof(keys) = 'blob'"
    return next((keys for (keys,) in cursor.execute(find, (page,)).fetchall()), None)


def _encrypt_anew(cursor: sqlite3.Cursor, page: int, salts: bytes, keys: bytes) -> None:
    """Encrypt the contents of an earlier release at the positions of a row with its new keys."""
    secret, nonce = keys[_OF_SALTS_BYTES:], os.urandom(_NONCE_BYTES)
    for position, content in list(cursor.execute(_OF_PAGE, _ends(page))):
        if stored := opened(position, content, salts[_place(position)], b""):
            again = AESGCM(key_of(secret, position)).encrypt(nonce, stored, None)
            change = "UPDATE contents SET content = ? WHERE position = ?"
            cursor.execute(change, (nonce + again, position))


def _secret_in(keys: bytes) -> bytes | None:
    """The secret of a row of keys; None if the row has no secret."""
    secret = keys[_OF_SALTS_BYTES:]
    return secret if secret.strip(b"\0") else None


def _place(position: int) -> slice:
    """Where the key at a position stands in its row."""
    start = position % KEYS * KEY_BYTES
    return slice(start, start + KEY_BYTES)


def _ends(page: int) -> tuple[int, int]:
    """The positions of a row of keys: the first one, and the one after the last."""
    return page * KEYS, (page + 1) * KEYS


@contextmanager
def _not_overwriting(cursor: sqlite3.Cursor) -> Iterator[None]:
    """Have SQLite leave the bytes of deleted contents, which without their keys say nothing.

    It would write each page that they give up once more, to no use.
    """
    cursor.execute("PRAGMA secure_delete = OFF")
    try:
        yield
    finally:
        cursor.execute("PRAGMA secure_delete = ON")
