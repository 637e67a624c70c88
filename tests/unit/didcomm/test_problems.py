from __future__ import annotations

import pytest

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, read_type
from http_edge.didcomm.protocols.problems import (
    Problem,
    problem_of,
    report_of,
)
from http_edge.didcomm.protocols.protocol import refusal
from http_edge.didcomm.protocols.report_limit import ReportLimit
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.requests import NEW, OLD, message, written


def problem_report(to: Message, problem: Problem | InvalidMember) -> Json:
    return written(report_of(problem), to)


LIVE = message("messagepickup/2.0/live-delivery-change", live_delivery=True)


def test_live_mode_where_it_cannot_be_is_reported_as_rfc_0685_says() -> None:
    assert problem_report(LIVE, Problem.LIVE_MODE_NOT_SUPPORTED) == {
        "@type": "https://didcomm.org/notification/1.0/problem-report",
        "@id": "reply-1",
        "~thread": {"thid": "message-1", "pthid": "message-1"},
        "description": {
            "code": "e.m.live-mode-not-supported",
            "en": "Connection does not support Live Delivery",
        },
        "who_retries": "none",
    }


def test_a_report_names_the_message_and_stays_in_its_thread() -> None:
    late = message("trust_ping/1.0/ping", **{"~thread": {"thid": "thread-1"}})
    report = problem_report(late, Problem.TRY_AGAIN)
    assert report["~thread"] == {"thid": "thread-1", "pthid": "message-1"}
    assert report["who_retries"] == "you"
    assert problem_report(late, Problem.NOT_CONNECTED)["who_retries"] == "none"


@pytest.mark.parametrize("prefix", [NEW, OLD])
def test_a_report_has_the_prefix_of_its_message(prefix: str) -> None:
    report = problem_report(message("x/9.0/y", prefix), Problem.UNKNOWN_MESSAGE_TYPE)
    assert report["@type"] == prefix + "notification/1.0/problem-report"


def test_every_problem_has_a_code_and_a_sentence_of_its_own() -> None:
    assert len({problem.sentence for problem in Problem}) == len(Problem)
    assert all(problem.value and problem.sentence for problem in Problem)


def test_a_code_of_report_problem_2_has_a_sorter_a_scope_and_descriptors() -> None:
    for problem in set(Problem) - {Problem.MISSING_VALUE, Problem.NOT_REGISTERED_FOR_PUSH}:
        report = report_of(problem)
        sorter, scope, *descriptors = report.code_of(LIVE).split(".")
        assert (sorter, scope) in {("e", "p"), ("e", "m")}
        assert all(descriptors)


def test_the_code_of_an_invalid_member_names_the_type_of_its_message() -> None:
    asks = message("trust_ping/1.0/ping", OLD)
    report = report_of(InvalidMember("limit", "must be an integer, 0 or more"))
    assert report.code_of(asks) == f"e.p.msg.{OLD}trust_ping/1.0/ping"


def test_a_protocol_with_reports_of_its_own_writes_the_newer_code() -> None:
    report = report_of(Problem.NOT_CONNECTED, is_own=True)
    assert written(report, LIVE) == {
        "@type": "https://didcomm.org/messagepickup/2.0/problem-report",
        "@id": "reply-1",
        "~thread": {"thid": "message-1", "pthid": "message-1"},
        "description": {
            "code": "e.p.req.not_enroll",
            "en": "The sender is not connected; in DIDComm v2 a mediate-request connects it",
        },
    }


def test_every_refusal_has_a_problem() -> None:
    said = {refusal: problem_of(refusal) for refusal in Refusal}
    assert said[Refusal.TEMPORARILY_UNAVAILABLE] is Problem.TRY_AGAIN
    assert said[Refusal.NOT_CONNECTED] is Problem.NOT_CONNECTED
    assert said[Refusal.NOT_MEDIATED] is Problem.NOT_MEDIATED
    assert said[Refusal.KEY_TAKEN] is Problem.KEY_TAKEN
    assert said[Refusal.QUOTA_EXCEEDED] is Problem.QUOTA_EXCEEDED


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("report-problem/1.0/problem-report", True),
        ("notification/1.0/problem-report", True),
        ("connections/1.0/problem_report", True),
        ("coordinate-mediation/1.0/problem-report", True),
        ("notification/1.0/ack", False),
    ],
)
def test_a_problem_report_is_known_in_every_protocol(kind: str, expected: bool) -> None:
    for prefix in (NEW, OLD):
        read = read_type(prefix + kind)
        assert read is not None
        assert read.is_problem_report is expected


def test_a_report_names_the_member_and_its_rule_and_nothing_of_the_value() -> None:
    asks = message("messagepickup/2.0/delivery-request", limit=-31_337)
    limit = asks.count("limit")
    assert isinstance(limit, InvalidMember)
    assert problem_report(asks, limit)["description"] == {
        "code": "invalid-message",
        "en": "A part of the message is missing or invalid: limit must be an integer, 0 or more",
    }


def test_what_is_only_to_be_sent_again_is_no_error_of_its_sender() -> None:
    limit = ReportLimit(DidComm(error_reports_max=1, error_reports_s=60))
    passing, wrong = refusal(Problem.INSUFFICIENT_STORAGE), refusal(Problem.INVALID_MESSAGE)
    assert [limit.limited("me", passing, 1.0) for _ in range(3)] == [passing] * 3
    assert limit.limited("me", wrong, 1.0) == wrong
    last = limit.limited("me", wrong, 1.0)
    assert last is not None
    assert (last.reply, last.refused) == (report_of(Problem.TOO_MANY_ERRORS), wrong.refused)
    assert limit.limited("me", wrong, 1.0) is None
    assert limit.limited("me", passing, 1.0) == passing
    assert limit.limited("me", wrong, 61.0) == wrong


def test_a_limit_of_none_reports_everything() -> None:
    limit = ReportLimit(DidComm(error_reports_max=0))
    wrong = refusal(Problem.INVALID_MESSAGE)
    assert [limit.limited("me", wrong, 1.0) for _ in range(300)] == [wrong] * 300
