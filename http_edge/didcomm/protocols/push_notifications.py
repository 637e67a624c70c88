"""Push notifications 1.0 for FCM (RFC 0734) and APNs (RFC 0699): the sender's own device.

An account has one device: setting one in either protocol replaces it. Notifications themselves are
sent by ``http_edge.didcomm.push``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from actors.core.commands import PushDevice, QueryPushDevice, SetPushDevice
from actors.core.refusals import Refusal
from actors.core.replies import PushDeviceFound
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, Reply
from http_edge.didcomm.protocols.problems import Problem
from http_edge.didcomm.protocols.protocol import Family, Outcome, Request, no_answer, refusal
from http_edge.didcomm.push.service import FCM

TOKEN_CHARS_MAX: Final = 4_096
"""Tokens of FCM have about 200 characters, those of APNs at most 200; neither service promises a
bound."""
PLATFORM_CHARS_MAX: Final = 64
"""Agents name an operating system here."""


class PushNotifications:
    """The notification sender of both RFCs, for devices at one push service."""

    def __init__(self, channel: str) -> None:
        """Keep devices at ``channel``, ``fcm`` or ``apns``, in their owners' identities."""
        self._channel = channel

    def family(self) -> Family:
        """Return the protocol with its handlers."""
        handlers = {
            "set-device-info": self._set,
            "get-device-info": self._get,
            "problem-report": no_answer,
        }
        roles = ("notification-sender",)
        return Family(f"push-notifications-{self._channel}", 1, (0,), roles, handlers)

    async def _set(self, request: Request) -> Outcome:
        device = self._device_in(request.message)
        if isinstance(device, InvalidMember):
            return refusal(device)
        if isinstance(device, Problem):
            return refusal(device, is_own=True)
        done = await (self._remove(request) if device is None else self._ask(request, device))
        if isinstance(done, Refusal):
            return refusal(done)
        return Outcome(Reply("ack", {"status": "OK"}), may_wait=False)

    async def _get(self, request: Request) -> Outcome:
        found = await self._find(request)
        if isinstance(found, Refusal):
            return refusal(found)
        if found is None:
            return refusal(Problem.NOT_REGISTERED_FOR_PUSH, is_own=True)
        body: Json = {"device_token": found.token}
        if self._channel == FCM:
            body["device_platform"] = found.platform
        return Outcome(Reply("device-info", body))

    def _device_in(self, message: Message) -> PushDevice | InvalidMember | Problem | None:
        """Return the device that a message sets, or None if it removes the present one."""
        token = message.optional_text("device_token", TOKEN_CHARS_MAX)
        platform = message.optional_text("device_platform", PLATFORM_CHARS_MAX)
        if isinstance(token, InvalidMember):
            return token
        if self._channel != FCM:
            return PushDevice(self._channel, token, "") if token else None
        if isinstance(platform, InvalidMember):
            return platform
        if token and platform:
            return PushDevice(self._channel, token, platform)
        # BC Wallet removes its device by an empty token beside its platform.
        removes = token == "" or not (token or platform)
        return None if removes else Problem.MISSING_VALUE

    async def _find(self, request: Request) -> PushDevice | Refusal | None:
        """Return the device at this push service."""
        found = await request.ask_account(QueryPushDevice(), PushDeviceFound)
        if isinstance(found, Refusal):
            return found
        device = found.device
        return device if device is not None and device.channel == self._channel else None

    async def _remove(self, request: Request) -> PushDeviceFound | Refusal:
        found = await self._find(request)
        if isinstance(found, Refusal):
            return found
        if found is None:
            return PushDeviceFound(None)
        return await self._ask(request, None, instead_of=found.token)

    async def _ask(
        self, request: Request, device: PushDevice | None, instead_of: str | None = None
    ) -> PushDeviceFound | Refusal:
        change = SetPushDevice(device, instead_of)
        return await request.ask_account(change, PushDeviceFound)


def families(channels: Collection[str]) -> Sequence[Family]:
    """Return the protocols of these push services."""
    return [PushNotifications(channel).family() for channel in sorted(channels)]
