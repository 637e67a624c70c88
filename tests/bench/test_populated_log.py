"""The log of very many identities is one that a mediator could have written."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import wrong_read_models
from tests.bench.populated_log import Known, Population, write_population

pytestmark = pytest.mark.postgres
POPULATION = Population(2_500, 240)


def test_a_populated_log_verifies_with_its_read_models(postgres_url: str) -> None:
    known, seen = Known.create(20), list[int]()
    write_population(postgres_url, POPULATION, known, progress=seen.append)
    assert seen == [1_000, 2_000, 2_500]
    with closing(open_log(postgres_url)) as log:
        *findings, summary = verify(log)
        assert findings == []
        assert isinstance(summary, Summary)
        assert summary.rows == summary.seals + POPULATION.identities + 2 * POPULATION.waiting
        figures = log.figures()
        assert figures.identities == POPULATION.identities
        assert figures.queue_messages == POPULATION.waiting
        queues = [log.waiting_queues(did=one.did, limit=2) for one in known.recipients]
        assert [[queue.messages for queue in found] for found in queues] == [[1]] * 20
    with closing(open_store(postgres_url)) as store:
        assert wrong_read_models(store) == []


def test_as_many_wait_as_are_wanted() -> None:
    for waiting in (1, 7, 240, 2_500):
        population = Population(2_500, waiting)
        assert sum(map(population.is_waiting, range(2_500))) == waiting


def test_who_is_known_has_to_be_among_those_that_wait(postgres_url: str) -> None:
    with pytest.raises(ValueError, match="20 are known and 2 wait"):
        write_population(postgres_url, Population(100, 2), Known.create(20))
