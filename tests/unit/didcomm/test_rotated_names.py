"""The name of the DID that an account rotates to, if another account has it or its key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from actors.core.commands import ClaimKey, Command, QueryConnection, RotateAccount, UpdateKeylist
from actors.core.identity import PRIOR_DIDS_MAX
from actors.core.refusals import Refusal
from actors.core.replies import Connected, EnvelopeQueued
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.agent_documents import SeenDids
from http_edge.didcomm.envelopes.keys import curve_public
from http_edge.didcomm.envelopes.messages import AgentAccount, DidRotation
from http_edge.didcomm.envelopes.peer_dids import encode_peer2, encode_peer4
from http_edge.didcomm.envelopes.recipient_names import canonical_name, twins
from http_edge.didcomm.protocols import keylists
from http_edge.didcomm.protocols.coordinate_mediation import _changes, _Update
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges
from http_edge.didcomm.rejections import RejectionReason
from http_edge.didcomm.unknown_dids import UnknownDids
from tests.contract.test_name_erasure_contract import take_out_names
from tests.unit.didcomm.accounts import (
    COMMAND,
    NEW_PEER,
    NEWER,
    OLD,
    OLD_NAME,
    SAID,
    STRANGER,
    Mediator,
    Peer,
    mediator_of,
)
from tests.unit.didcomm.requests import ALICE, raw_key
from tests.unit.didcomm.test_accounts import erased, speaks_for


@pytest.fixture
async def mediator(tmp_path: Path) -> AsyncIterator[Mediator]:
    async with mediator_of(tmp_path) as made:
        yield made


async def test_a_rotation_takes_the_name_of_its_did_from_who_registered_it_before(
    mediator: Mediator,
) -> None:
    name, squatter = NEW_PEER.name, STRANGER.name
    await mediator.keylists.enrol(squatter, COMMAND, SAID, [squatter])
    await mediator.keylists.change(squatter, COMMAND, KeyChanges([name], []))
    assert await mediator.owner(name) == squatter
    assert await mediator.rotate(NEW_PEER, OLD) is None
    assert isinstance(await mediator.ask_as(name, OLD), Connected)
    assert await mediator.owner(name) == OLD
    assert (await mediator.has(OLD, name), await mediator.has(squatter, name)) == ([name], [])
    assert isinstance(await mediator.forward(name, b"to its holder"), EnvelopeQueued)
    assert (await mediator.waiting(OLD), await mediator.waiting(squatter)) == (2, 0)


@pytest.mark.parametrize("lost", [ClaimKey, UpdateKeylist, QueryConnection, RotateAccount])
async def test_a_rotation_that_takes_a_name_and_is_cut_off_is_finished_by_the_next_message(
    mediator: Mediator, lost: type[Command]
) -> None:
    name, squatter = NEW_PEER.name, STRANGER.name
    await mediator.keylists.enrol(squatter, COMMAND, SAID, [squatter])
    await mediator.keylists.change(squatter, COMMAND, KeyChanges([name], []))
    with mediator.agents.cut_off(lost, is_lost=True):
        assert await mediator.rotate(NEW_PEER, OLD) is Refusal.TEMPORARILY_UNAVAILABLE
    assert await speaks_for(mediator, name) == OLD
    assert await mediator.rotate(NEW_PEER, OLD) is None
    assert (await mediator.has(OLD, name), await mediator.has(squatter, name)) == ([name], [])


async def test_a_did_that_was_given_up_takes_its_name_back_by_no_rotation_of_another_account(
    mediator: Mediator,
) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    await mediator.rotate(NEWER, NEW_PEER.name, at_s=1_001)
    await mediator.keylists.enrol(STRANGER.name, COMMAND, SAID, [STRANGER.name])
    for _ in range(2):
        assert await mediator.rotate(NEW_PEER, STRANGER.name, at_s=1_002) is Refusal.KEY_TAKEN
    assert await mediator.owner(NEW_PEER.name) == OLD
    assert await mediator.has(OLD, NEW_PEER.name) == [NEW_PEER.name]
    assert await speaks_for(mediator, NEW_PEER.name) == OLD


async def rotated_to_key(
    mediator: Mediator, name: str, prior: str, at_s: int = 1_000
) -> Refusal | None:
    """Let the did:key of an X25519 key speak for the account of a prior DID."""
    rotation = DidRotation(prior, name, at_s, (prior,))
    message = msgspec.structs.replace(STRANGER.message(rotation), sender_did=name)
    sender = AgentAccount(name, "v2", raw_key(3_004))
    return await mediator.accounts.rotate(rotation, sender, message, COMMAND)


async def test_a_rotation_to_a_key_that_another_account_gave_up_leaves_its_did_free(
    mediator: Mediator,
) -> None:
    (image,), name = twins(OLD_NAME), STRANGER.name
    await mediator.rotate(NEW_PEER, OLD)
    await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    assert await rotated_to_key(mediator, image, name) is Refusal.KEY_TAKEN
    assert await speaks_for(mediator, image) == ""
    assert isinstance(await mediator.ask_as(name, name), Connected)
    assert await mediator.owner(OLD_NAME) == OLD
    await erased(mediator, OLD)
    assert await mediator.keylists.enrol(image, COMMAND, SAID, [image]) is None


async def test_a_did_that_speaks_already_is_not_let_go_if_its_name_is_refused(
    mediator: Mediator,
) -> None:
    (image,), name = twins(OLD_NAME), STRANGER.name
    await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    assert await rotated_to_key(mediator, image, name) is None
    await mediator.keylists.change(name, COMMAND, KeyChanges([], [image]))
    await mediator.rotate(NEW_PEER, OLD)
    assert await rotated_to_key(mediator, image, name) is Refusal.KEY_TAKEN
    assert await speaks_for(mediator, image) == name
    assert isinstance(await mediator.ask_as(image, name), Connected)


async def test_an_agent_that_ends_without_its_short_did_in_its_keylist_may_begin_anew(
    mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keylists, "_SETTLED_AFTER", (0,))
    name, own = NEW_PEER.name, frozenset({NEW_PEER.name})
    await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    await mediator.keylists.change(name, COMMAND, KeyChanges([], [name], own))
    assert await mediator.end(name) is None
    assert await mediator.keylists.enrol(name, COMMAND, SAID, [name]) is None
    assert isinstance(await mediator.forward(name), EnvelopeQueued)
    others = asyncio.all_tasks()
    assert await mediator.end(name, at_s=3_000) is None
    await asyncio.gather(*asyncio.all_tasks() - others)
    assert await mediator.owner(name) is None


async def test_the_short_did_of_an_agent_without_forwards_is_free_after_its_erasure(
    mediator: Mediator,
) -> None:
    name, wanted = NEW_PEER.name, KeyChanges([NEW_PEER.name], [])
    own = frozenset({name})
    await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    await mediator.keylists.change(name, COMMAND, KeyChanges([], [name], own))
    assert await mediator.has(name, name) == []
    assert await mediator.forward(name) is Refusal.KEY_UNKNOWN
    results = []
    for is_over in (False, True):
        if is_over:
            await erased(mediator, name)
            (host,) = mediator.agents.hosts.running.values()
            take_out_names(host._log)
            await mediator.agents.hosts.restart(0)
        changed = await mediator.keylists.change(OLD, COMMAND, wanted)
        assert isinstance(changed, Changed)
        results.append(changed.failed)
    assert results == [{name: "client_error"}, {}]


@pytest.mark.parametrize("is_listed", [True, False])
async def test_a_did_that_was_given_up_is_not_let_go_if_the_rotation_back_to_it_is_refused(
    mediator: Mediator, *, is_listed: bool
) -> None:
    (image,), name = twins(OLD_NAME), STRANGER.name
    await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    assert await rotated_to_key(mediator, image, name) is None
    assert await mediator.rotate(NEWER, image, at_s=1_001) is None
    if not is_listed:
        await mediator.keylists.change(name, COMMAND, KeyChanges([], [image]))
    await mediator.rotate(NEW_PEER, OLD)
    assert await rotated_to_key(mediator, image, NEWER.name, 1_002) is Refusal.KEY_TAKEN
    assert await speaks_for(mediator, image) == name
    assert await mediator.has(name, image) == [image] * is_listed


@pytest.mark.parametrize("is_given_up", [True, False])
async def test_another_key_of_a_did_takes_its_name_unless_the_account_gave_the_did_up(
    mediator: Mediator, *, is_given_up: bool
) -> None:
    did, name = did_of_two_keys(ALICE)
    said = msgspec.structs.replace(SAID, peer_did=did)
    await mediator.keylists.enrol(OLD, COMMAND, said, [name])
    if is_given_up:
        await mediator.rotate(NEW_PEER, OLD)
    # Packed with that key, the DID is an identity of its own.
    refused = await mediator.keylists.enrol(name, COMMAND, said, [name])
    assert refused is (Refusal.KEY_TAKEN if is_given_up else None)
    assert await mediator.owner(name) == (OLD if is_given_up else name)
    assert await mediator.has(OLD, name) == ([name] if is_given_up else [])


def did_of_two_keys(signing: bytes) -> tuple[str, str]:
    """A did:peer:2 for the image of an Ed25519 key and for another key, and its name."""
    images = [curve_public(key) for key in (signing, raw_key(3_005))]
    did = encode_peer2([signing], [], agreement_keys=[key for key in images if key])
    return did, str(canonical_name(did))


async def test_a_did_takes_its_name_from_an_account_that_only_stated_and_replaced_it(
    mediator: Mediator,
) -> None:
    did, name = did_of_two_keys(raw_key(3_004))
    said = msgspec.structs.replace(SAID, peer_did=did)  # whose document none has checked
    await mediator.keylists.enrol(OLD, COMMAND, said, [])
    await mediator.keylists.change(OLD, COMMAND, KeyChanges([name], []))
    await mediator.rotate(NEW_PEER, OLD)
    assert await mediator.owner(name) == OLD
    assert await mediator.keylists.enrol(name, COMMAND, said, [name]) is None
    assert await mediator.owner(name) == name


def peer4_of_two_keys() -> tuple[str, str]:
    """A did:peer:4 for the image of ALICE's key and for another key, and its name."""
    curves = (("image", curve_public(ALICE)), ("other", curve_public(raw_key(3_005))))
    agreement = [
        {
            "id": f"#{name}",
            "type": "X25519KeyAgreementKey2019",
            "publicKeyBase58": keys.base58(key or b""),
        }
        for name, key in curves
    ]
    signing = {
        "id": "#signing",
        "type": "Ed25519VerificationKey2018",
        "publicKeyBase58": OLD_NAME,
    }
    did = encode_peer4({"authentication": [signing], "keyAgreement": agreement})
    return did, str(canonical_name(did))


async def test_another_key_of_a_did_that_an_agent_of_v1_gave_up_takes_no_name_from_it(
    mediator: Mediator,
) -> None:
    did, name = peer4_of_two_keys()
    # A handshake of DIDComm v1 stores the short form, which does not contain the document.
    said = msgspec.structs.replace(SAID, peer_did=name)
    assert await mediator.keylists.enrol(OLD, COMMAND, said, [OLD_NAME]) is None
    await mediator.keylists.change(OLD, COMMAND, KeyChanges([name], []))
    await mediator.rotate(NEW_PEER, OLD)
    said = msgspec.structs.replace(SAID, peer_did=did)
    assert await mediator.keylists.enrol(name, COMMAND, said, [name]) is Refusal.KEY_TAKEN
    assert (await mediator.owner(name), await mediator.has(OLD, name)) == (OLD, [name])


async def test_another_key_of_a_did_takes_no_name_from_an_account_that_stated_another_did(
    mediator: Mediator,
) -> None:
    did, name = peer4_of_two_keys()
    await mediator.keylists.change(OLD, COMMAND, KeyChanges([name], []))
    await mediator.rotate(NEW_PEER, OLD)
    said = msgspec.structs.replace(SAID, peer_did=did)
    assert await mediator.keylists.enrol(name, COMMAND, said, [name]) is Refusal.KEY_TAKEN
    await mediator.keylists.enrol(STRANGER.name, COMMAND, SAID, [STRANGER.name])
    message = msgspec.structs.replace(STRANGER.message(), sender_did=did)
    wanted = _changes([_Update(did, "add", name)], message, on_either_curve=True)
    changed = await mediator.keylists.change(STRANGER.name, COMMAND, wanted)
    assert isinstance(changed, Changed)
    assert changed.failed == {name: "client_error"}
    assert (await mediator.owner(name), await mediator.has(OLD, name)) == (OLD, [name])


async def test_another_key_of_a_did_takes_no_name_however_many_dids_the_account_gave_up_since(
    mediator: Mediator,
) -> None:
    did, name = peer4_of_two_keys()
    said = msgspec.structs.replace(SAID, peer_did=did)
    await mediator.keylists.enrol(OLD, COMMAND, said, [name])
    prior, unknown_dids = OLD, UnknownDids(mediator.agents, SeenDids(), None)
    for number in range(PRIOR_DIDS_MAX + 1):
        peer = Peer(3_100 + number)
        assert await mediator.rotate(peer, prior, at_s=1_000 + number) is None
        prior = peer.name
        refused = None if number < PRIOR_DIDS_MAX else RejectionReason.UNDECRYPTABLE
        assert await unknown_dids.learn(name, COMMAND) is refused
    assert await mediator.keylists.enrol(name, COMMAND, said, [name]) is Refusal.KEY_TAKEN
    assert (await mediator.owner(name), await mediator.has(OLD, name)) == (OLD, [name])
    assert isinstance(await mediator.forward(name), EnvelopeQueued)
