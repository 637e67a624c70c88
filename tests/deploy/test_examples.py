"""The examples of the guide run as they stand there, against a mediator."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from actors.host.clock import system_clock
from http_edge.clients import didcomm
from http_edge.clients.decentrl import Account
from http_edge.clients.didcomm import (
    Address,
    Recipient,
    Recipient2,
    Wallet,
    Wallet2,
    endpoint_of,
    forward,
    forward_2,
)
from http_edge.didcomm.envelopes.keys import KeyPair
from tests.deploy.manifests import DEPLOY
from tests.edge.mediator import HandClock, Mediator
from tests.ports import free_port

EXAMPLES = sorted((DEPLOY / "docs/examples").glob("*.py"))
ELSEWHERE = {"check_evidence.py", "check_push.py", "sealed_rows.py"}
"""Tested in ``tests/export/test_evidence_example.py`` and ``tests/unit/push/test_webhook.py``."""


UNREADABLE = Address(KeyPair.from_seed(b"x" * 32).public, "").seal({"@type": "x", "@id": "1"})
"""An envelope for a key that no wallet has."""
OF_ANOTHER_TYPE: dict[str, object] = {"@type": "https://didcomm.org/empty/1.0/empty", "@id": "1"}


def junk_for(recipient: Recipient) -> list[tuple[str, bytes]]:
    """What a stranger may post to a wallet of DIDComm v1: endpoint and body."""
    address = recipient.address
    unreadable = forward(UNREADABLE, address.key, address.routing_keys)
    return [(address.endpoint, each) for each in (unreadable, address.seal(OF_ANOTHER_TYPE))]


def junk_for_2(recipient: Recipient2) -> list[tuple[str, bytes]]:
    """What a stranger may post to a wallet of DIDComm v2: endpoint and body."""
    did, stranger = recipient.did, Recipient2(KeyPair.new(), "", "key")
    bodies = (forward_2([UNREADABLE], did), stranger.seal(OF_ANOTHER_TYPE, did))
    return [(endpoint_of(did), each) for each in bodies]


@pytest.fixture
def junk(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Before an example's message its recipient gets others; returns where they were sent."""
    posts: list[tuple[str, bytes]] = []
    sent: list[str] = []

    def remember(wallet: Any, junk_of: Callable[[Any], list[tuple[str, bytes]]]) -> None:
        registered = wallet.new_recipient

        async def new_recipient(self: Any) -> Any:
            recipient = await registered(self)
            posts.extend(junk_of(recipient))
            return recipient

        monkeypatch.setattr(wallet, "new_recipient", new_recipient)

    post, say = didcomm.send, Account.send

    async def send(session: aiohttp.ClientSession, endpoint: str, envelope: bytes) -> int:
        for to, body in posts:
            await post(session, to, body)
            sent.append(to)
        return await post(session, endpoint, envelope)

    async def send_event(self: Account, recipient_did: str, payload: str) -> object:
        await say(self, recipient_did, "junk")
        sent.append(recipient_did)
        return await say(self, recipient_did, payload)

    remember(Wallet, junk_for)
    remember(Wallet2, junk_for_2)
    monkeypatch.setattr(didcomm, "send", send)
    monkeypatch.setattr(Account, "send", send_event)
    return sent


@pytest.mark.parametrize("end", ["", "/"], ids=["url", "url with a slash"])
@pytest.mark.parametrize(
    "path", [one for one in EXAMPLES if one.name not in ELSEWHERE], ids=lambda path: path.stem
)
async def test_an_example_runs_and_reads_what_was_sent(
    path: Path, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await run(path, tmp_path, end)
    assert "hello, Bob" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["first_message", "first_wallet", "wallet_v2"])
async def test_an_example_reads_what_was_sent_after_something_that_it_cannot_read(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], junk: list[str]
) -> None:
    await run(DEPLOY / f"docs/examples/{name}.py", tmp_path)
    assert junk
    assert "hello, Bob" in capsys.readouterr().out


async def run(path: Path, tmp_path: Path, end: str = "") -> None:
    """Run an example against a mediator of its own, with this end of its URL."""
    # The invitation names the mediator's URL, so the port is known before it listens.
    listen = f"127.0.0.1:{free_port()}"
    url = f"http://{listen}"
    mediator = Mediator(tmp_path, HandClock(system_clock()), listen=listen, public_url=url)
    await mediator.start()
    try:
        await runpy.run_path(str(path))["main"](url + end)
    finally:
        await mediator.stop()


def test_every_example_is_shown_in_the_guide() -> None:
    pages = "".join(page.read_text("utf-8") for page in (DEPLOY / "docs/pages").rglob("*.md"))
    assert [path.name for path in EXAMPLES if f'--8<-- "{path.name}"' not in pages] == []
