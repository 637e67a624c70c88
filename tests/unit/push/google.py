"""A service account, and the two services of Google that a gateway to FCM talks to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import orjson
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
)

from http_edge.didcomm.push.gateways import PushGateway, open_gateway
from http_edge.settings.settings import Push
from tests.edge.mediator import HandClock
from tests.unit.outbound.agent_host import AgentHost
from tests.unit.push.devices import private

LIFE_S: Final = 3_599
"""What Google answers as ``expires_in``."""


@cache
def account_key() -> RSAPrivateKey:
    return generate_private_key(65_537, 2_048)


def pem(key: Any, encryption: KeySerializationEncryption = NoEncryption()) -> str:  # noqa: B008
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    return text.decode()


class Google:
    """Grants access tokens and takes messages, as its lists of answers say, then with 200."""

    def __init__(self, host: AgentHost, folder: Path, clock: HandClock) -> None:
        self._host = host
        self._folder = folder
        self._clock = clock
        self.url = f"http://127.0.0.1:{host.port}"
        self.grants: list[web.Response] = []
        self.answers: list[web.Response] = []
        self.tokens_made = 0
        host.answer = self._answer

    def credentials(self, **members: object) -> bytes:
        """The content of the account's file."""
        return orjson.dumps(
            {
                "type": "service_account",
                "project_id": "wallets-1",
                "private_key_id": "key-1",
                "private_key": pem(account_key()),
                "client_email": "poste@wallets-1.iam.example",
                "client_id": "1",
                "token_uri": f"{self.url}/token",
                **members,
            }
        )

    def gateway(self, **settings: object) -> PushGateway:
        path = private(self._folder / "account.json", self.credentials())
        made = {"fcm_credentials_file": path, "fcm_url": self.url, **settings}
        gateway = open_gateway(Push.model_validate(made), clock=self._clock)
        assert gateway is not None
        return gateway

    @property
    def messages(self) -> Sequence[bytes]:
        """The bodies that FCM got."""
        return self._of("/v1/projects/wallets-1/messages:send")

    @property
    def assertions(self) -> Sequence[bytes]:
        """The requests for access tokens."""
        return self._of("/token")

    @property
    def authorizations(self) -> Sequence[str]:
        """The access tokens that FCM got."""
        headers = [request.headers.get("Authorization") for request in self._host.requests]
        return [header for header in headers if header is not None]

    def _of(self, path: str) -> Sequence[bytes]:
        pairs = zip(self._host.requests, self._host.received, strict=True)
        return [body for request, body in pairs if request.path == path]

    async def _answer(self, body: bytes) -> web.StreamResponse:
        if body.startswith(b"grant_type="):
            return self.grants.pop(0) if self.grants else self._granted()
        return self.answers.pop(0) if self.answers else web.json_response({"name": "m/1"})

    def _granted(self) -> web.Response:
        self.tokens_made += 1
        token = f"ya29.{self.tokens_made}"
        return web.json_response(
            {"access_token": token, "expires_in": LIFE_S, "token_type": "Bearer"}
        )


def fcm_error(
    code: int, error_code: str = "", *, message: str = "", field: str = ""
) -> web.Response:
    """An error as documented: with ``FcmError``, with ``BadRequest``, or with both."""
    details: list[dict[str, object]] = []
    if error_code:
        kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError"
        details.append({"@type": kind, "errorCode": error_code})
    if field:
        violations = [{"field": field, "description": "Invalid registration token"}]
        kind = "type.googleapis.com/google.rpc.BadRequest"
        details.append({"@type": kind, "fieldViolations": violations})
    error = {"code": code, "message": message, "status": "NOT_READ", "details": details}
    return web.json_response({"error": error}, status=code)
