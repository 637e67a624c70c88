"""The messages handed over on one socket that its client has not confirmed to have read.

The pong that confirms them may come after minutes, or never, and a client chooses how many wait for
it. So they take few bytes and no task, and all of one socket together a bounded number of bytes, or
those of a single handover, 16 for each of its messages. A client on a long line that requests batch
after batch before it has read the first takes more, of bytes that all sockets share.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from struct import Struct
from sys import getsizeof
from typing import Final

import msgspec

UNCONFIRMED_BYTES_MAX: Final = 6 * 1_024
"""Of one socket, for all agents: three batches of 100 messages, or 120 messages one by one. Agents
with DIDs as long as may be, of did:webvh, leave room for two batches, or 75 messages."""
SHARED_BYTES: Final = 4 * 1_024 * 1_024
"""Of all sockets of an edge together, beyond those of each: 2,500 batches."""
_PART: Final = 128
"""Of the shared bytes that are left, a socket has one part: at first 32 KiB, enough for all that an
agent may be handed, 1,000 messages by default."""
_BATCH_MIN: Final = 10
"""Of a handover that may take shared bytes: each is a removal of its own, and one pong may confirm
all of a socket at once."""
_AGENT_BYTES: Final = 320
"""Of an agent besides its names and its handovers."""
_HEAD: Final = Struct(">II")
"""The number of the ping, and the bytes of what follows, with the command and the ids."""
_ID_BYTES: Final = 16


class Handover(msgspec.Struct, frozen=True):
    """Messages handed over to the agent ``did``, which are removed once it has read them.

    ``speaker`` is the DID that the removal is attributed to, ``command`` its key in the log, 16
    bytes.
    """

    did: str
    speaker: str
    command: bytes
    message_ids: Sequence[str]


_BODY: Final = msgspec.msgpack.Decoder(tuple[bytes, bytes | list[str]])


class Shared:
    """The bytes that the sockets of an edge take beyond their own."""

    taken_bytes = 0


class Unconfirmed:
    """The handovers on one socket, each with the number of the ping that follows it."""

    def __init__(self, shared: Shared) -> None:
        self._of: dict[tuple[str, str], bytes] = {}
        self._size_bytes = 0
        self._shared = shared

    def add(self, handover: Handover, ping: int) -> bool:
        """Remember a handover; no ping so far has a higher number.

        False if there is no room: its messages stay leased and are offered again. One handover of
        any size has room, or a client with large batches would get the same one for ever. Beyond
        its own bytes a socket has a small part of the shared ones that are left, for batches alone.
        """
        did, speaker = handover.did, handover.speaker
        agent = (did, did if speaker == did else speaker)
        ids = _compact(handover.message_ids)
        body = msgspec.msgpack.encode((handover.command, ids))
        packed = _HEAD.pack(ping, len(body)) + body
        waiting = self._of.get(agent, b"")
        size_bytes = len(packed) + (0 if waiting else _bytes_of(agent))
        more_bytes = self._beyond_bytes(size_bytes) if self._of else 0
        left_bytes = SHARED_BYTES - self._shared.taken_bytes
        is_batch = len(handover.message_ids) >= _BATCH_MIN
        if more_bytes and (not is_batch or more_bytes > left_bytes / _PART):
            return False
        self._of[agent] = waiting + packed
        self._grow(size_bytes)
        return True

    def confirm(self, ping: int) -> list[Handover]:
        """Forget and return the handovers that precede this ping, those of each agent in order."""
        confirmed: list[Handover] = []
        for agent, waiting in [*self._of.items()]:
            at = 0
            while at < len(waiting):
                number, body_bytes = _HEAD.unpack_from(waiting, at)
                if number > ping:
                    break
                start, at = at + _HEAD.size, at + _HEAD.size + body_bytes
                command, ids = _BODY.decode(waiting[start:at])
                message_ids = _ids_of(ids) if isinstance(ids, bytes) else ids
                confirmed.append(Handover(*agent, command, message_ids))
            self._grow(-at)
            if at < len(waiting):
                self._of[agent] = waiting[at:]
            else:
                del self._of[agent]
                self._grow(-_bytes_of(agent))
        return confirmed

    def clear(self) -> None:
        """Forget all handovers, because the socket is gone."""
        self._grow(-self._size_bytes)
        self._of.clear()

    def _grow(self, more_bytes: int) -> None:
        self._shared.taken_bytes += self._beyond_bytes(more_bytes) - self._beyond_bytes()
        self._size_bytes += more_bytes

    def _beyond_bytes(self, more_bytes: int = 0) -> int:
        """The bytes of the shared ones that the socket has, or would have with so many more."""
        return max(0, self._size_bytes + more_bytes - UNCONFIRMED_BYTES_MAX)


def _compact(message_ids: Sequence[str]) -> bytes | Sequence[str]:
    """The bits of ids that are as the mediator makes them (``actors.host.clock``), else the ids."""
    try:
        bits = b"".join(urlsafe_b64decode(message_id + "==") for message_id in message_ids)
    except ValueError:
        return message_ids
    return bits if _ids_of(bits) == [*message_ids] else message_ids


def _ids_of(bits: bytes) -> list[str]:
    parts = (bits[at : at + _ID_BYTES] for at in range(0, len(bits), _ID_BYTES))
    return [urlsafe_b64encode(part)[:-2].decode() for part in parts]


def _bytes_of(agent: tuple[str, str]) -> int:
    return _AGENT_BYTES + sum(map(getsizeof, {*agent}))
