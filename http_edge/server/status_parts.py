"""The figures of ``/status`` on work that this mediator does and others may not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actors.host.clock import Clock
from http_edge.admin.health import Figures
from http_edge.server import archive_status, export_status
from http_edge.server.databases_away import read_away
from http_edge.server.status_files import of_databases
from http_edge.settings.settings import Settings


def status_parts(
    settings: Settings,
    clock: Clock,
    figures: Figures,
    *,
    outbound: Callable[[], Mapping[str, int]] | None,
    push: Callable[[], Mapping[str, int]] | None,
) -> Figures:
    """The figures of each part by its name, which follow from the other ``figures``.

    ``outbound`` and ``push`` return the counts of one edge; None if it does no such work.
    """
    parts: Figures = {}
    if away := read_away(settings):
        parts["databases_away"] = {str(number): why for number, why in away.items()}
    if outbound is not None:
        parts["outbound"] = dict(outbound())
    if push is not None:
        parts["push"] = dict(push())
    if settings.export.to is not None:
        positions = figures.get("log_positions", [figures.get("log_position")])
        each = export_status.figures_by_database(settings.data_dir, positions, clock())
        parts["export"] = of_databases(each)
    if settings.has_rounds:
        parts["archive"] = of_databases(archive_status.figures_by_database(settings, clock()))
    return parts
