from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.core.commands import (
    Connect,
    Connection,
    NameSpeaker,
    QueryConnection,
    RotateAccount,
    UseInvitation,
)
from actors.core.refusals import Refusal
from actors.core.replies import Done
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.identities import speak_as
from http_edge.didcomm.protocols.admission import Admission, NotAdmitted
from http_edge.didcomm.protocols.invitations import Invitations
from http_edge.didcomm.protocols.protocol import Request
from http_edge.listener.address_charge import AddressCharge, AddressRates, charged_to
from http_edge.settings.settings import DidComm, Rates
from tests.unit.didcomm.inviter import HTTP_URL, SERVICE, Inviter, Wallet, inviter_of
from tests.unit.didcomm.requests import message, request_of

ALICE, BOB, CAROL = Wallet(1), Wallet(2), Wallet(3)
STRICT_MODES = ("invitation", "allow_list", "closed")


def asks(inviter: Inviter, wallet: Wallet) -> Request:
    wish = message("connections/1.0/request")
    return request_of(wish, wallet.key.public, inviter.agents)


def under(inviter: Inviter, **settings: Any) -> Admission:
    """Admission to the same mediator after its operator has changed the settings."""
    read = DidComm.model_validate(settings)
    return Admission(read, inviter.invitations, clock=inviter.clock)


async def connect(inviter: Inviter, wallet: Wallet, invitation: str = "") -> None:
    said = Connection(wallet.did, "", "", [], "connections/1.0", invitation)
    assert await inviter.agents.ask(wallet.did, Connect(said), b"c" * 16, Done) == Done()


def forged(invitation: str) -> str:
    return ("A" if invitation[0] != "A" else "B") + invitation[1:]


@pytest.mark.parametrize("shown", ["", "did:web:mediator.example", "a" * 40, "\N{SNOWMAN}" * 40])
async def test_an_open_mediator_takes_any_agent(tmp_path: Path, shown: str) -> None:
    async with inviter_of(tmp_path) as inviter:
        assert await inviter.admission.admit(asks(inviter, ALICE), shown) == ""


async def test_the_invitation_that_an_agent_came_with_is_kept(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        invitation = inviter.invite()
        assert await inviter.admission.admit(asks(inviter, ALICE), invitation) == invitation


async def test_with_registration_by_invitation_one_is_needed(tmp_path: Path) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        admit, ours = inviter.admission.admit, inviter.invite()
        others = Invitations(KeyPair.from_seed(b"o" * 32), "Other", HTTP_URL).public()
        everybodys = Invitations(SERVICE, "Poste", HTTP_URL).public()
        assert others is not None
        assert everybodys is not None
        for shown in ("", forged(ours), others.terms.id, everybodys.terms.id):
            assert await admit(asks(inviter, ALICE), shown) is NotAdmitted.INVITATION_UNKNOWN
        assert await admit(asks(inviter, ALICE), ours) == ours
        assert await admit(asks(inviter, BOB), ours) == ours


@pytest.mark.parametrize("spell", [base58, did_key], ids=["base58", "did:key"])
async def test_the_allow_list_names_keys_in_either_spelling(tmp_path: Path, spell: Any) -> None:
    settings = {"registration": "allow_list", "allowed_keys": [spell(ALICE.key.public)]}
    async with inviter_of(tmp_path, **settings) as inviter:
        assert await inviter.admission.admit(asks(inviter, ALICE), "") == ""
        for shown in ("", inviter.invite()):
            assert await inviter.admission.admit(asks(inviter, BOB), shown) is NotAdmitted.NOT_OPEN


@pytest.mark.parametrize(
    "did",
    [
        "did:web:wallets.example%3A8443:alice",
        "did:webvh:QmXnWds7WqULkpUhssYhtGKSdMovUksU8gGW1FNUxkL61s:wallets.example",
    ],
)
async def test_the_allow_list_names_dids_of_the_web(tmp_path: Path, did: str) -> None:
    settings = {"registration": "allow_list", "allowed_keys": [did]}
    async with inviter_of(tmp_path, **settings) as inviter:
        admit = inviter.admission.admit
        for sender, admitted in ((did, ""), (did + "x", NotAdmitted.NOT_OPEN)):
            said = msgspec.structs.replace(asks(inviter, ALICE).message, sender_did=sender)
            assert (
                await admit(msgspec.structs.replace(asks(inviter, ALICE), message=said), "")
                == admitted
            )


async def test_a_closed_mediator_takes_no_new_agent(tmp_path: Path) -> None:
    async with inviter_of(tmp_path, registration="closed") as inviter:
        for shown in ("", inviter.invite(), inviter.invite(lasts_s=-1)):
            assert (
                await inviter.admission.admit(asks(inviter, ALICE), shown) is NotAdmitted.NOT_OPEN
            )


@pytest.mark.parametrize("mode", STRICT_MODES)
async def test_who_is_connected_is_readmitted_whatever_the_setting(
    tmp_path: Path, mode: str
) -> None:
    async with inviter_of(tmp_path) as inviter:
        once, over = inviter.invite(), inviter.invite(lasts_s=-1)
        await connect(inviter, ALICE, once)
        later = under(inviter, registration=mode)
        for shown in ("", "unknown", over):
            assert await later.admit(asks(inviter, ALICE), shown) == once
            assert isinstance(await later.admit(asks(inviter, BOB), shown), NotAdmitted)


@pytest.mark.parametrize("mode", ["open", "invitation"])
async def test_an_invitation_ends_at_its_second(tmp_path: Path, mode: str) -> None:
    async with inviter_of(tmp_path, registration=mode) as inviter:
        invitation = inviter.invite(lasts_s=60)
        inviter.clock.now_ms += 59_999
        assert await inviter.admission.admit(asks(inviter, ALICE), invitation) == invitation
        inviter.clock.now_ms += 1
        late = await inviter.admission.admit(asks(inviter, BOB), invitation)
        assert late is NotAdmitted.INVITATION_EXPIRED


@pytest.mark.parametrize("mode", ["open", "invitation"])
async def test_a_single_use_invitation_belongs_to_its_first_user(tmp_path: Path, mode: str) -> None:
    async with inviter_of(tmp_path, registration=mode) as inviter:
        invitation = inviter.invite(single_use=True)
        wallets = [Wallet(number) for number in range(1, 9)]
        answers = await asyncio.gather(
            *[inviter.admission.admit(asks(inviter, wallet), invitation) for wallet in wallets]
        )
        assert sorted(map(str, answers)) == sorted(
            map(str, [invitation, *[NotAdmitted.INVITATION_USED] * 7])
        )
        winner = wallets[answers.index(invitation)]
        assert await inviter.admission.admit(asks(inviter, winner), invitation) == invitation


@pytest.mark.parametrize("mode", ["open", "invitation"])
async def test_who_is_connected_leaves_a_fresh_invitation_to_others(
    tmp_path: Path, mode: str
) -> None:
    async with inviter_of(tmp_path, registration=mode) as inviter:
        admit, first, fresh = (
            inviter.admission.admit,
            inviter.invite(single_use=True),
            inviter.invite(single_use=True),
        )
        assert await admit(asks(inviter, ALICE), first) == first
        await connect(inviter, ALICE, first)
        inviter.agents.lost = {QueryConnection}
        assert await admit(asks(inviter, ALICE), fresh) is NotAdmitted.UNAVAILABLE
        inviter.agents.lost = set()
        assert await admit(asks(inviter, ALICE), fresh) == first
        assert await admit(asks(inviter, BOB), fresh) == fresh


async def test_who_is_not_admitted_takes_nothing_from_the_rate_of_those_who_are(
    tmp_path: Path,
) -> None:
    rates = AddressRates(Rates(registrations_per_s=1, burst_s=1), 1)
    charged_to(AddressCharge(rates, "203.0.113.1", lambda: 0.0))
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        admit, ours = inviter.admission.admit, inviter.invite()
        assert await admit(asks(inviter, ALICE), "") is NotAdmitted.INVITATION_UNKNOWN
        closed = under(inviter, registration="closed")
        assert await closed.admit(asks(inviter, ALICE), ours) is NotAdmitted.NOT_OPEN
        assert await admit(asks(inviter, ALICE), ours) == ours
        assert await admit(asks(inviter, BOB), ours) is NotAdmitted.TOO_MANY


async def test_who_shows_a_used_invitation_takes_nothing_from_the_rate_of_the_invited(
    tmp_path: Path,
) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        admit, used = inviter.admission.admit, inviter.invite(single_use=True)
        assert await admit(asks(inviter, ALICE), used) == used
        rates = AddressRates(Rates(registrations_per_s=1, burst_s=1), 1)
        charged_to(AddressCharge(rates, "203.0.113.1", lambda: 0.0))
        for _ in range(2):
            assert await admit(asks(inviter, BOB), used) is NotAdmitted.INVITATION_USED
        fresh = inviter.invite(single_use=True)
        assert await admit(asks(inviter, CAROL), fresh) == fresh
        # Once the rate is used up it refuses, too, and gives nothing back for that.
        for shown in (used, inviter.invite(single_use=True)):
            assert await admit(asks(inviter, BOB), shown) is NotAdmitted.TOO_MANY


async def test_who_is_not_admitted_uses_no_invitation_up(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        invitation = inviter.invite(single_use=True)
        closed = under(inviter, registration="closed")
        assert await closed.admit(asks(inviter, BOB), invitation) is NotAdmitted.NOT_OPEN
        assert await inviter.admission.admit(asks(inviter, ALICE), invitation) == invitation


async def test_who_was_given_up_or_speaks_for_another_uses_no_invitation_up(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        admit, once = inviter.admission.admit, inviter.invite(single_use=True)
        await connect(inviter, ALICE)
        for did, change in (
            (BOB.did, NameSpeaker(ALICE.did)),
            (ALICE.did, RotateAccount(ALICE.did, BOB.did, 1)),
        ):
            assert await inviter.agents.ask(did, change, b"r" * 16, Done) == Done()
        speak_as(ALICE.did)
        assert await admit(asks(inviter, ALICE), once) is NotAdmitted.DID_ROTATED
        speak_as(BOB.did)
        assert await admit(asks(inviter, BOB), once) is NotAdmitted.UNAVAILABLE
        speak_as("")
        assert await admit(asks(inviter, CAROL), once) == once


async def test_a_lost_answer_is_no_refusal_and_asking_again_is_safe(tmp_path: Path) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        admit, invitation = inviter.admission.admit, inviter.invite(single_use=True)
        inviter.agents.lost = {UseInvitation}
        assert await admit(asks(inviter, ALICE), invitation) is NotAdmitted.UNAVAILABLE
        inviter.agents.lost = {QueryConnection}
        assert await admit(asks(inviter, ALICE), "") is NotAdmitted.UNAVAILABLE
        inviter.agents.lost = set()
        assert await admit(asks(inviter, ALICE), invitation) == invitation
        assert await admit(asks(inviter, BOB), invitation) is NotAdmitted.INVITATION_USED


async def test_open_registration_asks_no_owner(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        await inviter.admission.admit(asks(inviter, ALICE), inviter.invite())
        assert inviter.agents.seen == []


async def test_no_agent_is_connected_before_connecting(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        assert await inviter.admission.connection_of(asks(inviter, ALICE)) is Refusal.NOT_CONNECTED


def test_every_reason_can_be_reported_by_a_handshake() -> None:
    codes = {"request_not_accepted", "request_processing_error"}
    assert {reason.code for reason in NotAdmitted} == codes
