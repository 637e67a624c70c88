"""The names of who was never here leave an export and an archive as those of others do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import pytest

from eventstore.log.event_log import EventLog
from eventstore.log.streams import erased_name, identity_stream
from eventstore.parquet.files import ExportPlace
from eventstore.stores.open_log import open_log
from tests.contract.test_foreign_names import erase_foreign
from tests.contract.test_name_erasure_contract import naming, send, take_out_names
from tests.contract.test_retention_contract import DAY_S, Mediator
from tests.export.leaving import assert_whole, leave
from tests.export.samples import export_all, findings
from tests.export.test_names_in_export import (
    GONE,
    STAYS,
    STEPS,
    acknowledge,
    end_contracts,
    names_of,
    places_of,
    take_out,
)
from tests.unit.actors.given import NOW_S, registration, run, submission

SENT: Final = 10


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as opened:
        yield opened


@pytest.fixture
def mediator(log: EventLog, place: ExportPlace) -> Mediator:
    """One identity, to whom another one has written that was never here; all is exported."""
    made = Mediator(log)
    run(made.host, submission(STAYS, registration(STAYS, NOW_S + DAY_S)))
    for number in range(SENT):
        send(made, STAYS, GONE, b"%d" % number)
    export_all(log, place, STEPS)
    return made


def test_who_was_never_here_stands_in_no_file_of_an_export(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    erase_foreign(mediator, GONE)
    export_all(log, place, STEPS)
    take_out(log, place)
    waiting = ["message-queued.2"] * SENT
    assert naming(log, GONE.encode()) == ["contract-stored.1", *waiting]
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    export_all(log, place, STEPS)
    assert take_out(log, place).names > SENT
    assert places_of(place, GONE) == []
    assert places_of(place, erased_name(GONE))
    assert naming(log, GONE.encode()) == []
    assert findings(place) == []


def test_who_was_never_here_leaves_an_archive_of_rows_that_have_left_the_log(
    mediator: Mediator, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    assert leave(log, place).left > SENT
    erase_foreign(mediator, GONE)
    export_all(log, place, STEPS)
    take_out_names(log)
    leave(log, place)
    assert take_out(log, place).names > SENT
    assert places_of(place, GONE) == []
    assert naming(log, GONE.encode()) == []
    assert findings(place) == []
    assert_whole(log, f"sqlite:{tmp_path / 'log.db'}")


@pytest.mark.parametrize("is_nameless", [True, False])
def test_rows_of_who_came_later_have_its_name_in_the_export(
    mediator: Mediator, log: EventLog, place: ExportPlace, *, is_nameless: bool
) -> None:
    erase_foreign(mediator, GONE)
    export_all(log, place, STEPS)
    if is_nameless:
        take_out(log, place)
    signed = registration(GONE, NOW_S + 9 * DAY_S)
    run(mediator.host, submission(GONE, signed))
    export_all(log, place, STEPS)
    named = names_of(place, identity_stream(GONE).bytes)
    assert named[max(named)] == GONE
    assert findings(place) == []
