"""The messages handed over on one socket that its client has not confirmed to have read.

The pong that confirms them may come after minutes, or never, and a client chooses how many wait for
it. So they take few bytes and no task, and all of one socket together a bounded number of bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import Final

import msgspec

UNCONFIRMED_BYTES_MAX: Final = 6 * 1_024
"""Of one socket: two batches of 100 messages, or 60 messages one by one."""
_AGENT_BYTES: Final = 300
"""Of an agent besides its names."""
_SLOT_BYTES: Final = 16
"""Of a handover besides its bytes: its place in a list, and what the allocator rounds up."""


class Handover(msgspec.Struct, frozen=True):
    """Messages handed over to the agent ``did``, which are removed once it has read them.

    ``speaker`` is the DID that the removal is attributed to, ``command`` its key in the log, 16
    bytes.
    """

    did: str
    speaker: str
    command: bytes
    message_ids: Sequence[str]


_PACKED: Final = msgspec.msgpack.Decoder(tuple[int, bytes, list[str]])


class Unconfirmed:
    """The handovers on one socket, each with the number of the ping that follows it."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], list[bytes]] = {}
        self._size_bytes = 0

    def add(self, handover: Handover, ping: int) -> bool:
        """Remember a handover; no ping so far has a higher number.

        False if there is no room: its messages stay leased and are offered again. One handover of
        any size has room, or a client with large batches would get the same one for ever.
        """
        did, speaker = handover.did, handover.speaker
        agent = (did, did if speaker == did else speaker)
        encoded = msgspec.msgpack.encode((ping, handover.command, handover.message_ids))
        packed = bytes(memoryview(encoded))  # a copy, without the room that it was encoded in
        size_bytes = _bytes_of(packed) + (0 if agent in self._of else _bytes_of_agent(agent))
        if self._of and self._size_bytes + size_bytes > UNCONFIRMED_BYTES_MAX:
            return False
        self._of.setdefault(agent, []).append(packed)
        self._size_bytes += size_bytes
        return True

    def confirm(self, ping: int) -> list[Handover]:
        """Forget and return the handovers that precede this ping, those of each agent in order."""
        confirmed: list[Handover] = []
        for agent, waiting in [*self._of.items()]:
            while waiting:
                number, command, message_ids = _PACKED.decode(waiting[0])
                if number > ping:
                    break
                confirmed.append(Handover(*agent, command, message_ids))
                self._size_bytes -= _bytes_of(waiting.pop(0))
            if not waiting:
                del self._of[agent]
                self._size_bytes -= _bytes_of_agent(agent)
        return confirmed


def _bytes_of(packed: bytes) -> int:
    return getsizeof(packed) + _SLOT_BYTES


def _bytes_of_agent(agent: tuple[str, str]) -> int:
    return _AGENT_BYTES + sum(map(getsizeof, {*agent}))
