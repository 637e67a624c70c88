"""The DIDComm demo can fail, with an exit code of its own; that it succeeds needs a mediator."""

from __future__ import annotations

import asyncio
import json

import pytest
from click.testing import CliRunner, Result

from http_edge.cli.demo import demo
from http_edge.server.exits import Exit
from tests.unit.wallet.scripted_mediator import ScriptedMediator, reply


async def run(*arguments: str) -> Result:
    """The command in a thread, since it starts an event loop of its own."""
    call = (demo, ["didcomm", *arguments])
    return await asyncio.to_thread(CliRunner().invoke, *call, standalone_mode=False)


async def test_a_mediator_that_grants_nothing_does_not_pass(mediator: ScriptedMediator) -> None:
    mediator.answer("trust_ping/1.0/ping", lambda _: [], *[reply("ping_response")] * 2)
    mediator.answer("coordinate-mediation/1.0/mediate-request", reply("mediate-deny"))
    result = await run("--url", str(mediator.server.make_url("/")), "--json")
    report = json.loads(result.output)
    assert [proof["held"] for proof in report["proofs"]] == [True, False]
    assert "mediate-deny" in report["proofs"][-1]["evidence"]
    assert (report["held"], result.return_value) == (False, Exit.FINDING)


async def test_each_step_is_printed_with_what_it_proves(mediator: ScriptedMediator) -> None:
    result = await run("--url", str(mediator.server.make_url("/")))
    assert "✗ Alice and Bob connect: a scanned invitation is enough" in result.output


@pytest.mark.parametrize(
    ("url", "code"),
    [("http://127.0.0.1:1", Exit.UNREACHABLE), ("ftp://127.0.0.1", Exit.USAGE)],
)
def test_an_absent_mediator_and_a_wrong_url_exit_differently(url: str, code: Exit) -> None:
    assert CliRunner().invoke(demo, ["didcomm", "--url", url]).exit_code == code


async def test_a_mediator_that_gives_no_invitation_is_not_called_absent(
    mediator: ScriptedMediator,
) -> None:
    url = str(mediator.server.make_url("/without-invitation"))
    result = await asyncio.to_thread(CliRunner().invoke, demo, ["didcomm", "--url", url])
    assert result.exit_code == Exit.UNREACHABLE
    assert "no invitation is given: HTTP 404" in result.stderr
    assert "--invitation" in result.stderr
    assert "poste serve" not in result.stderr
