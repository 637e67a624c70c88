"""The state of one identity, and nothing else.

Rules of this file: the state is what the identity's events say, in the form that decisions need;
payloads stay in the log, the state keeps the version at which each one stands; no clock, no IO,
no randomness, no Ray. The containers are changed in place by ``actors.core.evolve`` alone, and only
by the single writer that owns the identity: a failed append throws the whole state away.
"""

from __future__ import annotations

import msgspec

from actors.core.commands import Connection
from actors.core.replies import QueuePolicy
from eventstore.log.events import Seconds

FOLD = 9
"""Version of this layout: a snapshot of another fold is ignored and the log is read instead."""

_BASE_BYTES = 1_200
_MESSAGE_BYTES = 360
_REQUEST_BYTES = 480
_CONTRACT_BYTES = 900
_PUBLIC_EVENT_BYTES = 270
_KEY_BYTES = 190
_SENDER_BYTES = 190
_RECENT_BYTES = 200
RECENT_MAX = 256
"""Envelopes whose retry is known. Senders retry within seconds, mostly after a restart of ours,
when every one of them repeats what was under way."""
PRIOR_DIDS_MAX = 4
"""DIDs that were given up and are still known by their hash, up to 4 KiB each. A wallet that was
restored from a backup speaks by its last one or two."""
RECENT_COUNTS_MAX = 8
"""Counts of an edge whose retry is known. An edge sends one at a time, once in a period; more than
one, because a call that was given up may arrive late."""


class QueuedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting message: its payload stands in the log at ``version`` of the stream.

    ``is_envelope`` distinguishes DIDComm envelopes from Decentrl messages: one queue, one order,
    one set of caps, and each protocol is shown its own. ``recipient_key`` is as in the event.
    ``is_v2``: a message of DIDComm v2 brought the envelope.
    """

    sender_did: str
    version: int
    size_bytes: int
    at_ms: int
    is_envelope: bool = False
    recipient_key: str = ""
    is_v2: bool = False


class Depth(msgspec.Struct, array_like=True, gc=False):
    """How many messages of one sender, or envelopes of one recipient key, wait; their bytes."""

    messages: int
    bytes: int


class WaitingRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting contract request: its content stands in the log at ``version``.

    ``stored_bytes``, here and below, as in ``actors.core.stored_bytes``.
    """

    sender_did: str
    version: int
    stored_bytes: int
    at_ms: int


class ContractRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One owned contract: the signed object stands in the log at ``version``."""

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    version: int
    stored_bytes: int


class PublicEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One public event that was not withdrawn; its text stands in the log at ``version``."""

    channel_id: str
    version: int
    stored_bytes: int
    at_ms: int


class Identity(msgspec.Struct):
    """All that is known of one identity.

    ``messages``, ``requests``, ``contracts`` and ``public_events`` are by id, in arrival order.
    ``correspondents`` maps each contract partner to the latest expiry of a contract with it.
    ``contract_ids`` maps the digest of a signed contract to its id: one record per digest.
    ``contracts_until_s`` is the first expiry of them all, 0 for none.
    ``registered_until_s`` is the latest expiry of a contract with the mediator, 0 for none.
    ``by_sender`` and ``requests_by_sender`` are what waits of each sender of Decentrl messages and
    of contract requests. The counters ``request_bytes``, ``contract_bytes``, ``saved_bytes`` and
    ``public_bytes`` say what is stored of a kind (``actors.core.stored_bytes``).

    Of a DIDComm agent: ``connection`` (None for no agent), ``mediated``, ``keylist`` (keys in
    base58, in order, each with the number of its claim), its own ``policy`` for the queue, how
    many of the messages are envelopes (in all, and by recipient key), and the times of its queue
    in Unix ms, 0 for never. ``seen_ms`` is when it gave the last sign of life
    (``eventstore.log.signs_of_life``).
    ``refusing``: the queue has refused a message since it last changed. ``recent``: the ids of the
    envelopes queued last, by what each came by, so that a sender's retry makes no second one; of
    an edge, the commands that its last counts came by.

    ``erasing`` is the version with which the erasure of the identity began, 0 where none is under
    way; saved events up to ``erased_until`` are erased already. ``is_erased``: it was, and has not
    come back. ``erased_events`` counts the saved events that were erased ever.

    ``dedicated_by`` says why the identity is a partition of its own; empty for
    one that belongs to its shard.

    Of an account of DIDComm v2: ``expiring`` are the messages that are of no use after a time in
    Unix seconds, ``expires_first_s`` the first of these times, 0 for none; ``speaker_did`` is who
    speaks for it instead of its own DID, ``rotated_at_s`` and ``ended_at_s`` are when its owner
    rotated and ended it last, by its own word. ``prior_dids`` are those that were given up last,
    as the agent stated them, the newest at the end. ``account_did`` is the account that this DID
    speaks for where it is another's.

    ``owner_did`` and ``claim``, the number of the newest claim, are the state of a key, and
    ``former_did`` is who lost it to its holder; ``used_by`` is that of a single-use invitation.
    """

    version: int = 0
    registered_until_s: Seconds = 0
    messages: dict[str, QueuedMessage] = {}
    queue_bytes: int = 0
    by_sender: dict[str, Depth] = {}
    requests: dict[str, WaitingRequest] = {}
    requests_by_sender: dict[str, int] = {}
    request_bytes: int = 0
    contracts: dict[str, ContractRecord] = {}
    contract_bytes: int = 0
    contract_ids: dict[bytes, str] = {}
    contracts_until_s: Seconds = 0
    correspondents: dict[str, Seconds] = {}
    saved_events: int = 0
    saved_bytes: int = 0
    public_events: dict[str, PublicEvent] = {}
    public_bytes: int = 0
    connection: Connection | None = None
    mediated: bool = False
    keylist: dict[str, int] = {}
    policy: QueuePolicy | None = None
    envelopes: int = 0
    envelope_bytes: int = 0
    by_key: dict[str, Depth] = {}
    last_added_ms: int = 0
    last_delivered_ms: int = 0
    last_removed_ms: int = 0
    seen_ms: int = 0
    refusing: bool = False
    recent: dict[bytes, str] = {}
    expiring: dict[str, Seconds] = {}
    expires_first_s: Seconds = 0
    speaker_did: str = ""
    rotated_at_s: Seconds = 0
    ended_at_s: Seconds = 0
    prior_dids: list[str] = []
    account_did: str = ""
    owner_did: str = ""
    claim: int = 0
    former_did: str = ""
    used_by: str = ""
    dedicated_by: str = ""
    erasing: int = 0
    erased_until: int = 0
    erased_events: int = 0
    is_erased: bool = False

    @property
    def is_known(self) -> bool:
        """Has it ever registered, or connected as a DIDComm agent?"""
        return bool(self.registered_until_s) or self.connection is not None

    @property
    def stored_bytes(self) -> int:
        """What the identity has stored of every kind, what waits for it included."""
        return (
            self.queue_bytes
            + self.request_bytes
            + self.contract_bytes
            + self.saved_bytes
            + self.public_bytes
        )

    def weight_bytes(self) -> int:
        """Roughly what this state takes in memory, for the host's bound."""
        return (
            _BASE_BYTES
            + _MESSAGE_BYTES * len(self.messages)
            + _REQUEST_BYTES * len(self.requests)
            + _CONTRACT_BYTES * len(self.contracts)
            + _PUBLIC_EVENT_BYTES * len(self.public_events)
            + _KEY_BYTES * (len(self.keylist) + len(self.by_key))
            + _SENDER_BYTES * (len(self.by_sender) + len(self.requests_by_sender))
            + _RECENT_BYTES * (len(self.recent) + len(self.expiring))
            + _text_bytes(self.connection)
            + sum(map(len, self.prior_dids))
        )

    def live_records(self) -> int:
        """How many records a snapshot of this state holds."""
        return (
            len(self.messages)
            + len(self.requests)
            + len(self.contracts)
            + len(self.public_events)
            + len(self.keylist)
        )


def _text_bytes(connection: Connection | None) -> int:
    """What an agent states of itself, which can be kilobytes."""
    if connection is None:
        return 0
    texts = (connection.peer_did, connection.label, connection.endpoint, *connection.routing_keys)
    return sum(map(len, texts))
