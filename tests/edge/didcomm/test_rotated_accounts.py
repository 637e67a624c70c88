"""One account under many names: both generations by one key, rotated DIDs, and the end."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any, Final

import orjson
import pytest

from actors.core.partitioning import host_name
from http_edge.clients.didcomm import (
    PICKUP_2,
    PICKUP_3,
    PICKUP_4,
    DidMethod2,
    PickupVersion,
    Recipient2,
    Wallet2,
)
from http_edge.clients.didcomm.connection import QUEUE, Connection2, agreement_key
from http_edge.clients.didcomm.errors import ProblemReported, WalletError
from http_edge.clients.didcomm.transport import post
from http_edge.didcomm.envelopes.keys import KeyPair, did_key, did_key_reference
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, DidRotation
from http_edge.didcomm.envelopes.v2 import envelope
from http_edge.didcomm.envelopes.v2.signed import write_from_prior
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.wallet_network import Bob, WalletNetwork
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S, HandClock

_IDS: Final = itertools.count(1)


def moved(old: Wallet2, new: Wallet2 | None, at_s: int = 1_000) -> str:
    """The proof that a wallet's DID was given up for another's, or for none."""
    rotation = DidRotation(old.connection.did, new.connection.did if new else None, at_s)
    return write_from_prior(rotation, f"{old.connection.did}#key-1", old.connection.key)


def forged(old: Wallet2, new: Wallet2) -> str:
    """A proof that the key of the old DID has not signed."""
    rotation = DidRotation(old.connection.did, new.connection.did, 1_000)
    return write_from_prior(rotation, f"{old.connection.did}#key-1", new.connection.key)


def successor(network: WalletNetwork, old: Wallet2, key: KeyPair | None = None) -> Wallet2:
    """A wallet with a DID of its own at the same mediator."""
    known = old.connection
    return Wallet2(
        Connection2(
            key or KeyPair.new(), "peer4", QUEUE, known.mediator_did, known.http_url, known.ws_url
        ),
        session=network.session,
        routing_did=old.routing_did,
    )


def packed(wallet: Wallet2, kind: str, body: Json | None = None, **headers: Any) -> bytes:
    """A message of a wallet with headers of its own."""
    message = {
        "id": f"own-{next(_IDS)}",
        "type": NEW_PREFIX + kind,
        "from": wallet.connection.did,
        "to": [wallet.connection.mediator_did],
        "body": body or {},
        "return_route": "all",
        **headers,
    }
    return wallet.connection.packed(orjson.dumps(message))


async def say(wallet: Wallet2, kind: str, body: Json | None = None, **headers: Any) -> Json:
    """What a wallet is answered to a message with headers of its own."""
    message = packed(wallet, kind, body, **headers)
    posted = await post(wallet.session, wallet.connection.http_url, message, media_type=MEDIA_TYPE)
    answer = wallet.connection.open(posted.body)
    assert isinstance(answer, dict), posted
    return answer


def farewell(wallet: Wallet2, at_s: int = 2_000) -> bytes:
    """The message, without a sender, that the relationship with a wallet is over."""
    message = {
        "id": f"end-{next(_IDS)}",
        "type": f"{NEW_PREFIX}empty/1.0/empty",
        "to": [wallet.connection.mediator_did],
        "body": {},
        "from_prior": moved(wallet, None, at_s),
    }
    recipient = envelope.Recipient(*agreement_key(wallet.connection.mediator_did))
    return envelope.seal(orjson.dumps(message), [recipient], None)


async def end(wallet: Wallet2, at_s: int = 2_000) -> int:
    """Say that the relationship is over, without a name: the status."""
    url, packed = wallet.connection.http_url, farewell(wallet, at_s)
    posted = await post(wallet.session, url, packed, media_type=MEDIA_TYPE)
    return posted.status


async def drained(wallet: Wallet2, sender: Sender, *recipients: Recipient2) -> list[str]:
    """The texts of everything that waits, whichever recipient they are for."""
    texts = []
    async for picked in wallet.drain(100):
        for recipient in recipients:
            try:
                texts.append(sender.text_in(recipient, picked.envelope))
                break
            except WalletError:
                continue
    return texts


async def refused(wallet: Wallet2) -> str:
    """The code that a wallet is refused with."""
    with pytest.raises(ProblemReported) as reported:
        await wallet.query_recipients()
    return reported.value.code


async def is_refused(wallet: Wallet2) -> bool:
    """Has the account of a wallet ended?"""
    try:
        await wallet.query_recipients()
    except ProblemReported:
        return True
    return False


@pytest.fixture
def sender(network: WalletNetwork) -> Sender:
    return Sender(network)


async def test_a_rotated_wallet_keeps_what_waits_and_its_recipients(
    network: WalletNetwork, sender: Sender
) -> None:
    old = await connected(network)
    recipient = await old.new_recipient()
    await sender.write(recipient, "before")
    new = successor(network, old)
    for _ in range(3):
        # Until it is answered a wallet repeats it.
        answer = await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
        assert str(answer["@type"]).endswith("ping-response")
    await sender.write(recipient, "after")
    assert await drained(new, sender, recipient) == ["before", "after"]
    listed = {each.recipient_did for each in (await new.query_recipients()).dids}
    assert len(listed) == 3, "its own, its prior one, and the one that it registered"
    assert await refused(old) == "e.p.did-rotated"


@pytest.mark.parametrize(
    "settings", [{"rates": {"registrations_per_address_per_s": 1, "burst_s": 3}}]
)
async def test_rotations_have_the_rate_of_registrations_and_one_that_is_too_early_may_come_again(
    network: WalletNetwork, clock: HandClock
) -> None:
    """Another DID costs a stranger no more than a key, and stays in the log as an account does."""
    wallets = [await connected(network)]
    for at_s in (1_000, 1_001):
        new = successor(network, wallets[-1])
        await say(new, "trust-ping/2.0/ping", from_prior=moved(wallets[-1], new, at_s))
        wallets.append(new)
    last, newest = wallets[-1], successor(network, wallets[-1])
    facts = network.mediator.facts()
    early = packed(newest, "trust-ping/2.0/ping", from_prior=moved(last, newest, 1_002))
    answer = await network.post(early, content_type=MEDIA_TYPE)
    assert (answer.status, answer.body) == (429, b'{"error":"rate-limited"}')
    assert network.mediator.facts() == facts
    repeated = await say(last, "trust-ping/2.0/ping", from_prior=moved(wallets[-2], last, 1_001))
    assert str(repeated["@type"]).endswith("ping-response")
    clock.advance(1)
    await say(newest, "trust-ping/2.0/ping", from_prior=moved(last, newest, 1_002))
    await newest.query_recipients()


async def test_a_rotation_outlives_a_restart_and_needs_no_proof_again(
    network: WalletNetwork, sender: Sender
) -> None:
    old = await connected(network)
    recipient = await old.new_recipient()
    new = successor(network, old)
    await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
    await network.mediator.restart()
    await sender.write(recipient, "after")
    assert await drained(new, sender, recipient) == ["after"]
    assert old.connection.is_known, "it calls itself by its short DID alone"
    assert await refused(old) == "e.p.did-rotated"


async def test_a_rotation_from_a_short_did_is_proven_after_a_restart(
    network: WalletNetwork, sender: Sender
) -> None:
    old = await connected(network)
    recipient = await old.new_recipient()
    await sender.write(recipient, "before")
    new = successor(network, old)
    proof = moved(old, new)
    assert old.connection.did == old.connection.own.peer4_short
    await network.mediator.restart()
    await say(new, "trust-ping/2.0/ping", from_prior=proof)
    assert await drained(new, sender, recipient) == ["before"]


async def test_the_new_did_is_reached_from_its_first_message_on(
    network: WalletNetwork, sender: Sender
) -> None:
    old = await connected(network)
    new = successor(network, old)
    await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
    own = Recipient2(new.connection.key, new.routing_did)
    answer = await sender.forward(new.connection.did, "to the new DID", routing_did=old.routing_did)
    assert answer.status == 202
    (picked,) = [each async for each in new.drain(10)]
    assert picked.envelope
    assert own.key == new.connection.key


async def test_a_wallet_of_v1_goes_on_in_v2_by_its_key_alone(
    network: WalletNetwork, bob: Bob, sender: Sender
) -> None:
    await network.write(bob, "one", "two")
    known = await connected(network)
    upgraded = successor(network, known, bob.connection.key)
    await upgraded.request_mediation()
    # Both generations ask for the same queue, in turn.
    assert bob.texts([each async for each in upgraded.drain(100)]) == ["one", "two"]
    recipient = await upgraded.new_recipient()
    await sender.write(recipient, "three")
    await network.write(bob, "four")
    picked = [each async for each in bob.wallet.drain(100)]
    assert [sender.text_in(recipient, picked[0].envelope), bob.read(picked[1])] == ["three", "four"]


async def test_a_wallet_of_v1_rotates_to_a_did_of_v2(network: WalletNetwork, bob: Bob) -> None:
    await network.write(bob, "waits")
    known = await connected(network)
    new = successor(network, known)
    old_did = did_key(bob.connection.key.public)
    rotation = DidRotation(old_did, new.connection.did, 1_000)
    kid = did_key_reference(bob.connection.key.public)
    proof = write_from_prior(rotation, kid, bob.connection.key)
    await say(new, "trust-ping/2.0/ping", from_prior=proof)
    await network.write(bob, "after")
    assert bob.texts([each async for each in new.drain(100)]) == ["waits", "after"]
    with pytest.raises(ProblemReported, match="did-rotated"):
        await bob.wallet.query_keylist()


@pytest.mark.parametrize(
    ("method", "pickup"),
    [("peer4", PICKUP_3), ("peer2", PICKUP_4), ("key", PICKUP_2)],
    ids=lambda each: each if isinstance(each, str) else each.protocol,
)
async def test_a_wallet_of_the_library_rotates_as_often_as_it_likes_and_ends(
    network: WalletNetwork, sender: Sender, method: DidMethod2, pickup: PickupVersion
) -> None:
    old = await connected(network, did_method=method, pickup=pickup)
    recipient = await old.new_recipient()
    await sender.write(recipient, "before")
    key = KeyPair.new()
    await old.rotate(key)  # and its answer may have been lost
    await network.mediator.restart()
    new = await old.rotate(key)
    assert new.connection == replace(old.connection, key=key)
    newest = await new.rotate(KeyPair.new())
    await sender.write(recipient, "after")
    assert await drained(newest, sender, recipient) == ["before", "after"]
    assert await refused(old) == await refused(new) == "e.p.did-rotated"
    with pytest.raises(ProblemReported, match="not connected"):
        await old.rotate(KeyPair.new())
    await newest.end()  # and its answer may have been lost
    await network.mediator.restart()
    await newest.end()
    assert await refused(newest) == "e.p.req.not_enroll"


async def test_a_wallet_of_a_class_of_its_own_connects_and_rotates_as_one(
    network: WalletNetwork,
) -> None:
    class OwnWallet(Wallet2):
        pass

    url = network.mediator.url("/invitation")
    wallet = await OwnWallet.connect(url, session=network.session)
    assert type(wallet) is type(await wallet.rotate(KeyPair.new())) is OwnWallet


async def test_a_wallet_over_a_socket_ends_before_it_goes_on(network: WalletNetwork) -> None:
    """Nothing on a socket says that a message without an answer was taken."""
    wallet = await connected(network)
    async with wallet.socket() as socket:
        await wallet.over(socket).end()
        assert await refused(wallet) == "e.p.req.not_enroll"


async def test_a_newcomer_learns_that_its_proof_of_a_prior_did_was_not_accepted(
    network: WalletNetwork,
) -> None:
    old = await connected(network)
    new, stranger = successor(network, old), successor(network, old)
    kind = "coordinate-mediation/3.0/recipient-query"
    for proof, is_accepted in ((forged(old, new), False), (moved(stranger, new), True)):
        report = (await say(new, kind, from_prior=proof))["description"]
        assert report["code"] == "e.p.req.not_enroll"
        assert ("from_prior" in report["en"]) is not is_accepted
    assert len((await old.query_recipients()).dids) == 1


async def test_a_wallet_whose_proof_was_not_accepted_gets_no_account_that_shuts_out_its_own(
    network: WalletNetwork, sender: Sender
) -> None:
    """It repeats the proof with each message; the next one may be valid, or its host be back."""
    old = await connected(network)
    recipient = await old.new_recipient()
    await sender.write(recipient, "waits")
    new, kind = successor(network, old), "coordinate-mediation/3.0/mediate-request"
    report = (await say(new, kind, from_prior=forged(old, new)))["description"]
    assert report["code"] == f"e.p.msg.{NEW_PREFIX}{kind}"
    assert "from_prior was not accepted" in report["en"]
    granted = await say(new, kind, from_prior=moved(old, new))
    assert granted["@type"] == f"{NEW_PREFIX}coordinate-mediation/3.0/mediate-grant"
    assert await drained(new, sender, recipient) == ["waits"]
    # A wallet with an account is answered; so is a stranger whose prior DID has none.
    stranger, newcomer = successor(network, old), successor(network, old)
    for wallet, proof in ((new, forged(old, new)), (newcomer, moved(stranger, newcomer))):
        assert str((await say(wallet, kind, from_prior=proof))["@type"]).endswith("-grant")
    # A rotation that is refused is as good as none: this DID was given up already.
    late = successor(network, old)
    assert "description" in await say(late, kind, from_prior=moved(old, late))


async def test_the_end_of_a_relationship_ends_the_account_and_not_the_next(
    network: WalletNetwork, sender: Sender
) -> None:
    wallet = await connected(network)
    recipient = await wallet.new_recipient()
    await sender.write(recipient, "never read")
    assert await end(wallet) == await end(wallet) == 202
    assert await refused(wallet) == "e.p.req.not_enroll"
    # It may come back; the same end, sent again, is over.
    await wallet.request_mediation()
    await wallet.update_recipients(add=[recipient.did])
    await end(wallet)
    await sender.write(recipient, "anew")
    assert await drained(wallet, sender, recipient) == ["anew"]


async def test_a_socket_on_which_a_relationship_ended_stays_in_use(network: WalletNetwork) -> None:
    wallet = await connected(network)
    async with network.socket() as used:
        await used.raw.send_bytes(farewell(wallet))
        async with asyncio.timeout(WAIT_S):
            while not await is_refused(wallet):
                pass
        network.bound_silence()
        await used.raw.ping()  # so that it is read on, within the new bound
        async with network.socket() as silent:
            assert await silent.closing() == 1008
        await used.raw.send_bytes(packed(wallet, "trust-ping/2.0/ping"))
        answer = wallet.connection.open(await used.data())
    assert isinstance(answer, dict)
    assert str(answer["@type"]).endswith("ping-response")


async def test_the_end_of_a_relationship_is_proven_by_a_short_did_after_a_restart(
    network: WalletNetwork,
) -> None:
    wallet = await connected(network)
    assert wallet.connection.did == wallet.connection.own.peer4_short
    await network.mediator.restart()
    assert await end(wallet) == 202
    assert network.mediator.facts().count("account-ended.1") == 1


async def test_what_depends_on_a_short_did_may_come_again_while_its_host_is_away(
    network: WalletNetwork, sender: Sender
) -> None:
    old = await connected(network)
    await sender.write(await old.new_recipient(), "waits")
    new = successor(network, old)
    await network.mediator.restart()
    network.mediator.hosts.cut(host_name(0))
    for wallet, proof in ((old, None), (new, moved(old, new))):
        body = packed(wallet, "trust-ping/2.0/ping", from_prior=proof)
        answer = await network.post(body, content_type=MEDIA_TYPE)
        assert (answer.status, answer.json) == (503, {"error": "try-again"})
    network.mediator.hosts.mend(host_name(0))
    await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
    assert (await new.status()).message_count == 1


async def test_only_its_own_wallet_ends_an_account(network: WalletNetwork, sender: Sender) -> None:
    old = await connected(network)
    recipient = await old.new_recipient()
    new = successor(network, old)
    await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
    await end(old)
    await sender.write(recipient, "kept")
    assert await drained(new, sender, recipient) == ["kept"]


async def test_what_expires_is_dropped_and_what_has_expired_is_not_taken(
    network: WalletNetwork, sender: Sender
) -> None:
    wallet = await connected(network)
    recipient = await wallet.new_recipient()
    clock = network.mediator.clock
    short, late = clock.now_s + 30, clock.now_s
    assert (await sender.forward(recipient.did, "short", expires_time=short)).status == 202
    assert (await sender.forward(recipient.did, "late", expires_time=late)).status == 410
    assert (await sender.forward(recipient.did, "one", "two")).status == 202
    clock.advance(31)
    assert await drained(wallet, sender, recipient) == ["one", "two"]


async def test_a_delayed_forward_is_handed_out_after_its_delay(
    network: WalletNetwork, sender: Sender
) -> None:
    wallet = await connected(network)
    recipient = await wallet.new_recipient()
    assert (await sender.forward(recipient.did, "later", delay_milli=5_000)).status == 202
    assert (await sender.forward(recipient.did, "now")).status == 202
    assert await drained(wallet, sender, recipient) == ["now"]
    network.mediator.clock.advance(6)
    assert await drained(wallet, sender, recipient) == ["later"]


@pytest.mark.parametrize(("wished_ms", "held_s"), [(10**9, 60), (8_000, 8), (0, 0), (True, 0)])
async def test_a_delay_is_bounded(
    network: WalletNetwork, sender: Sender, wished_ms: int, held_s: int
) -> None:
    wallet, clock = await connected(network), network.mediator.clock
    recipient = await wallet.new_recipient()
    assert (await sender.forward(recipient.did, "x", delay_milli=wished_ms)).status == 202
    if held_s:
        clock.advance(held_s - 1)
        assert await drained(wallet, sender, recipient) == []
        clock.advance(2)
    assert await drained(wallet, sender, recipient) == ["x"]


@pytest.mark.parametrize("settings", [{"didcomm": {"forward_delay_s_max": 0}}])
async def test_where_no_delay_is_allowed_none_is_kept(
    network: WalletNetwork, sender: Sender
) -> None:
    wallet = await connected(network)
    recipient = await wallet.new_recipient()
    assert (await sender.forward(recipient.did, "x", delay_milli=5_000)).status == 202
    assert await drained(wallet, sender, recipient) == ["x"]


async def test_the_life_of_a_message_shows_its_generation(
    network: WalletNetwork, bob: Bob, sender: Sender
) -> None:
    await network.write(bob, "one")
    wallet = await connected(network)
    await sender.write(await wallet.new_recipient(), "two")
    assert network.mediator.protocols() == ["didcomm", "didcomm/v2"]


async def test_who_spoke_for_an_erased_account_begins_anew_at_every_edge(
    network: WalletNetwork,
) -> None:
    old = await connected(network)
    new = successor(network, old)
    await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
    assert len((await new.query_recipients()).dids) == 2
    first = did_key(old.connection.key.public)
    assert (await network.mediator.operate(f"/identities/erase?did={first}", "POST")).json["known"]
    await new.request_mediation()
    assert len((await new.query_recipients()).dids) == 1


async def test_a_did_that_was_given_up_costs_its_lookup_and_one_refusal_a_message(
    network: WalletNetwork,
) -> None:
    async def commands() -> int:
        return int((await network.mediator.operate("/status")).json["commands"])

    old = await connected(network)
    new = successor(network, old)
    newer = successor(network, new)
    await say(new, "trust-ping/2.0/ping", from_prior=moved(old, new))
    await say(newer, "trust-ping/2.0/ping", from_prior=moved(new, newer, 1_001))
    await refused(new)
    before = await commands()
    await refused(new)
    assert await commands() - before == 3
