"""An answer that leaves in one piece says what any other would, and waits for slow readers too."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

import pytest

from tests.edge.bare_edge import Edge, edge_with, until
from tests.edge.mediator import WAIT_S

_SHOWN: Final = ("access-control-allow-origin", "content-type", "x-request-id", "server")
_LONG: Final = bytes(100_000)


def post(body: bytes, head: str = "", version: str = "1.1", path: str = "/brief") -> bytes:
    return (
        f"POST {path} HTTP/{version}\r\nHost: x\r\nX-Request-Id: mine\r\n"
        f"Content-Length: {len(body)}\r\n{head}\r\n"
    ).encode() + body


async def answered(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Status, headers with names in lower case, and body of the next answer."""
    async with asyncio.timeout(WAIT_S):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status_line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): text for name, _, text in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers["content-length"]))
    return int(status_line.split()[1]), headers, body


async def answer_to(edge: Edge, request: bytes) -> tuple[int, dict[str, str], bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
    try:
        writer.write(request)
        return await answered(reader)
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("request_bytes", "connection"),
    [
        (post(b"hello", path="/ahead"), None),
        (post(b"hello", "Connection: close\r\n"), "close"),
        (post(b"hello", version="1.0"), None),
        (post(b"hello", "Connection: keep-alive\r\n", version="1.0"), "keep-alive"),
    ],
    ids=["that is done later", "that is the last", "of HTTP/1.0", "of HTTP/1.0 and more to come"],
)
async def test_an_answer_says_the_same_in_one_piece_and_to_a_request_out_of_the_ordinary(
    tmp_path: Path, request_bytes: bytes, connection: str | None
) -> None:
    async with edge_with(tmp_path) as edge:
        status, headers, body = await answer_to(edge, post(b"hello"))
        assert (status, body) == (HTTPStatus.OK, b"hello")
        assert {name: headers[name] for name in _SHOWN} == {
            "access-control-allow-origin": "*",
            "content-type": "text/plain",
            "x-request-id": "mine",
            "server": "poste",
        }
        other_status, others, other_body = await answer_to(edge, request_bytes)
        assert others.pop("connection", None) == connection
        first, second = (parsedate_to_datetime(each.pop("date")) for each in (headers, others))
        assert timedelta() <= second - first < timedelta(days=1)
        assert (other_status, others, other_body) == (status, headers, body)


async def test_a_header_that_a_handler_adds_is_sent(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge:
        status, headers, body = await answer_to(edge, post(b"hello", path="/headed"))
        assert (status, headers["retry-after"], body) == (HTTPStatus.OK, "7", b"hello")
        assert headers["content-type"] == "text/plain"


async def test_long_and_short_answers_on_one_connection_come_in_the_order_of_their_requests(
    tmp_path: Path,
) -> None:
    bodies = [b"first", _LONG, b"", b"last"]
    async with edge_with(tmp_path) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(b"".join(map(post, bodies)))
        assert [(await answered(reader))[2] for _ in bodies] == bodies
        writer.close()
        await writer.wait_closed()


async def test_who_reads_none_of_many_short_answers_is_answered_no_further(tmp_path: Path) -> None:
    async with edge_with(tmp_path) as edge:
        body = bytes(32_768)
        client = await edge.connect(post(body))
        sending = asyncio.ensure_future(
            asyncio.get_running_loop().sock_sendall(client, post(body) * 2_000)
        )
        await until(lambda: edge.unread_bytes > 0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(sending, 0.2)
        # What paused the connection, and the one that waits for the client to read.
        (connection,) = edge.open_connections
        assert connection._left_bytes() <= 2 * (len(body) + 1_024)
