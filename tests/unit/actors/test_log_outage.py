"""What operators see of a log that fails."""

from __future__ import annotations

import pytest

from actors.host.log_outage import LogOutage, reason
from eventstore.log.errors import AppendUnknown


def test_the_line_of_an_outage_says_why_and_quotes_nothing_that_was_to_be_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = AppendUnknown("OperationalError: No space left on device\nDETAIL: (did:x:me, secret)")
    LogOutage().failed("append failed", error, ["request"])
    assert caplog.messages == [
        "append failed: AppendUnknown: OperationalError: No space left on device"
    ]


def test_an_error_that_is_not_of_the_log_is_named_by_its_type_alone() -> None:
    assert reason(KeyError("did:x:me")) == "KeyError"


@pytest.mark.parametrize(("seconds_ago", "fails"), [(0, True), (9, True), (10, False)])
def test_a_failure_counts_for_some_seconds(seconds_ago: int, fails: bool) -> None:
    times = iter((100, 100 + seconds_ago))
    outage = LogOutage(lambda: next(times))
    assert not outage.is_on
    outage.failed("append failed", AppendUnknown(""), [])
    assert outage.is_on is fails


def test_a_log_that_stores_something_fails_no_more() -> None:
    outage = LogOutage()
    outage.failed("append failed", AppendUnknown(""), [])
    outage.appended()
    assert outage.is_on is False
