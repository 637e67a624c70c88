from __future__ import annotations

from typing import Any

import pytest

from http_edge.didcomm.acknowledgement import acknowledged
from http_edge.didcomm.handling import NOTHING, Outcome
from tests.unit.didcomm.asking import NEW, OLD, message, new_id

ASKED: dict[str, Any] = {"~please_ack": {"on": ["RECEIPT"]}}
SILENT = "trust_ping/1.0/ping"


@pytest.mark.parametrize("prefix", [NEW, OLD])
def test_a_message_without_an_answer_is_acknowledged_on_request(prefix: str) -> None:
    asks = message(SILENT, prefix, **ASKED, **{"~thread": {"thid": "thread-1"}})
    assert acknowledged(asks, NOTHING, new_id).reply == {
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
    assert acknowledged(asks, NOTHING, new_id).reply is not None


@pytest.mark.parametrize(
    "decorator", [None, True, [], "RECEIPT", {"on": None}, {"on": []}, {"on": [{}]}, {"on": "x"}]
)
def test_what_asks_for_nothing_gets_nothing(decorator: object) -> None:
    asks = message(SILENT, **{"~please_ack": decorator})
    assert acknowledged(asks, NOTHING, new_id) is NOTHING


def test_who_does_not_ask_gets_nothing() -> None:
    assert acknowledged(message(SILENT), NOTHING, new_id) is NOTHING


@pytest.mark.parametrize("outcome", [Outcome(reply={"@type": "x"}), Outcome(envelope=b"{}")])
def test_an_answer_is_acknowledgement_enough(outcome: Outcome) -> None:
    assert acknowledged(message(SILENT, **ASKED), outcome, new_id) is outcome


def test_the_rest_of_an_outcome_stays() -> None:
    done = Outcome(handed_over=("id-1",), implicit=True, explicit=True)
    told = acknowledged(message(SILENT, **ASKED), done, new_id)
    assert (told.handed_over, told.implicit, told.explicit) == (("id-1",), True, True)


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
    assert acknowledged(message(kind, **ASKED), NOTHING, new_id) is NOTHING
