"""``poste log erase-names``: names leave a log that is not exported."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from eventstore.log.faults import Finding
from eventstore.log.seam import SEAM
from eventstore.log.verify import verify
from eventstore.stores.open_log import open_log
from http_edge.server.exits import Exit
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle
from tests.contract.test_name_erasure_contract import naming
from tests.contract.test_retention_contract import Mediator
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]


def _log_of(data_dir: Path) -> str:
    data_dir.mkdir()
    url = f"sqlite:{data_dir / 'log.db'}"
    with closing(open_log(url)) as log:
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        erase(mediator, GONE)
        assert naming(log, GONE.encode())
    return url


def test_names_leave_a_log_that_is_not_exported(run: Run, tmp_path: Path) -> None:
    url = _log_of(tmp_path / "data")
    ran = run("log", "erase-names", "--data-dir", str(tmp_path / "data"), "--json")
    assert ran.code == Exit.OK, ran.err
    done = json.loads(ran.out)
    assert (done["identities"], done["rows_changed"] > 5) == (1, True)
    with closing(open_log(url)) as log:
        assert naming(log, GONE.encode()) == []
        assert [found for found in verify(log) if isinstance(found, Finding)] == []
    again = run("log", "erase-names", "--data-dir", str(tmp_path / "data"))
    assert again.code == Exit.OK
    assert "have left the log" in again.out


def test_of_an_exported_log_names_leave_with_those_of_the_export(run: Run, tmp_path: Path) -> None:
    _log_of(tmp_path / "data")
    (tmp_path / "data" / "archive").mkdir()
    ran = run("log", "erase-names", "--data-dir", str(tmp_path / "data"))
    assert ran.code == Exit.USAGE
    assert "poste export compact" in ran.err


def test_of_a_log_whose_rows_have_left_no_names_leave_without_its_archive(
    run: Run, tmp_path: Path
) -> None:
    with closing(open_log(_log_of(tmp_path / "data"))) as log:
        log.mark(SEAM, "the seam")
    ran = run("log", "erase-names", "--data-dir", str(tmp_path / "data"))
    assert ran.code == Exit.USAGE
    assert "poste export compact --to PLACE" in ran.err
