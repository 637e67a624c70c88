"""What every hand-out of waiting messages has in common, by a request or a socket.

First a command leases the messages to a session; then what carries them is packed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from actors.core.commands import DeliverMessages
from http_edge.listener.body_reads import in_reading_thread
from http_edge.settings.settings import DidComm

IMPLICIT: Final = "implicit"
"""The channel of deliveries by implicit pickup."""
_AT_ONCE_BYTES: Final = 524_288
"""Packing so many bytes of delivered messages takes 2 ms for DIDComm v1 and 5 ms for v2; a hundred
usual messages are less. A thread would cost each of them more than it saves others."""
_T = TypeVar("_T")


def delivery_to(session: str, channel: str, limit: int, settings: DidComm) -> DeliverMessages:
    """Return the command that leases up to ``limit`` messages to a session, within the settings."""
    return DeliverMessages(
        session=session,
        channel=channel,
        limit=min(limit, settings.delivery_messages_max),
        bytes_max=settings.delivery_bytes_max,
        lease_ms=round(settings.lease_s * 1000),
    )


async def packed(delivered_bytes: int, pack: Callable[[], _T]) -> _T:
    """Pack a message that delivers so many bytes, outside of the event loop if they are many."""
    if delivered_bytes <= _AT_ONCE_BYTES:
        return pack()
    return await in_reading_thread(pack, delivered_bytes)
