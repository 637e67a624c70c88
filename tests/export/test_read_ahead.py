"""A step that was read ahead has nothing that was erased before it was written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from actors.core.account_commands import ClaimKey, ReleaseKey
from actors.core.commands import QueueMessage, SaveContract
from actors.core.replies import KeyClaim
from eventstore.log import name_erasure
from eventstore.log.event_log import EventLog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.write.erasing import contents_in
from eventstore.parquet.write.exporter import Exporter
from eventstore.parquet.write.step import Bounds, ExportStep
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle
from tests.contract.test_name_erasure_contract import naming
from tests.contract.test_retention_contract import DAY_S, Mediator
from tests.export.samples import export_all, exported_log, exporter, findings, whole_log
from tests.export.test_names_in_export import acknowledge, log, places_of
from tests.unit.actors.given import NOW_S, contract, run, submission, unclaimed

__all__ = ["log"]

KEY = "z6MkOfWhoGoesAlone"
EACH = Bounds(rows_max=1, bytes_max=1_000_000)
"""Each seal ends a step."""


@contextmanager
def with_one_read_ahead(
    log: EventLog, place: ExportPlace, is_wanted: Callable[[ExportStep], bool]
) -> Iterator[Exporter]:
    """An exporter that has made the steps before a wanted one, which it has read."""
    with closing(exporter(log, place, EACH)) as export:
        read: ExportStep | None = None
        while read is None or not is_wanted(read):
            assert export.step() is not None
            ahead = export._steps._ahead
            assert ahead is not None
            _, read = ahead[1].result()
        yield export


def release_key_of_erased(log: EventLog, place: ExportPlace) -> None:
    """Let a key of an erased identity be released behind all that is exported of it."""
    mediator, name = Mediator(log), f"key:{KEY}"
    settle(mediator, GONE)
    (claim,) = run(mediator.host, unclaimed(name, ClaimKey(GONE, holds_key=True)))
    assert isinstance(claim, KeyClaim)
    erase(mediator, GONE)
    export_all(log, place)
    settle(mediator, STAYS)
    export_all(log, place)
    run(mediator.host, submission(STAYS, SaveContract(contract(STAYS, STAYS, NOW_S + DAY_S))))
    run(mediator.host, unclaimed(name, ReleaseKey(GONE, claim.number)))


def test_no_step_has_a_content_that_was_erased_before_what_was_erased_was_taken_out(
    log: EventLog, place: ExportPlace
) -> None:
    mediator = Mediator(log)
    settle(mediator, STAYS)
    run(mediator.host, submission(STAYS, SaveContract(contract(STAYS, GONE, NOW_S + DAY_S))))
    export_all(log, place)
    for payload in (b"first", b"second"):
        run(mediator.host, submission(STAYS, QueueMessage(GONE, payload), sender=GONE))
    with with_one_read_ahead(log, place, lambda read: contents_in(read.table) > 0) as export:
        acknowledge(mediator, STAYS)
        export.take_out_erased()
        while export.step():
            pass
    assert [row.content for row in exported_log(place)] == [row.content for row in whole_log(log)]
    assert findings(place) == []


def test_no_step_has_a_name_that_left_the_log_before_it_was_written(
    log: EventLog, place: ExportPlace
) -> None:
    release_key_of_erased(log, place)
    with with_one_read_ahead(log, place, lambda read: read.last == log.position()) as export:
        export.take_out_erased()
        assert naming(log, KEY.encode()) == []
        while export.step():
            pass
        export.sweep()
    assert places_of(place, KEY) == []
    assert findings(place) == []


def test_an_export_goes_on_while_names_leave_the_log_and_no_step_brings_one_back(
    log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(name_erasure, "_ROWS", 3)
    release_key_of_erased(log, place)
    naming_then: list[int] = []

    def go_on(_reached: int, _end: int) -> None:
        assert export.is_certain, "a step that cannot read the log would end this"
        if not naming_then:
            assert export.step() is not None
            naming_then.append(len(naming(log, KEY.encode())))
            ahead = export._steps._ahead
            assert ahead is not None
            ahead[1].result()

    with closing(exporter(log, place, EACH)) as export:
        export.take_out_erased(go_on)
        assert naming_then != [0]
        assert naming(log, KEY.encode()) == []
        while export.step():
            pass
        export.sweep()
    assert places_of(place, KEY) == []
    assert findings(place) == []
