"""The gateway to Firebase Cloud Messaging (HTTP v1 API).

Error codes: https://firebase.google.com/docs/cloud-messaging/error-codes
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import hdrs

from actors.host.clock import Clock
from http_edge.didcomm.push.access_token import AccessTokens, ServiceAccount
from http_edge.didcomm.push.notification import FCM, TYPE, Notification, PushOutcome
from http_edge.didcomm.push.service import Answer, PushService
from http_edge.settings.settings import Push

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


class Fcm:
    """Sends notifications by Firebase Cloud Messaging."""

    channels = frozenset({FCM})

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
