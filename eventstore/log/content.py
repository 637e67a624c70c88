"""Contents: the bytes that peers send, kept apart from the facts about them.

A fact holds the digest and the size of a content, and a seal covers the fact. So the chain of a log
verifies when a content is gone. The digest is SHA-256 of a salt and the content; the salt is stored
with the content and erased with it. So the rest of the log cannot confirm a guess at the content.

The stored content (``Content.stored``) is the salt followed by the content. In an export it stands
before the fact in the column ``state``: a msgpack stream of one ``bin 32`` and one map.
"""

from __future__ import annotations

import hashlib
from struct import Struct
from typing import Final

import msgspec

from eventstore.log.errors import ContentMissing

SALT_BYTES: Final = 16
_BIN_32: Final = 0xC6
_BEGIN: Final = Struct(">BI")
BEGINS_WITH_CONTENT: Final = bytes([_BIN_32])
"""The first byte of an exported ``state`` that has the content; no fact begins with it."""


class Content(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """The digest and size of a content, and the content itself if it was supplied or read.

    ``digest`` is SHA-256 of the salt and the content, ``size_bytes`` is without the salt.
    """

    digest: bytes
    size_bytes: int

    @classmethod
    def of(cls, data: bytes, salt: bytes) -> Content:
        """Make a content to be stored; ``salt`` is 16 bytes that are known nowhere else."""
        stored = salt + data
        content = cls(hashlib.sha256(stored).digest(), len(data))
        content.__dict__["stored"] = stored
        return content

    def take(self, stored: bytes) -> None:
        """Take the stored content.

        Raises:
            ValueError: it does not have the digest and size of this content.
        """
        if not self.is_of(stored):
            raise ValueError("its content does not match its digest")
        self.__dict__["stored"] = stored

    def is_of(self, stored: bytes) -> bool:
        """Whether ``stored`` has the digest and size of this content."""
        # A column in SQLite may hold any type.
        is_as_long = type(stored) is bytes and len(stored) == self.size_bytes + SALT_BYTES
        return is_as_long and hashlib.sha256(stored).digest() == self.digest

    @property
    def stored(self) -> bytes | None:
        """The salt and the content; None if they are not at hand."""
        found: bytes | None = self.__dict__.get("stored")
        return found

    @property
    def data(self) -> bytes:
        """The content itself.

        Raises:
            ContentMissing: it is not at hand: it was erased, or was not read.
        """
        stored = self.stored
        if stored is None:
            raise ContentMissing
        return stored[SALT_BYTES:]


def size_of(content: Content | bytes | str) -> int:
    """The size of a content in bytes, also of one that stands in its row."""
    if isinstance(content, Content):
        return content.size_bytes
    if isinstance(content, str) and not content.isascii():
        return len(content.encode())
    return len(content)


def is_there(content: Content | bytes | str) -> bool:
    """Whether a content is at hand."""
    return not isinstance(content, Content) or content.stored is not None


def data_of(content: Content | bytes) -> bytes:
    """A content, also one that stands in its row. Raises: ContentMissing."""
    return content.data if isinstance(content, Content) else content


def text_of(content: Content | str) -> str:
    """A content that is text, also one that stands in its row. Raises: ContentMissing."""
    return content.data.decode() if isinstance(content, Content) else content


def with_content(fact: bytes, stored: bytes | None) -> bytes:
    """A fact as exports have it: its stored content, if at hand, and then the fact."""
    return fact if stored is None else _BEGIN.pack(_BIN_32, len(stored)) + stored + fact


def without_content(state: bytes) -> tuple[bytes, bytes | None]:
    """Split what ``with_content`` made into fact and content; all else is a fact alone."""
    # A fact is a map, which begins with another byte.
    if state[:1] == BEGINS_WITH_CONTENT and len(state) >= _BEGIN.size:
        end = _BEGIN.size + _BEGIN.unpack_from(state)[1]
        if end <= len(state):
            return state[end:], state[_BEGIN.size : end]
    return state, None
