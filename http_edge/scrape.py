"""``/metrics``: asks every process of one ``poste serve`` and shows what they told.

It has a listener of its own, apart from the public one: what it shows is for the operator. A
process that does not answer is shown as down, and holds the answer up no longer than a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from aiohttp import hdrs, web

from actors.clock import Clock
from actors.host_report import HostReport
from http_edge import export_status
from http_edge.cli.output import Exit, Stop
from http_edge.config import Settings, split_listen
from http_edge.edge import placement_of
from http_edge.edge_report import EdgeReport
from http_edge.exposition import Seen, exposition
from http_edge.whole_log import logs_by_database

_LOG = logging.getLogger(__name__)
PATH: Final = "/metrics"
_FRESH_S: Final = 1.0
"""However often somebody asks, the processes are asked once in this time."""
_ANSWER_S_MAX: Final = 3.0
"""A host waits 2 s for its writer and its log before it answers without; Prometheus waits 10 s."""
_R = TypeVar("_R")

AskHost: TypeAlias = Callable[[bool], Awaitable[bytes]]
"""The msgpack of ``HostReport``, with the figures of the log or without."""
AskEdge: TypeAlias = Callable[[], Awaitable[bytes]]
"""The msgpack of ``EdgeReport``."""


class Scrape:
    """Asks hosts and edges by name, and remembers their answers for a moment."""

    def __init__(
        self,
        settings: Settings,
        hosts: Mapping[str, AskHost],
        edges: Mapping[str, AskEdge],
        *,
        clock: Clock,
    ) -> None:
        """A scrape that has asked nobody yet."""
        self._settings = settings
        self._placement = placement_of(settings)
        self._hosts = hosts
        self._edges = edges
        self._clock = clock
        self._alone = asyncio.Lock()
        self._seen: Seen | None = None
        self._seen_at_s = 0.0

    async def seen(self) -> Seen:
        """What the processes told, a second ago at most."""
        async with self._alone:
            now_s = asyncio.get_running_loop().time()
            if self._seen is None or now_s - self._seen_at_s >= _FRESH_S:
                self._seen = await self._ask()
                self._seen_at_s = asyncio.get_running_loop().time()
            return self._seen

    async def _ask(self) -> Seen:
        # A database is the same for all, and its figures are a look at every queue: one host asks.
        readers = self._readers()
        hosts, edges = await asyncio.gather(
            asyncio.gather(
                *[_told(ask(name in readers), HostReport) for name, ask in self._hosts.items()]
            ),
            asyncio.gather(*[_told(ask(), EdgeReport) for ask in self._edges.values()]),
        )
        seen = Seen(
            hosts=dict(zip(self._hosts, hosts, strict=True)),
            edges=dict(zip(self._edges, edges, strict=True)),
            shards=self._settings.shards,
            exports=[],
            now_ms=self._clock(),
        )
        return msgspec.structs.replace(seen, exports=self._exports(seen.hosts))

    def _readers(self) -> Collection[str]:
        """The host of each database to ask for its figures: one that answered the last time."""
        last = self._seen.hosts if self._seen is not None else {}
        readers: dict[int, str] = {}
        for name in sorted(self._hosts, key=lambda name: last.get(name) is None):
            readers.setdefault(self._placement.database_of_host(name), name)
        return readers.values()

    def _exports(self, hosts: Mapping[str, HostReport | None]) -> Sequence[dict[str, Any]]:
        if self._settings.export.to is None:
            return []
        told = {name: report.log for name, report in hosts.items() if report is not None}
        logs = logs_by_database(self._placement, told.items())
        positions = [None if log is None else log.log_position for log in logs]
        return export_status.figures_by_database(self._settings.data_dir, positions, self._clock())


async def _told(answer: Awaitable[bytes], kind: type[_R]) -> _R | None:
    """What a process told, or None: whatever is wrong with it, the others are shown."""
    try:
        async with asyncio.timeout(_ANSWER_S_MAX):
            return msgspec.msgpack.decode(await answer, type=kind)
    except Exception as error:  # noqa: BLE001 - Ray has many ways to say that nobody is there
        _LOG.debug("no report of a process: %s", type(error).__name__)
        return None


@contextlib.contextmanager
def listener(listen: str | None) -> Iterator[socket.socket | None]:
    """A socket that listens where measures are to be asked for; None if nowhere.

    Raises:
        Stop: the address cannot be used; says what to do.
    """
    if listen is None:
        yield None
        return
    host, port = split_listen(listen)
    try:
        found = socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        reason = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise Stop(
            Exit.USAGE,
            f"The address {listen} for measures cannot be used: {reason}.",
            "Set metrics_listen to another address, or leave it out.",
        ) from error
    with found:
        yield found


@contextlib.asynccontextmanager
async def showing(scrape: Scrape, on: socket.socket | None) -> AsyncIterator[None]:
    """Answer ``GET /metrics`` on a socket within the block; without one, nothing happens."""
    if on is None:
        yield
        return

    async def show(request: web.Request) -> web.Response:
        accept = request.headers.get(hdrs.ACCEPT, "")
        text, content_type = exposition(await scrape.seen(), accept)
        return web.Response(body=text, headers={hdrs.CONTENT_TYPE: content_type})

    app = web.Application()
    app.router.add_get(PATH, show)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.SockSite(runner, on).start()
        host, port = on.getsockname()[:2]
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _LOG.info("measures are shown", extra={"url": f"http://{address}{PATH}"})
        yield
    finally:
        await runner.cleanup()
