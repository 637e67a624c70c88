"""Notifications for devices, and the requests to a push service that carry them.

The requests are bounded in number, in time and in the size of answers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from enum import Enum
from http import HTTPStatus
from typing import Final, NamedTuple, TypeVar

import aiohttp
import msgspec
from aiohttp import hdrs

from actors.core.commands import PushDevice
from actors.host.clock import Clock
from http_edge.crypto.tls import trusted_by_this_machine
from http_edge.dids.bounded_answers import plain_session
from http_edge.settings.settings import Push
from http_edge.telemetry.logs import LinePace

APNS: Final = "apns"
"""The channel of devices that push-notifications-apns names (RFC 0699)."""
FCM: Final = "fcm"
"""The channel of devices that push-notifications-fcm names (RFC 0734)."""

TYPE: Final = "@type"
"""The member of a notification that both RFCs require; its value is ``Notification.kind``."""
_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")
_ANSWER_BYTES_MAX: Final = 65_536
"""Bytes of an answer that are read; the rest is dropped with the connection."""
_PAUSE_S_MAX: Final = 3_600.0
"""Longest ``Retry-After`` that is respected: an error in it must not end notifications."""


class Notification(msgspec.Struct, frozen=True):
    """What a device is notified of: ``waiting`` messages are in the queue of its wallet."""

    device: PushDevice
    waiting: int

    @property
    def kind(self) -> str:
        """The type of the notification, the same for all devices of the channel."""
        return f"https://didcomm.org/push-notifications-{self.device.channel}"


class PushOutcome(Enum):
    """What became of a notification. ``SENT`` is not yet shown: no service reports that."""

    SENT = "sent"
    UNREGISTERED = "unregistered"
    """The service no longer knows the device, and never will again by this token."""
    REFUSED = "refused"
    """The service refuses this mediator or this notification; a repetition would not help."""
    UNAVAILABLE = "unavailable"
    """The service was not reached, is overloaded or has a fault."""


class Answer(NamedTuple):
    """The answer of a service: its status, 0 if none came, and at most 64 KiB of its body."""

    status: int
    body: bytes = b""

    @property
    def outcome(self) -> PushOutcome:
        """The outcome by the status alone."""
        match self.status // 100:
            case 2:
                return PushOutcome.SENT
            case 4 if self.status != HTTPStatus.TOO_MANY_REQUESTS:
                return PushOutcome.REFUSED
            case _:
                return PushOutcome.UNAVAILABLE

    def read(self, kind: type[_T]) -> _T | None:
        """The body as JSON of this type; None if it is anything else."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (ValueError, RecursionError):
            return None


class PushService:
    """A push service that takes POST requests.

    No redirect is followed, no cookie kept, no proxy of the environment used, and nothing is
    decompressed, which could exceed any bound.
    """

    def __init__(self, settings: Push, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._slots = asyncio.Semaphore(settings.in_flight_max)
        self._session: aiohttp.ClientSession | None = None
        self._paused_until_ms = self._pause_ms = 0
        self._is_closed = False
        self._is_failing = False
        self._failure_lines = LinePace()

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Post ``body``; no request is made while the service wants a pause."""
        async with self._slots:
            pause_ms = self._paused_until_ms - self._clock()
            # More than all of the pause is left if the clock was set back.
            if self._is_closed or 0 < pause_ms <= self._pause_ms:
                return Answer(0)
            try:
                async with asyncio.timeout(self._settings.timeout_s):
                    return await self._answer(url, body, headers)
            except (aiohttp.ClientError, OSError):  # TimeoutError is one
                return Answer(0)

    async def close(self) -> None:
        """Close the connections; from now on no request is made."""
        self._is_closed = True
        if self._session is not None:
            await self._session.close()

    def report(self, outcome: PushOutcome, answer: Answer) -> PushOutcome:
        """Log the first failure in a row, by its status alone; return the outcome.

        A service may refuse each notification of one device, whose wallet names whatever it likes.
        """
        failed = outcome in {PushOutcome.REFUSED, PushOutcome.UNAVAILABLE}
        if failed and not self._is_failing:
            about = {"reason": outcome.value, "status": answer.status}
            level = self._failure_lines.level(logging.WARNING, self._clock())
            _LOG.log(level, "push notification failed", extra=about)
            failed = level == logging.WARNING  # else the next failure is the first that is seen
        self._is_failing = failed
        return outcome

    async def _answer(self, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
        if self._session is None:
            connector = aiohttp.TCPConnector(ssl=trusted_by_this_machine())
            self._session = plain_session(connector, {"User-Agent": "poste"})
        async with self._session.post(
            url, data=body, headers=headers, allow_redirects=False
        ) as response:
            self._respect(response)
            try:
                read = await response.content.readexactly(_ANSWER_BYTES_MAX)
            except asyncio.IncompleteReadError as error:
                read = error.partial
            return Answer(response.status, read)

    def _respect(self, response: aiohttp.ClientResponse) -> None:
        """Pause as a service that is overloaded wants; its date form is ignored: clocks differ."""
        overloaded = response.status == HTTPStatus.TOO_MANY_REQUESTS or response.status // 100 == 5  # noqa: PLR2004
        after = response.headers.get(hdrs.RETRY_AFTER, "").strip()
        if overloaded and after.isdecimal():
            self._pause_ms = round(min(float(after), _PAUSE_S_MAX) * 1000)
            self._paused_until_ms = self._clock() + self._pause_ms
