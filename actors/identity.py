"""The state of one identity, and nothing else.

Rules of this file: the state is what the identity's events say, in the form that decisions need;
payloads stay in the log, the state keeps the version at which each one stands; no clock, no IO,
no randomness, no Ray. The containers are changed in place by ``actors.evolution`` alone, and only
by the single writer that owns the identity: a failed append throws the whole state away.
"""

from __future__ import annotations

import msgspec

from eventstore.events import Seconds

FOLD = 1
"""Version of this layout: a snapshot of another fold is ignored and the log is read instead."""

_BASE_BYTES = 1_200
_MESSAGE_BYTES = 360
_REQUEST_BYTES = 480
_CONTRACT_BYTES = 900
_PUBLIC_EVENT_BYTES = 220


class QueuedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting message: its payload stands in the log at ``version`` of the stream."""

    sender_did: str
    version: int
    size_bytes: int
    at_ms: int


class WaitingRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting contract request: its content stands in the log at ``version``."""

    sender_did: str
    version: int


class ContractRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One owned contract: the signed object stands in the log at ``version``."""

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    version: int


class Identity(msgspec.Struct):
    """All that is known of one identity.

    ``messages``, ``requests``, ``contracts`` and ``public_events`` are by id, in arrival order.
    ``correspondents`` maps each contract partner to the latest expiry of a contract with it.
    ``contract_ids`` maps the digest of a signed contract to its id: one record per digest.
    ``registered_until_s`` is the latest expiry of a contract with the mediator, 0 for none.
    """

    version: int = 0
    registered_until_s: Seconds = 0
    messages: dict[str, QueuedMessage] = {}
    queue_bytes: int = 0
    requests: dict[str, WaitingRequest] = {}
    contracts: dict[str, ContractRecord] = {}
    contract_ids: dict[bytes, str] = {}
    correspondents: dict[str, Seconds] = {}
    saved_events: int = 0
    public_events: dict[str, str] = {}

    def is_registered(self, now_s: float) -> bool:
        """Registered: some contract with the mediator has not expired (DCTRL-0004 2)."""
        return self.registered_until_s > now_s

    def weight_bytes(self) -> int:
        """Roughly what this state takes in memory, for the host's bound."""
        return (
            _BASE_BYTES
            + _MESSAGE_BYTES * len(self.messages)
            + _REQUEST_BYTES * len(self.requests)
            + _CONTRACT_BYTES * len(self.contracts)
            + _PUBLIC_EVENT_BYTES * len(self.public_events)
        )

    def live_records(self) -> int:
        """How many records a snapshot of this state holds."""
        return (
            len(self.messages) + len(self.requests) + len(self.contracts) + len(self.public_events)
        )
