"""A notification for one device, and its outcome."""

from __future__ import annotations

from enum import Enum
from typing import Final

import msgspec

from actors.core.commands import PushDevice

APNS: Final = "apns"
"""The channel of devices that push-notifications-apns names (RFC 0699)."""
FCM: Final = "fcm"
"""The channel of devices that push-notifications-fcm names (RFC 0734)."""

TYPE: Final = "@type"
"""The member of a notification that both RFCs require; its value is ``Notification.kind``."""


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
