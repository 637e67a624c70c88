"""The state of an identity as rows of tables: what a rebuild from the exported log must give too.

Rules of this file: pure; a row holds what the state itself says, so what a table of the rebuild
has beyond that (positions in the log, deliveries, sizes of contracts) is not here. Times are Unix
milliseconds, None for never. ``place`` is the zero-based place among the rows of the identity:
the order in which queues and lists are handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from actors.identity import Identity

Row: TypeAlias = tuple[Any, ...]

COLUMNS: Final[Mapping[str, Sequence[str]]] = {
    "identities": (
        "version", "saved_events", "added_at", "delivered_at", "removed_at", "refusing",
        "dedicated",
    ),
    "registrations": ("expires_at_s",),
    "contracts": (
        "contract_id", "place", "version", "requestor_did", "recipient_did", "expires_at_s",
        "digest",
    ),
    "correspondents": ("did", "expires_at_s"),
    "contract_requests": ("request_id", "place", "version", "sender_did"),
    "queues": (
        "message_id", "place", "version", "recorded_at", "protocol", "sender_did",
        "recipient_key", "size_bytes",
    ),
    "queue_totals": ("messages", "bytes", "envelopes", "envelope_bytes"),
    "queue_keys": ("recipient_key", "messages", "bytes"),
    "queue_policies": (
        "will_queue", "age_s_max", "messages_max", "message_bytes_max", "bytes_max",
    ),
    "public_events": ("event_id", "place", "channel_id"),
    "connections": (
        "peer_did", "label", "endpoint", "routing_keys", "handshake", "invitation_id",
    ),
    "mediation": (),
    "keylists": ("key", "place", "claim"),
    "key_owners": ("version", "owner_did"),
    "invitations": ("by_did",),
}  # fmt: skip
"""The columns of each table after ``identity``, in the order of ``state_rows``."""


def state_rows(state: Identity) -> Iterator[tuple[str, Iterable[Row]]]:
    """The rows of every table that this identity has any in."""
    yield "identities", [(
        state.version, state.saved_events, state.last_added_ms or None,
        state.last_delivered_ms or None, state.last_removed_ms or None, state.refusing,
        bool(state.dedicated_by),
    )]  # fmt: skip
    if state.registered_until_s:
        yield "registrations", [(float(state.registered_until_s),)]
    if state.contracts or state.correspondents:
        yield from _contracts(state)
    if state.requests:
        yield (
            "contract_requests",
            [
                (request_id, place, waiting.version, waiting.sender_did)
                for place, (request_id, waiting) in enumerate(state.requests.items())
            ],
        )
    yield from _queue(state)
    if state.public_events:
        yield (
            "public_events",
            [
                (event_id, place, channel_id)
                for place, (event_id, channel_id) in enumerate(state.public_events.items())
            ],
        )
    yield from _agent(state)
    if state.owner_did:
        yield "key_owners", [(state.claim, state.owner_did)]
    if state.used_by:
        yield "invitations", [(state.used_by,)]


def _contracts(state: Identity) -> Iterator[tuple[str, Iterable[Row]]]:
    digests = {contract_id: digest for digest, contract_id in state.contract_ids.items()}
    yield "contracts", [
        (
            contract_id, place, kept.version, kept.requestor_did, kept.recipient_did,
            float(kept.expires_at_s), digests.get(contract_id),
        )
        for place, (contract_id, kept) in enumerate(state.contracts.items())
    ]  # fmt: skip
    yield "correspondents", [(did, float(until)) for did, until in state.correspondents.items()]


def _queue(state: Identity) -> Iterator[tuple[str, Iterable[Row]]]:
    if state.messages:
        yield "queues", [
            (
                message_id, place, message.version, message.at_ms,
                "didcomm" if message.is_envelope else "decentrl", message.sender_did,
                message.recipient_key, message.size_bytes,
            )
            for place, (message_id, message) in enumerate(state.messages.items())
        ]  # fmt: skip
    totals = (len(state.messages), state.queue_bytes, state.envelopes, state.envelope_bytes)
    if any(totals):
        yield "queue_totals", [totals]
    if state.by_key:
        yield (
            "queue_keys",
            [(key, depth.messages, depth.bytes) for key, depth in state.by_key.items()],
        )
    if state.policy is not None:
        rules = state.policy
        yield "queue_policies", [(
            rules.will_queue, rules.age_s_max, rules.messages_max, rules.message_bytes_max,
            rules.bytes_max,
        )]  # fmt: skip


def _agent(state: Identity) -> Iterator[tuple[str, Iterable[Row]]]:
    if state.connection is not None:
        known = state.connection
        yield "connections", [(
            known.peer_did, known.label, known.endpoint, known.routing_keys, known.protocol,
            known.invitation_id,
        )]  # fmt: skip
    if state.mediated:
        yield "mediation", [()]
    if state.keylist:
        yield (
            "keylists",
            [(key, place, claim) for place, (key, claim) in enumerate(state.keylist.items())],
        )
