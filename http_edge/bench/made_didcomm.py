"""What DIDComm agents of a made-up log do: each act is one accepted command."""

from __future__ import annotations

from typing import Final

from eventstore import events as e
from http_edge.bench.made_decentrl import FORSAKEN_MAX
from http_edge.bench.made_people import Draft, Person

_PAGES: Final = (1, 1, 2, 10)
_CHANNELS: Final = ("pickup/2.0", "pickup/2.0", "pickup/1.0")
_DAY_S: Final = 86_400
_BY_INVITATION: Final = 0.2


def arrive(draft: Draft, person: Person) -> None:
    """An agent connects, is granted mediation and registers its first key."""
    invitation_id = ""
    if draft.chance.random() < _BY_INVITATION:
        invitation_id = draft.new_id()
        used = e.InvitationUsed(
            at_ms=draft.at_ms,
            command=draft.command(),
            invitation_id=invitation_id,
            by_did=person.did,
        )
        draft.add(Person(f"invitation:{invitation_id}"), used)
    _connect(draft, person, invitation_id)
    draft.add(person, e.MediationGranted(at_ms=draft.at_ms, command=draft.command()))
    add_key(draft, person)


def connect(draft: Draft, person: Person) -> bool:
    """An agent connects again."""
    _connect(draft, person, "")
    return True


def _connect(draft: Draft, person: Person, invitation_id: str) -> None:
    draft.add(
        person,
        e.ConnectionEstablished(
            at_ms=draft.at_ms,
            command=draft.command(),
            did=person.did,
            peer_did=f"did:peer:2.{draft.new_id()}",
            label="wallet",
            endpoint="",
            routing_keys=[],
            protocol="didexchange/1.1",
            invitation_id=invitation_id,
        ),
    )


def send(draft: Draft, person: Person) -> bool:
    """An envelope of whom nobody knows comes for one of the keys."""
    if len(person.waiting) >= FORSAKEN_MAX:
        draft.remove(person, FORSAKEN_MAX // 2, "expired")
    message_id = draft.new_id()
    person.waiting.append(message_id)
    draft.add(
        person,
        e.MessageQueued(
            at_ms=draft.at_ms,
            command=draft.command(),
            message_id=message_id,
            protocol="didcomm",
            sender_did="",
            recipient_key=_name(draft.chance.choice(person.keys)),
            payload=draft.chance.randbytes(draft.payload_bytes),
        ),
    )
    return True


def deliver(draft: Draft, person: Person) -> bool:
    """The oldest envelopes are handed out and stay; False if there are none."""
    if person.is_gone or not person.waiting:
        return False
    draft.add(
        person,
        e.MessagesDelivered(
            at_ms=draft.at_ms,
            command=draft.command(),
            message_ids=person.waiting[: draft.chance.choice(_PAGES)],
            channel=draft.chance.choice(_CHANNELS),
        ),
    )
    return True


def acknowledge(draft: Draft, person: Person) -> bool:
    """Some of the oldest envelopes leave the queue; False if there are none."""
    if person.is_gone or not person.waiting:
        return False
    draft.remove(person, draft.chance.choice(_PAGES), "acknowledged")
    return True


def add_key(draft: Draft, person: Person) -> bool:
    """A fresh key is claimed and joins the keylist."""
    key, command = Person(f"key:{draft.new_id()}{draft.new_id()}"), draft.command()
    person.keys.append(key)
    claimed = e.KeyClaimed(at_ms=draft.at_ms, command=command, key=_name(key), owner_did=person.did)
    draft.add(key, claimed)
    updated = e.KeylistUpdated(
        at_ms=draft.at_ms, command=command, added=[_name(key)], claims=[key.version], removed=[]
    )
    draft.add(person, updated)
    return True


def remove_key(draft: Draft, person: Person) -> bool:
    """The oldest of several keys leaves the keylist and belongs to nobody; False for the last."""
    if len(person.keys) == 1:
        return False
    key, command = person.keys.pop(0), draft.command()
    updated = e.KeylistUpdated(
        at_ms=draft.at_ms, command=command, added=[], claims=[], removed=[_name(key)]
    )
    draft.add(person, updated)
    draft.add(key, e.KeyReleased(at_ms=draft.at_ms, command=command, key=_name(key)))
    return True


def set_policy(draft: Draft, person: Person) -> bool:
    """The owner says how long its messages may wait."""
    draft.add(
        person,
        e.QueuePolicySet(
            at_ms=draft.at_ms,
            command=draft.command(),
            will_queue=True,
            age_s_max=_DAY_S * draft.chance.randrange(1, 30),
            messages_max=0,
            message_bytes_max=0,
            bytes_max=0,
        ),
    )
    return True


def refuse(draft: Draft, person: Person) -> bool:
    """The queue begins to refuse messages that are too large."""
    draft.add(
        person,
        e.QueueRefused(
            at_ms=draft.at_ms,
            command=draft.command(),
            recipient_key=_name(person.keys[0]),
            reason="message_too_large",
        ),
    )
    return True


def _name(key: Person) -> str:
    return key.did.removeprefix("key:")


SHARES: Final = (
    (43, send),
    (24, deliver),
    (25, acknowledge),
    (3, add_key),
    (2, remove_key),
    (1, set_policy),
    (1, refuse),
    (1, connect),
)
"""Each act with its share of a hundred; one that cannot be done becomes a message."""
