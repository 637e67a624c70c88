"""The gateway to a service of the operator's own, which passes notifications on."""

from __future__ import annotations

import hmac
from http import HTTPStatus
from pathlib import Path
from typing import Final

import msgspec
from aiohttp import hdrs

from actors.host.clock import Clock
from http_edge.crypto.private_files import KeyFileRefused, read_private
from http_edge.didcomm.push.service import APNS, FCM, TYPE, Notification, PushOutcome, PushService
from http_edge.settings.settings import Push

SIGNATURE: Final = "Poste-Signature"
_KEY_CHARS_MIN: Final = 32
_GONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})


class Webhook:
    """Posts each notification as JSON, signed if the operator has set a key."""

    channels = frozenset({APNS, FCM})
    """The channels of the devices that it reaches."""

    def __init__(self, url: str, settings: Push, clock: Clock) -> None:
        """Post to ``url``.

        Raises:
            KeyFileRefused: others have access to the file of the key, or it is too short.
            OSError: the file cannot be read.
        """
        self._url = url
        self._clock = clock
        path = settings.webhook_key_file
        self._key = None if path is None else read_key(path)
        self._service = PushService(settings, clock)

    async def send(self, notification: Notification) -> PushOutcome:
        """Send a notification: 404 and 410 say that the device is not known any more."""
        device = notification.device
        body = msgspec.json.encode(
            {
                TYPE: notification.kind,
                "device_token": device.token,
                "device_platform": device.platform,
                "waiting": notification.waiting,
            }
        )
        headers: dict[str, str] = {hdrs.CONTENT_TYPE: "application/json"}
        if self._key is not None:
            headers[SIGNATURE] = signature(self._key, self._clock() // 1000, body)
        answer = await self._service.post(self._url, body, headers)
        gone = answer.status in _GONE
        return self._service.report(PushOutcome.UNREGISTERED if gone else answer.outcome, answer)

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._service.close()


def signature(key: bytes, at_s: int, body: bytes) -> str:
    """The value of ``Poste-Signature``: HMAC-SHA256 of the time, Unix seconds, and the body."""
    mac = hmac.new(key, b"%d.%b" % (at_s, body), "sha256").hexdigest()
    return f"t={at_s},v1={mac}"


def read_key(path: Path) -> bytes:
    """The key in a file, without white space around it.

    Raises:
        KeyFileRefused: others have access to the file, or the key is too short.
        OSError: the file cannot be read.
    """
    key = read_private(path).strip()
    if len(key) < _KEY_CHARS_MIN:
        raise KeyFileRefused(
            f"{path} holds no key for the webhook, at least {_KEY_CHARS_MIN} characters:"
            f" make one, for example by openssl rand -hex 32 > {path}"
        )
    return key
