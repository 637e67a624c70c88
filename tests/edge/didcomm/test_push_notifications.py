"""Push notifications (RFC 0734, RFC 0699): a device is notified that messages wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest

from http_edge.clients.didcomm import ProblemReported
from http_edge.clients.didcomm.connected_wallet import PushDevice, PushService
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import (
    PREFIXES,
    Bob,
    WalletNetwork,
    fresh,
    routed,
)
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S, Mediator
from tests.unit.outbound.agent_host import AgentHost, Gate, agent_host, in_turn
from tests.unit.push.devices import private
from tests.unit.push.pauses import Pauses

FCM: Final = "push-notifications-fcm/1.0/"
SOON_S: Final = 0.01
LATER_S: Final = 0.02
SERVICES: Final = pytest.mark.parametrize("service", ["fcm", "apns"])


@pytest.fixture
async def push() -> AsyncIterator[AgentHost]:
    """The push service that the mediator's notifications arrive at."""
    async with agent_host() as host:
        yield host


@pytest.fixture
def more() -> Json:
    return {}


@pytest.fixture
def settings(push: AgentHost, more: Json) -> Json:
    times = {"delay_s": SOON_S, "interval_s": LATER_S}
    return {"push": {"webhook_url": f"http://127.0.0.1:{push.port}/push", **times, **more}}


def figures(mediator: Mediator) -> dict[str, int]:
    notifier = mediator.edges[0]._push_notifier
    assert notifier is not None
    return notifier.figures()


async def unwatched(mediator: Mediator) -> dict[str, int]:
    """The figures as soon as no queue is watched any more."""
    async with asyncio.timeout(WAIT_S):
        while figures(mediator)["agents"]:  # noqa: ASYNC110 - the notifier announces no end
            await asyncio.sleep(SOON_S)
    return figures(mediator)


async def has_no_device(bob: Bob, service: PushService = "fcm") -> None:
    with pytest.raises(ProblemReported) as reported:
        await bob.wallet.push_device(service=service)
    assert reported.value.code == "not-registered-for-push-notifications"


@SERVICES
async def test_a_device_is_set_read_replaced_and_removed(bob: Bob, service: PushService) -> None:
    platform = "Android" if service == "fcm" else None
    await has_no_device(bob, service)
    for token in ("first", "second", "second"):
        await bob.wallet.set_push_device(token, platform, service=service)
        found = await bob.wallet.push_device(service=service)
        assert found == PushDevice(token, platform or "")
    await bob.wallet.set_push_device(None, service=service)
    await has_no_device(bob, service)
    await bob.wallet.set_push_device(None, service=service)


async def test_an_account_has_one_device_whatever_its_service(bob: Bob) -> None:
    await bob.wallet.set_push_device("android", "Android")
    await bob.wallet.set_push_device(None, service="apns")
    assert (await bob.wallet.push_device()).token == "android"
    await bob.wallet.set_push_device("iphone", service="apns")
    await has_no_device(bob)
    assert (await bob.wallet.push_device(service="apns")).token == "iphone"


@pytest.mark.parametrize("prefix", PREFIXES)
async def test_answers_have_the_prefix_and_the_thread_of_the_question(
    bob: Bob, prefix: str
) -> None:
    questions: list[tuple[str, Json, str]] = [
        ("get-device-info", {}, "problem-report"),
        ("set-device-info", {"device_token": "t", "device_platform": "p"}, "ack"),
        ("get-device-info", {}, "device-info"),
    ]
    for name, members, answered in questions:
        question = fresh(**{"@type": prefix + FCM + name, **members, **routed("thread")})
        answer: Any = await bob.wallet.ask(question)
        assert answer["@type"] == prefix + FCM + answered
        assert answer["~thread"]["thid"] == question["@id"]


@pytest.mark.parametrize("platform", ["Android", None])
async def test_an_empty_token_removes_the_device_whatever_the_platform(
    bob: Bob, platform: str | None
) -> None:
    await bob.wallet.set_push_device("mine", "Android")
    await bob.wallet.set_push_device("", platform)
    await has_no_device(bob)


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({"device_token": "t", "device_platform": None}, "missing-value"),
        ({"device_token": None, "device_platform": "Android"}, "missing-value"),
        ({"device_token": "t"}, "missing-value"),
        ({"device_token": 7, "device_platform": "Android"}, "invalid-message"),
        ({"device_token": "t", "device_platform": ["Android"]}, "invalid-message"),
        ({"device_token": "t" * 4_097, "device_platform": "Android"}, "invalid-message"),
        ({"device_token": "t", "device_platform": "p" * 65}, "invalid-message"),
    ],
)
async def test_a_device_that_is_none_changes_nothing(bob: Bob, members: Json, code: str) -> None:
    await bob.wallet.set_push_device("mine", "Android")
    with pytest.raises(ProblemReported) as reported:
        await bob.wallet.request(FCM + "set-device-info", "ack", **members)
    assert reported.value.code == code
    assert (await bob.wallet.push_device()).token == "mine"


async def test_an_agent_without_mediation_may_set_a_device_and_a_stranger_may_not(
    network: WalletNetwork,
) -> None:
    wallet = await network.connect()
    await wallet.set_push_device("t", "Android")
    with pytest.raises(ProblemReported) as reported:
        await network.stranger().set_push_device("t", "Android")
    assert reported.value.code == "not-connected"


@SERVICES
async def test_a_device_learns_how_many_messages_wait(
    network: WalletNetwork, bob: Bob, push: AgentHost, service: PushService
) -> None:
    await bob.wallet.set_push_device("token", "iOS", service=service)
    await network.write(bob, "one")
    (notification,) = await push.notifications(1)
    assert notification == {
        "@type": f"{NEW_PREFIX}push-notifications-{service}",
        "device_token": "token",
        "device_platform": "iOS" if service == "fcm" else "",
        "waiting": 1,
    }
    assert await bob.drained() == ["one"]


async def test_a_wallet_of_the_second_generation_is_notified_too(
    network: WalletNetwork, push: AgentHost
) -> None:
    wallet = await connected(network)
    recipient = await wallet.new_recipient()
    await wallet.set_push_device("newer", "Android")
    assert await wallet.push_device() == PushDevice("newer", "Android")
    await Sender(network).write(recipient, "one", "two")
    assert (await push.notifications(1))[0]["device_token"] == "newer"


async def test_newer_messages_are_announced_again_until_they_are_fetched(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    for number in (1, 2, 3):
        await network.write(bob, f"message {number}")
        mediator.clock.advance(1)
        assert (await push.notifications(number))[-1]["waiting"] == number
    await unwatched(mediator)
    assert len(push.received) == 3


async def test_a_wallet_that_leaves_its_messages_lying_live_is_notified_when_its_socket_ends(
    network: WalletNetwork, bob: Bob, push: AgentHost
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    async with bob.wallet.live():
        await network.write(bob, "one")
        assert push.received == []
    assert (await push.notifications(1))[0]["waiting"] == 1


async def test_a_wallet_without_a_device_costs_no_task(
    network: WalletNetwork, mediator: Mediator, bob: Bob
) -> None:
    await network.write(bob, "one")
    assert figures(mediator)["agents"] == 0


@pytest.mark.parametrize("status", [404, 410])
async def test_a_device_that_its_service_no_longer_knows_is_forgotten(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, status: int
) -> None:
    push.answer = in_turn(status)
    await bob.wallet.set_push_device("old", "iOS")
    await network.write(bob, "one")
    assert (await unwatched(mediator))["unregistered"] == 1
    await has_no_device(bob)
    assert await bob.drained() == ["one"]


async def test_a_device_that_was_replaced_meanwhile_is_kept(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost
) -> None:
    push.answer = gate = Gate(in_turn(410))
    await bob.wallet.set_push_device("old", "iOS")
    await network.write(bob, "one")
    await push.has(1)
    await bob.wallet.set_push_device("new", "iOS")
    gate.released.set()
    assert (await unwatched(mediator))["unregistered"] == 1
    assert (await bob.wallet.push_device()).token == "new"


async def test_a_service_that_fails_is_asked_again(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost
) -> None:
    push.answer = in_turn(503, 500, 429)
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    assert len(await push.notifications(4)) == 4
    done = await unwatched(mediator)
    assert (done["failed"], done["sent"]) == (3, 1)


async def test_a_service_that_refuses_is_not_asked_again_for_the_same_message(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost
) -> None:
    push.answer = in_turn(403)
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    assert (await unwatched(mediator))["failed"] == 1
    mediator.clock.advance(1)
    await network.write(bob, "two")
    assert [each["waiting"] for each in await push.notifications(2)] == [1, 2]


async def test_a_service_that_hangs_delays_no_sender_and_not_the_end(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost
) -> None:
    push.answer = Gate()
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    await push.has(1)
    await network.write(bob, "two")
    async with asyncio.timeout(WAIT_S):
        await mediator.restart()
    assert sorted(await bob.drained()) == ["one", "two"]


async def test_a_restart_forgets_no_device(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    await mediator.restart()
    await network.write(bob, "one")
    assert (await push.notifications(1))[0]["device_token"] == "token"


@pytest.mark.parametrize("settings", [{}])
async def test_a_mediator_without_push_service_does_not_offer_the_protocols(
    network: WalletNetwork, bob: Bob
) -> None:
    offered = {one.id for one in await bob.wallet.discover()}
    assert not any("push-notifications" in protocol for protocol in offered)
    with pytest.raises(ProblemReported) as reported:
        await bob.wallet.set_push_device("token", "iOS")
    assert reported.value.code == "unknown-message-type"
    await network.write(bob, "one")


async def test_a_mediator_with_a_push_service_discloses_the_protocols(bob: Bob) -> None:
    offered: dict[str, Any] = {one.id: one.roles for one in await bob.wallet.discover()}
    for service in ("fcm", "apns"):
        roles = offered[f"{NEW_PREFIX}push-notifications-{service}/1.0"]
        assert roles == ("notification-sender",)


@pytest.fixture
def pauses(mediator: Mediator) -> Pauses:
    notifier = mediator.edges[0]._push_notifier
    assert notifier is not None
    pauses = Pauses()
    notifier._sleep = pauses.sleep
    return pauses


async def test_a_device_is_notified_after_a_delay_and_later_of_newer_messages_alone(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, pauses: Pauses
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one", "two")
    assert push.received == []
    assert await pauses.end_next() == SOON_S
    assert [each["waiting"] for each in await push.notifications(1)] == [2]
    mediator.clock.advance(1)
    await network.write(bob, "three", "four")
    assert await pauses.end_next() == LATER_S
    assert [each["waiting"] for each in await push.notifications(2)] == [2, 4]
    await pauses.end_next()
    assert (await unwatched(mediator))["sent"] == 2


async def test_a_message_whose_notification_ends_with_its_edge_waits_and_the_next_one_notifies(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, pauses: Pauses
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    await pauses.begun()
    await mediator.restart()
    assert (push.received, figures(mediator)["agents"]) == ([], 0)
    await network.write(bob, "two")
    assert [each["waiting"] for each in await push.notifications(1)] == [2]
    assert await bob.drained() == ["one", "two"]


async def test_a_message_that_its_sender_delays_is_announced_once_it_can_be_fetched(
    network: WalletNetwork, mediator: Mediator, push: AgentHost, pauses: Pauses
) -> None:
    wallet, sender = await connected(network), Sender(network)
    recipient = await wallet.new_recipient()
    await wallet.set_push_device("token", "Android")
    await sender.forward(recipient.did, "late", delay_milli=30_000)
    mediator.clock.advance(1)
    await sender.write(recipient, "now")
    await pauses.end_next()
    await push.has(1)
    (now,) = [each async for each in wallet.drain(100)]
    await pauses.end_next()
    mediator.clock.advance(30)
    await pauses.end_next()
    await push.has(2)
    (late,) = [each async for each in wallet.drain(100)]
    texts = [sender.text_in(recipient, each.envelope) for each in (now, late)]
    assert texts == ["now", "late"]


async def test_a_wallet_that_fetched_within_the_delay_is_not_notified(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, pauses: Pauses
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    assert await bob.drained() == ["one"]
    await pauses.end_next()
    assert (await unwatched(mediator))["sent"] == 0
    assert push.received == []


async def test_a_wallet_that_is_fetching_is_notified_only_if_it_gives_up(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, pauses: Pauses
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    assert len(await bob.wallet.fetch(10)) == 1
    await pauses.end_next()
    seconds, ended = await pauses.begun()
    assert (seconds, push.received) == (LATER_S, [])
    mediator.clock.advance(mediator.settings.didcomm.lease_s + 1)
    ended.set()
    assert len(await push.notifications(1)) == 1


async def test_a_wallet_in_live_mode_is_not_notified_of_what_waited_before(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, pauses: Pauses
) -> None:
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    async with bob.wallet.live():
        await pauses.end_next()
        assert (await pauses.end_next(), push.received) == (LATER_S, [])
    while not push.received:
        await pauses.end_next()
    assert len(push.received) == 1


async def test_a_message_that_comes_during_a_notification_is_announced_by_the_next(
    network: WalletNetwork, mediator: Mediator, bob: Bob, push: AgentHost, pauses: Pauses
) -> None:
    push.answer = gate = Gate(in_turn(403))
    await bob.wallet.set_push_device("token", "iOS")
    await network.write(bob, "one")
    await pauses.end_next()
    await push.has(1)
    mediator.clock.advance(1)
    await network.write(bob, "two")
    gate.released.set()
    assert await pauses.end_next() == LATER_S
    assert [each["waiting"] for each in await push.notifications(2)] == [1, 2]


async def named(network: WalletNetwork, *devices: tuple[str, PushService]) -> None:
    """Let a message wait for an agent of each of these devices."""
    for bob, (token, service) in zip(await network.bobs(len(devices)), devices, strict=True):
        platform = "iOS" if service == "fcm" else None
        await bob.wallet.set_push_device(token, platform, service=service)
        await network.write(bob, "one")


@pytest.mark.parametrize("status", [200, 403])
async def test_a_device_that_several_agents_name_is_notified_for_one_of_them_in_an_interval(
    network: WalletNetwork, push: AgentHost, pauses: Pauses, status: int
) -> None:
    push.answer = in_turn(status)
    await named(network, ("abcd", "apns"), ("ABCD", "apns"))
    for _ in range(2):
        await pauses.end_next()
    _, other = await pauses.begun()
    _, notified = await pauses.begun()
    assert len(push.received) == 1
    notified.set()  # first, so that the device rests no longer
    other.set()
    both = await push.notifications(2)
    assert {each["device_token"] for each in both} == {"abcd", "ABCD"}


async def test_a_device_does_not_rest_for_another_one_whose_name_is_alike(
    network: WalletNetwork, push: AgentHost, pauses: Pauses
) -> None:
    """Registration tokens of FCM have a case, and the services name devices each for itself."""
    await named(network, ("abcd", "apns"), ("abcd", "fcm"), ("ABCD", "fcm"))
    for _ in range(3):
        assert await pauses.end_next() == SOON_S
    for _ in range(3):
        await pauses.begun()
    assert len(push.received) == 3


@pytest.mark.parametrize("more", [{"agents_max": 1}])
async def test_of_too_many_agents_one_that_was_notified_makes_room(
    network: WalletNetwork, mediator: Mediator, push: AgentHost, pauses: Pauses
) -> None:
    first, second = bobs = await network.bobs(2)
    for token, bob in zip(("first", "second"), bobs, strict=True):
        await bob.wallet.set_push_device(token, "iOS")
        await network.write(bob, "one")
    assert (figures(mediator)["agents"], figures(mediator)["dropped"]) == (1, 1)
    await pauses.end_next()
    assert [each["device_token"] for each in await push.notifications(1)] == ["first"]
    await pauses.begun()
    await network.write(second, "two")
    await pauses.end_next()
    assert [each["device_token"] for each in await push.notifications(2)] == ["first", "second"]
    await pauses.begun()
    mediator.clock.advance(1)
    await network.write(first, "two")
    await pauses.end_next()
    assert (await push.notifications(3))[-1]["device_token"] == "first"


class TestAFileThatBecomesUnusable:
    @pytest.fixture
    def more(self, tmp_path: Path) -> Json:
        return {"webhook_key_file": private(tmp_path / "key", b"k" * 32)}

    @pytest.mark.parametrize("is_there", [True, False])
    async def test_an_edge_that_starts_again_serves_without_notifications_and_logs_why(
        self,
        network: WalletNetwork,
        mediator: Mediator,
        bob: Bob,
        push: AgentHost,
        caplog: pytest.LogCaptureFixture,
        *,
        is_there: bool,
    ) -> None:
        await bob.wallet.set_push_device("token", "iOS")
        path = mediator.settings.push.webhook_key_file
        assert path is not None
        if is_there:
            path.chmod(0o644)
        else:
            path.unlink()
        await mediator.restart()
        (line,) = [one for one in caplog.records if one.name == "http_edge.server.edge"]
        assert line.levelname == "ERROR"
        assert str(path) in line.getMessage()
        await network.write(bob, "one")
        assert (await bob.drained(), push.received) == (["one"], [])
        path.unlink(missing_ok=True)
        private(path, b"k" * 32)
        await mediator.restart()
        await network.write(bob, "two")
        assert len(await push.notifications(1)) == 1
