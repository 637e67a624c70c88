from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from actors.core.commands import QueryConnection, UseInvitation
from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.protocols.problems import Problem
from http_edge.didcomm.protocols.protocol import NOTHING, Request
from http_edge.settings.settings import DidComm
from tests.unit.didcomm.inviter import Inviter, Wallet, connection_request, inviter_of
from tests.unit.didcomm.requests import NEW, OLD, REPLY_ID, message, request_of, written

ALICE, BOB = Wallet(1), Wallet(2)


def reuse(wallet: Wallet, invitation: str | None, *, prefix: str = NEW, minor: int = 1) -> Request:
    thread = {"thid": "message-1"} if invitation is None else {"pthid": invitation}
    asks = message(f"out-of-band/1.{minor}/handshake-reuse", prefix, **{"~thread": thread})
    return request_of(asks, wallet.key.public)


async def connected(inviter: Inviter, wallet: Wallet) -> None:
    await inviter.answer(connection_request(wallet, inviter.invite()))


async def code(inviter: Inviter, asks: Request) -> str:
    """The code of the problem report of this protocol."""
    outcome = await inviter.ask(asks)
    report = written(outcome.reply, asks.message)
    assert report["@type"] == asks.message.type.sibling("problem_report")
    description = report["description"]
    assert isinstance(description, dict)
    assert set(description) == {"code", "en"}
    return str(description["code"])


@pytest.mark.parametrize(("prefix", "minor"), [(NEW, 0), (NEW, 1), (OLD, 1)])
async def test_an_agent_that_is_connected_may_go_on_with_its_connection(
    tmp_path: Path, prefix: str, minor: int
) -> None:
    async with inviter_of(tmp_path) as inviter:
        await connected(inviter, ALICE)
        invitation = inviter.invite()
        asks = reuse(ALICE, invitation, prefix=prefix, minor=minor)
        outcome = await inviter.ask(asks)
        assert outcome.may_wait
        assert written(outcome.reply, asks.message) == {
            "@type": f"{prefix}out-of-band/1.{minor}/handshake-reuse-accepted",
            "@id": REPLY_ID,
            "~thread": {"thid": "message-1", "pthid": invitation},
        }


async def test_reuse_changes_nothing_of_the_connection(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        await connected(inviter, ALICE)
        before = await inviter.connection(ALICE)
        await inviter.answer(reuse(ALICE, inviter.invite()))
        assert await inviter.connection(ALICE) == before


@pytest.mark.parametrize("mode", ["allow_list", "closed"])
async def test_registration_is_for_those_who_are_new(
    tmp_path: Path, mode: Literal["allow_list", "closed"]
) -> None:
    async with inviter_of(tmp_path) as inviter:
        await connected(inviter, ALICE)
        later = Inviter(inviter.agents, DidComm(registration=mode))
        accepted = await later.answer(reuse(ALICE, later.invite()))
        assert accepted["@type"] == f"{NEW}out-of-band/1.1/handshake-reuse-accepted"


async def test_a_stranger_has_nothing_to_reuse_and_uses_nothing_up(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        invitation = inviter.invite(single_use=True)
        asks = reuse(BOB, invitation)
        assert await code(inviter, asks) == "no_existing_connection"
        assert not (await inviter.ask(asks)).may_wait
        await connected(inviter, ALICE)
        assert "description" not in await inviter.answer(reuse(ALICE, invitation))


async def test_an_invitation_that_is_over_and_one_that_never_was_look_the_same(
    tmp_path: Path,
) -> None:
    async with inviter_of(tmp_path) as inviter:
        await connected(inviter, ALICE)
        await connected(inviter, BOB)
        used = inviter.invite(single_use=True)
        await inviter.answer(reuse(BOB, used))
        answers: list[Json] = []
        for invitation in (used, inviter.invite(lasts_s=-1), "unknown", None):
            asks = reuse(ALICE, invitation)
            assert await code(inviter, asks) == "expired-invitation"
            answer = await inviter.answer(asks)
            answers.append({**answer, "@id": "", "~thread": {}})
        assert answers == 4 * [answers[0]]
        assert "(pthid) is missing, unknown, used or expired" in str(answers[0])


async def test_a_single_use_invitation_is_used_up_by_reuse(tmp_path: Path) -> None:
    async with inviter_of(tmp_path, registration="invitation") as inviter:
        await connected(inviter, ALICE)
        once = inviter.invite(single_use=True)
        for _ in range(2):
            assert "description" not in await inviter.answer(reuse(ALICE, once))
        refused = await inviter.refusal(connection_request(BOB, once))
        assert refused == "request_not_accepted"


@pytest.mark.parametrize("lost", [QueryConnection, UseInvitation])
async def test_an_unknown_outcome_is_no_refusal(
    tmp_path: Path, lost: type[QueryConnection | UseInvitation]
) -> None:
    async with inviter_of(tmp_path) as inviter:
        await connected(inviter, ALICE)
        asks = reuse(ALICE, inviter.invite(single_use=True))
        inviter.agents.lost = {lost}
        answer = await inviter.answer(asks)
        assert answer["@type"] == f"{NEW}notification/1.0/problem-report"
        assert answer["description"] == {
            "code": "try-again",
            "en": "The outcome is unknown, please try again",
        }
        inviter.agents.lost = set()
        assert "description" not in await inviter.answer(asks)


async def test_an_invitation_that_cannot_be_used_for_now_is_not_called_over(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        await connected(inviter, ALICE)
        asks = reuse(ALICE, inviter.invite(single_use=True))
        inviter.agents.refused[UseInvitation] = Refusal.INSUFFICIENT_STORAGE
        outcome = await inviter.ask(asks)
        assert outcome.to_retry is Problem.INSUFFICIENT_STORAGE
        assert outcome.refused == "insufficient-storage"


async def test_a_problem_report_is_not_answered(tmp_path: Path) -> None:
    async with inviter_of(tmp_path) as inviter:
        report = message("out-of-band/1.1/problem_report", description={"code": "x"})
        assert await inviter.ask(request_of(report)) is NOTHING
