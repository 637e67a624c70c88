"""The settings of DIDComm mediation and of outbound delivery; see ``http_edge.config``."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, IPvAnyNetwork, model_validator

from http_edge.config_types import KIB, MIB, Section, Verkey, at_most


class DidComm(Section):
    """DIDComm v1 mediation and pickup."""

    enabled: bool = True
    """Serve /didcomm and /invitation."""
    label: str = Field(
        default="Poste",
        min_length=1,
        max_length=64,
        json_schema_extra={"expected": "a name of 1 to 64 characters"},
    )
    """Name of the mediator in invitations; wallets show it to their owner."""
    registration: Literal["open", "invitation", "allow_list", "closed"] = "open"
    """Who may connect. open: everybody. invitation: who shows an invitation made with
    poste invite. allow_list: the keys in allowed_keys. closed: nobody new."""
    allowed_keys: tuple[Verkey, ...] = ()
    """Keys that may connect with registration allow_list: the key of the wallet's connection."""
    message_bytes_max: int = Field(default=512 * KIB, ge=4 * KIB, le=16 * MIB)
    """One DIDComm message, packed, over HTTP or WebSocket; disclosed as max_receive_bytes."""
    forward_depth_max: int = Field(default=3, ge=1, le=16)
    """Forwards within one another that are unwrapped. Each costs a decryption, and no sender
    needs more than one for each mediator on the way."""
    forward_recipients_max: int = Field(default=16, ge=1, le=64)
    """Recipients of one message that it is queued for."""
    unknown_recipient: Literal["accept", "refuse"] = "accept"
    """A forward to a key that nobody registered. accept: answered like any other, so that nobody
    learns which keys are registered. refuse: 404, for debugging."""
    keylist_keys_max: int = Field(default=10_000, ge=1, le=1_000_000)
    """Keys that one agent registers; a wallet makes one for each of its connections."""
    keylist_updates_max: int = Field(default=200, ge=1, le=10_000)
    """Changes in one keylist-update; each is a command to the owner of its key."""
    owners_remembered_max: int = Field(default=100_000, ge=1)
    """Keys whose owner one edge process remembers, about 300 bytes each; another costs a question
    to its host."""
    keylist_page_max: int = Field(default=1_000, ge=1, le=10_000)
    """Keys in one answer to keylist-query."""
    delivery_messages_max: int = Field(default=100, ge=1, le=1_000)
    """Messages in one delivery or batch; a larger limit is taken as this one."""
    delivery_bytes_max: int = Field(default=2 * MIB, ge=64 * KIB, le=16 * MIB)
    """Bytes of messages in one delivery or batch, one message at least. Base64 and the envelope
    make it twice as long."""
    lease_s: float = Field(default=30, gt=0, le=3_600)
    """A delivered message that was not acknowledged is offered again after this. Wallets wait 15 s
    for an answer."""
    delay_s_max: float = Field(default=60, ge=0, le=600)
    """Longest wait for messages that a recipient may ask for (~timing.delay_milli). Below the
    time-outs of proxies, 60 s as a rule."""
    waiters_max: int = Field(default=10_000, ge=1)
    """Requests of one edge process that wait for messages at once; above it they are answered
    as if the time were over."""
    live_in_flight_max: int = Field(default=100, ge=1, le=10_000)
    """Messages delivered over one live socket that are not acknowledged yet; more wait."""
    leased_max: int = Field(default=1_000, ge=1, le=10_000)
    """Messages of one agent that are handed out and not acknowledged; with more, nothing is
    offered until some are acknowledged or offered again. Each question looks through them."""
    queue_age_s_max: int = Field(default=0, ge=0)
    """A message that waited this long expires, of every protocol; 0 is never. An owner may ask
    for less (Aries queue 1.0)."""
    socket_first_message_s: float = Field(default=30, gt=0, le=600)
    """Time from the upgrade to the first message that authenticates a socket."""
    socket_messages_per_s_max: float = Field(default=200, gt=0, le=10_000)
    """Incoming frames of one socket, with two seconds of burst; more are read later, none is
    lost. A live wallet sends an acknowledgement for each delivery."""
    ping_interval_s: float = Field(default=20, gt=0, le=3_600)
    """Time between pings on a socket; load balancers cut silent ones after 30 s and more."""


class Outbound(Section):
    """Delivery to DIDComm agents that have an endpoint of their own."""

    enabled: bool = True
    """Post messages to the endpoint that an agent named when it connected. Off: they wait."""
    allowed_networks: tuple[IPvAnyNetwork, ...] = ()
    """Networks besides the public addresses that may be reached, for agents in the same data
    centre. Empty: none, because a stranger names the endpoint."""
    timeout_s: float = Field(default=10, gt=0, le=120)
    """Time for one delivery, from look-up to the status of the answer."""
    retry_s_min: float = Field(default=0.5, gt=0, le=60)
    """Wait after the first failure; it doubles up to retry_s_max."""
    retry_s_max: float = Field(default=300, gt=0, le=86_400)
    """Longest wait between two tries; a message from the agent ends it. Messages stay queued until
    they are accepted. Each try is a few rows in the log, so endpoints that are gone for good must
    not be tried often."""
    in_flight_max: int = Field(default=64, ge=1, le=10_000)
    """Deliveries of one edge process under way at once."""
    in_flight_per_host_max: int = Field(default=4, ge=1, le=1_000)
    """Deliveries to one host under way at once: nobody makes this server flood another."""
    agents_max: int = Field(default=10_000, ge=1)
    """Agents with messages on their way that one edge process keeps in mind; the others wait for
    the next sweep."""
    sweep_s: float = Field(default=10, gt=0, le=3_600)
    """Time between two looks for messages that should be on their way and are not, as after a
    restart."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        at_most(self, "retry_s_min", "retry_s_max")
        at_most(self, "in_flight_per_host_max", "in_flight_max")
        return self
