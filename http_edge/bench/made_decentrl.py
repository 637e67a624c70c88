"""What Decentrl identities of a made-up log do: each act is one accepted command."""

from __future__ import annotations

from typing import Final

from eventstore import events as e
from http_edge.bench.made_people import Draft, Person, remember

FORSAKEN_MAX: Final = 200
"""Most messages of somebody who never comes back; half of them then expire."""
_YEAR_S: Final = 31_536_000
_CONTRACT_BYTES: Final = 600
_REQUEST_BYTES: Final = 300
_PUBLIC_BYTES: Final = 100
_SIGNATURE_BYTES: Final = 88
_PAGES: Final = (1, 1, 2, 10)
_CHANNELS: Final = ("news", "offers", "status")


def arrive(draft: Draft, person: Person) -> None:
    """Somebody registers and keeps a first contract."""
    register(draft, person)
    keep_contract(draft, person)


def register(draft: Draft, person: Person) -> bool:
    """Registration or its renewal."""
    draft.add(
        person,
        e.IdentityRegistered(
            at_ms=draft.at_ms,
            command=draft.command_of(person),
            did=person.did,
            expires_at_s=draft.at_ms // 1_000 + _YEAR_S,
            contract=draft.chance.randbytes(_CONTRACT_BYTES),
        ),
    )
    return True


def keep_contract(draft: Draft, person: Person) -> bool:
    """A signed contract with somebody."""
    draft.add(
        person,
        e.ContractStored(
            at_ms=draft.at_ms,
            command=draft.command_of(person),
            contract_id=draft.new_id(),
            requestor_did=draft.somebody(person.shard).did,
            recipient_did=person.did,
            expires_at_s=draft.at_ms // 1_000 + _YEAR_S,
            digest=draft.chance.randbytes(32),
            contract=draft.chance.randbytes(_CONTRACT_BYTES),
        ),
    )
    return True


def request_contract(draft: Draft, person: Person) -> bool:
    """Somebody asks for a contract."""
    sender, request_id = draft.somebody(person.shard), draft.new_id()
    person.requests.append(request_id)
    draft.add(
        person,
        e.ContractRequested(
            at_ms=draft.at_ms,
            command=draft.command_of(sender),
            request_id=request_id,
            sender_did=sender.did,
            encrypted_contract_request=draft.text(_REQUEST_BYTES),
            requestor_ephemeral_public_key=draft.new_id() + draft.new_id(),
        ),
    )
    return True


def acknowledge_requests(draft: Draft, person: Person) -> bool:
    """All contract requests were seen; False if there are none."""
    if person.is_gone or not person.requests:
        return False
    draft.add(
        person,
        e.ContractRequestsAcknowledged(
            at_ms=draft.at_ms, command=draft.command_of(person), request_ids=person.requests
        ),
    )
    person.requests = []
    return True


def send(draft: Draft, person: Person) -> bool:
    """A message of somebody comes for this person."""
    if len(person.waiting) >= FORSAKEN_MAX:
        draft.remove(person, FORSAKEN_MAX // 2, "expired")
    sender, message_id = draft.somebody(person.shard), draft.new_id()
    person.waiting.append(message_id)
    draft.add(
        person,
        e.MessageQueued(
            at_ms=draft.at_ms,
            command=draft.command_of(sender),
            message_id=message_id,
            protocol="decentrl",
            sender_did=sender.did,
            recipient_key="",
            payload=draft.chance.randbytes(draft.payload_bytes),
        ),
    )
    return True


def acknowledge(draft: Draft, person: Person) -> bool:
    """Some of the oldest messages leave the queue; False if there are none."""
    if person.is_gone or not person.waiting:
        return False
    draft.command_of(person)
    draft.remove(person, draft.chance.choice(_PAGES), "acknowledged")
    return True


def save_event(draft: Draft, person: Person) -> bool:
    """One event of the own history, half of them written by the owner."""
    other, event_id = draft.somebody(person.shard), f"{draft.new_id()}.0"
    is_own = len(person.saved) % 2 == 0
    remember(person.saved, event_id)
    draft.add(
        person,
        e.EventSaved(
            at_ms=draft.at_ms,
            command=draft.command_of(person),
            event_id=event_id,
            sender_did=person.did if is_own else other.did,
            recipient_did=other.did if is_own else person.did,
            contract_id=None,
            timestamp_s=draft.at_ms // 1_000,
            payload=draft.text(draft.payload_bytes),
            encrypted_tags=draft.tags(2),
            processed=is_own or other is person,
        ),
    )
    return True


def update_tags(draft: Draft, person: Person) -> bool:
    """A saved event is dealt with; False if there is none."""
    if not person.saved:
        return False
    draft.add(
        person,
        e.EventTagsUpdated(
            at_ms=draft.at_ms,
            command=draft.command_of(person),
            event_id=draft.chance.choice(person.saved),
            encrypted_tags=draft.tags(2),
        ),
    )
    return True


def publish(draft: Draft, person: Person) -> bool:
    """A public event."""
    event_id = draft.new_id()
    remember(person.published, event_id)
    draft.add(
        person,
        e.PublicEventPublished(
            at_ms=draft.at_ms,
            command=draft.command_of(person),
            event_id=event_id,
            channel_id=draft.chance.choice(_CHANNELS),
            event=draft.text(_PUBLIC_BYTES),
            tags=draft.tags(1),
            timestamp_s=draft.at_ms // 1_000,
            event_signature=draft.text(_SIGNATURE_BYTES),
        ),
    )
    return True


def withdraw(draft: Draft, person: Person) -> bool:
    """A public event is withdrawn; False if there is none."""
    if not person.published:
        return False
    draft.add(
        person,
        e.PublicEventsDeleted(
            at_ms=draft.at_ms,
            command=draft.command_of(person),
            event_ids=[person.published.pop(0)],
            channel_id=None,
        ),
    )
    return True


def ask(draft: Draft, person: Person) -> bool:
    """A query, or a command that is refused: nothing but its nonce is kept."""
    draft.command_of(person)
    return True


SHARES: Final = (
    (45, send),
    (29, acknowledge),
    (9, save_event),
    (5, update_tags),
    (2, publish),
    (1, withdraw),
    (2, request_contract),
    (1, acknowledge_requests),
    (2, keep_contract),
    (2, register),
    (2, ask),
)
"""Each act with its share of a hundred; one that cannot be done becomes a message."""
