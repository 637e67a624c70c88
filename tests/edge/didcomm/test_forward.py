"""Forwards (RFC 0094): every shape, every cap, several recipients, and no answer."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from http_edge.clients.didcomm import forward
from http_edge.didcomm.envelopes.keys import KeyPair, base58, curve_public, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.recipient_names import canonical_name, x25519_name
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import (
    SENDER,
    SERVICE,
    Bob,
    WalletNetwork,
    envelope_of,
    forwarded,
    fresh,
    ids,
    keys,
    numbered,
    routed,
)
from tests.edge.mediator import HandClock, Mediator


def nested(envelope: bytes, to: bytes, depth: int) -> bytes:
    """So many forwards within one another, all but the innermost to the mediator itself."""
    return forward(envelope, to, [SERVICE.public] * depth)


async def test_a_forward_lasts_until_its_time_is_over(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    envelope = orjson.loads(envelope_of(bob.key, "one"))
    # It is 2027-01-15 08:00:00Z.
    for time, status in [
        ("2027-01-15 08:00:00Z", 410),
        ("2027-01-15T10:00:00+02:00", 410),
        ("2027-01-15T10:00:10+02:00", 202),
    ]:
        timing: Any = {"~timing": {"expires_time": time}}
        answer = await network.post(forwarded(base58(bob.key), envelope, **timing))
        assert answer.status == status
    assert (await bob.wallet.status()).message_count == 1
    clock.advance(10)
    assert await bob.drained() == []


async def test_an_envelope_for_a_registered_key_needs_no_forward(
    network: WalletNetwork, bob: Bob
) -> None:
    assert (await network.post(envelope_of(bob.key, "one"))).status == 202
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize("settings", [{"didcomm": {"forward_depth_max": 3}}])
async def test_forwards_within_one_another_are_followed_to_a_bound(
    network: WalletNetwork, bob: Bob
) -> None:
    for depth in (1, 2, 3):
        body = nested(envelope_of(bob.key, f"{depth} deep"), bob.key, depth)
        assert (await network.post(body)).status == 202
    for depth in (4, 5, 9):
        answer = await network.post(nested(envelope_of(bob.key, "too deep"), bob.key, depth))
        assert (answer.status, answer.json) == (400, {"error": "forward-too-deep"})
    assert await bob.drained() == ["1 deep", "2 deep", "3 deep"]


@pytest.mark.parametrize("shape", ["list", "envelope"])
async def test_a_message_for_several_waits_for_each_independently(
    network: WalletNetwork, shape: str
) -> None:
    bob, carol, dave = await network.bobs(3)
    recipients = [bob.key, carol.key, dave.key]
    message = fresh(**{"@type": NEW_PREFIX + "basicmessage/1.0/message", "content": "to all"})
    envelope = pack(orjson.dumps(message), recipients, SENDER)
    body = forwarded([base58(key) for key in recipients], orjson.loads(envelope))
    assert (await network.post(body if shape == "list" else envelope)).status == 202
    picked = await bob.wallet.fetch()
    assert (await bob.wallet.received(ids(picked))).message_count == 0
    assert bob.texts(picked) == ["to all"]
    assert (await carol.wallet.status()).message_count == 1
    assert await carol.drained() == ["to all"]
    assert await dave.drained() == ["to all"]


@pytest.mark.parametrize("shape", ["list", "envelope"])
async def test_an_envelope_for_several_keys_of_one_wallet_is_stored_once(
    network: WalletNetwork, shape: str
) -> None:
    bob, carol = await network.bobs(2)
    second = await bob.wallet.new_recipient()
    recipients = [bob.key, carol.key, second.key.public]
    message = fresh(**{"@type": NEW_PREFIX + "basicmessage/1.0/message", "content": "to both"})
    envelope = pack(orjson.dumps(message), recipients, SENDER)
    body = forwarded([base58(key) for key in recipients], orjson.loads(envelope))
    for _ in range(2):  # a sender that tries again makes no second one
        assert (await network.post(body if shape == "list" else envelope)).status == 202
    assert await bob.drained() == ["to both"]
    assert await carol.drained() == ["to both"]


SHARES = {"limits": {"queue_messages_max": 4, "queue_sender_share_max": 0.5}}


@pytest.mark.parametrize("settings", [SHARES])
async def test_what_is_refused_for_one_of_several_keys_of_a_wallet_is_not_stored_under_another(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one", "two")
    second = await bob.wallet.new_recipient()
    to = [base58(bob.key), base58(second.key.public)]
    packed = [forwarded(to, orjson.loads(envelope_of(bob.key, "three"))) for _ in range(2)]
    for body in packed:
        refused = await network.post(body)
        assert (refused.status, refused.json) == (429, {"error": "queue-full"})
    picked = await bob.wallet.fetch()
    assert bob.texts(picked) == ["one", "two"]
    await bob.wallet.received(ids(picked))
    assert (await network.post(packed[0])).status == 202
    assert await bob.drained() == ["three"]


@pytest.mark.parametrize("shape", ["list", "envelope"])
async def test_each_of_several_is_found_by_a_name_of_its_key_on_the_other_curve(
    network: WalletNetwork, bob: Bob, shape: str
) -> None:
    key, carol = KeyPair.new(), await connected(network)
    await carol.update_recipients(add=[x25519_name(key.curve_public)])
    for others in [keys(1), [bob.key]]:
        recipients = [key.public, *others]
        envelope = pack(orjson.dumps(fresh()), recipients, SENDER)
        body = forwarded([base58(each) for each in recipients], orjson.loads(envelope))
        assert (await network.post(body if shape == "list" else envelope)).status == 202
    assert (await carol.status()).message_count == 2
    assert (await bob.wallet.status()).message_count == 1


@pytest.mark.parametrize("shape", ["list", "envelope"])
async def test_who_is_named_twice_gets_one_message(
    network: WalletNetwork, bob: Bob, shape: str
) -> None:
    message = fresh(**{"@type": NEW_PREFIX + "basicmessage/1.0/message", "content": "once"})
    envelope = pack(orjson.dumps(message), [bob.key, bob.key], SENDER)
    body = forwarded([base58(bob.key), did_key(bob.key)], orjson.loads(envelope))
    assert (await network.post(body if shape == "list" else envelope)).status == 202
    assert await bob.drained() == ["once"]


@pytest.mark.parametrize("settings", [{"didcomm": {"forward_recipients_max": 3}}])
async def test_more_recipients_than_allowed_are_refused_and_none_gets_it(
    network: WalletNetwork, bob: Bob
) -> None:
    names = [bob.key, *keys(3)]
    envelope = pack(b"{}", names, SENDER)
    for body in (forwarded([base58(key) for key in names], orjson.loads(envelope)), envelope):
        answer = await network.post(body)
        assert (answer.status, answer.json) == (400, {"error": "not-a-message"})
    assert await bob.drained() == []


@pytest.mark.parametrize("settings", [{"didcomm": {"unknown_recipient": "refuse"}}])
async def test_a_forward_to_an_unknown_key_is_refused_where_the_operator_wants_it(
    network: WalletNetwork, bob: Bob
) -> None:
    (unknown,) = keys(1)
    for body in (envelope_of(unknown, "one"), nested(envelope_of(unknown, "one"), unknown, 1)):
        refused = await network.post(body)
        assert (refused.status, refused.json) == (404, {"error": "unknown-recipient"})
    await network.write(bob, "one")
    both = forwarded([base58(unknown), base58(bob.key)], orjson.loads(envelope_of(bob.key, "two")))
    assert (await network.post(both)).status == 202
    assert await bob.drained() == ["one", "two"]


@pytest.mark.parametrize("settings", [{"didcomm": {"unknown_recipient": "report"}}])
async def test_a_forward_to_an_unknown_key_is_reported_where_the_operator_wants_it(
    network: WalletNetwork, bob: Bob
) -> None:
    (unknown,) = keys(1)
    envelope = envelope_of(unknown, "one")
    answer = await network.post(nested(envelope, unknown, 1))
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/json")
    report = answer.json
    assert report["@type"].endswith("/notification/1.0/problem-report")
    assert report["description"]["code"] == "unknown-recipient"
    assert report["~thread"]["thid"] == report["~thread"]["pthid"]
    # Without a forward there is no message that a report could be about.
    direct = await network.post(envelope)
    assert (direct.status, direct.json) == (404, {"error": "unknown-recipient"})
    async with network.socket() as socket:
        await socket.raw.send_bytes(nested(envelope, unknown, 1))
        assert await socket.ended_because() == (4404, "unknown-recipient")
    await network.write(bob, "one")
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize(
    "settings", [{"limits": {"queue_messages_max": 2, "queue_sender_share_max": 1}}]
)
async def test_a_full_queue_is_answered_with_a_time_to_come_back(network: WalletNetwork) -> None:
    bob, carol = await network.bobs(2)
    await network.write(bob, "one", "two")
    refused = await network.forward_text(bob.key, "three")
    assert (refused.status, refused.json) == (429, {"error": "queue-full"})
    assert refused.headers["Retry-After"] == "60"
    # What is out on lease takes its place still; only an acknowledgement makes room.
    picked = await bob.wallet.fetch()
    assert (await network.forward_text(bob.key, "three")).status == 429
    await bob.wallet.received(ids(picked))
    await network.write(bob, "three", "four")
    # Of several recipients the full one is reported, and the other has its message.
    both = forwarded(
        [base58(bob.key), base58(carol.key)], orjson.loads(envelope_of(carol.key, "hi"))
    )
    assert (await network.post(both)).status == 429
    assert await carol.drained() == ["hi"]
    assert await bob.drained() == ["three", "four"]


async def test_a_v1_forward_reaches_a_registered_did_in_any_spelling(
    network: WalletNetwork,
) -> None:
    wallet, sender = await connected(network), Sender(network)
    recipient = await wallet.new_recipient("peer2")
    short = canonical_name(recipient.did)
    spellings = [recipient.did, short, f"{recipient.did}#key-1", f"{short}#key-1"]
    for number, to in enumerate(spellings):
        envelope = sender.sealed(str(number), recipient.did)
        assert (await network.post(forwarded(to, orjson.loads(envelope)))).status == 202
    read = [sender.text_in(recipient, picked.envelope) async for picked in wallet.drain()]
    assert read == [*map(str, range(len(spellings)))]


@pytest.mark.parametrize("others", [0, 1])
async def test_a_v1_forward_to_the_key_of_a_registered_did_reaches_its_owner(
    network: WalletNetwork, bob: Bob, others: int
) -> None:
    wallet, sender = await connected(network), Sender(network)
    recipient = await wallet.new_recipient("peer2")
    (signing,) = (part[2:] for part in recipient.did.split(".") if part.startswith("Vz6Mk"))
    envelope = orjson.loads(sender.sealed("hello", recipient.did))
    to = [f"{recipient.did}#{signing}", base58(bob.key)][: 1 + others]
    assert (await network.post(forwarded(to, envelope))).status == 202
    read = [sender.text_in(recipient, picked.envelope) async for picked in wallet.drain()]
    assert read == ["hello"]
    assert (await bob.wallet.status()).message_count == others


@pytest.mark.parametrize("others", [0, 1])
async def test_a_v1_forward_to_a_key_of_several_dids_looks_up_each_of_them(
    network: WalletNetwork, bob: Bob, others: int
) -> None:
    wallet, sender = await connected(network), Sender(network)
    recipient = await wallet.new_recipient("peer2")
    (signing,) = (part[1:] for part in recipient.did.split(".") if part.startswith("Vz6Mk"))
    envelope = orjson.loads(sender.sealed("hello", recipient.did))
    dids = [recipient.did, "did:web:other.example", "did:web:another.example"]
    to = [*(f"{did}#{signing}" for did in dids), base58(bob.key)][: 3 + others]
    assert (await network.post(forwarded(to, envelope))).status == 202
    read = [sender.text_in(recipient, picked.envelope) async for picked in wallet.drain()]
    assert read == ["hello"]
    assert (await bob.wallet.status()).message_count == others


async def test_a_v1_forward_reaches_a_registered_key_by_its_name_on_the_other_curve(
    network: WalletNetwork, bob: Bob
) -> None:
    image = curve_public(bob.key)
    assert image is not None
    envelope = orjson.loads(envelope_of(bob.key, "one"))
    assert (await network.post(forwarded(x25519_name(image), envelope))).status == 202
    assert await bob.drained() == ["one"]


@pytest.mark.parametrize("settings", [{"didcomm": {"message_bytes_max": 65_536}}])
async def test_an_oversized_message_is_refused(network: WalletNetwork, bob: Bob) -> None:
    refused = await network.forward_text(bob.key, "x" * 65_536)
    assert (refused.status, refused.json) == (413, {"error": "message-too-large"})
    assert await bob.drained() == []


async def test_an_authenticated_forward_is_tolerated(network: WalletNetwork, bob: Bob) -> None:
    for sender in (SENDER, bob.connection.key, bob.recipient.key):
        body = forwarded(base58(bob.key), orjson.loads(envelope_of(bob.key, "one")), sender=sender)
        assert (await network.post(body)).status == 202
    assert await bob.drained() == ["one"] * 3


async def test_nothing_comes_back_for_a_forward_whatever_it_asks_for(
    network: WalletNetwork, bob: Bob
) -> None:
    """It has no proven sender: neither return route nor acknowledgement (RFC 0092, RFC 0317)."""
    await network.write(bob, "waits")
    wishes = {**routed(), "~please_ack": {"on": ["RECEIPT", "OUTCOME"]}}
    for sender in (None, bob.connection.key):
        msg = orjson.loads(envelope_of(bob.key, "one"))
        answer = await network.post(forwarded(base58(bob.key), msg, sender=sender, **wishes))
        assert (answer.status, answer.body) == (202, b"")
    assert await bob.drained() == ["waits", "one", "one"]


async def test_messages_outlive_the_mediator_in_their_order(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    texts = numbered(10)
    await network.write(bob, *texts)
    first = await bob.wallet.fetch(3)
    await mediator.restart()
    again = await bob.wallet.fetch(100)
    assert bob.texts(again) == texts
    assert again[:3] == first


async def test_an_envelope_for_us_and_others_is_for_us(network: WalletNetwork, bob: Bob) -> None:
    question = fresh(**{"@type": NEW_PREFIX + "trust_ping/1.0/ping", **routed()})
    sender = KeyPair.new()
    body = pack(orjson.dumps(question), [bob.key, SERVICE.public], sender)
    assert (await network.post(body)).status == 200
    assert await bob.drained() == []


PAID = {"per_address_per_s": 10, "burst_s": 10, "unproven_tokens": 16}


@pytest.mark.parametrize("settings", [{"rates": PAID}])
async def test_the_address_pays_for_each_of_several_recipients(network: WalletNetwork) -> None:
    names = [*keys(4)]
    envelopes = [pack(orjson.dumps(fresh()), names, SENDER) for _ in range(3)]
    assert [(await network.post(one)).status for one in envelopes] == [202, 202, 429]


@pytest.mark.parametrize("settings", [{"rates": PAID}])
async def test_the_address_pays_for_each_further_did_of_a_key(network: WalletNetwork) -> None:
    (key,) = keys(1)
    to = [f"did:web:{host}.example#{base58(key)}" for host in "abcd"]
    body = forwarded(to, orjson.loads(envelope_of(key, "one")))
    assert [(await network.post(body)).status for _ in range(3)] == [202, 202, 429]
