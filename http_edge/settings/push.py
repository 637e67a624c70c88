"""The section of the settings about push notifications; see ``settings.settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from http_edge.settings.value_types import COUNT_MAX, Duration, Section, Url, unfit


class Push(Section):
    """Notifications for devices of DIDComm wallets (RFC 0699, RFC 0734) that messages wait.

    Without webhook_url and fcm_credentials_file there are none, and the protocols are not offered.
    """

    webhook_url: Url | None = None
    """A service of your own that gets a POST for each notification and passes it on, to APNs for
    example. Use https beyond this machine: the requests name devices. Not with
    fcm_credentials_file."""
    webhook_key_file: Path | None = None
    """File of a secret of at least 32 characters, with which requests to webhook_url are signed
    (Poste-Signature). Unset: they are not signed, and any client could send the like."""
    fcm_credentials_file: Path | None = None
    """File of a Google service account (JSON) that may send by Firebase Cloud Messaging. Not with
    webhook_url."""
    fcm_url: Url = "https://fcm.googleapis.com"
    """Firebase Cloud Messaging, or a proxy of your own in front of it."""
    text: str = Field(
        default="You have new messages.",
        max_length=200,
        json_schema_extra={"expected": "up to 200 characters, or none"},
    )
    """What a device shows by Firebase Cloud Messaging, the same for all. Empty: the app alone gets
    the notification and shows nothing by itself; phones delay such notifications, or drop them. A
    webhook chooses a text itself."""
    timeout_s: Duration = Field(default=10, le=120)
    """Time for one request to a push service, from the DNS look-up to the end of the answer."""
    in_flight_max: int = Field(default=16, ge=1, le=1_000)
    """Requests in progress at once in one edge process; others wait. A service that answers in 50
    ms gets 320 a second."""
    delay_s: float = Field(default=3, ge=0, le=3_600)
    """Wait after a message before the device is notified, so that a wallet in use can fetch the
    message first."""
    interval_s: Duration = Field(default=60, le=86_400)
    """Least time between two notifications of one device by one edge process, unless the agent of
    the first has made room for another (agents_max). Push services limit them for each device, and
    one says all: the wallet fetches whatever waits."""
    agents_max: int = Field(default=10_000, ge=1, le=COUNT_MAX)
    """Agents whose queue one edge process watches for a notification. Beyond it, one that has had
    its turn waits for its next message, or the new one does if none has had it."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.webhook_url is not None and self.fcm_credentials_file is not None:
            raise unfit("webhook_url", "it or push.fcm_credentials_file, but not both")
        return self
