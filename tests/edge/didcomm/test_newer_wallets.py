"""Wallets of DIDComm v2 over real HTTP and sockets: mediated, written to, and reading."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final
from urllib.parse import quote

import orjson
import pytest

from http_edge.clients.didcomm import (
    PICKUP_3,
    PICKUP_4,
    Live,
    MediatorRefused,
    NoAnswer,
    ProblemReported,
    Wallet2,
    endpoint_of,
    forward,
    forward_2,
    post,
)
from http_edge.clients.didcomm.connection import DidMethod2
from http_edge.clients.didcomm.mediation import MEDIATION_2, MEDIATION_3, MediationVersion
from http_edge.clients.didcomm.pickup import PickupVersion, delivered
from http_edge.clients.didcomm.protocol_session import ReturnRoute, check_problem
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, answer_to, ask_of, connected
from tests.edge.didcomm.test_rotated_accounts import packed
from tests.edge.didcomm.wallet_network import (
    SERVICE,
    Bob,
    WalletNetwork,
    envelope_of,
    forwarded,
    opened,
    routed,
    sealed,
)
from tests.edge.identities import Json
from tests.edge.local_host import LocalHosts

PICKUPS: Final = pytest.mark.parametrize("pickup", [PICKUP_3, PICKUP_4], ids=["3.0", "4.0"])


@pytest.fixture
async def alice(network: WalletNetwork) -> Sender:
    return Sender(network)


async def test_a_minor_version_of_tomorrow_is_answered_in_the_highest_known(
    network: WalletNetwork,
) -> None:
    bob = await connected(network)
    for question, answer in [
        ("trust-ping/2.3/ping", "trust-ping/2.0/ping-response"),
        ("messagepickup/3.5/status-request", "messagepickup/3.0/status"),
        ("coordinate-mediation/3.2/mediate-request", "coordinate-mediation/3.0/mediate-grant"),
    ]:
        assert (await answer_to(bob, question))["@type"] == NEW_PREFIX + answer


async def test_a_message_is_known_in_any_case_and_punctuation_and_answered_as_it_is_spelled(
    network: WalletNetwork,
) -> None:
    bob = await connected(network, mediation=MEDIATION_2)
    for question, answer in [
        ("messagepickup/4.0/status-request", "messagepickup/4.0/status"),
        ("Message_Pickup/4.7/statusRequest", "Message_Pickup/4.0/status"),
        ("trustping/2.0/PING", "trustping/2.0/ping-response"),
        ("CoordinateMediation/3.0/mediate_request", "CoordinateMediation/3.0/mediate-grant"),
    ]:
        assert (await answer_to(bob, question))["@type"] == NEW_PREFIX + answer
    account = did_key(bob.connection.key.public)
    known = await network.mediator.operate(f"/queues?did={quote(account)}")
    assert known.json["agent"]["protocol"] == "coordinate-mediation/3.0"
    report = ask_of("Report_Problem/2.0/Problem_Report", **{"~transport": {"return_route": "all"}})
    unanswered = await network.post(bob.connection.pack(report), content_type=MEDIA_TYPE)
    assert (unanswered.status, unanswered.body) == (202, b"")


@pytest.mark.parametrize("spelled", ["Routing/{}.0/forward", "routing/{}.0/FORWARD"])
async def test_a_forward_is_known_in_any_case(network: WalletNetwork, spelled: str) -> None:
    bob, newer = await network.bob(), await connected(network)
    kind: Json = {"@type": NEW_PREFIX + spelled.format(1)}
    older = forwarded(base58(bob.key), orjson.loads(envelope_of(bob.key, "one")), **kind)
    assert (await network.post(older)).status == 202
    assert await bob.drained() == ["one"]
    to, kind = await newer.new_recipient(), {"type": NEW_PREFIX + spelled.format(2)}
    assert (await Sender(network).forward(to.did, "one", **kind)).status == 202
    assert (await newer.status()).message_count == 1


@pytest.mark.parametrize(
    ("pickup", "mediation", "did_method"),
    [
        (PICKUP_3, MEDIATION_2, "peer4"),
        (PICKUP_4, MEDIATION_3, "peer4"),
        (PICKUP_3, MEDIATION_3, "peer2"),
        (PICKUP_4, MEDIATION_2, "key"),
    ],
    ids=lambda each: each if isinstance(each, str) else each.protocol,
)
async def test_a_wallet_follows_an_invitation_and_reads_what_waits(
    network: WalletNetwork,
    alice: Sender,
    pickup: PickupVersion,
    mediation: MediationVersion,
    did_method: DidMethod2,
) -> None:
    bob = await connected(network, pickup=pickup, mediation=mediation, did_method=did_method)
    await bob.ping()
    recipient = await bob.new_recipient()
    assert endpoint_of(recipient.did) == network.mediator.url("/didcomm")
    await alice.write(recipient, "one", "two", "three")
    status = await bob.status(recipient.did)
    assert (status.recipient_did, status.message_count) == (recipient.did, 3)
    read = [alice.text_in(recipient, picked.envelope) async for picked in bob.drain(2)]
    assert read == ["one", "two", "three"]
    assert (await bob.status()).message_count == 0


async def test_pickup_1_hands_over_the_messages_that_it_removes(
    network: WalletNetwork, alice: Sender
) -> None:
    bob = await connected(network)
    recipient = await bob.new_recipient()
    await alice.write(recipient, "one", "two")
    batch = await answer_to(bob, "messagepickup/1.0/batch-pickup", batch_size=2)
    texts = [orjson.dumps(one["data"]["json"]) for one in batch["~attach"]]
    assert [alice.text_in(recipient, text) for text in texts] == ["one", "two"]
    assert (await bob.status()).message_count == 0


async def test_pickup_1_shows_the_messages_that_are_asked_for(
    network: WalletNetwork, alice: Sender
) -> None:
    bob = await connected(network)
    await alice.write(await bob.new_recipient(), "one", "two")
    waiting = [picked.id for picked in await bob.fetch(2)]
    listed = await answer_to(bob, "messagepickup/1.0/list-pickup", message_ids=waiting)
    assert [one["@id"] for one in listed["~attach"]] == waiting


@PICKUPS
async def test_live_messages_come_as_deliveries_and_again_until_acknowledged(
    network: WalletNetwork, alice: Sender, pickup: PickupVersion
) -> None:
    bob = await connected(network, pickup=pickup)
    recipient = await bob.new_recipient()
    async with bob.live() as live:
        await alice.write(recipient, "now")
        (pushed,) = await live.next()
        assert alice.text_in(recipient, pushed.envelope) == "now"
    async with bob.live() as live:
        (again,) = await live.fetch()
        assert again.id == pushed.id
        assert (await live.received([again.id])).message_count == 0


async def test_an_acknowledgement_that_has_no_answer_does_not_look_done_when_it_was_not(
    network: WalletNetwork, alice: Sender
) -> None:
    bob = await connected(network, pickup=PICKUP_4)
    await alice.write(await bob.new_recipient(), "one")
    async with bob.live() as live:
        (picked,) = await live.fetch()
        network.mediator.hosts.cut("host-0")
        with pytest.raises(MediatorRefused) as refused:
            await bob.acknowledge([picked.id])
        assert refused.value.status == 503
        await live.acknowledge([picked.id])
        with pytest.raises(ProblemReported):
            await live.next()
        network.mediator.hosts.mend("host-0")
        assert (await live.status()).message_count == 1


@PICKUPS
async def test_an_acknowledgement_that_is_none_does_not_look_done(
    network: WalletNetwork, pickup: PickupVersion
) -> None:
    bob = await connected(network, pickup=pickup)

    def wrong(ids: object) -> bytes:
        question = ask_of(f"{pickup.protocol}/messages-received", message_id_list=ids)
        return bob.connection.pack(question)

    cases: list[object] = [None, "one", [1], ["one"] * 1_001]
    for ids in cases:
        answer = await network.post(wrong(ids), content_type=MEDIA_TYPE)
        assert (answer.status, answer.json) == (400, {"error": "not-a-message"})
    async with network.socket() as socket:
        await socket.raw.send_bytes(wrong(None))
        report = bob.connection.open(await socket.data())
        assert isinstance(report, dict)
        with pytest.raises(ProblemReported) as reported:
            check_problem(report)
        assert reported.value.code.startswith("e.p.msg.")


@PICKUPS
async def test_an_acknowledgement_of_another_than_the_owner_does_not_look_done(
    network: WalletNetwork, alice: Sender, pickup: PickupVersion
) -> None:
    prior = await connected(network, pickup=pickup)
    await alice.write(await prior.new_recipient(), "one")
    (picked,) = await prior.fetch()
    bob = await prior.rotate(KeyPair.new())
    stranger = replace(prior.connection, key=KeyPair.new(), is_known=False)
    question = ask_of(f"{pickup.protocol}/messages-received", message_id_list=[picked.id])
    for connection, code, code_2 in [
        (prior.connection, "did-rotated", "e.p.did-rotated"),
        (stranger, "not-connected", "e.p.req.not_enroll"),
    ]:
        answer = await network.post(connection.pack(question), content_type=MEDIA_TYPE)
        assert (answer.status, answer.json) == (403, {"error": code})
        async with network.socket() as socket:
            await socket.raw.send_bytes(connection.pack(question))
            report = connection.open(await socket.data())
            assert isinstance(report, dict)
            with pytest.raises(ProblemReported) as reported:
                check_problem(report)
            assert reported.value.code == code_2
    assert (await bob.status()).message_count == 1


class Mending(Live):
    """Its acknowledgement meets a host that is away, and the question after it does not."""

    hosts: LocalHosts

    async def ask(self, message: Json, *, return_route: ReturnRoute = "all") -> Json | None:
        answer = await super().ask(message, return_route=return_route)
        if return_route == "none":
            with suppress(ProblemReported):
                await self.status()
            self.hosts.mend("host-0")
        return answer


@asynccontextmanager
async def mending(network: WalletNetwork, bob: Wallet2) -> AsyncIterator[Mending]:
    """A socket of a wallet in live mode that meets a host which is away for a while."""
    async with bob.live() as opened_live:
        live = Mending(bob.connection, opened_live.socket, bob.pickup)
        live.hosts = network.mediator.hosts
        yield live


async def test_a_client_learns_that_what_it_acknowledged_was_not_removed(
    network: WalletNetwork, alice: Sender
) -> None:
    bob = await connected(network, pickup=PICKUP_4)
    await alice.write(await bob.new_recipient(), "one")
    async with mending(network, bob) as live:
        (picked,) = await live.fetch()
        network.mediator.hosts.cut("host-0")
        with pytest.raises(ProblemReported):
            await live.received([picked.id])
        assert (await live.received([picked.id])).message_count == 0


@PICKUPS
async def test_a_drain_over_http_fails_if_its_acknowledgement_was_refused(
    network: WalletNetwork, alice: Sender, pickup: PickupVersion
) -> None:
    bob = await connected(network, pickup=pickup)
    await alice.write(await bob.new_recipient(), "one")
    drain = bob.drain()
    picked = await anext(drain)
    network.mediator.hosts.cut("host-0")
    with pytest.raises(ProblemReported if pickup.answers_receipt else MediatorRefused):
        await anext(drain)
    network.mediator.hosts.mend("host-0")
    assert (await bob.received([picked.id])).message_count == 0


async def test_a_drain_over_a_socket_fails_if_its_acknowledgement_was_refused(
    network: WalletNetwork, alice: Sender
) -> None:
    bob = await connected(network, pickup=PICKUP_4)
    await alice.write(await bob.new_recipient(), "one")
    async with mending(network, bob) as live:
        drain = live.drain()
        picked = await anext(drain)
        network.mediator.hosts.cut("host-0")
        with pytest.raises(ProblemReported):
            await anext(drain)
        assert (await live.received([picked.id])).message_count == 0
        with pytest.raises(NoAnswer):
            await live.next(0.01)


@pytest.mark.parametrize(
    "pickup",
    [PICKUP_3, PICKUP_4, PICKUP_4._replace(protocol="messagepickup/4.0")],
    ids=["3.0", "4.0", "4.0 as its page is named"],
)
async def test_a_wish_for_live_mode_opens_the_return_route_of_its_socket(
    network: WalletNetwork, pickup: PickupVersion
) -> None:
    bob, sender = await connected(network, pickup=pickup), Sender(network)
    recipient = await bob.new_recipient()

    def wish(*, on: bool) -> bytes:
        return bob.connection.pack(
            ask_of(f"{pickup.protocol}/live-delivery-change", live_delivery=on)
        )

    async with network.socket() as socket:
        await socket.raw.send_bytes(wish(on=False))
        await socket.raw.send_bytes(wish(on=True))
        status = bob.connection.open(await socket.data())
        assert isinstance(status, dict)
        assert (status["live_delivery"], status["message_count"]) == (True, 0)
        await sender.write(recipient, "one")
        delivery = bob.connection.open(await socket.data())
        assert isinstance(delivery, dict)
        (picked,) = delivered(delivery)
        assert sender.text_in(recipient, picked.envelope) == "one"
    answer = await network.post(wish(on=True), content_type=MEDIA_TYPE)
    assert (answer.status, answer.body) == (202, b""), "over HTTP it opens nothing"


async def test_a_thread_of_the_second_generation_is_the_same_in_any_case(
    network: WalletNetwork,
) -> None:
    wallet = await connected(network)

    def ping(thread: str, **headers: object) -> bytes:
        body = {"response_requested": True}
        return packed(wallet, "trust-ping/2.0/ping", body, thid=thread, **headers)

    async with network.socket() as socket:
        opening = ping("T-1", return_route="thread", return_route_thread="t-1")
        for message in (opening, ping("T-1", return_route=None), ping("t-1", return_route=None)):
            await socket.raw.send_bytes(message)
            pong = wallet.connection.open(await socket.data())
            assert isinstance(pong, dict)
            assert str(pong["@type"]).endswith("/ping-response")
    assert (await wallet.status()).message_count == 0


async def test_whatever_waits_comes_over_an_open_return_route(
    network: WalletNetwork, alice: Sender
) -> None:
    bob = await connected(network)
    recipient = await bob.new_recipient()
    await alice.write(recipient, "one", "two", "three")
    first = await bob.implicit()
    assert first is not None
    async with bob.implicit_socket() as socket:
        rest = [await socket.receive(), await socket.receive()]
    read = [alice.text_in(recipient, one) for one in [first, *rest] if isinstance(one, bytes)]
    assert read == ["one", "two", "three"]


async def test_a_wallet_discovers_both_generations(network: WalletNetwork) -> None:
    bob = await connected(network)
    found = {each.id for each in await bob.discover()}
    for spoken in (
        "messagepickup/1.0", "messagepickup/2.0", "messagepickup/3.0", "message-pickup/4.0",
        "coordinate-mediation/1.0", "coordinate-mediation/2.0", "coordinate-mediation/3.0",
        "routing/1.0", "routing/2.0", "trust_ping/1.0", "trust-ping/2.0", "empty/1.0",
        "report-problem/2.0", "out-of-band/1.1", "out-of-band/2.0", "discover-features/2.0",
    ):  # fmt: skip
        assert NEW_PREFIX + spoken in found, spoken
    headers = {each.id for each in await bob.discover([("header", "*")])}
    assert headers == {"delay_milli", "expires_time", "from_prior", "please_ack", "return_route"}
    (size,) = await bob.discover([("constraint", "max_receive_bytes")])
    assert size.id == "max_receive_bytes"


async def test_a_ping_of_the_first_generation_is_answered_inside_the_second(
    network: WalletNetwork,
) -> None:
    bob = await connected(network)
    answer = await bob.ask({"@type": f"{NEW_PREFIX}trust_ping/1.0/ping"})
    assert answer is not None
    assert answer["@type"] == f"{NEW_PREFIX}trust_ping/1.0/ping_response"


async def test_a_message_that_wishes_one_is_acknowledged_by_an_empty_one(
    network: WalletNetwork,
) -> None:
    bob = await connected(network)
    asks: Json = {
        "@type": f"{NEW_PREFIX}trust-ping/2.0/ping",
        "@id": "ping-1",
        "response_requested": False,
        "~please_ack": {},
    }
    answer = await bob.ask(asks)
    assert answer is not None
    assert answer["@type"] == f"{NEW_PREFIX}empty/1.0/empty"
    assert answer["~thread"] == {"thid": "ping-1"}


async def test_what_waits_is_named_in_the_media_type_of_its_generation(
    network: WalletNetwork,
) -> None:
    bob = await connected(network)
    message = {"@type": f"{NEW_PREFIX}trust-ping/2.0/ping", "@id": "ping-1"}
    packed = bob.connection.pack({**message, "~transport": {"return_route": "all"}})
    posted = await post(network.session, bob.connection.http_url, packed)
    assert posted.status == 200
    answer = await network.post(packed, content_type=MEDIA_TYPE)
    assert answer.headers["Content-Type"] == MEDIA_TYPE


async def test_each_generation_sends_through_the_other_and_both_take_from_one_queue(
    network: WalletNetwork,
) -> None:
    """A sender of v1 by the key of a DID, and a sender of v2 by the same DID."""
    bob = await connected(network)
    recipient = await bob.new_recipient("key")
    old = forward(envelope_of(recipient.key.public, "old"), recipient.key.public, [SERVICE.public])
    assert (await network.post(old)).status == 202
    new = Sender(network).sealed("new", recipient.did)
    body = forward_2([new], recipient.did, bob.routing_did)
    assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    picked = await bob.fetch()
    assert len(picked) == 2
    assert orjson.loads(picked[1].envelope) == orjson.loads(new)


async def test_a_wallet_with_one_key_uses_both_generations_in_turn(
    network: WalletNetwork, bob: Bob
) -> None:
    """What was written to the older wallet waits for the newer one, and the other way round."""
    newer = await connected(network, key=bob.connection.key)
    await network.write(bob, "one", "two")
    assert (await newer.status()).message_count == 2
    (first,) = await newer.fetch(1)
    assert bob.read(first.envelope) == "one"
    await newer.received([first.id])
    recipient = await newer.new_recipient()
    alice = Sender(network)
    await alice.write(recipient, "three")
    second, third = await bob.wallet.fetch()
    assert bob.read(second.envelope) == "two"
    assert alice.text_in(recipient, third.envelope) == "three"
    await bob.wallet.received([second.id, third.id])
    assert (await newer.status()).message_count == 0


async def test_live_mode_speaks_the_generation_that_asked_for_it_last(
    network: WalletNetwork, bob: Bob
) -> None:
    """On one socket: its first message is of v1, and live mode is asked for in v1, then in v2."""
    newer = await connected(network, key=bob.connection.key)
    change = {"@id": "change-1", "live_delivery": True, **routed()}
    async with network.socket() as socket:
        await socket.raw.send_bytes(
            sealed(bob.connection, "messagepickup/2.0/live-delivery-change", **change)
        )
        assert opened(bob.connection, await socket.data())["live_delivery"] is True
        await network.write(bob, "one")
        (picked,) = delivered(opened(bob.connection, await socket.data()))
        assert bob.read(picked.envelope) == "one"
        kind = f"{NEW_PREFIX}message-pickup/4.0/live-delivery-change"
        await socket.raw.send_bytes(newer.connection.pack({"@type": kind, **change}))
        status = newer.connection.open(await socket.data())
        assert isinstance(status, dict)
        assert status["live_delivery"] is True
        await network.write(bob, "two")
        delivery = newer.connection.open(await socket.data())
        assert isinstance(delivery, dict)
        assert delivery["@type"] == f"{NEW_PREFIX}message-pickup/4.0/delivery"
        assert [bob.read(one.envelope) for one in delivered(delivery)] == ["two"]
