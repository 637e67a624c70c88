"""What ``poste verify --live`` does: the memory of a running mediator against its exports.

Each database of the log has an export of its own; what is told of them is told once.
"""

from __future__ import annotations

import http.client
import json
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from eventstore.log import EventLog
from eventstore.parquet.errors import ExportDamaged
from eventstore.parquet.files import ExportPlace, open_place
from http_edge.cli.log import require_existing
from http_edge.cli.nearby import exchange, refuse_unless_ok
from http_edge.cli.output import Exit, Stop, progress_bar
from http_edge.cli.projections_program import answer_of_program
from http_edge.config import Settings
from http_edge.live.collect import Collector, NotNow, exported_identities
from http_edge.live.coverage import covered
from http_edge.live.dump import DumpWriter
from http_edge.log_reading import opened_to_read
from http_edge.mediator_keys import load_or_create
from http_edge.operators import operator_token

_ANSWER_S_MAX: Final = 60.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024


class LiveOptions(NamedTuple):
    """Where the live state is asked for, and how Spark is started."""

    url: str
    spark: Sequence[str]


class _Database(NamedTuple):
    """One database of the log and where it is exported to."""

    settings: Settings
    log: EventLog
    place: ExportPlace

    def covered(self, position: int) -> None:
        covered(self.settings, self.log, self.place, position)


def export_rest(each: Sequence[Settings]) -> None:
    """Export what is missing of each database, as far as its export is sound.

    If it is not, a check of the export says so. Raises as ``http_edge.live.coverage.covered``.
    """
    for settings in each:
        require_existing(settings.log_dsn)
    with ExitStack() as stack, progress_bar("Exporting"):
        for database in _opened(each, stack):
            try:
                database.covered(database.log.position())
            except ExportDamaged:
                continue


def compare_live(each: Sequence[Settings], target: str, options: LiveOptions) -> dict[str, Any]:
    """What ``projections compare`` found; ``projections/compare.py`` says what is in it.

    ``target`` is the place of the export, or of the exports of all databases.

    Raises:
        Stop: the mediator cannot be asked, or Spark does not answer.
        NotServed: a host does not answer.
        ExportError, LogError, KeyFileRefused: as ``http_edge.live.coverage.covered``.
    """
    with tempfile.TemporaryDirectory(prefix="poste-live-") as name:
        _dump(each, options.url, Path(name))
        with progress_bar("Comparing"):
            arguments = ["compare", "--from", target, "--live", name, "--json", *options.spark]
            code, answer = answer_of_program(arguments)
    try:
        compared = json.loads(answer)
    except ValueError:
        compared = None
    if not isinstance(compared, dict):
        raise Stop(Exit.INTERNAL, f"the comparison ended without an answer, exit code {code}")
    return compared


def _dump(each: Sequence[Settings], url: str, folder: Path) -> None:
    token = operator_token(load_or_create(each[0].keys_path))

    def ask(question: bytes) -> bytes:
        status, answer = exchange(
            "POST",
            url,
            "/memory",
            token=token,
            body=question,
            seconds_max=_ANSWER_S_MAX,
            bytes_max=_ANSWER_BYTES_MAX,
        )
        if status in {http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS}:
            raise NotNow(f"{url}/memory answered {status}")
        refuse_unless_ok(status, url, "/memory")
        return answer

    with ExitStack() as stack:
        databases = _opened(each, stack)
        after = [database.log.position() for database in databases]
        shards = 0
        for database, position in zip(databases, after, strict=True):
            catalog = covered(database.settings, database.log, database.place, position)
            assert catalog.head is not None
            shards = catalog.head.shards
        with DumpWriter(folder) as writer, progress_bar("Asking the mediator") as progress:
            targets = {name for one in databases for name in exported_identities(one.place)}
            Collector(ask, writer).collect(targets, shards, progress)
        before = [database.log.position() for database in databases]
        with progress_bar("Exporting"):
            for database, position in zip(databases, before, strict=True):
                database.covered(position)
    writer.finish(after=after, before=before)


def _opened(each: Sequence[Settings], stack: ExitStack) -> list[_Database]:
    found = []
    for settings in each:
        assert settings.export.to is not None
        log = stack.enter_context(closing(opened_to_read(settings)))
        found.append(_Database(settings, log, open_place(settings.export.to)))
    return found
