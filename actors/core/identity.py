"""The state of one identity.

Rules of this file: the state is the fold of the identity's events, in the form that decisions need;
payloads stay in the log, and the state keeps the version of each; no clock, no IO, no randomness,
no Ray. Only ``actors.core.evolve`` changes the containers, in place, and only on the thread of the
writer that owns the identity. After a failed append the whole state is discarded.
"""

from __future__ import annotations

from itertools import chain
from sys import getsizeof

import msgspec

from actors.core.commands import Connection, PushDevice
from actors.core.replies import QueuePolicy
from eventstore.log.events import Seconds

FOLD = 12
"""Version of this layout. A snapshot with another fold is ignored; the log is read instead."""

_BASE_BYTES = 1_200
_MESSAGE_BYTES = 360
_ENVELOPE_BYTES = 60
_REQUEST_BYTES = 480
_CONTRACT_BYTES = 900
_PUBLIC_EVENT_BYTES = 270
_KEY_BYTES = 190
_SENDER_BYTES = 190
_RECENT_BYTES = 200
RECENT_MAX = 256
"""Envelopes whose retry is recognized. Senders retry within seconds, mostly after the mediator
restarts, when each of them repeats what it had under way."""
PRIOR_DIDS_MAX = 4
"""Former DIDs of an agent that are still recognized by their hash, up to 4 KiB each. A wallet
restored from a backup uses its last one or two."""
PRIOR_SPEAKERS_MAX = 64
"""DIDs that spoke for an account before, and are released when it is erased. One that is older is
released with its next message."""
RECENT_COUNTS_MAX = 8
"""Counts of an edge whose retry is recognized. An edge sends one at a time, once in a period; there
is room for several because a call that the edge gave up may arrive late."""


class QueuedMessage(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting message; its payload is in the log at ``version`` of the stream.

    ``is_envelope`` distinguishes DIDComm envelopes from Decentrl messages. Both share one queue,
    one order and one set of caps, but each protocol sees only its own. ``recipient_key`` is as in
    the event. ``is_v2``: the envelope came in a DIDComm v2 message.
    """

    sender_did: str
    version: int
    size_bytes: int
    at_ms: int
    is_envelope: bool = False
    recipient_key: str = ""
    is_v2: bool = False


class Depth(msgspec.Struct, array_like=True, gc=False):
    """Number and bytes of one sender's waiting messages, or of one recipient key's envelopes."""

    messages: int
    bytes: int


class WaitingRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One waiting contract request; its content is in the log at ``version``.

    ``stored_bytes``, here and below, as in ``actors.core.stored_bytes``.
    """

    sender_did: str
    version: int
    stored_bytes: int
    at_ms: int


class ContractRecord(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One owned contract; the signed object is in the log at ``version``."""

    requestor_did: str
    recipient_did: str
    expires_at_s: Seconds
    version: int
    stored_bytes: int


class Correspondent(msgspec.Struct, array_like=True, gc=False):
    """The latest expiry of all contracts with one party, their number and their stored bytes."""

    until_s: Seconds
    contracts: int
    stored_bytes: int


class PublicEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One public event that is not withdrawn; its text is in the log at ``version``."""

    channel_id: str
    version: int
    stored_bytes: int
    at_ms: int


class Identity(msgspec.Struct):
    """All that the mediator knows of one identity.

    ``messages``, ``requests``, ``contracts`` and ``public_events`` are by id, in arrival order.
    ``correspondents`` has each party of a contract, the identity itself included.
    ``contract_ids`` maps the digest of a contract to its id: one record per digest.
    ``contracts_until_s`` is the earliest expiry of all contracts, 0 for none.
    ``registered_until_s`` is the latest expiry of a contract with the mediator, 0 for none.
    ``by_sender`` and ``requests_by_sender`` count the waiting Decentrl messages and contract
    requests of each sender. The counters ``request_bytes``, ``contract_bytes``, ``saved_bytes``
    and ``public_bytes`` are the stored bytes of each kind (``actors.core.stored_bytes``).

    For a DIDComm agent: ``connection`` (None for no agent), ``mediated``, ``keylist`` (keys in
    base58, in order, each with the number of its claim), its own ``policy`` for the queue, the
    ``push_device`` to notify of messages, the ids of those messages that are envelopes, in arrival
    order (an index, which snapshots leave out), how many there are for each recipient key, and
    the times of its queue in Unix ms, 0 for never. ``seen_ms`` is the
    time of its last recorded sign of life (``eventstore.log.signs_of_life``). ``refusing``: the
    queue has refused a message since it last changed. ``recent`` maps the commands of
    recently forwarded envelopes to message ids, so that a sender's retry queues no second
    envelope; for an edge, its keys are the commands of the edge's recent counts.

    ``erasing`` is the version at which the erasure of the identity began, 0 if none is under way;
    saved events up to ``erased_until`` are already erased. ``is_erased``: the identity was erased
    and has not come back. ``erased_events`` counts all saved events ever erased.

    ``dedicated_by`` says why the identity is a partition of its own; it is empty for an identity
    that belongs to its shard.

    For a DIDComm v2 account: ``expiring`` maps messages to their expiry in Unix seconds, and
    ``expires_first_s`` is the earliest of these, 0 for none; ``speaker_did`` is the DID that speaks
    for the account instead of its own; ``rotated_at_s`` and ``ended_at_s`` are when the owner last
    rotated and ended the account, by its own statement. ``prior_dids`` are the most recent former
    DIDs, as the agent stated them, and ``prior_speakers`` those that spoke for the account, newest
    last. ``account_did`` is the account of another DID that this DID speaks for.

    ``owner_did`` and ``claim``, the number of the newest claim, are the state of a key, and
    ``former_did`` is the owner that lost it to the holder of the private key. ``used_by`` is the
    state of a single-use invitation: the DID that used it.
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
    correspondents: dict[str, Correspondent] = {}
    saved_events: int = 0
    saved_bytes: int = 0
    public_events: dict[str, PublicEvent] = {}
    public_bytes: int = 0
    connection: Connection | None = None
    mediated: bool = False
    keylist: dict[str, int] = {}
    policy: QueuePolicy | None = None
    push_device: PushDevice | None = None
    envelopes: dict[str, None] = {}
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
    prior_speakers: list[str] = []
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

    def is_spoken_for(self, did: str) -> bool:
        """Does another DID speak for the account of this one, ``did``, even if it has ended?"""
        return self.speaker_did not in {"", did}

    @property
    def stored_bytes(self) -> int:
        """Bytes stored for the identity, of every kind, waiting messages included."""
        return (
            self.queue_bytes
            + self.request_bytes
            + self.contract_bytes
            + self.saved_bytes
            + self.public_bytes
        )

    def weight_bytes(self) -> int:
        """Approximate bytes of this state in memory without the names in its records."""
        return (
            _BASE_BYTES
            + _MESSAGE_BYTES * len(self.messages)
            + _ENVELOPE_BYTES * len(self.envelopes)
            + _REQUEST_BYTES * len(self.requests)
            + _CONTRACT_BYTES * len(self.contracts)
            + _PUBLIC_EVENT_BYTES * len(self.public_events)
            + _KEY_BYTES * (len(self.keylist) + len(self.by_key))
            + _SENDER_BYTES * (len(self.by_sender) + len(self.requests_by_sender))
            + _RECENT_BYTES * (len(self.recent) + len(self.expiring))
            + _text_bytes(self.connection)
            + (0 if self.push_device is None else len(self.push_device.token))
            + sum(map(len, self.prior_dids + self.prior_speakers))
        )

    def name_bytes(self) -> int:
        """Bytes of the names in this state's records, each of which is in memory once.

        They are not part of ``weight_bytes``, since adding them up takes longer for larger states.
        """
        own = (self.speaker_did, self.account_did, self.owner_did, self.former_did, self.used_by)
        names = chain(
            own,
            self.by_sender,
            self.by_key,
            self.requests_by_sender,
            self.correspondents,
            self.keylist,
            {event.channel_id for event in self.public_events.values()},
        )
        return sum(map(getsizeof, names))

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
    """The length of an agent's statements about itself, which can be kilobytes."""
    if connection is None:
        return 0
    texts = (connection.peer_did, connection.label, connection.endpoint, *connection.routing_keys)
    return sum(map(len, texts))
