"""The sections of the settings about requests that this server makes; see ``settings.settings``."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import Field, IPvAnyNetwork, model_validator

from http_edge.settings.value_types import (
    COUNT_MAX,
    KIB,
    MIB,
    Duration,
    Section,
    Url,
    WebHost,
    at_most,
    unfit,
)


class DidWeb(Section):
    """Resolution of did:web and did:webvh: this server fetches URLs that strangers name."""

    enabled: bool = False
    """Fetch documents of did:web, and of did:webvh for DIDComm v2. Off: such senders, and such
    recipients in Decentrl, are not found."""
    allowed_hosts: tuple[WebHost, ...] = ()
    """The only hosts to fetch from, all others are closed; with :port, also of this machine, unless
    it is 443. Empty: any, but of this machine ports 80 and 443 alone. Only public addresses."""
    bytes_max: int = Field(default=128 * KIB, ge=KIB, le=16 * MIB)
    """Size of one document, or of one log of did:webvh, of which at most 64 entries are read: they
    have some 1.5 KiB each."""
    seconds_max: Duration = Field(default=5, le=60)
    """Time for one document, from the DNS look-up to the last byte."""
    cache_s: float = Field(default=300, ge=0, le=86_400)
    """Time that a document is cached, or its absence, which is cached for 30 s at most. A withdrawn
    key works this much longer. At least three times seconds_max, whatever is set: a command needs
    up to three documents, which are fetched one after the other."""
    cache_entries_max: int = Field(default=10_000, ge=3, le=1_000_000)
    """Documents in the cache, of which 32 KiB each are kept at most. A command needs up to three of
    them at once."""


class Outbound(Section):
    """Delivery to DIDComm agents that have an endpoint of their own."""

    enabled: bool = True
    """Post messages to the endpoint that an agent named when it connected. Off: messages wait for
    pickup."""
    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    """Networks to deliver to besides public addresses of other machines: in the same data centre,
    or here at other ports than 80 and 443. Empty: none, because a stranger names the endpoint."""
    timeout_s: Duration = Field(default=10, le=120)
    """Time for one delivery, from the DNS look-up to the status of the answer."""
    retry_s_min: Duration = Field(default=0.5, le=60)
    """Longest wait after the first failure; it doubles up to retry_s_max. A wait is at least half
    as long, and differs between agents, so that they do not try again together."""
    retry_s_max: Duration = Field(default=300, le=86_400)
    """Longest wait between two attempts; a message from the agent ends a wait, at most eight in
    this time. Messages stay queued until they are accepted. Each attempt writes a few rows to the
    log, so endpoints that are gone for good must not be tried often."""
    in_flight_max: int = Field(default=64, ge=1, le=10_000)
    """Deliveries in progress at once in one edge process, besides in_flight_slow_max. Each holds at
    most a MiB of messages, or one larger message; and, for an agent behind mediators, one of them
    in forwards, up to 3.2 times as large."""
    in_flight_new_max: int = Field(default=32, ge=1, le=10_000)
    """Part of in_flight_max for endpoints that have not yet answered quickly. The rest is for those
    that have: if strangers name many endpoints, these delay only each other."""
    in_flight_slow_max: int = Field(default=16, ge=1, le=10_000)
    """Deliveries in progress at once to endpoints that timed out or took longer than slow_s, until
    they answer quickly again. These are in addition to in_flight_max."""
    slow_s: Duration = Field(default=1, le=60)
    """An answer that takes longer is slow. Agents answer within some tens of milliseconds; a
    delivery has a normal slot no longer, its look-up until the name service has answered."""
    in_flight_per_host_max: int = Field(default=4, ge=1, le=1_000)
    """Deliveries in progress at once to one address, for new, for slow and for all other endpoints,
    so that no client makes this server flood another; and look-ups of one name."""
    in_flight_per_network_max: int = Field(default=8, ge=1, le=10_000)
    """The same for one network (/24 of IPv4, /48 of IPv6), which usually belongs to one party, and
    for the names of one domain (their last two labels)."""
    endpoints_remembered_max: int = Field(default=10_000, ge=1, le=10_000_000)
    """Endpoints whose response times one edge process remembers, about 400 bytes each. A forgotten
    endpoint counts as new."""
    agents_max: int = Field(default=10_000, ge=1, le=COUNT_MAX)
    """Agents with deliveries pending that one edge process tracks. Of more, each sweep tries the
    next in place of a tenth of them at most that failed, or of a hundredth that wait if few did."""
    sweep_s: Duration = Field(default=10, le=3_600)
    """Time between two searches for messages that should be in delivery and are not, as after a
    restart."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "retry_s_min", "retry_s_max")
        at_most(self, "in_flight_per_host_max", "in_flight_max")
        return self


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
