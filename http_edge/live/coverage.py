"""Sees to it that an export reaches a position of the log, whoever exports.

Whoever verifies exports himself what is missing. Where ``poste serve`` or ``poste export --watch``
exports already, nobody else may; then it is waited for.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from eventstore.log import EventLog
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.errors import ExportRefused
from eventstore.parquet.files import ExportPlace
from http_edge.config import Settings
from http_edge.exporting import OtherExporter, exporter_of

_LOOK_S: Final = 0.3
_GRACE_S: Final = 120.0
"""Beyond the lag that the exporter is allowed: the time to write what has come together."""


def covered(settings: Settings, log: EventLog, place: ExportPlace, position: int) -> Catalog:
    """The catalog of the export, which reaches ``position``, the end of a transaction.

    Raises:
        ExportRefused: the export is of another mediator, or the other exporter does not get there.
        ExportError, LogError, KeyFileRefused: as ``exporter_of``.
    """
    give_up_s = time.monotonic() + settings.export.lag_s_max + _GRACE_S
    while True:
        catalog = catalog_of(place, None)
        if catalog.last >= position:
            return catalog
        try:
            with exporter_of(settings, log, place) as exporter:
                while exporter.catalog.last < position and exporter.step() is not None:
                    pass
                if exporter.catalog.last < position:
                    raise ExportRefused(f"the log has no seal at position {position}")
        except OtherExporter:
            if time.monotonic() > give_up_s:
                raise ExportRefused(
                    f"another process exports to {place.address()}, and does not reach"
                    f" position {position}"
                ) from None
            threading.Event().wait(_LOOK_S)
