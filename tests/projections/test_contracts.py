"""The table of contracts: what is stored again after it left is in it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from actors.core import commands as c
from eventstore.stores.open_log import open_log
from projections.rebuild.rebuild import rebuild
from projections.spark.export import open_export
from projections.tables.contracts import CONTRACTS
from tests.histories import CROWD, LIMITS, MEDIATOR, START_MS, History, contract
from tests.projections.exports import export_log
from tests.projections.test_rebuild import folded, read

pytestmark = pytest.mark.spark


def test_a_contract_that_left_and_was_stored_again_is_in_its_table(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left with a registration that had been over for long, and was valid still."""
    identity = msgspec.structs.replace(LIMITS.identity, unregistered_age_s_max=60)
    limits = msgspec.structs.replace(LIMITS, identity=identity)
    monkeypatch.setattr("tests.histories.LIMITS", limits)
    one, other = CROWD.identities
    kept = contract(one, other, START_MS / 1000 + 100_000)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history, column = History(log), [*CONTRACTS.columns].index("digest")
        history._ask(one, one, c.SaveContract(kept))
        history.now_ms += 9_060_000
        history._ask(MEDIATOR, one, c.ExpireRecords(10))
        history._ask(one, one, c.Register(contract(one, MEDIATOR, START_MS / 1000 + 100_000)))
        history._ask(one, one, c.SaveContract(kept))
        export_log(log, tmp_path / "export")
        target = tmp_path / "tables"
        found = read(target, rebuild(spark, open_export(str(tmp_path / "export")), str(target)))
        assert found == folded(log)
        assert kept.digest in {row[column] for row in found["contracts"]}
