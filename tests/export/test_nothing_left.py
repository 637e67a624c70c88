"""Of who is erased from a log in SQLite, rounds leave nothing in any byte of the data directory."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from actors.core.commands import QueueMessage, SaveContract
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from http_edge.server.archive_round import archive_once
from http_edge.settings.sections import Archive, Export
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_name_erasure_contract import naming
from tests.contract.test_retention_contract import DAY_S, Mediator
from tests.export.leaving import LATER_MS, settings_of
from tests.export.samples import findings
from tests.export.test_names_in_export import (
    GONE,
    STAYS,
    acknowledge,
    end_contracts,
    places_of,
)
from tests.log.stored import faults
from tests.unit.actors.given import NOW_S, contract, run, submission

PART = GONE[16:40].encode()
"""Of the DID, so that a part of a row that was cut or overwritten is found, too."""


def holding(folder: Path) -> list[str]:
    """The files under a folder that have a part of the DID in them."""
    files = [one for one in sorted(folder.rglob("*")) if one.is_file()]
    return [one.relative_to(folder).as_posix() for one in files if PART in one.read_bytes()]


def test_who_is_erased_stands_in_no_byte_of_log_and_archive(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path / "data", archive=Archive(rows_age_s_min=0), export=Export(replaced_kept_s=0)
    )
    archive = open_place(settings.archive_place)

    def one_round() -> None:
        archive_once(
            settings, is_checked=False, takes_out_erased=True, prunes=False, clock=lambda: LATER_MS
        )

    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", str(settings.shards))
        mediator = Mediator(log)
        for did in (GONE, STAYS):
            settle(mediator, did)
        for to, sender in ((STAYS, GONE), (GONE, STAYS)):
            signed = SaveContract(contract(to, sender, NOW_S + DAY_S))
            message = QueueMessage(sender, b"to " + to.encode())
            run(mediator.host, submission(to, signed), submission(to, message, sender=sender))
        for did in (GONE, STAYS):
            acknowledge(mediator, did)
        end_contracts(mediator)
        one_round()
        assert holding(tmp_path / "data")
        assert places_of(archive, GONE)
        erase(mediator, GONE)
        for _ in range(3):
            one_round()
        assert naming(log, GONE.encode()) == []
        assert faults(log) == []
    assert holding(tmp_path / "data") == []
    assert places_of(archive, GONE) == []
    assert findings(archive) == []
