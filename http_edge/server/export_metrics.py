"""``/metrics`` of ``poste export --watch``, for mediators that do not export by themselves.

A separate thread answers, so that the faults are visible while the export waits for a store.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.registry import Collector

from actors.host.measures import NAMESPACE, families
from http_edge.crypto.mediator_keys import operators_token
from http_edge.server.metrics import ExportShown, metrics_served, metrics_socket
from http_edge.server.status_files import ArchiveReporter, ExportReporter


@contextlib.contextmanager
def export_metrics(
    listen: str | None,
    token_file: Path,
    reporters: Sequence[ExportReporter],
    archiving: Sequence[ArchiveReporter] = (),
) -> Iterator[None]:
    """Answer operators' ``GET /metrics`` at ``listen``, if given, within the block.

    Raises:
        Stop: the address cannot be used; says what to do.
        KeyFileRefused, OSError: as ``operators_token``.
    """

    async def show() -> Collector:
        return export_shown(reporters, archiving)

    with metrics_socket(listen, "--metrics") as on:
        if on is None:
            yield
            return
        served = metrics_served(show, on, operators_token(token_file))
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="metrics", daemon=True)
        thread.start()
        asyncio.run_coroutine_threadsafe(served.__aenter__(), loop).result()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(served.__aexit__(None, None, None), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def export_shown(
    reporters: Sequence[ExportReporter], archiving: Sequence[ArchiveReporter] = ()
) -> ExportShown:
    """What this process shows now of itself, and of export and archiving of each database."""
    exports, archives = ([each.figures() for each in kind] for kind in (reporters, archiving))
    return ExportShown(exports, archives, families(_measures()))


@cache
def _measures() -> CollectorRegistry:
    """The measures of this process; made once, or each step of the clock would move its start."""
    registry = CollectorRegistry()
    ProcessCollector(NAMESPACE, registry=registry)
    return registry
