"""The device that an agent is notified on: who has one, how it changes, and when it is gone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec
import pytest

from actors.core.commands import (
    Command,
    EndAccount,
    EraseIdentity,
    GrantMediation,
    PushDevice,
    QueryPushDevice,
    QueueEnvelopes,
    RotateAccount,
    SetPushDevice,
)
from actors.core.decide import adds
from actors.core.decision import Accepted
from actors.core.erasure import OPERATOR
from actors.core.evolve import from_snapshot, to_snapshot
from actors.core.identity import Identity
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued, PushDeviceFound
from eventstore.log.events import AccountExpired, Event, PushDeviceSet
from tests.unit.actors.didcomm import DEVICE, KEY, ME, NEW_DID, Agent, agent
from tests.unit.actors.given import NOW_MS, NOW_S, connection

BASE: Final[dict[str, Any]] = {"at_ms": NOW_MS, "command": b"c" * 16}
TABLET: Final = PushDevice("apns", "token of a tablet", "")
Ending: TypeAlias = Callable[[Agent], None]
NO_DEVICE: Final = PushDeviceSet(**BASE, channel="", device_token="", device_platform="")


def device_set(device: PushDevice) -> PushDeviceSet:
    return PushDeviceSet(
        **BASE,
        channel=device.channel,
        device_token=device.token,
        device_platform=device.platform,
    )


def changed(device: PushDevice | None, event: Event) -> Accepted:
    """The device is now this one."""
    return Accepted(PushDeviceFound(device), [event])


def unchanged(device: PushDevice | None) -> Accepted:
    """The device is this one, as it was before."""
    return Accepted(PushDeviceFound(device))


def with_device(device: PushDevice = DEVICE) -> Agent:
    me = agent()
    assert me.do(SetPushDevice(device)) == changed(device, device_set(device))
    return me


# Set, replace, remove -----------------------------------------------------------------------


def test_an_agent_has_no_device_until_it_names_one() -> None:
    me = agent()
    assert me.do(QueryPushDevice()) == unchanged(None)
    assert me.do(SetPushDevice(DEVICE)) == changed(DEVICE, device_set(DEVICE))
    assert me.do(QueryPushDevice()) == unchanged(DEVICE)


def test_a_device_replaces_the_one_before() -> None:
    me = with_device()
    assert me.do(SetPushDevice(TABLET)) == changed(TABLET, device_set(TABLET))
    assert me.do(QueryPushDevice()) == unchanged(TABLET)


@pytest.mark.parametrize("field", PushDevice.__struct_fields__)
def test_a_device_that_differs_in_anything_is_another(field: str) -> None:
    other = msgspec.structs.replace(DEVICE, **{field: "other"})
    assert with_device().do(SetPushDevice(other)) == changed(other, device_set(other))


def test_none_removes_the_device() -> None:
    me = with_device()
    assert me.do(SetPushDevice(None)) == changed(None, NO_DEVICE)
    assert me.do(QueryPushDevice()) == unchanged(None)


@pytest.mark.parametrize("device", [DEVICE, None])
def test_the_same_again_changes_nothing(device: PushDevice | None) -> None:
    me = with_device()
    me.do(SetPushDevice(device))
    assert me.do(SetPushDevice(device)) == unchanged(device)


@pytest.mark.parametrize("device", [TABLET, None])
def test_what_is_to_change_one_device_leaves_every_other_as_it_is(
    device: PushDevice | None,
) -> None:
    me = with_device()
    for other in ("token of another", "", DEVICE.channel):
        assert me.do(SetPushDevice(device, instead_of=other)) == unchanged(DEVICE)
    answer = me.do(SetPushDevice(device, instead_of=DEVICE.token))
    assert answer == changed(device, NO_DEVICE if device is None else device_set(device))


def test_a_device_that_was_removed_is_not_there_to_be_changed() -> None:
    me = with_device()
    me.do(SetPushDevice(None))
    assert me.do(SetPushDevice(TABLET, instead_of=DEVICE.token)) == unchanged(None)


def test_a_short_disk_takes_the_removal_alone() -> None:
    assert adds(SetPushDevice(DEVICE))
    assert not adds(SetPushDevice(None))
    assert not adds(SetPushDevice(None, instead_of=DEVICE.token))


# How long it is there -----------------------------------------------------------------------


def _end(me: Agent) -> None:
    me.do(EndAccount(ME, NOW_S))


def _expire(me: Agent) -> None:
    me.record(AccountExpired(**BASE, reason="idle"))


def _begin_erasure(me: Agent) -> None:
    me.do(EraseIdentity(OPERATOR, 9))
    assert me.state.erasing


def _erase(me: Agent) -> None:
    _begin_erasure(me)
    while me.state.erasing:
        me.do(EraseIdentity(OPERATOR, 9))


@pytest.mark.parametrize("over", [_end, _expire, _begin_erasure, _erase])
@pytest.mark.parametrize("command", [SetPushDevice(TABLET), SetPushDevice(None), QueryPushDevice()])
def test_there_is_no_device_once_an_account_is_over(over: Ending, command: Command) -> None:
    me = with_device()
    over(me)
    assert me.state.push_device is None
    assert me.do(command) is Refusal.NOT_CONNECTED


@pytest.mark.parametrize("over", [_end, _expire, _erase])
def test_an_agent_that_comes_back_has_no_device(over: Ending) -> None:
    me = with_device()
    over(me)
    me.do(GrantMediation(connection()))
    assert me.do(QueryPushDevice()) == unchanged(None)
    assert me.do(SetPushDevice(DEVICE)) == changed(DEVICE, device_set(DEVICE))


def test_a_device_stays_with_an_account_whose_did_is_rotated() -> None:
    me = with_device()
    me.do(RotateAccount(ME, NEW_DID, NOW_S))
    assert me.do(QueryPushDevice(), speaker=NEW_DID) == unchanged(DEVICE)
    me.do(SetPushDevice(TABLET), speaker=NEW_DID)
    assert me.do(SetPushDevice(DEVICE), speaker=ME) is Refusal.NOT_SPEAKING
    assert me.state.push_device == TABLET


def test_the_mediator_removes_the_device_of_any_account() -> None:
    me = with_device()
    me.do(RotateAccount(ME, NEW_DID, NOW_S))
    assert me.do(SetPushDevice(None, instead_of=DEVICE.token)) == changed(None, NO_DEVICE)


# What is said of it -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [QueueEnvelopes("", [b"1"]), QueueEnvelopes(KEY, [b"1"]), QueueEnvelopes(KEY, [b"1", b"2"])],
)
def test_who_queues_for_an_agent_learns_whether_it_has_a_device(command: Command) -> None:
    me = agent()
    for number, device in enumerate([None, DEVICE, None, TABLET]):
        me.do(SetPushDevice(device))
        answer = me.do(command, command=bytes([number] * 16))
        assert isinstance(answer, Accepted)
        assert answer.events
        assert isinstance(answer.reply, EnvelopeQueued)
        assert answer.reply.pushes == (device is not None)


@pytest.mark.parametrize("payloads", [[b"1"], [b"1", b"2"]])
@pytest.mark.parametrize("endpoint", ["", "https://me.example"])
def test_a_retry_is_answered_for_the_present_device(payloads: list[bytes], endpoint: str) -> None:
    me, command = agent(endpoint), QueueEnvelopes(KEY, payloads)
    first = me.do(command)
    assert isinstance(first, Accepted)
    assert isinstance(first.reply, EnvelopeQueued)
    for device in (DEVICE, None):
        me.do(SetPushDevice(device))
        has_device = device is not None
        retried = EnvelopeQueued(first.reply.message_id, bool(endpoint), has_device, is_repeat=True)
        assert me.do(command) == Accepted(retried)


def test_to_name_a_device_is_a_sign_of_life_and_to_lose_it_is_none() -> None:
    me = agent()
    me.now_ms += 10
    me.do(SetPushDevice(DEVICE))
    assert me.state.seen_ms == NOW_MS + 10
    me.now_ms += 10
    me.do(SetPushDevice(None))
    assert me.state.seen_ms == NOW_MS + 10


# Memory -------------------------------------------------------------------------------------


def test_a_state_of_before_there_were_devices_has_none() -> None:
    me = with_device()
    fields = msgspec.msgpack.decode(to_snapshot(me.state))
    assert fields.pop("push_device") == list(msgspec.structs.astuple(DEVICE))
    earlier = from_snapshot(msgspec.msgpack.encode(fields))
    assert earlier == msgspec.structs.replace(me.state, push_device=None)
    assert from_snapshot(to_snapshot(me.state)) == me.state


def test_the_token_of_a_device_counts_in_the_memory_that_a_state_takes() -> None:
    without = Identity().weight_bytes()
    assert (
        Identity(push_device=PushDevice("fcm", "x" * 4_000, "")).weight_bytes() >= without + 4_000
    )
