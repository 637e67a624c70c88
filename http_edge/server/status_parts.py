"""The figures of ``/status`` on work that this mediator does and others may not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
        parts["outbound"] = lambda _status: dict(outbound())
    if push is not None:
        parts["push"] = lambda _status: dict(push())
    if settings.export.to is not None:

        def exported(status: Figures) -> Figures:
            positions = status.get("log_positions", [status.get("log_position")])
            return _joined(export_status.figures_by_database(settings.data_dir, positions, clock()))

        parts["export"] = exported
    if settings.lets_rows_leave:
        parts["archive"] = lambda _status: _joined(
            archive_status.figures_by_database(settings, clock())
        )
    return parts


def _joined(each: Sequence[Figures]) -> Figures:
    return each[0] if len(each) == 1 else {"databases": each}
