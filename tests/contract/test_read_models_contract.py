"""Both stores make their read models anew, and compare them with what is stored."""

from __future__ import annotations

from contextlib import closing

import pytest

from eventstore.log.errors import ReadModelsMissing
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import rebuild_read_models, wrong_read_models
from tests.log.raw_sql import run_sql
from tests.log.test_read_models import TABLES, counts, fill


def test_what_is_emptied_is_named_and_made_anew(log_url: str) -> None:
    fill(log_url)
    before = counts(log_url)
    with closing(open_store(log_url)) as store:
        assert wrong_read_models(store) == []
        for table in TABLES:
            run_sql(log_url, f"DELETE FROM {table}")
            (wrong,) = wrong_read_models(store)
            assert (wrong.table, wrong.missing, wrong.surplus) == (table, before[table], 0)
            assert counts(log_url)[table] == 0
            rebuild_read_models(store)
            assert counts(log_url) == before
        assert wrong_read_models(store) == []


def test_what_is_dropped_is_noticed_at_the_start(log_url: str) -> None:
    fill(log_url)
    before = counts(log_url)
    run_sql(log_url, "DROP TABLE queue_depths")
    with pytest.raises(ReadModelsMissing):
        open_log(log_url)
    open_store(log_url, makes_missing=True).close()  # as a rebuild that was killed
    with pytest.raises(ReadModelsMissing):
        open_log(log_url)
    with closing(open_store(log_url, makes_missing=True)) as store:
        rebuild_read_models(store)
    open_log(log_url).close()
    assert counts(log_url) == before
