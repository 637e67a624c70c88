"""The gateway to Firebase Cloud Messaging (HTTP v1 API).

Its access tokens are Google's for a service account, by a signed assertion (RFC 7523).
Error codes: https://firebase.google.com/docs/cloud-messaging/error-codes
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Final, Literal
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
from http_edge.crypto.private_files import KeyFileRefused, read_private
from http_edge.didcomm.push.service import FCM, TYPE, Answer, Notification, PushOutcome, PushService
from http_edge.settings.settings import Push

_SCOPE: Final = "https://www.googleapis.com/auth/firebase.messaging"
_GRANT: Final = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_LIFE_S: Final = 3_600
"""Life of an assertion, and of a token at most: the longest that Google allows."""
_MARGIN_S: Final = 60
"""A token is replaced this long before its end, so that it does not end on its way."""
_COLLAPSED: Final = "poste"
"""Of several notifications for a device that is off, it gets only the last one."""
_IN_VIEW: Final = {"headers": {"apns-collapse-id": _COLLAPSED, "apns-priority": "10"}}
_IN_THE_BACKGROUND: Final = {
    "headers": {
        "apns-collapse-id": _COLLAPSED,
        "apns-priority": "5",
        "apns-push-type": "background",
    },
    "payload": {"aps": {"content-available": 1}},
}
"""Apple takes a notification without a text only so. FCM answers to any other form of it that the
registration token is invalid."""


class _Violation(msgspec.Struct, frozen=True):
    field: str = ""


class _Detail(msgspec.Struct, frozen=True, rename="camel"):
    """A member of ``details``: a ``FcmError`` has a code, a ``BadRequest`` violations."""

    error_code: str = ""
    field_violations: tuple[_Violation, ...] = ()


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    details: tuple[_Detail, ...] = ()

    @property
    def codes(self) -> frozenset[str]:
        """The error codes of FCM."""
        return frozenset(detail.error_code for detail in self.details)

    @property
    def names_the_token(self) -> bool:
        """Is the token itself invalid? FCM says so in two forms."""
        fields = {each.field for detail in self.details for each in detail.field_violations}
        return "message.token" in fields or (
            "INVALID_ARGUMENT" in self.codes and "registration token is not" in self.message
        )


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error = _Error()


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
        except (ValueError, TypeError, UnsupportedAlgorithm):
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


class Fcm:
    """Sends notifications by Firebase Cloud Messaging."""

    channels = frozenset({FCM})
    """The channels of the devices that it reaches."""

    def __init__(self, credentials: Path, settings: Push, clock: Clock) -> None:
        """Send for the project of the service account in the file ``credentials``.

        Raises:
            KeyFileRefused: others have access to the file, or it is not that of a service account.
            OSError: the file cannot be read.
        """
        account = ServiceAccount(credentials)
        self._url = f"{settings.fcm_url.rstrip('/')}/v1/projects/{account.project_id}/messages:send"
        self._text = settings.text
        self._service = PushService(settings, clock)
        self._tokens = AccessTokens(account, self._service, clock)

    async def send(self, notification: Notification) -> PushOutcome:
        """Send a notification; with a new access token if the service refuses the present one."""
        body = msgspec.json.encode({"message": self._message(notification)})
        refused = Answer(HTTPStatus.UNAUTHORIZED)
        return (
            await self._post(body)
            or await self._post(body)
            or self._service.report(refused.outcome, refused)
        )

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._tokens.close()
        await self._service.close()

    async def _post(self, body: bytes) -> PushOutcome | None:
        """Send; None if the access token was refused and is dropped."""
        token = await self._tokens.token()
        if isinstance(token, PushOutcome):
            return token
        headers: Mapping[str, str] = {
            hdrs.CONTENT_TYPE: "application/json",
            hdrs.AUTHORIZATION: f"Bearer {token}",
        }
        answer = await self._service.post(self._url, body, headers)
        if _is_token_refused(answer):
            self._tokens.drop(token)
            return None
        return self._service.report(_outcome(answer), answer)

    def _message(self, notification: Notification) -> dict[str, Any]:
        # FCM reserves names of data that begin with google., gcm., from or message_type.
        message: dict[str, Any] = {
            "token": notification.device.token,
            "data": {TYPE: notification.kind, "waiting": str(notification.waiting)},
            "android": {"priority": "high", "collapse_key": _COLLAPSED},
            "apns": _IN_VIEW if self._text else _IN_THE_BACKGROUND,
        }
        if self._text:
            message["notification"] = {"body": self._text}
        return message


def _is_token_refused(answer: Answer) -> bool:
    """Say whether a new access token may help; not if the project's key for APNs is wrong."""
    codes = _error(answer).codes
    return answer.status == HTTPStatus.UNAUTHORIZED and "THIRD_PARTY_AUTH_ERROR" not in codes


def _outcome(answer: Answer) -> PushOutcome:
    match answer.status:
        case HTTPStatus.NOT_FOUND if "UNREGISTERED" in _error(answer).codes:
            return PushOutcome.UNREGISTERED
        case HTTPStatus.BAD_REQUEST if _error(answer).names_the_token:
            return PushOutcome.UNREGISTERED
        case _:
            return answer.outcome


def _error(answer: Answer) -> _Error:
    """The error that an answer describes; one without content if it describes none."""
    refusal = answer.read(_Refusal)
    return _Error() if refusal is None else refusal.error
