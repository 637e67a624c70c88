"""A stranger reaches no service of this machine by its public addresses."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any, Final

import pytest

from tests.tidy.modules import ROOT
from tests.unit.outbound.own_machine import OTHERS

_APART: Final = ["unshare", "--map-root-user", "--net"]


def _is_permitted() -> bool:
    """May this process make a network namespace with links in it?"""
    link = ["ip", "link", "add", "here", "type", "veth", "peer", "name", "there"]
    try:
        return subprocess.run([*_APART, *link], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def reached() -> dict[str, Any]:
    """What was reached of a machine that has public addresses itself."""
    if not _is_permitted():
        pytest.skip("no network namespaces")
    program = [*_APART, sys.executable, "-m", "tests.unit.outbound.own_machine"]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    report: dict[str, Any] = json.loads(ran.stdout)
    return report


@pytest.mark.thorough
@pytest.mark.parametrize(
    "way",
    [
        "by its address",
        "by a second address",
        "by IPv6",
        "by a route",
        "by a route of IPv6",
        "by a name",
    ],
)
def test_no_message_goes_to_a_service_of_this_machine(reached: dict[str, Any], way: str) -> None:
    assert reached[way] == "refused"


def test_no_document_is_fetched_from_a_service_of_this_machine(reached: dict[str, Any]) -> None:
    assert reached["connections for a document"] == 0


def test_neighbours_behind_one_proxy_and_what_the_operator_allows_are_reached(
    reached: dict[str, Any],
) -> None:
    assert reached["behind its proxy"] == "accepted"
    assert reached["where it is allowed"] == "accepted"
    assert reached["connections to an allowed host"] == 1


def test_other_machines_are_reached_and_this_one_is_not_where_any_address_may_be_bound(
    reached: dict[str, Any],
) -> None:
    assert reached["if any may be bound"] == list(OTHERS)
