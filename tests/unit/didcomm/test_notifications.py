from __future__ import annotations

from typing import Any

import pytest

from http_edge.didcomm.envelopes.messages import Reply
from http_edge.didcomm.protocols.notifications import acknowledged, families
from http_edge.didcomm.protocols.protocol import NOTHING, Outcome
from tests.unit.didcomm.requests import NEW, OLD, message, outcome, written

FAMILIES = {(family.name, family.major): family for family in families()}
WANTS_ACK: dict[str, Any] = {"~please_ack": {"on": ["RECEIPT"]}}
SILENT = "trust_ping/1.0/ping"


@pytest.mark.parametrize("prefix", [NEW, OLD])
def test_a_message_without_an_answer_is_acknowledged_on_request(prefix: str) -> None:
    asks = message(SILENT, prefix, **WANTS_ACK, **{"~thread": {"thid": "thread-1"}})
    assert written(acknowledged(asks, NOTHING).reply, asks) == {
        "@type": prefix + "notification/1.0/ack",
        "@id": "reply-1",
        "~thread": {"thid": "thread-1"},
        "status": "OK",
    }


@pytest.mark.parametrize(
    "decorator", [{}, {"on": ["RECEIPT"]}, {"on": ["OUTCOME"]}, {"on": ["OUTCOME", "RECEIPT"]}]
)
def test_receipt_and_outcome_are_acknowledged_once(decorator: object) -> None:
    asks = message(SILENT, **{"~please_ack": decorator})
    assert acknowledged(asks, NOTHING).reply is not None


@pytest.mark.parametrize(
    "decorator", [None, True, [], "RECEIPT", {"on": None}, {"on": []}, {"on": [{}]}, {"on": "x"}]
)
def test_what_asks_for_nothing_gets_nothing(decorator: object) -> None:
    asks = message(SILENT, **{"~please_ack": decorator})
    assert acknowledged(asks, NOTHING) is NOTHING


def test_who_does_not_ask_gets_nothing() -> None:
    assert acknowledged(message(SILENT), NOTHING) is NOTHING


@pytest.mark.parametrize("answered", [Outcome(reply=Reply("x")), Outcome(envelope=b"{}")])
def test_an_answer_is_acknowledgement_enough(answered: Outcome) -> None:
    assert acknowledged(message(SILENT, **WANTS_ACK), answered) is answered


def test_the_rest_of_an_outcome_stays() -> None:
    done = Outcome(handed_over=("id-1",), implicit=True)
    made = acknowledged(message(SILENT, **WANTS_ACK), done)
    assert (made.handed_over, made.implicit) == (("id-1",), True)


@pytest.mark.parametrize(
    "kind",
    [
        "routing/1.0/forward",
        "notification/1.0/ack",
        "notification/1.0/problem-report",
        "connections/1.0/problem_report",
    ],
)
def test_forwards_acknowledgements_and_problem_reports_are_never_acknowledged(kind: str) -> None:
    assert acknowledged(message(kind, **WANTS_ACK), NOTHING) is NOTHING


@pytest.mark.parametrize("prefix", [NEW, OLD])
@pytest.mark.parametrize("name", ["report-problem", "notification"])
@pytest.mark.parametrize("kind", ["problem-report", "ack"])
async def test_what_others_report_is_never_answered(prefix: str, name: str, kind: str) -> None:
    report = message(f"{name}/1.0/{kind}", prefix, description={"code": "x"}, status="OK")
    assert await outcome(FAMILIES[name, 1], report) == NOTHING


async def test_a_report_of_the_newer_protocol_and_an_empty_message_are_not_answered() -> None:
    for name, major, kind in (("report-problem", 2, "problem-report"), ("empty", 1, "empty")):
        said = message(f"{name}/{major}.0/{kind}")
        assert await outcome(FAMILIES[name, major], said) == NOTHING
