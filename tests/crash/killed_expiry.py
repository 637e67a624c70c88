"""A host whose thread removes what is due and that kills itself at a commit; forked."""

from __future__ import annotations

import threading
from contextlib import closing
from typing import Final

from actors.core.limits import RetentionPace
from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from eventstore.stores.sqlite_log import SqliteRecorder
from tests.contract.test_retention_contract import Mediator
from tests.export.killed_exporter import Steps
from tests.forked import exit_code_of

_END_S: Final = 60
PACE: Final = RetentionPace(
    look_s=0.001, pause_s=0.001, identities_per_step_max=2, records_per_step_max=2
)


def contents_in(log: EventLog) -> int:
    """How many contents a log has."""
    return len(log.read_contents(after=0, until=10**9))


def _expire(dsn: str, fatal: int, passed_s: float) -> None:
    steps = Steps("no file", fatal)
    steps.around(SqliteRecorder, "insert_events")
    ended = threading.Event()
    with closing(open_log(dsn)) as log:

        def look() -> None:
            if not contents_in(log):
                ended.set()

        mediator = Mediator(log, pace=PACE, name=f"host-{fatal}", on_look=look)
        mediator.pass_s(passed_s)
        mediator.expiry.start()
        ended.wait(_END_S)
        mediator.expiry.stop()


def exit_code(dsn: str, fatal: int, passed_s: float) -> int | None:
    """How a process ended whose host removes all that is due so many seconds later.

    It kills itself at step ``fatal``, one before and one after each commit.
    """
    return exit_code_of(_expire, dsn, fatal, passed_s)
