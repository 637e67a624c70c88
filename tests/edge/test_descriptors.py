"""An edge that may open few files, and strangers who want more connections than that."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp
import pytest

from http_edge.crypto.mediator_keys import load_operators_token
from http_edge.settings.settings import Settings
from tests.cluster.server import own_environment, ready_url
from tests.edge.mediator import WAIT_S
from tests.ports import free_port

_FILES: Final = 1_100
"""The hard limit; the soft one is half of it, and the edge raises it."""
_PROGRAM: Final = (
    f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({_FILES // 2}, {_FILES}));"
    "from tests.bench.echo_edge import main; main()"
)
_STRANGERS: Final = [f"127.0.0.{number}" for number in range(2, 7)]
_OF_EACH: Final = 220
"""Fewer than the bodies that one address may have on their way; more than all files together."""
_UNFINISHED: Final = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{"


@contextmanager
def _edge(data_dir: Path, operators_port: int) -> Iterator[tuple[int, str]]:
    """The process of an edge, and where it is."""
    named = {
        "did": "did:web:mediator.example",
        "listen": "127.0.0.1:0",
        "operators.listen": f"127.0.0.1:{operators_port}",
    }
    settings = [f"--set={name}={value}" for name, value in named.items()]
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, f"--data-dir={data_dir}", *settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        env=own_environment(),
    )
    try:
        assert process.stdout is not None
        with process.stdout as output:
            url = ready_url(output)
        yield process.pid, url
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def files_for_a_crowd() -> Iterator[None]:
    """This process may open more files than the edge, which most shells do not let it at first."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY != hard < 2 * _FILES:
        pytest.skip(f"no process may open more than {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2 * _FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@asynccontextmanager
async def _crowd(url: str) -> AsyncIterator[None]:
    """Connections of strangers, each with a request that does not end; one was refused at last."""
    where = urlsplit(url)
    opened: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    reading: list[asyncio.Task[bytes]] = []
    try:
        with suppress(ConnectionError):  # one that is reset at once
            for source in _STRANGERS * _OF_EACH:
                reader, writer = await asyncio.open_connection(
                    where.hostname, where.port, local_addr=(source, 0)
                )
                opened.append((reader, writer))
                writer.write(_UNFINISHED)
            reading = [asyncio.create_task(reader.read()) for reader, _ in opened]
            async with asyncio.timeout(WAIT_S):
                await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
        yield
    finally:
        for _, writer in opened:
            writer.transport.abort()
        await asyncio.gather(*reading, return_exceptions=True)


def _files_of(pid: int) -> list[Path]:
    """What a process has open."""
    return list(Path(f"/proc/{pid}/fd").iterdir())


@pytest.mark.usefixtures("files_for_a_crowd")
async def test_operators_are_served_while_strangers_hold_every_connection_there_may_be(
    tmp_path: Path,
) -> None:
    port = free_port()
    with _edge(tmp_path, port) as (pid, url):
        token = load_operators_token(Settings(data_dir=tmp_path).operators_token_path)
        async with _crowd(url), aiohttp.ClientSession() as operator:
            open_files = len(_files_of(pid))
            assert _FILES // 2 < open_files < _FILES
            headers = {"Authorization": f"Bearer {token}"}
            for path in ("/status", "/queues", "/health"):
                answer = await operator.get(f"http://127.0.0.1:{port}{path}", headers=headers)
                assert answer.status == 200, path
