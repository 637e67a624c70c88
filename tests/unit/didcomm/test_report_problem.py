from __future__ import annotations

import pytest

from http_edge.didcomm.families import report_problem
from http_edge.didcomm.handling import NOTHING
from tests.unit.didcomm.asking import NEW, OLD, message, outcome

FAMILIES = {family.name: family for family in report_problem.families()}


@pytest.mark.parametrize("prefix", [NEW, OLD])
@pytest.mark.parametrize("name", ["report-problem", "notification"])
@pytest.mark.parametrize("kind", ["problem-report", "ack"])
async def test_what_is_only_told_is_never_answered(prefix: str, name: str, kind: str) -> None:
    told = message(f"{name}/1.0/{kind}", prefix, description={"code": "x"}, status="OK")
    assert await outcome(FAMILIES[name], told) == NOTHING
