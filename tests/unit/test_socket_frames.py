"""The check of frames changes nothing of what may be read, however the bytes arrive."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

import pytest
from aiohttp.http_websocket import WebSocketReader
from hypothesis import given
from hypothesis import strategies as st

from http_edge.listener.socket_frames import (
    CONTROL_FRAMES_BURST,
    CONTROL_FRAMES_PER_S_MAX,
    FRAGMENT_BYTES,
    FRAGMENTS_MIN,
    FRAMES_BURST,
    FRAMES_PER_S_MAX,
    CheckedFrames,
)
from tests.edge.raw_socket import BINARY, CONTINUATION, PING, TEXT, frame

REFUSED_1002 = b"\xf0\x80"
REFUSED_1009 = b"\x80\xff"


class Received:
    """A reader that keeps what it is given."""

    def __init__(self) -> None:
        self.data = b""
        self.pieces_max = 0

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        self.data += data
        return False, b""

    def feed_eof(self) -> None:
        self.data += b"EOF"


def passed(data: bytes, cuts: list[int], *, second: float = 0.0) -> bytes:
    """What reaches the reader of bytes that arrive in pieces."""
    received = Received()
    frames = CheckedFrames(cast("WebSocketReader", received), lambda: second)
    borders = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(borders):
        assert frames.feed_data(data[start:end]) == (False, b"")
    return received.data


FRAMES = st.lists(
    st.builds(
        frame,
        st.sampled_from([TEXT, BINARY, PING]),
        st.binary(max_size=300),
    ),
    max_size=10,
).map(b"".join)
CUTS = st.lists(st.integers(0, 5_000), max_size=10)


@given(FRAMES, CUTS)
def test_whole_frames_pass_unchanged_in_whatever_pieces_they_arrive(
    data: bytes, cuts: list[int]
) -> None:
    assert passed(data, cuts) == data


@given(FRAMES, st.sampled_from([b"", b"x"]), FRAMES, CUTS)
def test_the_first_frame_without_a_mask_ends_it(
    before: bytes, payload: bytes, after: bytes, cuts: list[int]
) -> None:
    data = before + frame(TEXT, payload, masked=False) + after
    received = passed(data, cuts)
    assert received.startswith(before + REFUSED_1002)
    assert len(received) == len(before) + 6


@given(CUTS)
def test_a_fragment_of_no_message_is_left_to_the_reader_to_refuse(cuts: list[int]) -> None:
    data = frame(CONTINUATION, b"x") + frame(CONTINUATION, b"x", final=False)
    assert passed(data, cuts) == data


@pytest.mark.parametrize("size", [0, 1, FRAGMENT_BYTES // 2])
def test_a_message_has_no_more_fragments_than_its_bytes_are_worth(size: int) -> None:
    one = frame(CONTINUATION, b"x" * size, final=False)
    data = frame(BINARY, b"x" * size, final=False) + one * 200
    most = FRAGMENTS_MIN + 200 * size // FRAGMENT_BYTES + 1
    received = passed(data, [])
    assert received[received.rindex(REFUSED_1009) :][:2] == REFUSED_1009
    assert received.count(one[:2]) <= most
    few = frame(BINARY, final=False) + one * (FRAGMENTS_MIN - 1)
    assert passed(few, []) == few
    large = frame(CONTINUATION, b"x" * FRAGMENT_BYTES, final=False)
    whole = frame(BINARY, final=False) + large * 200 + frame(CONTINUATION)
    assert passed(whole * 3, []) == whole * 3


@pytest.mark.parametrize(
    ("opcode", "burst", "per_s"),
    [
        (TEXT, FRAMES_BURST, FRAMES_PER_S_MAX),
        (PING, CONTROL_FRAMES_BURST, CONTROL_FRAMES_PER_S_MAX),
    ],
)
def test_frames_at_once_and_per_second_have_a_bound(opcode: int, burst: int, per_s: int) -> None:
    now_s = [0.0]
    received = Received()
    frames = CheckedFrames(cast("WebSocketReader", received), lambda: now_s[0])
    one = frame(opcode)
    frames.feed_data(one * burst)
    now_s[0] += 16 / per_s
    frames.feed_data(one * 16)
    assert received.data == one * (burst + 16)
    frames.feed_data(one * 10_000)
    assert received.data[len(one) * (burst + 16) :].startswith(REFUSED_1009)
    frames.feed_eof()
    assert received.data.endswith(b"EOF")
