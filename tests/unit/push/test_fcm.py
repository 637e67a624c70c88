"""Firebase Cloud Messaging gets messages and assertions in its forms, and its errors are read."""

from __future__ import annotations

import asyncio
from pathlib import Path
from urllib.parse import parse_qs

import orjson
import pytest
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

from http_edge.crypto.encoding import b64decode
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.didcomm.push.gateways import open_gateway
from http_edge.didcomm.push.service import PushOutcome
from http_edge.settings.settings import Push
from tests.edge.mediator import HandClock
from tests.unit.outbound.agent_host import WAIT_S, AgentHost, Gate
from tests.unit.push.devices import ANDROID, TOKEN, private
from tests.unit.push.google import LIFE_S, Google, account_key, fcm_error, pem

SENT, GONE = PushOutcome.SENT, PushOutcome.UNREGISTERED
REFUSED, UNAVAILABLE = PushOutcome.REFUSED, PushOutcome.UNAVAILABLE
INVALID_TOKEN = "The registration token is not a valid FCM registration token"


@pytest.fixture
def google(host: AgentHost, tmp_path: Path, clock: HandClock) -> Google:
    return Google(host, tmp_path, clock)


async def test_a_message_has_the_number_a_text_for_all_and_nothing_else(
    google: Google, host: AgentHost
) -> None:
    gateway = google.gateway()
    assert gateway.channels == {"fcm"}
    assert await gateway.send(ANDROID) is SENT
    await gateway.close()
    kinds = [request.content_type for request in host.requests]
    assert kinds == ["application/x-www-form-urlencoded", "application/json"]
    (body,) = google.messages
    assert orjson.loads(body) == {
        "message": {
            "token": TOKEN,
            "data": {"@type": "https://didcomm.org/push-notifications-fcm", "waiting": "3"},
            "notification": {"body": "You have new messages."},
            "android": {"priority": "high", "collapse_key": "poste"},
            "apns": {"headers": {"apns-collapse-id": "poste", "apns-priority": "10"}},
        }
    }


async def test_a_message_without_a_text_is_of_the_form_that_apple_takes(google: Google) -> None:
    gateway = google.gateway(text="")
    assert await gateway.send(ANDROID) is SENT
    await gateway.close()
    message = orjson.loads(google.messages[0])["message"]
    assert "notification" not in message
    assert message["apns"] == {
        "headers": {
            "apns-collapse-id": "poste",
            "apns-priority": "5",
            "apns-push-type": "background",
        },
        "payload": {"aps": {"content-available": 1}},
    }


async def test_the_assertion_is_signed_by_the_account_for_an_hour(
    google: Google, clock: HandClock
) -> None:
    gateway = google.gateway()
    await gateway.send(ANDROID)
    await gateway.close()
    form = parse_qs(google.assertions[0].decode(), strict_parsing=True)
    assert form["grant_type"] == ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
    signed, _, signature = form["assertion"][0].rpartition(".")
    account_key().public_key().verify(b64decode(signature), signed.encode(), PKCS1v15(), SHA256())
    head, claims = (orjson.loads(b64decode(part)) for part in signed.split("."))
    assert head == {"alg": "RS256", "typ": "JWT", "kid": "key-1"}
    assert claims == {
        "iss": "poste@wallets-1.iam.example",
        "scope": "https://www.googleapis.com/auth/firebase.messaging",
        "aud": f"{google.url}/token",
        "iat": clock.now_s,
        "exp": clock.now_s + 3_600,
    }


async def test_one_access_token_serves_all_until_a_minute_before_its_end(
    google: Google, clock: HandClock
) -> None:
    gateway = google.gateway()
    assert set(await asyncio.gather(*[gateway.send(ANDROID) for _ in range(20)])) == {SENT}
    clock.advance(LIFE_S - 60.001)
    await gateway.send(ANDROID)
    assert google.authorizations == ["Bearer ya29.1"] * 21
    clock.advance(0.001)
    await gateway.send(ANDROID)
    await gateway.close()
    assert google.authorizations[-1] == "Bearer ya29.2"
    assert len(google.assertions) == 2


async def test_a_notification_that_is_cancelled_takes_the_access_token_from_no_other(
    google: Google, host: AgentHost
) -> None:
    gateway = google.gateway()
    sending = [asyncio.create_task(gateway.send(ANDROID)) for _ in range(2)]
    await host.has(1)
    sending[0].cancel()
    assert await sending[1] is SENT
    await gateway.close()
    assert len(google.assertions) == 1


async def test_a_gateway_closes_while_an_access_token_is_fetched(
    google: Google, host: AgentHost
) -> None:
    never = asyncio.Event()

    async def wait(_: bytes) -> web.StreamResponse:
        await never.wait()
        return web.Response()

    host.answer = wait
    gateway = google.gateway(timeout_s=60)
    sending = asyncio.create_task(gateway.send(ANDROID))
    await host.has(1)
    async with asyncio.timeout(WAIT_S):
        await gateway.close()
        assert await sending is UNAVAILABLE


async def test_a_refused_access_token_is_replaced_once(google: Google) -> None:
    gateway = google.gateway()
    google.answers = [fcm_error(401)]
    assert await gateway.send(ANDROID) is SENT
    assert google.authorizations == ["Bearer ya29.1", "Bearer ya29.2"]
    google.answers = [fcm_error(401), fcm_error(401)]
    assert await gateway.send(ANDROID) is REFUSED
    assert google.authorizations[2:] == ["Bearer ya29.2", "Bearer ya29.3"]
    await gateway.close()


async def test_an_access_token_that_many_find_refused_is_replaced_once_for_all(
    google: Google, host: AgentHost
) -> None:
    gateway = google.gateway()
    await gateway.send(ANDROID)
    google.answers = [fcm_error(401) for _ in range(10)]
    host.answer = gate = Gate(host.answer)
    sending = asyncio.gather(*[gateway.send(ANDROID) for _ in range(10)])
    await host.has(2 + 10)  # all of them with the token of the first
    gate.released.set()
    outcomes = await sending
    await gateway.close()
    assert set(outcomes) == {SENT}
    assert len(google.assertions) == 2


async def test_a_late_refusal_of_an_old_access_token_keeps_the_new_one(
    google: Google, host: AgentHost
) -> None:
    gateway = google.gateway()
    await gateway.send(ANDROID)
    gate, answer = Gate(), host.answer

    async def late(body: bytes) -> web.StreamResponse:
        await gate(body)
        return fcm_error(401)

    host.answer = late
    slow = asyncio.create_task(gateway.send(ANDROID))
    await host.has(3)
    host.answer = answer
    google.answers = [fcm_error(401)]
    assert await gateway.send(ANDROID) is SENT
    gate.released.set()
    assert await slow is SENT
    await gateway.close()
    assert len(google.assertions) == 2


async def test_a_wrong_key_for_apns_in_the_project_costs_no_new_access_token(
    google: Google,
) -> None:
    gateway = google.gateway()
    google.answers = [fcm_error(401, "THIRD_PARTY_AUTH_ERROR")]
    assert await gateway.send(ANDROID) is REFUSED
    await gateway.close()
    assert (len(google.messages), len(google.assertions)) == (1, 1)


async def test_only_an_error_about_the_device_says_that_it_is_gone(google: Google) -> None:
    gateway = google.gateway()
    cases = [
        (fcm_error(404, "UNREGISTERED"), GONE),
        (fcm_error(400, "INVALID_ARGUMENT", field="message.token"), GONE),
        (fcm_error(400, "INVALID_ARGUMENT", message=INVALID_TOKEN), GONE),
        (fcm_error(404), REFUSED),  # no such project
        (fcm_error(404, field="message.token"), REFUSED),
        (fcm_error(400, "INVALID_ARGUMENT", field="message.data[0].value"), REFUSED),
        (fcm_error(400, "INVALID_ARGUMENT"), REFUSED),
        (fcm_error(400, message=INVALID_TOKEN), REFUSED),
        (fcm_error(400, "UNREGISTERED"), REFUSED),
        (fcm_error(403, "SENDER_ID_MISMATCH"), REFUSED),
        (fcm_error(429, "QUOTA_EXCEEDED"), UNAVAILABLE),
        (fcm_error(500, "INTERNAL"), UNAVAILABLE),
        (fcm_error(503, "UNAVAILABLE"), UNAVAILABLE),
        (web.Response(status=502, text="<!DOCTYPE html>"), UNAVAILABLE),
        (web.Response(status=404, text="<!DOCTYPE html>"), REFUSED),
        (web.Response(status=404, body=b'{"x":' * 12_000), REFUSED),
        (web.Response(status=400, body=b'{"error":{"message":"\xff"}}'), REFUSED),
        (web.json_response({"error": {"details": None}}, status=404), REFUSED),
    ]
    google.answers = [answer for answer, _ in cases]
    assert [await gateway.send(ANDROID) for _ in cases] == [outcome for _, outcome in cases]
    await gateway.close()


async def test_without_an_access_token_nothing_is_sent_and_the_next_notification_asks_again(
    google: Google,
) -> None:
    gateway = google.gateway()
    cases = [
        (web.json_response({"error": "invalid_grant"}, status=400), REFUSED),
        (web.json_response({}, status=403), REFUSED),
        (fcm_error(404, "UNREGISTERED"), REFUSED),
        (web.Response(status=429), UNAVAILABLE),
        (web.Response(status=503), UNAVAILABLE),
        (web.Response(status=204), UNAVAILABLE),
        (
            web.json_response({"access_token": "a", "expires_in": 9}, status=500),
            UNAVAILABLE,
        ),
        (web.Response(text="<!DOCTYPE html>"), UNAVAILABLE),
        (web.json_response({"access_token": "a\r\nX: y", "expires_in": 9}), UNAVAILABLE),
        (web.json_response({"access_token": "a", "expires_in": -1}), UNAVAILABLE),
    ]
    google.grants = [answer for answer, _ in cases]
    assert [await gateway.send(ANDROID) for _ in cases] == [outcome for _, outcome in cases]
    assert google.messages == []
    assert await gateway.send(ANDROID) is SENT
    await gateway.close()


@pytest.mark.parametrize(
    "members",
    [
        {"type": "authorized_user"},
        {"private_key": "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"},
        {"private_key": pem(generate_private_key(SECP256R1()))},
        {"private_key": pem(account_key(), BestAvailableEncryption(b"a password"))},
        {"project_id": "../other"},
        {"token_uri": "file:///etc/passwd"},
        {"client_email": None},
    ],
    ids=lambda members: next(iter(members)),
)
def test_a_file_that_is_not_of_a_service_account_is_refused_with_a_remedy(
    google: Google, tmp_path: Path, members: dict[str, object]
) -> None:
    path = private(tmp_path / "other.json", google.credentials(**members))
    with pytest.raises(KeyFileRefused, match="Generate new private key") as refused:
        open_gateway(Push(fcm_credentials_file=path))
    assert str(refused.value).startswith(str(path))
    assert refused.value.__cause__ is None


def test_a_file_of_a_service_account_that_is_open_to_others_is_refused(
    google: Google, tmp_path: Path
) -> None:
    path = private(tmp_path / "open.json", google.credentials())
    path.chmod(0o644)
    with pytest.raises(KeyFileRefused, match="chmod 600"):
        open_gateway(Push(fcm_credentials_file=path))
