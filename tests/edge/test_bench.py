"""``poste bench`` puts its load on a mediator as ordinary clients do, and says what came of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from http_edge.cli.bench import PROTOCOLS, bench
from http_edge.clients.decentrl import Sources
from http_edge.server.exits import Exit, Stop
from tests.edge.mediator import HandClock, Mediator
from tests.ports import free_port

MESSAGES = 40


@pytest.fixture
def rates() -> dict[str, float]:
    return {"per_address_per_s": 0}


@pytest.fixture
def public_url() -> str:
    """Where clients reach the mediator; empty for where it listens."""
    return ""


@pytest.fixture
async def url(tmp_path: Path, rates: dict[str, float], public_url: str) -> AsyncIterator[str]:
    listen = f"127.0.0.1:{free_port()}"
    clock = HandClock(Sources().now_ms())
    public_url = public_url or f"http://{listen}"
    mediator = Mediator(tmp_path, clock, listen=listen, public_url=public_url, rates=rates)
    await mediator.start()
    try:
        yield f"http://{listen}"
    finally:
        await mediator.stop()


async def benched(url: str, *words: str) -> Result:
    options = [f"--messages={MESSAGES}", "--agents=2", "--connections=3", *words]
    return await asyncio.to_thread(CliRunner().invoke, bench, [url, *options])


async def test_every_accepted_message_of_each_protocol_is_fetched_again(url: str) -> None:
    done = await benched(url, "--json")
    assert done.exit_code == Exit.OK, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    assert [one["protocol"] for one in report["measured"]] == list(PROTOCOLS)
    for one in report["measured"]:
        assert (one["accepted"], one["refused"], one["drained"]) == (MESSAGES, {}, MESSAGES)
        assert 0 < one["median_ms"] <= one["p99_ms"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_an_address_where_nothing_listens_is_named(protocol: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = await asyncio.to_thread(CliRunner().invoke, bench, [url, f"--protocol={protocol}"])
    assert done.exit_code == Exit.UNREACHABLE
    assert f"Does a mediator serve at {url}?" in done.output


@pytest.mark.parametrize("public_url", ["http://127.0.0.1:1"])
async def test_an_unreachable_public_url_is_named_after_the_figures_of_decentrl(
    url: str, public_url: str
) -> None:
    done = await benched(url, "--json")
    assert done.exit_code == Exit.UNREACHABLE
    assert [one["protocol"] for one in json.loads(done.stdout)["measured"]] == ["decentrl"]
    for said in (public_url, "public_url: it must be reachable"):
        assert said in done.stderr


@pytest.mark.parametrize("rates", [{"per_sender_per_s": 5}])
async def test_refusals_are_shown_by_their_code(url: str) -> None:
    done = await benched(url, "--protocol=decentrl", "--messages=200")
    assert done.exit_code == Exit.OK, done.output
    assert "429 RATE_LIMITED" in done.stdout


@pytest.mark.parametrize("protocol", ["didcomm", "didcomm-v2"])
async def test_a_load_ends_when_its_time_is_over(url: str, protocol: str) -> None:
    done = await benched(
        url, f"--protocol={protocol}", "--messages=4000", "--seconds=0.1", "--json"
    )
    assert done.exit_code == Exit.OK, done.output
    (one,) = json.loads(done.stdout)["measured"]
    assert 0 < one["accepted"] == one["drained"] < 4_000


def test_another_machines_mediator_needs_a_consent() -> None:
    done = CliRunner().invoke(bench, ["https://mediator.test"])
    assert (done.exit_code, "--yes" in done.output) == (Exit.USAGE, True)
    assert "Registers 8 agents" in done.output


def test_a_port_without_a_mediator_is_no_mediator() -> None:
    done = CliRunner().invoke(bench, ["http://127.0.0.1:1"], standalone_mode=False)
    assert isinstance(done.exception, Stop)
    assert done.exception.exit_code == Exit.UNREACHABLE


def test_a_url_of_another_kind_is_refused() -> None:
    for url in ("nonsense", "127.0.0.1:8080", "http://["):
        done = CliRunner().invoke(bench, [url])
        assert (done.exit_code, "consent" in done.output) == (Exit.USAGE, False)
        assert f"{url} is not an http or https URL" in done.output
