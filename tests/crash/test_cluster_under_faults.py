"""A cluster loses one part after the other under load, at last all but its database."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.cluster.namespace import is_permitted
from tests.crash.cluster_faults import Fault
from tests.crash.cluster_under_faults import run
from tests.crash.conftest import Report

pytestmark = [pytest.mark.crash, pytest.mark.cluster, pytest.mark.postgres]
SERVED_AGAIN_S_MAX: Final = 15.0
BESIDE_S_MAX: Final = 4.0
"""Between two messages, while another database is away for longer, beside all other load."""
FAULTS: Final = [
    Fault.HOST,
    Fault.EDGE,
    Fault.DATABASE,
    Fault.PAUSED_DATABASE,
    Fault.CUT_NODE if is_permitted() else Fault.PAUSED_NODE,
]
"""After these everything but the database is lost. There are more, and any number of them, in
``python -m tests.crash.cluster_under_faults``."""


@pytest.mark.timeout(300)
async def test_no_fault_of_a_cluster_costs_either_protocol_family_anything_but_time(
    tmp_path: Path, report: Report
) -> None:
    outcomes = await run(tmp_path, FAULTS, seed=1)
    report(str(outcomes))
    assert outcomes.is_clean, str(outcomes)
    served_s = {faulted.fault: faulted.served_s for faulted in outcomes.faulted}
    served_s.pop(Fault.EVERYTHING)
    assert max(served_s.values()) <= SERVED_AGAIN_S_MAX
    # A node that was cut off serves on by itself.
    assert outcomes.exit_codes == []


@pytest.mark.timeout(300)
async def test_what_befalls_one_of_several_databases_costs_those_of_the_other_no_service(
    tmp_path: Path, report: Report
) -> None:
    faults = [Fault.DATABASE, Fault.PAUSED_DATABASE, Fault.NODE]
    outcomes = await run(tmp_path, faults, seed=2, databases=2, loses_everything=False)
    report(str(outcomes))
    assert outcomes.is_clean, str(outcomes)
    of_databases = [one for one in outcomes.faulted if one.fault.is_of_database]
    assert [one.fault for one in of_databases] == [Fault.DATABASE, Fault.PAUSED_DATABASE]
    # They were served all the time, while nothing brought the other database back.
    assert all(0.0 < one.beside_s <= BESIDE_S_MAX for one in of_databases)
