"""What operators see of a log that fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from actors.core.limits import HostLimits
from actors.core.replies import BatchResult, Registered, Reply
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.log_outage import LogOutage, reason
from actors.host.port import AdoptPartitions
from eventstore.log.errors import AppendUnknown, LogError, LogUnavailable
from eventstore.log.event_log import EventLog
from tests.log.faulty_log import FailNext, FaultyLog
from tests.unit.actors.given import NOW_S, HandClock, registration, submission


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


@pytest.mark.parametrize("error", [AppendUnknown(""), LogUnavailable("")], ids=type)
@pytest.mark.parametrize("has_stored", [True, False])
def test_a_log_fails_until_it_does_again_what_failed(error: LogError, *, has_stored: bool) -> None:
    """A full disk can be read all the same."""
    outage = LogOutage()
    outage.failed("cannot read or store", error, [])
    outage.failed("cannot read", LogUnavailable(""), [])
    outage.worked(has_stored=has_stored)
    assert outage.is_on is (isinstance(error, AppendUnknown) and not has_stored)


def test_an_outage_of_reading_ends_by_reading_whatever_failed_before_it() -> None:
    outage = LogOutage()
    outage.failed("cannot store", AppendUnknown(""), [])
    outage.worked(has_stored=True)
    outage.failed("cannot read", LogUnavailable(""), [])
    outage.worked(has_stored=False)
    assert outage.is_on is False


class Owner:
    """A host of all shards; ``runs``: does its lease run?"""

    def __init__(self, log: EventLog, folder: Path, *, is_placed: bool = False) -> None:
        self.log = FaultyLog(log)
        self.runs = True
        dsn = f"sqlite:{folder}/log.db"
        options = HostOptions("host", dsn, [], HostLimits(), is_placed=is_placed)
        self.host = IdentityHost(
            options, lambda *_: None, clock=HandClock(), log=self.log, may_serve=lambda: self.runs
        )
        self.host.ask(AdoptPartitions(["shard-0", "shard-1"], None))

    @property
    def fails(self) -> bool:
        """What the host says of its log to those who ask for its health."""
        self.host.ping()
        return self.host.holdings().log_fails

    def register(self) -> Sequence[Reply]:
        command = msgspec.msgpack.encode([submission("did:x:me", registration("did:x:me"))])
        result = self.host.submit("edge-0", command)
        return msgspec.msgpack.decode(result, type=BatchResult).replies


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_check_of_health_ends_an_outage_by_the_claim_that_the_next_command_needs(
    log: EventLog, tmp_path: Path, *, is_placed: bool
) -> None:
    owner = Owner(log, tmp_path, is_placed=is_placed)
    owner.log.plan(FailNext(2))
    owner.register()
    assert [owner.fails, owner.fails] == [True, False]
    before = len(owner.log.appends)
    assert not owner.fails
    assert owner.register() == [Registered(NOW_S + 60)]
    assert len(owner.log.appends) == before + 1
    owner.host.stop()


def test_an_outage_of_reading_ends_with_a_check_of_health_that_stores_nothing(
    log: EventLog, tmp_path: Path
) -> None:
    owner = Owner(log, tmp_path)
    before = len(owner.log.appends)
    owner.host._host.outage.failed("cannot read", LogUnavailable(""), [])
    assert not owner.fails
    assert len(owner.log.appends) == before
    owner.host.stop()


def test_a_host_whose_lease_ends_meanwhile_claims_nothing_to_end_an_outage(
    log: EventLog, tmp_path: Path
) -> None:
    """Another host may have its shards by now."""
    owner = Owner(log, tmp_path)
    owner.log.plan(FailNext())
    owner.register()
    owner.runs = False
    before = len(owner.log.appends)
    assert owner.fails
    assert len(owner.log.appends) == before
    owner.host.stop()
