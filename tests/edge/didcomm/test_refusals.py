"""Messages that were refused are in the log: counted, and of whom, if an envelope proves it."""

from __future__ import annotations

from typing import Final

import orjson
import pytest

from http_edge.clients.didcomm import MediatorRefused, NoAnswer, ProblemReported, Wallet
from http_edge.clients.didcomm.protocol_session import prepared
from http_edge.didcomm.composition import pseudonym
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.didcomm.wallet_network import (
    SENDER,
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    forwarded,
    fresh,
    routed,
    sealed,
)
from tests.edge.mediator import KEYS, Mediator

Entry = tuple[str, str, str, int]
KEYLIST: Final = "coordinate-mediation/1.0/keylist-update"


async def recorded(mediator: Mediator) -> list[Entry]:
    """What is in the log once the mediator has stopped: command, reason, sender, count."""
    await mediator.stop()
    entries = mediator.refused()
    await mediator.start()
    assert {entry.protocol for entry in entries} <= {"didcomm"}
    return [(e.command, e.reason, e.sender_did, e.count) for e in entries]


def did_of(wallet: Wallet) -> str:
    """The identity of a wallet."""
    return did_key(wallet.connection.key.public)


async def test_a_message_of_a_stranger_is_recorded_with_its_name(
    network: WalletNetwork, mediator: Mediator
) -> None:
    stranger = network.stranger()
    for _ in range(2):
        answer = await answer_to(stranger, "messagepickup/2.0/status-request")
        assert answer["description"]["code"] == "not-connected"
    await answer_to(stranger, "coordinate-mediation/1.0/mediate-request")
    await answer_to(stranger, "messagepickup/1.0/status-request")
    did = did_of(stranger)
    assert await recorded(mediator) == [
        ("coordinate-mediation/1.0/mediate-request", "not-connected", did, 1),
        ("messagepickup/1.0/status-request", "not-connected", did, 1),
        ("messagepickup/2.0/status-request", "not-connected", did, 2),
    ]


async def test_what_a_stranger_is_refused_without_a_return_route_is_recorded_and_goes_nowhere(
    network: WalletNetwork, mediator: Mediator
) -> None:
    stranger, query = network.stranger(), "coordinate-mediation/1.0/keylist-query"
    answer = await network.say(stranger.connection, query)
    assert (answer.status, answer.body) == (202, b"")
    assert await recorded(mediator) == [(query, "not-connected", did_of(stranger), 1)]


async def test_what_is_no_envelope_is_recorded_of_no_sender(
    network: WalletNetwork, mediator: Mediator
) -> None:
    assert (await network.post(b"no envelope")).status == 400
    ping = fresh(**{"@type": NEW_PREFIX + "trust_ping/1.0/ping"})
    anonymous = pack(orjson.dumps(ping), [SERVICE.public], None)
    assert (await network.post(anonymous)).status == 400
    large = b"x" * (mediator.settings.didcomm.message_bytes_max + 1)
    assert (await network.post(large)).status == 413
    assert (await network.post(b"{}", content_type="image/png")).status == 415
    assert await recorded(mediator) == [
        ("", "message-too-large", "", 1),
        ("", "not-an-envelope", "", 1),
        ("", "unsupported-media-type", "", 1),
        ("trust_ping/1.0/ping", "anonymous", "", 1),
    ]


async def test_nothing_is_recorded_that_a_sender_made_up(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    await answer_to(bob.wallet, "made-up/1.0/by-bob")
    await answer_to(bob.wallet, "messagepickup/9.0/status-request")
    await answer_to(bob.wallet, "messagepickup/2.77/by-bob")
    did = did_of(bob.wallet)
    assert await recorded(mediator) == [
        ("", "unknown-message-type", did, 1),
        ("", "version-not-supported", did, 1),
        ("messagepickup/2.0", "unknown-message-type", did, 1),
    ]


async def test_a_message_for_an_unknown_key_is_recorded_though_it_looks_like_success(
    network: WalletNetwork, mediator: Mediator
) -> None:
    assert (await network.forward_text(KeyPair.new().public, "hello?")).status == 202
    assert await recorded(mediator) == [("routing/1.0/forward", "unknown-recipient", "", 1)]


@pytest.mark.parametrize("settings", [{"didcomm": {"forward_depth_max": 1}}])
async def test_forwards_that_lead_nowhere_are_recorded(
    network: WalletNetwork, mediator: Mediator
) -> None:
    inner = forwarded("unknown", {"no": "envelope"}, sender=SENDER)
    assert (await network.post(inner)).status == 400
    assert await recorded(mediator) == [("routing/1.0/forward", "not-a-message", "", 1)]


async def test_a_loop_is_recorded(network: WalletNetwork, mediator: Mediator) -> None:
    via = {"Via": f"1.1 {pseudonym(KEYS)}"}
    async with network.session.post(mediator.url("/didcomm"), data=b"x", headers=via) as answer:
        assert answer.status == 409
    assert await recorded(mediator) == [("", "message-loop", "", 1)]


async def test_trying_to_take_the_key_of_another_is_recorded(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    thief = await network.bob()
    update = {"recipient_key": did_key(bob.key), "action": "add"}
    answer = await answer_to(thief.wallet, KEYLIST, updates=[update])
    assert answer["updated"][0]["result"] == "client_error"
    assert await recorded(mediator) == [(KEYLIST, "client_error", did_of(thief.wallet), 1)]


@pytest.mark.parametrize("settings", [{"didcomm": {"error_reports_max": 1}}])
async def test_an_update_that_made_one_of_its_changes_is_answered_and_is_no_refusal(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    wallet = (await network.bob()).wallet
    for seed in (b"1", b"2", b"3"):
        own = did_key(KeyPair.from_seed(seed * 32).public)
        updates = [{"recipient_key": key, "action": "add"} for key in (own, did_key(bob.key))]
        answer = await answer_to(wallet, KEYLIST, updates=updates)
        assert answer["@type"] == f"{NEW_PREFIX}{KEYLIST}-response"
        assert [item["result"] for item in answer["updated"]] == ["success", "client_error"]
    assert await recorded(mediator) == []


@pytest.mark.parametrize("settings", [{"didcomm": {"registration": "allow_list"}}])
async def test_who_may_not_connect_is_recorded_with_the_true_reason(
    network: WalletNetwork, mediator: Mediator
) -> None:
    with pytest.raises(ProblemReported, match="request_not_accepted"):
        await network.connect()
    ((command, reason, sender, count),) = await recorded(mediator)
    assert command.endswith("/request")
    assert (reason, count) == ("not-open", 1)
    assert sender.startswith("did:key:")


async def test_messages_on_a_socket_are_recorded_too(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(b"no envelope")
        assert await socket.ended_because() == (4400, "not-an-envelope")
    async with network.socket() as socket:
        await socket.raw.send_bytes(
            sealed(bob.connection, "messagepickup/2.0/delivery-request", limit=-1, **routed())
        )
        await socket.data()
        await socket.raw.send_bytes(b"x" * (mediator.settings.didcomm.message_bytes_max + 2))
        assert await socket.closing() == 1009
    assert await recorded(mediator) == [
        ("", "message-too-large", "", 1),
        ("", "not-an-envelope", "", 1),
        ("messagepickup/2.0/delivery-request", "invalid-message", did_of(bob.wallet), 1),
    ]


async def test_a_client_that_keeps_to_the_rules_is_not_in_the_record(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    await network.write(bob, "one", "two")
    assert await bob.drained() == ["one", "two"]
    assert (await network.post(envelope_of(bob.key, "three"))).status == 202
    assert await recorded(mediator) == []


@pytest.mark.parametrize(
    "settings", [{"didcomm": {"error_reports_max": 3, "error_reports_s": 3_600}}]
)
async def test_a_sender_gets_so_many_reports_then_one_that_says_so_and_then_none(
    network: WalletNetwork, bob: Bob
) -> None:
    codes = []
    message = {"@type": f"{NEW_PREFIX}unknown/1.0/question", **routed()}
    for _ in range(4):
        answer = await bob.wallet.ask(message)
        codes.append(None if answer is None else answer["description"]["code"])  # type: ignore[index]
    assert codes == [*["unknown-message-type"] * 3, "max-errors-exceeded"]
    for _ in range(2):
        with pytest.raises(MediatorRefused) as refused:
            await bob.wallet.ask(message)
        assert refused.value.status == 429
    async with bob.wallet.socket() as socket:
        over_it = bob.wallet.over(socket)
        await socket.say(prepared(message, "all"))
        assert (await over_it.status()).message_count == 0
        with pytest.raises(NoAnswer):
            await socket.receive(0)
    assert (await bob.wallet.status()).message_count == 0, "what is right is answered all the while"
    stranger = network.stranger()
    other = await answer_to(stranger, "messagepickup/2.0/status-request")
    assert other["description"]["code"] == "not-connected", "others learn what is wrong"
