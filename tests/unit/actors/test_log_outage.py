"""What operators see of a log that fails."""

from __future__ import annotations

import pytest

from actors.host.log_outage import LogOutage, reason
from eventstore.log.codec import encode
from eventstore.log.errors import AppendUnknown, LogError, LogUnavailable, NoRoom
from eventstore.log.seal import GENESIS, seal
from eventstore.log.streams import partition_stream
from tests.unit.actors.given import HandClock


def test_the_line_of_an_outage_says_why_and_quotes_nothing_that_was_to_be_stored(
    caplog: pytest.LogCaptureFixture,
) -> None:
    error = AppendUnknown("OperationalError: No space left on device\nDETAIL: (did:x:me, secret)")
    LogOutage(HandClock()).failed("append failed", error, ["request"])
    assert caplog.messages == [
        "append failed: AppendUnknown: OperationalError: No space left on device"
    ]


def test_an_error_that_is_not_of_the_log_is_named_by_its_type_alone() -> None:
    assert reason(KeyError("did:x:me")) == "KeyError"


@pytest.mark.parametrize("error", [AppendUnknown(""), LogUnavailable("")], ids=type)
@pytest.mark.parametrize("has_stored", [True, False])
def test_a_log_fails_until_it_does_again_what_failed(error: LogError, *, has_stored: bool) -> None:
    """A full disk can be read all the same."""
    outage = LogOutage(HandClock())
    outage.failed("cannot read or store", error, [])
    outage.failed("cannot read", LogUnavailable(""), [])
    outage.worked(has_stored=has_stored)
    assert outage.is_on is (isinstance(error, AppendUnknown) and not has_stored)


def test_a_nearly_full_disk_is_one_line_until_it_has_taken_as_much_as_it_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    event = seal(
        [], [], partition="shard-0", epoch=1, at_ms=1, window_ms=1, nonces=b"", previous=GENESIS
    )
    row, outage = encode(partition_stream("shard-0"), 1, event), LogOutage(HandClock())
    for _ in range(3):
        outage.failed("append failed", NoRoom("LogFull", 2 * len(row.state)), [])
        outage.worked(has_stored=True)
        outage.stored([row], [event])
        assert outage.is_on
    outage.stored([row], [event])
    assert not outage.is_on
    assert caplog.messages == ["append failed: NoRoom: LogFull", "the log works again"]


@pytest.mark.parametrize("is_claim", [True, False])
def test_a_disk_that_has_refused_nothing_for_a_minute_has_room_again_with_the_next_small_change(
    *, is_claim: bool
) -> None:
    """A mediator with little traffic would take days to store as much as was refused."""
    clock = HandClock()
    outage = LogOutage(clock)

    def store() -> None:
        if is_claim:
            outage.worked(has_stored=True)
        else:
            outage.stored([], [])

    for _ in range(2):
        outage.failed("append failed", NoRoom("LogFull", 1_000_000), [])
        clock.now_ms += 59_999
        store()
        assert outage.is_on
    clock.now_ms += 1
    assert outage.is_on, "nothing shows that it has room"
    store()
    assert not outage.is_on


def test_an_outage_of_reading_ends_by_reading_whatever_failed_before_it() -> None:
    outage = LogOutage(HandClock())
    outage.failed("cannot store", AppendUnknown(""), [])
    outage.worked(has_stored=True)
    outage.failed("cannot read", LogUnavailable(""), [])
    outage.worked(has_stored=False)
    assert outage.is_on is False
