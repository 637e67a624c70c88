"""The demo can fail, and says so by its exit code; that it succeeds needs a real mediator."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from click import Command
from click.testing import CliRunner, Result

from http_edge.cli import running_mediator
from http_edge.cli.bench import bench
from http_edge.cli.demo import demo
from http_edge.server.exits import Exit
from tests.unit.client.scripted_mediator import ScriptedMediator, success
from tests.unit.client.test_socket import accept


async def run(*arguments: str) -> Result:
    """The command in a thread, since it starts an event loop of its own."""
    return await asyncio.to_thread(CliRunner().invoke, demo, arguments, standalone_mode=False)


async def test_a_mediator_that_takes_spam_does_not_pass(mediator: ScriptedMediator) -> None:
    mediator.sockets.extend([accept(), accept()])
    mediator.answer("TWO_WAY_PRIVATE", success(pendingEventId="e1"))
    result = await run("--url", mediator.url, "--json")
    report = json.loads(result.output)
    assert [proof["held"] for proof in report["proofs"]] == [True, True, False]
    assert "accepted instead of refused" in report["proofs"][-1]["evidence"]
    assert (report["held"], result.return_value) == (False, Exit.FINDING)


async def test_each_step_is_printed_with_what_it_proves(mediator: ScriptedMediator) -> None:
    mediator.sockets.extend([accept(), accept()])
    mediator.answer("TWO_WAY_PRIVATE", success(pendingEventId="e1"))
    result = await run("--url", mediator.url)
    assert "✓ Alice and Bob register: an identity needs nothing but its keys" in result.output
    assert "✗ Alice writes to Bob: no contract, no message" in result.output


def test_no_mediator_is_exit_code_3_and_a_clear_sentence() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        result = CliRunner().invoke(demo, ["--url", url])
    assert result.exit_code == Exit.UNREACHABLE
    assert "poste serve" in result.stderr


async def test_a_peer_that_does_not_answer_is_the_one_that_is_named(
    mediator: ScriptedMediator,
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        peer = f"http://127.0.0.1:{unused.getsockname()[1]}"
        call = (demo, ["--url", mediator.url, "--peer", peer])
        result = await asyncio.to_thread(CliRunner().invoke, *call)
    assert result.exit_code == Exit.UNREACHABLE
    assert f"Does a mediator serve at {peer}?" in result.stderr


@pytest.mark.parametrize("command", [demo, bench])
def test_a_server_that_hangs_is_named_soon(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_mediator, "_WHOLE_S_MAX", 0.1 - running_mediator._ANSWER_S_MAX)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        result = CliRunner().invoke(command, [url] if command is bench else ["--url", url])
    assert result.exit_code == Exit.UNREACHABLE
    assert f"{url} did not answer within 8 s" in result.stderr
    assert f"Does a mediator serve at {url}?" in result.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "ftp://127.0.0.1"])
def test_a_wrong_url_is_a_usage_error(url: str) -> None:
    assert CliRunner().invoke(demo, ["--url", url]).exit_code == Exit.USAGE
