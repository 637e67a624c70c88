"""An agent from which nothing comes for too long ends; any message of its own is enough to stay."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from actors.core.idle_agents import seen_every_s
from actors.core.partitioning import host_name
from http_edge.clients.didcomm import ConnectionLost, Socket
from http_edge.clients.didcomm.errors import ProblemReported
from http_edge.didcomm.envelopes.keys import base58
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from tests.edge.didcomm.newer_wallets import connected
from tests.edge.didcomm.test_rotated_accounts import moved, say, successor
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork, routed
from tests.edge.identities import Json
from tests.edge.mediator import DAY_S, WAIT_S, HandClock, Mediator

AGE_DAYS: Final = 80
EVERY_DAYS: Final = seen_every_s(AGE_DAYS * DAY_S) // DAY_S
# The tests look by hand.
RETENTION: Final[Json] = {"messages_s": 0, "look_s": 3_600}
IDLE: Final[Json] = {"retention": {"idle_agents_s": AGE_DAYS * DAY_S, **RETENTION}}
OWN: Final[dict[str, Json]] = {
    "trust_ping/1.0/ping": {},
    "trust_ping/1.0/ping_response": {},
    "discover-features/1.0/query": {"query": "*"},
    "messagepickup/2.0/status-request": routed(),
    "messagepickup/2.0/messages-received": {"message_id_list": ["none"], **routed()},
    "messagepickup/1.0/status-request": routed(),
    "coordinate-mediation/1.0/keylist-query": {},
    "coordinate-mediation/1.0/mediate-request": {},
    "nothing/1.0/known": {},
}
"""Messages that store nothing today, among them those that ask nothing of an identity."""

pytestmark = pytest.mark.parametrize("settings", [IDLE])


async def settle(mediator: Mediator) -> None:
    """Let every host look until nothing is due."""
    for host in mediator.hosts.running.values():
        while await asyncio.to_thread(host._expiry.step):
            pass


async def pass_days(mediator: Mediator, days: float) -> None:
    mediator.clock.advance(days * DAY_S)
    await settle(mediator)


def ended(mediator: Mediator) -> int:
    return mediator.facts().count("account-expired.1")


async def until(mediator: Mediator, topic: str) -> None:
    """Wait until an event of this topic is stored."""
    async with asyncio.timeout(WAIT_S):
        while topic not in await asyncio.to_thread(mediator.facts):
            pass


async def test_a_wallet_from_which_nothing_comes_ends_with_what_waits_and_may_begin_anew(
    mediator: Mediator, network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one", "two", "three")
    await pass_days(mediator, AGE_DAYS + EVERY_DAYS - 0.1)
    assert ended(mediator) == 0
    await pass_days(mediator, 0.2)
    assert ended(mediator) == 1
    before = mediator.facts().count("message-queued.2")
    await network.forward_text(bob.key, "late")
    assert mediator.facts().count("message-queued.2") == before
    with pytest.raises(ProblemReported):
        await bob.wallet.status()
    anew = await network.connect(key=bob.connection.key)
    again = Bob(anew, await anew.new_recipient())
    await network.write(again, "welcome back")
    assert await again.drained() == ["welcome back"]


async def test_a_rotated_wallet_that_ended_so_begins_anew_although_it_repeats_its_from_prior(
    mediator: Mediator, network: WalletNetwork
) -> None:
    """The mediator has let go of the prior DID's document, so a short one proves nothing now."""
    old = await connected(network)
    new = successor(network, old)
    proof = moved(old, new)
    await say(new, "trust-ping/2.0/ping", from_prior=proof)
    await pass_days(mediator, AGE_DAYS + EVERY_DAYS + 0.1)
    assert ended(mediator) == 1
    await mediator.restart()
    kind = "coordinate-mediation/3.0/mediate-request"
    assert str((await say(new, kind, from_prior=proof))["@type"]).endswith("mediate-grant")
    assert len((await new.query_recipients()).dids) == 1


@pytest.mark.parametrize("kind", OWN)
async def test_any_message_of_its_own_keeps_an_agent(
    mediator: Mediator, network: WalletNetwork, bob: Bob, kind: str
) -> None:
    await pass_days(mediator, 60)
    await network.say(bob.connection, kind, **OWN[kind])
    await pass_days(mediator, AGE_DAYS - 0.1)
    assert ended(mediator) == 0
    await pass_days(mediator, EVERY_DAYS + 0.2)
    assert ended(mediator) == 1


async def test_what_others_send_keeps_no_agent(
    mediator: Mediator, network: WalletNetwork, bob: Bob
) -> None:
    await pass_days(mediator, 60)
    await network.write(bob, "are you there?")
    await pass_days(mediator, 30.1)
    assert ended(mediator) == 1


async def test_a_message_on_a_socket_keeps_an_agent_and_the_open_socket_does_not(
    mediator: Mediator, network: WalletNetwork, bob: Bob
) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(
            bob.connection.pack({"@type": NEW_PREFIX + "trust_ping/1.0/ping", **one(), **routed()})
        )
        await socket.data()
        await pass_days(mediator, 60)
        await socket.raw.send_bytes(
            bob.connection.pack({"@type": NEW_PREFIX + "trust_ping/1.0/ping", **one(), **routed()})
        )
        await socket.data()
        await pass_days(mediator, AGE_DAYS - 0.1)
        assert ended(mediator) == 0
        await pass_days(mediator, EVERY_DAYS + 0.2)
        assert ended(mediator) == 1


@pytest.mark.parametrize("is_live", [True, False])
async def test_a_socket_on_which_an_agent_waits_ends_with_its_account(
    mediator: Mediator, network: WalletNetwork, *, is_live: bool
) -> None:
    wallet = await connected(network)
    async with wallet.live() if is_live else wallet.implicit_socket() as socket:
        if isinstance(socket, Socket):
            await wallet.over(socket).ping()  # so the mediator waits for messages
        await pass_days(mediator, AGE_DAYS + EVERY_DAYS + 0.1)
        assert ended(mediator) == 1
        with pytest.raises(ConnectionLost) as lost:
            await (socket.receive if isinstance(socket, Socket) else socket.next)(WAIT_S)
    assert lost.value.close_code == 4403


async def test_a_wallet_that_was_refused_while_the_clock_was_ahead_is_seen_once_it_is_right(
    mediator: Mediator, network: WalletNetwork
) -> None:
    stranger = network.stranger()
    mediator.clock.advance(730 * DAY_S)
    await network.say(stranger.connection, "trust_ping/1.0/ping")
    mediator.clock.advance(-730 * DAY_S)
    wallet = await network.connect(key=stranger.connection.key)
    for _ in range(AGE_DAYS // 5):
        await pass_days(mediator, 10)
        await network.say(wallet.connection, "messagepickup/2.0/status-request", **routed())
    assert ended(mediator) == 0


def one() -> Json:
    return {"@id": "once"}


async def test_polls_write_no_row_each(
    mediator: Mediator, network: WalletNetwork, bob: Bob
) -> None:
    clock: HandClock = mediator.clock
    before = mediator.facts()
    days = 4 * EVERY_DAYS
    for _ in range(days * 4):
        clock.advance(DAY_S / 4)
        await network.say(bob.connection, "messagepickup/2.0/status-request", **routed())
    assert mediator.facts()[len(before) :] == ["agent-seen.1"] * 4


@pytest.mark.parametrize("layout", ["one host", "two hosts"])
async def test_the_keys_of_an_agent_that_ended_are_free_for_others(
    mediator: Mediator, network: WalletNetwork, bob: Bob
) -> None:
    carol = await network.connect()
    await carol.request_mediation()

    async def register() -> Any:
        wanted = {"recipient_key": base58(bob.key), "action": "add"}
        answer: Any = await carol.ask(
            {
                "@type": NEW_PREFIX + "coordinate-mediation/1.0/keylist-update",
                **one(),
                "updates": [wanted],
            }
        )
        return answer["updated"][0]["result"]

    await pass_days(mediator, 60)
    assert await register() == "client_error"
    # Each host learns of an edge when it first shows itself.
    for number in range(mediator.settings.hosts):
        port = mediator.hosts.ports_of("edge-0")(host_name(number))
        await port.heartbeat(0)
    await pass_days(mediator, 30.1)
    assert ended(mediator) == 1
    await until(mediator, "key-released.1")
    assert await register() == "success"


async def test_a_rotated_wallet_that_ended_comes_back_by_the_did_that_it_speaks_by(
    mediator: Mediator, network: WalletNetwork
) -> None:
    old = await connected(network)
    new = successor(network, old)
    await say(new, "messagepickup/3.0/status-request", from_prior=moved(old, new))
    await pass_days(mediator, 60)
    await say(new, "trust-ping/2.0/ping")
    await pass_days(mediator, 60)
    assert ended(mediator) == 0
    await pass_days(mediator, 31)
    assert ended(mediator) == 1
    answer = await say(new, "coordinate-mediation/3.0/mediate-request")
    assert str(answer["@type"]).endswith("mediate-grant")
    answer = await say(new, "messagepickup/3.0/status-request")
    assert str(answer["@type"]).endswith("status")
    refused = await say(old, "messagepickup/3.0/status-request")
    assert str(refused["@type"]).endswith("problem-report")


async def test_silence_goes_on_over_a_restart_and_begins_with_the_setting(
    mediator: Mediator, network: WalletNetwork, bob: Bob
) -> None:
    place = {"listen": mediator.settings.listen, "public_url": mediator.settings.url}
    await mediator.restart({**place, "retention": RETENTION})
    for _ in range(4):
        await pass_days(mediator, AGE_DAYS)
        await network.say(bob.connection, "messagepickup/2.0/status-request", **routed())
    assert "agent-seen.1" not in mediator.facts()
    await mediator.restart({**place, **IDLE})
    await pass_days(mediator, 60)
    await mediator.restart({**place, **IDLE})
    await pass_days(mediator, 29.9)
    assert ended(mediator) == 0
    await pass_days(mediator, 0.2)
    assert ended(mediator) == 1
