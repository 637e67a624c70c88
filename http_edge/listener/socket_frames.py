"""Check the frame headers of a WebSocket before aiohttp assembles messages (RFC 6455).

aiohttp accepts frames without a mask, which section 5.1 forbids, and does not report how many
frames a message came in. So this module checks the headers before aiohttp reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp.http_websocket import WebSocketReader

FRAMES_PER_S_MAX: Final = 20_000
"""Frames of all kinds on one socket: twice the highest rate that the settings allow a protocol.
This bounds the frames that protocols do not see: fragments, and those during a close."""
FRAMES_BURST: Final = 4_096
"""Frames at once; checking one takes 1 µs."""
CONTROL_FRAMES_PER_S_MAX: Final = 32
"""Pings, pongs and closes among them. A client owes one pong per ping, and pings are seconds
apart."""
CONTROL_FRAMES_BURST: Final = 64
FRAGMENTS_MIN: Final = 16
"""Fragments that any message may have, however short."""
FRAGMENT_BYTES: Final = 256
"""Bytes of a message that allow it one more fragment."""
_MASKED: Final = 0x80
_FINAL: Final = 0x80
_CONTROL: Final = 0x8
_LENGTH: Final = 0x7F
_MASK_BYTES: Final = 4
_LONGER: Final = {126: 2, 127: 8}
"""Bytes of the extended length, by the value of the 7-bit length in the header."""
_PROTOCOL_ERROR: Final = b"\xf0\x80\x00\x00\x00\x00"
"""A header with reserved bits: the reader refuses it and closes the socket with 1002."""
_TOO_BIG: Final = b"\x80\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00"
"""A header of an impossible length: the reader refuses it and closes the socket with 1009."""


class CheckedFrames:
    """Passes the bytes of a socket on to a reader, as long as their frames are allowed.

    It buffers one header at most.
    """

    def __init__(self, reader: WebSocketReader, clock_s: Callable[[], float]) -> None:
        """Frames for ``reader``; ``clock_s`` is monotonic, in seconds."""
        self._reader = reader
        self._clock_s = clock_s
        self._payload_left = 0
        self._header = b""
        self._fragments = 0
        self._message_bytes = 0
        self._unhandled_bytes = 0
        self._allowed: float = FRAMES_BURST
        self._control_allowed: float = CONTROL_FRAMES_BURST
        self._allowed_at_s = clock_s()
        self._is_refused = False

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes on; instead of a forbidden frame, pass one that the reader refuses."""
        if self._is_refused:
            return False, b""
        data = self._header + data if self._header else bytes(data)
        start, refusal = self._checked(data)
        if refusal:
            self._is_refused = True
            data, start = data[:start] + refusal, start + len(refusal)
        self._payload_left = max(0, start - len(data))
        # Headers are passed on whole, so that a refusal can replace one.
        self._header = data[start:]
        return self._reader.feed_data(data[:start])

    def feed_eof(self) -> None:
        """No more bytes come."""
        self._reader.feed_eof()

    @property
    def held_bytes(self) -> int:
        """Bytes of messages that are not handled yet, whole or not."""
        return max(0, self._unhandled_bytes - self._payload_left)

    def handled(self, size_bytes: int) -> None:
        """Note that a message of this size is handled."""
        self._unhandled_bytes -= size_bytes

    def _checked(self, data: bytes) -> tuple[int, bytes]:
        """The end of the frames that passed, and the header that refuses the next one, if any."""
        start, end = self._payload_left, len(data)
        if start + 2 > end:
            return start, b""
        now_s = self._clock_s()
        since_s, self._allowed_at_s = now_s - self._allowed_at_s, now_s
        self._allowed = min(self._allowed + since_s * FRAMES_PER_S_MAX, FRAMES_BURST)
        control = self._control_allowed + since_s * CONTROL_FRAMES_PER_S_MAX
        self._control_allowed = min(control, CONTROL_FRAMES_BURST)
        while start + 2 <= end:
            first, second = data[start], data[start + 1]
            if not second & _MASKED:
                return start, _PROTOCOL_ERROR
            length = second & _LENGTH
            longer = _LONGER.get(length, 0)
            payload = start + 2 + longer + _MASK_BYTES
            if payload > end:
                break
            if longer:
                length = int.from_bytes(data[start + 2 : start + 2 + longer], "big")
            self._allowed -= 1
            if self._allowed < 0 or not self._is_whole_enough(first, length):
                return start, _TOO_BIG
            start = payload + length
        return start, b""

    def _is_whole_enough(self, first: int, length: int) -> bool:
        """Is the frame within the limit of its kind?

        The size of a message limits its fragments; a rate limits control frames.
        """
        if first & _CONTROL:
            self._control_allowed -= 1
            return self._control_allowed >= 0
        if first & ~_FINAL:  # not a continuation: a message begins
            self._fragments = self._message_bytes = 0
        self._fragments += 1
        self._message_bytes += length
        if self._fragments > FRAGMENTS_MIN + self._message_bytes // FRAGMENT_BYTES:
            return False
        self._unhandled_bytes += length
        return True
