"""Refusals as the protocol's errors: codes and HTTP status (DCTRL-0004 section 11).

The first eleven are the protocol's own; the rest are extensions in the same form, listed here and
in the README: RECIPIENT_QUEUE_FULL, QUOTA_EXCEEDED, RATE_LIMITED, TEMPORARILY_UNAVAILABLE,
NOT_FOUND, METHOD_NOT_ALLOWED, UPGRADE_REQUIRED, INTERNAL_ERROR.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import msgspec
import orjson

from actors.refusals import Refusal

HTTP_STATUS: Final[dict[Refusal, HTTPStatus]] = {
    Refusal.INVALID_COMMAND: HTTPStatus.BAD_REQUEST,
    Refusal.INVALID_SIGNATURE: HTTPStatus.UNAUTHORIZED,
    Refusal.INVALID_SIGNATURES: HTTPStatus.UNAUTHORIZED,
    Refusal.UNAUTHORIZED_COMMAND: HTTPStatus.UNAUTHORIZED,
    Refusal.TIMESTAMP_OUT_OF_RANGE: HTTPStatus.UNAUTHORIZED,
    Refusal.DUPLICATE_NONCE: HTTPStatus.UNAUTHORIZED,
    Refusal.SENDER_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Refusal.SENDER_SIGNING_KEY_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Refusal.RECIPIENT_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Refusal.RECIPIENT_NOT_REGISTERED: HTTPStatus.NOT_FOUND,
    Refusal.COMMUNICATION_CONTRACT_NOT_FOUND: HTTPStatus.NOT_FOUND,
    Refusal.RECIPIENT_QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    Refusal.QUOTA_EXCEEDED: HTTPStatus.TOO_MANY_REQUESTS,
    Refusal.RATE_LIMITED: HTTPStatus.TOO_MANY_REQUESTS,
    Refusal.TEMPORARILY_UNAVAILABLE: HTTPStatus.SERVICE_UNAVAILABLE,
}

RETRY_AFTER_S: Final[dict[Refusal, int]] = {
    Refusal.RECIPIENT_QUEUE_FULL: 60,
    Refusal.QUOTA_EXCEEDED: 3_600,
    Refusal.RATE_LIMITED: 1,
    Refusal.TEMPORARILY_UNAVAILABLE: 1,
}
"""Seconds after which a retry may succeed: a queue empties when its owner comes back, a quota when
the owner cleans up, a busy or restarting host within a second or so."""


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer before it meets HTTP: status, JSON text and Retry-After in seconds.

    ``refusal`` is what it says, None if it is no error.
    """

    status: int
    body: bytes
    retry_after_s: int | None = None
    refusal: Refusal | None = None


def error_body(code: str) -> bytes:
    """The protocol's error object (11.1)."""
    return orjson.dumps({"type": "ERROR", "code": code})


def refuse(refusal: Refusal, retry_after_s: float | None = None) -> Answer:
    """The answer to a refused command."""
    if retry_after_s is None:
        return _ANSWERS[refusal]
    seconds = max(1, int(retry_after_s + 0.999))
    return Answer(HTTP_STATUS[refusal], error_body(refusal.value), seconds, refusal)


_ANSWERS: Final = {
    refusal: Answer(status, error_body(refusal.value), RETRY_AFTER_S.get(refusal), refusal)
    for refusal, status in HTTP_STATUS.items()
}
