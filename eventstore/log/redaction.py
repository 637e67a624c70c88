"""Names in rows, and the digests that replace erased names. Pure.

A name is a DID, a key, or text that a peer chose (``event_declaration.NAME``). When the identity
that it names is erased, its digest replaces it in the row, as a msgpack extension, a type that no
name has. A seal covers the *redacted state* of a row: the event with the digests of all its names.
So a seal holds for a row with its names and without them, and for no other change.

The digest of a text is the id that a stream of that name has (UUIDv5); the digest of bytes is their
SHA-256. It identifies a name only to those who know the name: DIDs and keys cannot be found by
trial. Short text that a peer chose (a label, a tag) can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from eventstore.log.event_declaration import NAME
from eventstore.log.events import TOPIC_BY_TYPE, TYPE_BY_TOPIC, Event, RefusalsCounted
from eventstore.log.streams import ERASED, STREAM_BYTES, identity_stream

_CODE: Final = 1
_BEGINS: Final = (b"\xd8\x01", b"\xc7\x20\x01")
"""Encoded digests of 16 and of 32 bytes begin with these; other bytes may, too."""
_NAMES_KEPT: Final = 65_536
_KEPT_CHARS_MAX: Final = 256
"""Longer names are not kept, nor those that are not ASCII, which DIDs and encrypted tags are: a tag
may have 1 KiB, which takes 4 KiB in memory if one of its characters is an emoji."""
_UNREADABLE: Final = (
    *(msgspec.MsgspecError, ValueError, TypeError, KeyError, OverflowError, RecursionError),
)
"""The errors from reading bytes that are no state as a state."""
_ENCODER: Final = msgspec.msgpack.Encoder()

Rename: TypeAlias = Callable[[Any], Any]
"""Returns the replacement of one name, which is a text, bytes, or the digest of an erased one."""


def _digest_of_text(name: str) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(_CODE, identity_stream(name).bytes)


_kept_digest_of_text: Final = lru_cache(_NAMES_KEPT)(_digest_of_text)


def digest_of(name: Any) -> Any:
    """The digest that replaces a name; an empty name, or a digest, stays as it is."""
    if isinstance(name, str):
        is_kept = len(name) <= _KEPT_CHARS_MAX and name.isascii()
        return (_kept_digest_of_text if is_kept else _digest_of_text)(name) if name else name
    if isinstance(name, bytes):
        return msgspec.msgpack.Ext(_CODE, hashlib.sha256(name).digest()) if name else name
    return name


def is_erased(name: Any) -> bool:
    """Whether this is a digest in place of a name."""
    return isinstance(name, msgspec.msgpack.Ext)


def redacted_state(topic: str, state: bytes, event: Event | None = None) -> bytes | None:
    """The state of a row as its seal covers it; None if it is not in the form of the codec.

    ``event`` is the event in the row, if it is already decoded. For a topic of a later release,
    the result is the state itself.
    """
    kind = TYPE_BY_TOPIC.get(topic)
    naming = None if kind is None else _NAMING.get(kind)
    if kind is None or naming is None:
        return state
    if event is None or kind in _WITH_RECORDS or _ENCODER.encode(event) != state:
        return renamed_state(kind, state, digest_of)
    names = {field: change(getattr(event, field), digest_of) for field, change in naming.items()}
    return _ENCODER.encode(msgspec.structs.replace(event, **names))


def renamed_state(kind: type[Event], state: bytes, rename: Rename) -> bytes | None:
    """The state of a row with other names; None if it is not in the form of the codec."""
    try:
        fields = msgspec.msgpack.decode(state)
        if not isinstance(fields, dict) or _ENCODER.encode(fields) != state:
            return None
        return _ENCODER.encode({**fields, **_renamed(kind, fields, rename)})
    except _UNREADABLE:
        return None


def erased_names(topic: str, state: bytes) -> Mapping[str, Sequence[bytes]]:
    """The digests that a row has in place of names, by field; mostly none.

    The result is empty for a state that cannot be read.
    """
    kind = TYPE_BY_TOPIC.get(topic)
    naming = None if kind is None else _NAMING.get(kind)
    found: dict[str, list[bytes]] = {}
    if naming is None or not (_BEGINS[0] in state or _BEGINS[1] in state):
        return found
    try:
        fields = msgspec.msgpack.decode(state)
        for field, change in naming.items():
            digests: list[bytes] = []
            change(fields[field], partial(_note, digests))
            if digests:
                found[field] = digests
    except _UNREADABLE:
        return {}
    return found


def shown_state(kind: type[Event], state: bytes) -> bytes | None:
    """The state with texts in place of the digests of names; None if it has no digests."""
    shown = renamed_state(kind, state, _shown)
    return None if shown == state else shown


_Change: TypeAlias = Callable[[Any, Rename], Any]


def _renamed(kind: type[Event], fields: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    naming = _NAMING.get(kind, {})
    return {field: change(fields[field], rename) for field, change in naming.items()}


def _note(digests: list[bytes], name: Any) -> None:
    if is_erased(name):
        digests.append(bytes(name.data))


def _shown(name: Any) -> Any:
    if not is_erased(name):
        return name
    digest = bytes(name.data)
    text = ERASED + digest.hex()
    return text if len(digest) == STREAM_BYTES else text.encode()


def _of_one(name: Any, rename: Rename) -> Any:
    return rename(name)


def _of_each(names: Any, rename: Rename) -> Any:
    return [rename(name) for name in names]


def _of_records(kind: type[msgspec.Struct]) -> _Change:
    """The change of a list of records, which a state has as lists of their fields."""
    places = {kind.__struct_fields__.index(field) for field, _ in _names_in(kind)}

    def change(records: Any, rename: Rename) -> Any:
        return [
            [rename(one) if place in places else one for place, one in enumerate(record)]
            for record in records
        ]

    return change


def _change_of(hint: Any) -> _Change:
    if get_origin(hint) is not list:
        return _of_one
    (item,) = get_args(hint)
    return _of_records(item) if issubclass(item, msgspec.Struct) else _of_each


def _names_in(kind: type[msgspec.Struct]) -> Iterator[tuple[str, _Change]]:
    for field, hint in get_type_hints(kind, include_extras=True).items():
        if NAME in getattr(hint, "__metadata__", ()):
            yield field, _change_of(get_args(hint)[0])


_NAMING: Final[Mapping[type[Event], Mapping[str, _Change]]] = {
    kind: naming for kind in TOPIC_BY_TYPE if (naming := dict(_names_in(kind)))
}
"""For each event type with names, the fields that have them, and how to rename these."""
_WITH_RECORDS: Final = frozenset({RefusalsCounted})
"""Event types with names in records, which a state has as lists."""
