"""The webhook gets what a push service needs, signed, and its status decides."""

from __future__ import annotations

import runpy
from pathlib import Path

import orjson
import pytest

from http_edge.crypto.private_files import KeyFileRefused
from http_edge.didcomm.push.gateways import PushGateway, open_gateway
from http_edge.didcomm.push.service import Notification, PushOutcome
from http_edge.settings.settings import Push
from tests.edge.mediator import HandClock
from tests.tidy.modules import ROOT
from tests.unit.outbound.agent_host import AgentHost, status
from tests.unit.push.devices import ANDROID, IPHONE, KEY, TOKEN, private

SENT, GONE = PushOutcome.SENT, PushOutcome.UNREGISTERED
REFUSED, UNAVAILABLE = PushOutcome.REFUSED, PushOutcome.UNAVAILABLE


def webhook(host: AgentHost, clock: HandClock, key_file: Path | None = None) -> PushGateway:
    settings = Push(webhook_url=f"http://127.0.0.1:{host.port}/push", webhook_key_file=key_file)
    gateway = open_gateway(settings, clock=clock)
    assert gateway is not None
    return gateway


@pytest.mark.parametrize(
    ("notification", "kind", "platform", "waiting"),
    [
        (ANDROID, "https://didcomm.org/push-notifications-fcm", "Android", 3),
        (IPHONE, "https://didcomm.org/push-notifications-apns", "iOS", 1),
    ],
    ids=["fcm", "apns"],
)
async def test_a_webhook_learns_the_device_and_how_many_messages_wait_and_nothing_else(
    host: AgentHost,
    clock: HandClock,
    notification: Notification,
    kind: str,
    platform: str,
    waiting: int,
) -> None:
    gateway = webhook(host, clock)
    assert notification.device.channel in gateway.channels
    assert await gateway.send(notification) is SENT
    await gateway.close()
    (request,), (body,) = host.requests, host.received
    assert orjson.loads(body) == {
        "@type": kind,
        "device_token": TOKEN,
        "device_platform": platform,
        "waiting": waiting,
    }
    assert request.path == "/push"
    assert request.content_type == "application/json"
    named = set(request.headers) - {"Host", "Content-Length", "Accept"}
    assert named == {"Content-Type", "User-Agent", "Accept-Encoding"}


async def test_a_signature_holds_for_its_key_its_body_and_five_minutes(
    host: AgentHost, clock: HandClock, tmp_path: Path
) -> None:
    gateway = webhook(host, clock, private(tmp_path / "key", KEY + b"\n"))
    await gateway.send(ANDROID)
    await gateway.close()
    (request,), (body,) = host.requests, host.received
    signature, now_s = request.headers["Poste-Signature"], clock.now_s
    # The guide shows this function.
    check = runpy.run_path(str(ROOT / "deploy/docs/examples/check_push.py"))["is_from_mediator"]
    assert check(KEY, signature, body, now_s)
    assert check(KEY, signature, body, now_s + 299)
    assert not check(KEY, signature, body, now_s + 300)
    assert not check(KEY, signature.replace(str(now_s), str(now_s + 1)), body, now_s)
    assert not check(KEY, signature, body + b" ", now_s)
    assert not check(KEY[::-1], signature, body, now_s)
    assert not check(KEY, "", body, now_s)
    assert not check(KEY, f"t={now_s}", body, now_s)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        *[(code, SENT) for code in (200, 202, 204)],
        *[(code, GONE) for code in (404, 410)],
        *[(code, REFUSED) for code in (400, 401, 403, 413, 499)],
        *[(code, UNAVAILABLE) for code in (304, 429, 500, 503)],
    ],
)
async def test_the_status_of_a_webhook_is_the_outcome(
    host: AgentHost, clock: HandClock, code: int, outcome: PushOutcome
) -> None:
    host.answer = status(code)
    gateway = webhook(host, clock)
    assert await gateway.send(ANDROID) is outcome
    await gateway.close()


def test_a_key_that_is_short_or_open_to_others_is_refused_with_a_remedy(
    host: AgentHost, clock: HandClock, tmp_path: Path
) -> None:
    short = private(tmp_path / "short", KEY[1:] + b"\n")
    with pytest.raises(KeyFileRefused, match="at least 32 characters: make one") as refused:
        webhook(host, clock, short)
    assert KEY[1:].decode() not in str(refused.value)
    short.write_bytes(KEY)
    short.chmod(0o640)
    with pytest.raises(KeyFileRefused, match="chmod 600"):
        webhook(host, clock, short)


def test_without_a_push_service_there_is_no_gateway() -> None:
    assert open_gateway(Push()) is None


def test_a_key_without_the_url_of_its_webhook_is_refused_with_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(KeyFileRefused, match=r"set push\.webhook_url, or remove"):
        open_gateway(Push(webhook_key_file=private(tmp_path / "key", KEY)))
