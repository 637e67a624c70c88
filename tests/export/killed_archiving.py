"""A round of archiving that kills its process, in one that a server forks."""

from __future__ import annotations

from deltalake import DeltaTable

from eventstore.parquet.write import table
from eventstore.stores.recorder_log import RecorderLog
from http_edge.server.archive_round import archive_once
from http_edge.settings.settings import Settings
from tests.export.killed_exporter import Steps
from tests.export.leaving import LATER_MS
from tests.forked import exit_code_of


def _round(settings_text: str, fatal: int) -> None:
    settings = Settings.model_validate_json(settings_text)
    steps = Steps(settings.archive_place, fatal)
    steps.around(RecorderLog, "let_leave")
    steps.around(DeltaTable, "create_write_transaction")
    steps.around(table, "create_table_with_add_actions")
    archive_once(settings, is_checked=False, clock=lambda: LATER_MS)


def exit_code(settings: Settings, fatal: int) -> int | None:
    """How a process ended that does one round, and kills itself at step ``fatal``.

    A step is before or after a commit: of rows that leave, or of a version of the archive.
    """
    return exit_code_of(_round, settings.model_dump_json(), fatal)
