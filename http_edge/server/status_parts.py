"""The figures of ``/status`` on work that this mediator does and others may not."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from actors.host.clock import Clock
from http_edge.admin.health import Figures
from http_edge.server import archive_status, export_status
from http_edge.settings.settings import Settings


def status_parts(
    settings: Settings,
    clock: Clock,
    *,
    outbound: Callable[[], Mapping[str, int]] | None,
    push: Callable[[], Mapping[str, int]] | None,
) -> Mapping[str, Callable[[Figures], Figures]]:
    """Return functions from the other figures to those of a part, by the name of the part.

    ``outbound`` and ``push`` return the counts of one edge; None if it does no such work.
    """
    parts: dict[str, Callable[[Figures], Figures]] = {}
    if outbound is not None:
        parts["outbound"] = _alone(outbound)
    if push is not None:
        parts["push"] = _alone(push)
    if settings.export.to is not None:
        parts["export"] = _export_figures(settings, clock)
    if settings.lets_rows_leave:
        parts["archive"] = _archive_figures(settings, clock)
    return parts


def _export_figures(settings: Settings, clock: Clock) -> Callable[[Figures], Figures]:
    """A function from the figures of ``/status`` to those of the export, for each database."""

    def figures(status: Figures) -> Figures:
        positions = status.get("log_positions", [status.get("log_position")])
        each = export_status.figures_by_database(settings.data_dir, positions, clock())
        return each[0] if len(each) == 1 else {"databases": each}

    return figures


def _alone(figures: Callable[[], Mapping[str, int]]) -> Callable[[Figures], Figures]:
    """A function that needs no other figures, in the form of those that do."""
    return lambda _status: dict(figures())


def _archive_figures(settings: Settings, clock: Clock) -> Callable[[Figures], Figures]:
    databases = len(settings.log_dsns)

    def figures(_status: Figures) -> Figures:
        each = archive_status.figures_by_database(settings.data_dir, clock(), databases)
        return each[0] if len(each) == 1 else {"databases": each}

    return figures
