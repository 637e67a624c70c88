"""A host that still has the names of who was erased in memory puts them in no later snapshot."""

from __future__ import annotations

from uuid import UUID

import pytest

from actors.core.account_commands import ClaimKey, ReleaseKey
from actors.core.commands import (
    GrantMediation,
    PushDevice,
    QueueEnvelopes,
    RemoveMessages,
    SetPushDevice,
    UpdateKeylist,
)
from actors.core.message_queue import ACKNOWLEDGED
from actors.core.replies import EnvelopeQueued, KeyClaim
from actors.host.host import Host
from actors.host.stored_states import wrong_snapshots
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream
from tests.contract.test_erasure_contract import GONE, STAYS, erase, settle
from tests.contract.test_name_erasure_contract import register, tables_naming, take_out_names
from tests.contract.test_retention_contract import Mediator
from tests.unit.actors.didcomm import KEY
from tests.unit.actors.given import connection, run, unclaimed


def save_later(owner: Host, log: EventLog) -> None:
    """Save the snapshots that a host makes of the states in its memory."""
    log.save_snapshots(owner.run_housekeeping())


def test_no_later_snapshot_names_who_was_erased_as_the_key_of_an_envelope(
    log: EventLog, log_url: str
) -> None:
    mediator = Mediator(log, snapshot_after_events=1)
    run(mediator.host, unclaimed(STAYS, GrantMediation(connection())))
    (key,) = register(mediator, STAYS, GONE)
    settle(mediator, GONE)
    (queued,) = run(mediator.host, unclaimed(STAYS, QueueEnvelopes(GONE, [b"envelope"])))
    assert isinstance(queued, EnvelopeQueued)
    run(
        mediator.host,
        unclaimed(STAYS, RemoveMessages([queued.message_id], ACKNOWLEDGED)),
        unclaimed(STAYS, UpdateKeylist([], [GONE])),
        unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)),
    )
    erase(mediator, GONE)
    save_later(mediator.host, log)
    assert take_out_names(log)
    run(mediator.host, unclaimed(STAYS, SetPushDevice(PushDevice("fcm", "token", "phone"))))
    save_later(mediator.host, log)
    assert log.load_snapshot(identity_stream(STAYS)) is not None
    assert "snapshots" not in tables_naming(log_url, GONE)
    assert list(wrong_snapshots(log)) == []


@pytest.mark.parametrize("is_taken_first", [False, True])
def test_no_later_snapshot_of_a_key_names_an_erased_owner(
    log: EventLog, log_url: str, is_taken_first: bool
) -> None:
    mediator, target = Mediator(log, snapshot_after_events=1), f"key:{KEY}"
    settle(mediator, GONE)
    run(mediator.host, unclaimed(target, ClaimKey(GONE)))
    if is_taken_first:
        run(mediator.host, unclaimed(target, ClaimKey(STAYS, holds_key=True)))
    erase(mediator, GONE)
    save_later(mediator.host, log)
    assert take_out_names(log)
    run(mediator.host, unclaimed(target, ClaimKey(STAYS, holds_key=True)))
    save_later(mediator.host, log)
    snapshot = log.load_snapshot(identity_stream(target))
    assert snapshot is not None
    assert STAYS.encode() in snapshot.state
    assert "snapshots" not in tables_naming(log_url, GONE)
    assert list(wrong_snapshots(log)) == []


def test_a_log_that_cannot_be_read_costs_the_snapshot_of_a_key_and_nothing_else(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    mediator, target = Mediator(log, snapshot_after_events=2), f"key:{KEY}"
    claim = unclaimed(target, ClaimKey(STAYS))
    assert run(mediator.host, claim) == [KeyClaim(1, owned_before=False)]
    with monkeypatch.context() as unreadable:
        unreadable.setattr(log, "load_snapshot", unavailable)
        assert run(mediator.host, claim) == [KeyClaim(2)]
    assert mediator.host.run_housekeeping() == []
    assert run(mediator.host, claim) == [KeyClaim(3)]
    ((stream, snapshot, _),) = mediator.host.run_housekeeping()
    assert (stream, snapshot.version) == (identity_stream(target), 3)


def test_a_log_that_cannot_be_read_is_asked_for_one_key_and_not_for_each(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    mediator = Mediator(log, snapshot_after_events=2)
    claims = [unclaimed(f"key:{KEY}{number}", ClaimKey(STAYS)) for number in range(5)]
    run(mediator.host, *claims)
    read: list[object] = []

    def unread(stream: UUID) -> None:
        read.append(stream)
        unavailable()

    with monkeypatch.context() as unreadable:
        unreadable.setattr(log, "load_snapshot", unread)
        run(mediator.host, *claims)
    assert len(read) == 1
    assert mediator.host.run_housekeeping() == []
    run(mediator.host, *claims)
    assert len(mediator.host.run_housekeeping()) == len(claims)


def unavailable(*_: object) -> None:
    raise LogUnavailable("no answer")
