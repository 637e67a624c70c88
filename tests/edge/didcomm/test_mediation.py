"""Coordinate mediation (RFC 0211) over real sockets: grants, keylists, and whose a key is."""

from __future__ import annotations

from typing import Any, Final

import pytest

from http_edge.clients.didcomm import KeylistKey, Pagination, ProblemReported, Wallet, forward_2
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.recipient_names import x25519_name
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.wallet_network import (
    PREFIXES,
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    fresh,
    keys,
    opened,
    routed,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock

COORDINATION: Final = "coordinate-mediation/1.0/"


async def reply_to(wallet: Wallet, name: str, **members: Any) -> Json:
    return await answer_to(wallet, COORDINATION + name, **members)


async def results(wallet: Wallet, *updates: tuple[Any, Any]) -> list[str]:
    """What becomes of updates, as (key, action)."""
    answer = await reply_to(
        wallet,
        "keylist-update",
        updates=[{"recipient_key": key, "action": action} for key, action in updates],
    )
    return [item["result"] for item in answer["updated"]]


async def test_mediation_is_granted_and_again_the_same(network: WalletNetwork) -> None:
    wallet = await network.connect()
    grant = await reply_to(wallet, "mediate-request")
    assert grant["@type"] == NEW_PREFIX + COORDINATION + "mediate-grant"
    assert grant["endpoint"] == network.mediator.url("/didcomm")
    assert grant["routing_keys"] == [did_key(SERVICE.public)]
    facts = network.mediator.facts()
    again = await reply_to(wallet, "mediate-request")
    for one in (grant, again):
        one.pop("@id")
        one.pop("~thread")
    assert again == grant
    assert network.mediator.facts() == facts


async def test_an_answer_has_the_prefix_and_the_thread_of_its_question(bob: Bob) -> None:
    cases: list[Any] = PREFIXES
    more: list[Any] = [
        ("mediate-request", "mediate-grant"),
        ("keylist-update", "keylist-update-response"),
        ("keylist-query", "keylist"),
    ]
    for prefix in cases:
        for name, answered in more:
            question = fresh(**{"@type": prefix + COORDINATION + name, "updates": []})
            answer = await bob.wallet.ask(question)
            assert answer is not None
            assert answer["@type"] == prefix + COORDINATION + answered
            assert answer["~thread"] == {"thid": question["@id"]}


async def test_a_stranger_is_denied_and_leaves_no_trace(network: WalletNetwork) -> None:
    facts = network.mediator.facts()
    stranger = network.stranger()
    assert (await reply_to(stranger, "mediate-request"))["@type"].endswith("/mediate-deny")
    for name in ("keylist-update", "keylist-query"):
        report = await reply_to(stranger, name, updates=[{"recipient_key": "x", "action": "add"}])
        assert report["description"]["code"] == "not-connected"
    assert network.mediator.facts() == facts


async def test_without_mediation_there_is_no_keylist(network: WalletNetwork) -> None:
    wallet = await network.connect()
    (key,) = keys(1)
    for ask in (wallet.update_keylist(add=[key]), wallet.query_keylist()):
        with pytest.raises(ProblemReported) as reported:
            await ask
        assert reported.value.code == "mediation_not_granted"
    carol = await network.bob()
    assert await results(carol.wallet, (base58(key), "add")) == ["success"]  # it was not claimed


async def test_keys_are_added_and_removed_with_a_result_for_each(
    network: WalletNetwork, bob: Bob
) -> None:
    raw = list(keys(2))
    first, second = map(base58, raw)
    assert await results(bob.wallet, (first, "add"), (second, "add")) == ["success", "success"]
    assert await results(bob.wallet, (first, "add"), (second, "remove")) == ["no_change", "success"]
    assert await results(bob.wallet, (second, "remove")) == ["no_change"]
    listed = await bob.wallet.query_keylist()
    assert [item.recipient_key for item in listed.keys] == [did_key(bob.key), did_key(raw[0])]


async def test_a_key_in_three_spellings_is_one_key_and_is_answered_as_it_was_spelled(
    network: WalletNetwork, bob: Bob
) -> None:
    spellings = [base58(bob.key), did_key(bob.key), did_key_reference(bob.key)]
    answer = await reply_to(
        bob.wallet,
        "keylist-update",
        updates=[{"recipient_key": key, "action": "add"} for key in spellings],
    )
    assert answer["updated"] == [
        {"recipient_key": key, "action": "add", "result": "no_change"} for key in spellings
    ]
    assert len((await bob.wallet.query_keylist()).keys) == 1
    assert await results(bob.wallet, (spellings[2], "remove")) == ["success"]
    await network.write(bob, "no one gets this")
    assert await bob.drained() == []


async def test_a_key_of_another_is_a_client_error_and_stays_where_it_is(
    network: WalletNetwork,
) -> None:
    bob, mallory = await network.bobs(2)
    facts = network.mediator.facts()
    key = base58(bob.key)
    assert await results(mallory.wallet, (key, "add")) == ["client_error"]
    assert await results(mallory.wallet, (key, "remove")) == ["no_change"]
    assert network.mediator.facts() == facts
    await network.write(bob, "for bob")
    assert await mallory.drained() == []
    assert await bob.drained() == ["for bob"]


@pytest.mark.parametrize("sign", [0, 1])
async def test_the_opposite_of_a_key_of_another_is_a_client_error_and_gets_nothing(
    network: WalletNetwork, sign: int
) -> None:
    bob, mallory = await network.bobs(2)
    key = next(pair for pair in iter(KeyPair.new, None) if pair.public[-1] >> 7 == sign)
    await bob.wallet.update_keylist(add=[key.public])
    facts = network.mediator.facts()
    opposite = key.public[:-1] + bytes([key.public[-1] ^ 0x80])
    assert await results(mallory.wallet, (base58(opposite), "add")) == ["client_error"]
    assert network.mediator.facts() == facts
    to = x25519_name(key.curve_public)
    body = forward_2([envelope_of(key.public, "for bob")], to, routing_did=did_key(SERVICE.public))
    assert (await network.post(body, content_type=MEDIA_TYPE)).status == 202
    assert (await bob.wallet.status()).message_count == 1
    assert (await mallory.wallet.status()).message_count == 0


async def test_the_key_that_a_wallet_speaks_with_is_taken_from_another_that_registered_it(
    network: WalletNetwork,
) -> None:
    bob, mallory = await network.bobs(2)
    key = bob.connection.key.public
    assert await results(mallory.wallet, (base58(key), "add")) == ["success"]
    assert await results(bob.wallet, (base58(key), "add")) == ["success"]
    assert await results(mallory.wallet, (base58(key), "remove")) == ["no_change"]
    await network.forward_text(key, "for bob")
    assert (await bob.wallet.status()).message_count == 1
    assert (await mallory.wallet.status()).message_count == 0
    assert await results(mallory.wallet, (base58(key), "add")) == ["client_error"]


async def test_the_mediators_own_key_has_no_owner(bob: Bob) -> None:
    own = [base58(SERVICE.public), did_key(SERVICE.public), did_key_reference(SERVICE.public)]
    assert await results(bob.wallet, *[(key, "add") for key in own]) == ["client_error"] * 3
    assert await results(bob.wallet, (own[0], "remove")) == ["client_error"]


async def test_what_is_no_change_of_a_key_is_a_client_error(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = [
        ("no key", "add"),
        ("", "add"),
        (None, "add"),
        (1, "remove"),
        ("did:web:bob.example", "add"),
        ("1" * 10_000, "add"),
        (base58(KeyPair.from_seed(b"k" * 32).public), "replace"),
        (base58(KeyPair.from_seed(b"k" * 32).public), None),
    ]
    for key, action in cases:
        facts = network.mediator.facts()
        assert await results(bob.wallet, (key, action)) == ["client_error"]
        assert network.mediator.facts() == facts


async def test_updates_that_are_no_list_are_reported(bob: Bob) -> None:
    cases: list[Any] = [None, {}, "all", 1]
    for updates in cases:
        report = await reply_to(bob.wallet, "keylist-update", updates=updates)
        assert report["description"]["code"] == "invalid-message"


async def test_a_keylist_is_listed_in_pages(network: WalletNetwork) -> None:
    wallet = await network.connect()
    await wallet.request_mediation()
    added = list(keys(7))
    await wallet.update_keylist(add=added)
    names = [KeylistKey(did_key(key)) for key in added]
    everything = await wallet.query_keylist()
    assert (list(everything.keys), everything.pagination) == (names, None)
    for offset, limit in ((0, 3), (3, 3), (6, 3), (7, 3), (0, 0), (2, 100)):
        page = await wallet.query_keylist(limit, offset)
        assert list(page.keys) == names[offset : offset + limit]
        remaining = max(7 - offset - len(page.keys), 0)
        assert page.pagination == Pagination(len(page.keys), offset, remaining)


async def test_a_page_that_is_none_is_reported(bob: Bob) -> None:
    cases: list[Any] = [[], {"limit": "one"}, {"limit": 1.5}, {"offset": -1}, {"limit": True}]
    for paginate in cases:
        report = await reply_to(bob.wallet, "keylist-query", paginate=paginate)
        assert report["description"]["code"] == "invalid-message"


@pytest.mark.parametrize(
    "settings",
    [{"didcomm": {"keylist_keys_max": 3, "keylist_updates_max": 2, "keylist_page_max": 2}}],
)
async def test_keylists_updates_and_pages_are_bounded(network: WalletNetwork) -> None:
    wallet = await network.connect()
    await wallet.request_mediation()
    names = [base58(key) for key in keys(5)]
    beyond = await results(wallet, *[(key, "add") for key in names[:3]])
    assert beyond == ["success", "success", "client_error"]
    # All or none of one update fits: the keylist takes one more.
    assert await results(wallet, (names[3], "add"), (names[4], "add")) == ["client_error"] * 2
    assert await results(wallet, (names[2], "add")) == ["success"]
    page = await wallet.query_keylist(1_000_000)
    assert (len(page.keys), page.pagination) == (2, Pagination(2, 0, 1))
    other = await network.connect()
    await other.request_mediation()
    assert await results(other, (names[3], "add")) == ["success"]  # its claim was given back


async def test_a_removed_key_gets_no_more_and_keeps_what_waits(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    await bob.wallet.update_keylist(remove=[bob.key])
    await network.write(bob, "two")  # looks like success
    assert await bob.drained() == ["one"]


async def test_a_released_key_can_be_claimed_by_another(network: WalletNetwork) -> None:
    bob, carol = await network.bobs(2)
    await network.write(bob, "for bob")
    await bob.wallet.update_keylist(remove=[bob.key])
    assert await results(carol.wallet, (base58(bob.key), "add")) == ["success"]
    await network.write(bob, "for carol")
    (picked,) = await carol.wallet.fetch(10)
    assert bob.read(picked) == "for carol"
    assert await bob.drained() == ["for bob"]


async def test_a_key_is_in_force_before_the_answer_and_over_every_transport(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.live() as live, bob.wallet.socket() as socket:
        for wallet in (bob.wallet, bob.wallet.over(socket)):
            recipient = await wallet.new_recipient()
            assert (await network.forward_text(recipient.key.public, "hello")).status == 202
            (picked,) = await live.next()
            assert recipient.unpack(picked.envelope).message["content"] == "hello"
            await live.received([picked.id])


async def test_keylists_outlive_the_mediator(network: WalletNetwork, bob: Bob) -> None:
    await network.mediator.restart()
    listed = await bob.wallet.query_keylist()
    assert [item.recipient_key for item in listed.keys] == [did_key(bob.key)]
    await network.write(bob, "one")
    assert await bob.drained() == ["one"]


async def test_an_answer_without_a_return_route_waits(network: WalletNetwork, bob: Bob) -> None:
    answer = await network.say(bob.connection, COORDINATION + "mediate-request")
    assert (answer.status, answer.body) == (202, b"")
    (picked,) = await bob.wallet.fetch(10)
    assert opened(bob.connection, picked.envelope)["@type"].endswith("/mediate-grant")
    answer = await network.say(bob.connection, COORDINATION + "keylist-query", **routed())
    assert opened(bob.connection, answer.body)["@type"].endswith("/keylist")


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 10, "burst_s": 6}}])
async def test_a_wallet_is_charged_for_each_message_that_it_acknowledges(bob: Bob) -> None:
    ids = [f"{number}" for number in range(1_000)]
    kind = "messagepickup/2.0/messages-received"
    answers = [await answer_to(bob.wallet, kind, message_id_list=ids) for _ in range(7)]
    assert answers[0]["@type"].endswith("/status")
    assert answers[-1]["description"]["code"] == "rate-limited"


@pytest.mark.parametrize("settings", [{"rates": {"per_sender_per_s": 10, "burst_s": 6}}])
async def test_a_wallet_is_charged_for_the_work_of_its_messages_not_for_their_number(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    """Of 60 units a keylist-update takes two for each key, whichever edge it comes to."""
    carol = await network.bob()
    clock.advance(6)

    async def added(one: Bob) -> Json:
        new = [did_key(KeyPair.new().public) for _ in range(20)]
        updates = [{"recipient_key": key, "action": "add"} for key in new]
        return await answer_to(one.wallet, COORDINATION + "keylist-update", updates=updates)

    assert len((await added(bob))["updated"]) == 20
    assert (await added(bob))["description"]["code"] == "rate-limited"
    assert len((await added(carol))["updated"]) == 20
    clock.advance(2)
    assert len((await added(bob))["updated"]) == 20
