"""Access tokens of Google for a service account, by a signed assertion (RFC 7523)."""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Final, Literal
from urllib.parse import urlencode

import msgspec
from aiohttp import hdrs
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from actors.host.clock import Clock
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.mediator_keys import KeyFileRefused, read_private
from http_edge.didcomm.push.notification import PushOutcome
from http_edge.didcomm.push.service import PushService

_SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFE_S: Final = 3_600
"""Life of an assertion, and of a token at most: the longest that Google allows."""
_MARGIN_S: Final = 60
"""A token is replaced this long before its end, so that it does not end on its way."""


class _File(msgspec.Struct, frozen=True):
    """The members of a service account's file that are needed."""

    type: Literal["service_account"]
    project_id: Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9.:-]+$")]
    private_key_id: str
    private_key: str
    client_email: str
    token_uri: Annotated[str, msgspec.Meta(pattern=r"^https?://[!-~]+$")]


class _Granted(msgspec.Struct, frozen=True):
    """The answer with a token (RFC 6749 5.1); its form is that of RFC 6750 2.1."""

    access_token: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._~+/-]+=*$")]
    expires_in: Annotated[int, msgspec.Meta(ge=0)]


class ServiceAccount:
    """A service account of Google, as its file describes it."""

    def __init__(self, path: Path) -> None:
        """Read the file.

        Raises:
            KeyFileRefused: others have access to the file, or it is not that of a service account.
            OSError: the file cannot be read.
        """
        content = read_private(path)
        try:
            self._file = msgspec.json.decode(content, type=_File)
            key = load_pem_private_key(self._file.private_key.encode(), password=None)
        except (msgspec.DecodeError, ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, RSAPrivateKey):
            # Without a cause, which may quote the secret.
            raise KeyFileRefused(
                f"{path} is not the key file of a Google service account: make one in the Firebase"
                " console, under Project settings, Service accounts, Generate new private key"
            )
        self._key = key
        self.project_id = self._file.project_id
        self.token_uri = self._file.token_uri

    def assertion(self, at_s: int) -> str:
        """The signed request for a token, made at this time (Unix seconds)."""
        file = self._file
        head = {"alg": "RS256", "typ": "JWT", "kid": file.private_key_id}
        claims = {
            "iss": file.client_email,
            "scope": _SCOPE,
            "aud": file.token_uri,
            "iat": at_s,
            "exp": at_s + _LIFE_S,
        }
        signed = ".".join(b64encode(msgspec.json.encode(part)) for part in (head, claims))
        return f"{signed}.{b64encode(self._key.sign(signed.encode(), PKCS1v15(), SHA256()))}"


class AccessTokens:
    """The present token of a service account, fetched once for all that wait for it."""

    def __init__(self, account: ServiceAccount, service: PushService, clock: Clock) -> None:
        self._account = account
        self._service = service
        self._clock = clock
        self._token = ""
        self._until_ms = 0
        self._fetching: asyncio.Task[str | PushOutcome] | None = None

    async def token(self) -> str | PushOutcome:
        """The token; without one, the outcome for the notifications that need it."""
        if self._clock() < self._until_ms:
            return self._token
        fetching = self._fetching or asyncio.create_task(self._fetch())
        self._fetching = fetching
        # Not awaited itself: the end of one notification must not end the request of all others.
        await asyncio.wait({fetching})
        return PushOutcome.UNAVAILABLE if fetching.cancelled() else fetching.result()

    def drop(self, token: str) -> None:
        """Use this token no more; a newer one stays."""
        if token == self._token:
            self._until_ms = 0

    async def close(self) -> None:
        """End a request for a token."""
        if self._fetching is not None:
            self._fetching.cancel()
            await asyncio.wait({self._fetching})

    async def _fetch(self) -> str | PushOutcome:
        try:
            at_ms = self._clock()
            form = {"grant_type": _GRANT, "assertion": self._account.assertion(at_ms // 1000)}
            answer = await self._service.post(
                self._account.token_uri,
                urlencode(form).encode(),
                {hdrs.CONTENT_TYPE: "application/x-www-form-urlencoded"},
            )
            granted = answer.read(_Granted)
            if answer.status != HTTPStatus.OK or granted is None:
                refused = answer.outcome is PushOutcome.REFUSED
                outcome = PushOutcome.REFUSED if refused else PushOutcome.UNAVAILABLE
                return self._service.report(outcome, answer)
            self._token = granted.access_token
            self._until_ms = at_ms + 1000 * (min(granted.expires_in, _LIFE_S) - _MARGIN_S)
            return self._token
        finally:
            self._fetching = None
