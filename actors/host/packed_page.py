"""Pages on their way from a host to an edge: packed and unpacked record by record.

A page may have many MiB. The interpreter runs one thread at a time, and no other thread runs during
a library call. So no call here handles more than one record, and commands run in between, at the
host and at the edge. The bytes are those of the page in msgpack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from actors.core.replies import MessagesPage, WaitingMessage
from eventstore.log.event_log import PublicEvent, PublicEventsPage, SavedEvent, SavedEventsPage

FoundPage: TypeAlias = SavedEventsPage | PublicEventsPage | MessagesPage
_ENCODER: Final = msgspec.msgpack.Encoder()
_PACKED: Final = msgspec.msgpack.Decoder(tuple[str, list[msgspec.Raw], int])
_HEAD: Final = b"\x93"
"""An array of three: the tag of the page, its records, and how many match."""
_RECORDS: Final = b"\xdd"
"""An array whose length follows in four bytes."""


class _Kind(NamedTuple):
    page: Callable[[list[Any], int], FoundPage]
    record: msgspec.msgpack.Decoder[Any]


_KINDS: Final[Mapping[str, _Kind]] = {
    str(page.__struct_config__.tag): _Kind(page, msgspec.msgpack.Decoder(record))
    for page, record in (
        (MessagesPage, WaitingMessage),
        (SavedEventsPage, SavedEvent),
        (PublicEventsPage, PublicEvent),
    )
}


def pack_page(page: FoundPage) -> memoryview:
    """Encode a page in msgpack."""
    records: Sequence[object] = page.messages if isinstance(page, MessagesPage) else page.events
    tag = _ENCODER.encode(page.__struct_config__.tag)
    packed = bytearray(_HEAD + tag + _RECORDS + len(records).to_bytes(4, "big"))
    for record in records:
        _ENCODER.encode_into(record, packed, -1)
    _ENCODER.encode_into(page.total, packed, -1)
    return memoryview(packed)


def unpack_page(packed: memoryview) -> FoundPage:
    """Decode a page that ``pack_page`` has encoded."""
    tag, records, total = _PACKED.decode(packed)
    kind = _KINDS[tag]
    return kind.page([kind.record.decode(record) for record in records], total)
