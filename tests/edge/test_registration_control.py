"""Who may register: open, by invitation, by list, or closed; who has registered may renew."""

from __future__ import annotations

import base64
from typing import Any
from uuid import uuid4

import pytest

from actors.core.agents import invitation_target
from actors.host.clock import new_id
from http_edge.crypto.encoding import b64decode
from http_edge.crypto.invitation_ids import PUBLIC, InvitationIds
from http_edge.crypto.mediator_keys import service_seed
from http_edge.server.hosts import placement_of
from tests.edge.conftest import StartMediator
from tests.edge.identities import Identity, Json
from tests.edge.mediator import DAY_S, KEYS, Answer, HandClock, Mediator

UNAUTHORIZED = (401, "UNAUTHORIZED_COMMAND")
UNAVAILABLE = (503, "TEMPORARILY_UNAVAILABLE")
# Nonce and effect fall on the same host and on two.
pytestmark = pytest.mark.parametrize("layout", ["two hosts"])


def invitation(
    *, single_use: bool = False, expires_at_s: int | None = None, unique: bytes = b""
) -> str:
    """The id of a new invitation of the mediator."""
    ids = InvitationIds(service_seed(KEYS), public=False)
    unique = unique or new_id().encode()[-8:]
    return ids.make(unique, "Poste", single_use=single_use, expires_at_s=expires_at_s).id


async def register(mediator: Mediator, identity: Identity, token: str | None = None) -> Answer:
    """Ask for a registration, with an invitation or without one."""
    more = {} if token is None else {"invitation": token}
    return await mediator.send(identity, mediator.registration(identity) | more)


def registration(word: str, **more: Any) -> pytest.MarkDecorator:
    """Settings with this registration control."""
    return pytest.mark.parametrize("settings", [{"protocol": {"registration": word, **more}}])


@registration("closed")
async def test_a_closed_mediator_takes_none_whatever_it_brings(
    mediator: Mediator, alice: Identity
) -> None:
    for token in (None, "unknown", invitation()):
        assert (await register(mediator, alice, token)).refusal == UNAUTHORIZED


@registration("allow_list", allowed_dids=[Identity("alice").did])
async def test_a_list_admits_who_is_on_it(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    assert (await register(mediator, alice)).status == 200
    refused = await register(mediator, bob, invitation())
    assert refused.refusal == UNAUTHORIZED
    assert refused.json["detail"].startswith("header.sender_did: ")


def padded(name: str) -> Identity:
    """An identity that writes its DID in padded base64 of the standard alphabet."""
    identity = Identity(name)
    method, alias, *keys, mediator_did = identity.did.removeprefix("did:").split(":")
    texts = [base64.b64encode(b64decode(each)).decode() for each in (alias, mediator_did)]
    identity.did = ":".join(["did", method, texts[0], *keys, texts[1]])
    identity.key_id = identity.did + "#signing"
    return identity


@registration("allow_list", allowed_dids=[padded("\U00010ffff").did])
async def test_a_list_names_a_did_as_its_client_writes_it(mediator: Mediator) -> None:
    listed = padded("\U00010ffff")
    assert set("/=") <= set(listed.did)
    assert (await register(mediator, listed)).status == 200
    assert (await register(mediator, Identity("\U00010ffff"))).refusal == UNAUTHORIZED


@registration("invitation")
async def test_an_invitation_for_many_admits_many(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    token = invitation()
    # Not the last character: part of its bits may mean nothing.
    forged = ("B" if token[0] == "A" else "A") + token[1:]
    for identity in (alice, bob):
        assert (await register(mediator, identity)).refusal == UNAUTHORIZED
        for unknown in (forged, invitation(unique=PUBLIC)):
            assert (await register(mediator, identity, unknown)).refusal == UNAUTHORIZED
        assert (await register(mediator, identity, token)).status == 200


@registration("invitation")
async def test_an_invitation_for_one_use_admits_one_who_may_repeat(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    token = invitation(single_use=True)
    for _ in range(2):
        assert (await register(mediator, alice, token)).status == 200
    refused = await register(mediator, bob, token)
    assert refused.refusal == UNAUTHORIZED
    assert refused.json["detail"].startswith("payload.invitation: ")
    await mediator.restart()
    assert (await register(mediator, bob, token)).refusal == UNAUTHORIZED


@registration("invitation")
async def test_who_is_registered_renews_without_using_an_invitation_up(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    first, fresh = invitation(single_use=True), invitation(single_use=True)
    for identity, token in ((alice, first), (alice, fresh), (bob, fresh)):
        assert (await register(mediator, identity, token)).status == 200
    assert mediator.facts().count("invitation-used.1") == 2


@registration("invitation")
async def test_a_registration_with_a_nonce_that_was_used_uses_no_invitation_up(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    nonce, token = str(uuid4()), invitation(single_use=True)
    payload = mediator.registration(alice)
    assert (await mediator.send(alice, payload, nonce=nonce)).refusal == UNAUTHORIZED
    replayed = await mediator.send(alice, payload | {"invitation": token}, nonce=nonce)
    assert replayed.refusal == (401, "DUPLICATE_NONCE")
    assert mediator.facts().count("invitation-used.1") == 0
    assert (await register(mediator, bob, token)).status == 200


@registration("invitation")
async def test_who_was_registered_registers_again_without_using_an_invitation_up(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    first, fresh = invitation(single_use=True), invitation(single_use=True)
    assert (await register(mediator, alice, first)).status == 200
    mediator.clock.advance(2 * DAY_S)
    for identity, token in ((alice, fresh), (bob, fresh), (alice, fresh)):
        assert (await register(mediator, identity, token)).status == 200
    assert mediator.facts().count("invitation-used.1") == 2


@pytest.mark.parametrize("token", ["a fresh one", "one that another has used"])
@registration("invitation")
async def test_a_renewal_whose_host_gives_no_answer_uses_no_invitation_up_and_is_not_refused(
    mediator: Mediator, alice: Identity, bob: Identity, token: str
) -> None:
    placement = placement_of(mediator.settings)
    host = placement.host_of(placement.partition_of(alice.did))
    fresh = next(
        each
        for each in iter(lambda: invitation(single_use=True), "")
        if placement.host_of(placement.partition_of(invitation_target(each))) != host
    )
    assert (await register(mediator, alice, invitation(single_use=True))).status == 200
    if token != "a fresh one":
        assert (await register(mediator, bob, fresh)).status == 200
    mediator.hosts.cut(host)
    assert (await register(mediator, alice, fresh)).refusal == UNAVAILABLE
    mediator.hosts.mend(host)
    assert (await register(mediator, bob, fresh)).status == 200


@registration("invitation")
async def test_an_invitation_ends(mediator: Mediator, alice: Identity) -> None:
    over = int(mediator.clock.now_s)
    assert (await register(mediator, alice, invitation(expires_at_s=over))).refusal == UNAUTHORIZED
    token = invitation(expires_at_s=over + 60)
    assert (await register(mediator, alice, token)).status == 200


@pytest.mark.parametrize("settings", [{}])
async def test_an_open_mediator_takes_all_but_a_used_up_invitation(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    token = invitation(single_use=True)
    assert (await register(mediator, alice, token)).status == 200
    assert (await register(mediator, bob, token)).refusal == UNAUTHORIZED
    assert (await register(mediator, bob, "of another mediator")).status == 200


@pytest.mark.parametrize("settings", [{}])
async def test_who_has_registered_renews_though_registration_was_closed(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(alice)
    mediator.clock.advance(2 * DAY_S)
    await mediator.restart({"protocol": {"registration": "closed"}})
    assert (await register(mediator, alice)).status == 200
    assert (await register(mediator, bob)).refusal == UNAUTHORIZED


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "unproven_tokens": 4}}])
async def test_an_address_registers_fewer_identities_than_it_sends_requests(
    mediator: Mediator,
) -> None:
    identities = [Identity(f"identity {number}") for number in range(11)]
    answers = [await register(mediator, identity) for identity in identities]
    assert [answer.status for answer in answers] == [200] * 10 + [429]
    assert answers[-1].refusal == (429, "RATE_LIMITED")
    mediator.clock.advance(1)
    assert (await register(mediator, identities[-1])).status == 200


@pytest.mark.parametrize(
    ("rates", "taken"),
    [
        ({"registrations_per_address_per_s": 1, "registrations_per_s": 10}, (200, 429, 200)),
        ({"registrations_per_address_per_s": 10, "registrations_per_s": 1}, (200, 429, 429)),
    ],
)
async def test_newcomers_wait_when_too_many_come_and_who_is_registered_renews(
    start_mediator: StartMediator, clock: HandClock, rates: Json, taken: tuple[int, int, int]
) -> None:
    proxies = {"trusted_proxies": ["127.0.0.0/8"], "burst_s": 1}
    mediator = await start_mediator(rates={**rates, **proxies})
    identities = [Identity(f"newcomer-{number}") for number in range(3)]

    async def registered(identity: Identity, address: str) -> Answer:
        command = mediator.command(identity, mediator.registration(identity))
        return await mediator.post(command, headers={"X-Forwarded-For": address})

    first, second = "203.0.113.1", "203.0.113.2"
    at = (first, first, second)
    answers = [
        await registered(identity, place) for identity, place in zip(identities, at, strict=True)
    ]
    assert tuple(answer.status for answer in answers) == taken
    assert answers[1].refusal == (429, "RATE_LIMITED")
    assert answers[1].headers["Retry-After"] == "1"
    assert (await registered(identities[0], first)).status == 200
    clock.advance(1)
    assert (await registered(identities[1], first)).status == 200


async def test_who_is_refused_an_invitation_takes_nothing_from_the_rate_of_the_invited(
    start_mediator: StartMediator,
) -> None:
    mediator = await start_mediator(
        protocol={"registration": "invitation"},
        rates={"registrations_per_s": 1, "burst_s": 1, "trusted_proxies": ["127.0.0.0/8"]},
    )
    token = invitation()
    shown: list[Json] = [{}, {"invitation": "unknown"}, *[{"invitation": token}] * 2]
    statuses = []
    for number, more in enumerate(shown):
        identity = Identity(f"newcomer-{number}")
        command = mediator.command(identity, mediator.registration(identity) | more)
        address = {"X-Forwarded-For": f"203.0.113.{number}"}
        statuses.append((await mediator.post(command, headers=address)).status)
    assert statuses == [401, 401, 200, 429]


@pytest.mark.parametrize("rate", ["registrations_per_s", "registrations_per_address_per_s"])
async def test_who_shows_a_used_invitation_takes_nothing_from_the_rate_of_the_invited(
    start_mediator: StartMediator, clock: HandClock, rate: str
) -> None:
    mediator = await start_mediator(
        protocol={"registration": "invitation"}, rates={rate: 1, "burst_s": 1}
    )
    used, fresh, last = (invitation(single_use=True) for _ in range(3))
    statuses = []
    for number, token in enumerate([used, used, used, fresh, used, last]):
        statuses.append((await register(mediator, Identity(f"newcomer-{number}"), token)).status)
        if number == 0:
            clock.advance(1)
    # Once the rate is used up it refuses, too, and gives nothing back for that.
    assert statuses == [200, 401, 401, 200, 429, 429]
