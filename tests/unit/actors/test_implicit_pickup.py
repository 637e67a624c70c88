"""Implicit pickup: one session gets messages unasked, until it asks, ends, or another goes live."""

from __future__ import annotations

import pytest

from actors.core.commands import Command, Listen, ReleaseLeases
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.host.host import Host
from eventstore.log.event_log import EventLog
from tests.unit.actors.didcomm import ME, go_live
from tests.unit.actors.given import delivery, host, run, unclaimed
from tests.unit.actors.test_leases import queue, take

ELSEWHERE = [Refused(Refusal.LIVE_ELSEWHERE)]


@pytest.fixture
def owner(log: EventLog) -> Host:
    """A host at which a phone gets messages unasked."""
    owner = host(log)
    queue(owner)
    run(owner, unclaimed(ME, Listen("edge-0", "phone")))
    return owner


def is_elsewhere(owner: Host, session: str) -> bool:
    """Is this session refused what it would get unasked?"""
    return run(owner, unclaimed(ME, delivery(session, implicit=True))) == ELSEWHERE


def test_implicit_pickup_stays_with_its_session_while_that_takes_what_it_gets(owner: Host) -> None:
    for _ in range(2):
        assert is_elsewhere(owner, "laptop")
        assert take(owner, delivery("phone", implicit=True)) == [[]]


@pytest.mark.parametrize("command", [delivery("phone"), ReleaseLeases("phone")], ids=type)
def test_implicit_pickup_ends_when_its_session_asks_or_ends(owner: Host, command: Command) -> None:
    run(owner, unclaimed(ME, command))
    assert not is_elsewhere(owner, "laptop")


@pytest.mark.parametrize("command", [delivery("laptop"), ReleaseLeases("laptop")], ids=type)
def test_implicit_pickup_goes_on_whatever_another_session_asks(
    owner: Host, command: Command
) -> None:
    run(owner, unclaimed(ME, command))
    assert is_elsewhere(owner, "laptop")


def test_implicit_pickup_ends_when_another_session_goes_live(owner: Host) -> None:
    run(owner, unclaimed(ME, Listen("edge-0", "tablet")))
    go_live(owner, "edge-1", lease_ms=5_000, bytes_max=10)
    assert is_elsewhere(owner, "tablet")
