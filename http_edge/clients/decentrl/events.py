"""Private events: signed, then encrypted for the recipient and for the own history. Pure.

The members of the envelope are this client's own choice, because DCTRL-0005 does not publish
them (companions 5a); no mediator reads them. Encryption in transit is AES-256-GCM under the
contract's root secret (DCTRL-0002), in storage under the identity's storage key.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from http_edge.clients.decentrl.contracts import resolve
from http_edge.clients.decentrl.errors import NotAuthentic
from http_edge.clients.decentrl.identity import Identity, opened
from http_edge.clients.decentrl.records import Seconds
from http_edge.crypto.aes_gcm import seal
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import b64encode
from http_edge.crypto.signatures import verify_object
from http_edge.crypto.strict_json import JsonRefused, parse


class Envelope(msgspec.Struct, frozen=True):
    """A signed event with its author and its time (Unix seconds)."""

    event: dict[str, object]
    tags: list[str]
    sender_did: str
    sender_signing_key_id: str
    timestamp_s: Seconds = msgspec.field(name="timestamp")
    signature: str = ""

    def signed_members(self) -> dict[str, object]:
        """The members that the signature covers: all others."""
        members: dict[str, object] = msgspec.to_builtins(self)
        del members["signature"]
        return members


def sign_event(
    identity: Identity, event: dict[str, object], tags: Sequence[str], timestamp_s: Seconds
) -> Envelope:
    """Put the event ``{type, data}`` into an envelope signed by its author.

    Raises:
        NotCanonical: the event holds a value that JSON cannot carry.
    """
    unsigned = Envelope(
        event, list(tags), identity.did, identity.signing_key_id, timestamp_s=timestamp_s
    )
    return msgspec.structs.replace(unsigned, signature=identity.sign(unsigned.signed_members()))


def encode(envelope: Envelope) -> bytes:
    """The envelope as plaintext."""
    return canonical(msgspec.to_builtins(envelope))


def decode(plaintext: bytes) -> Envelope:
    """Read the envelope in a plaintext, and verify it with the key in the author's DID.

    Raises:
        NotAuthentic: the plaintext is no envelope, or its author did not sign it.
    """
    try:
        members = msgspec.convert(parse(plaintext), dict[str, object])
        envelope = msgspec.convert(members, Envelope)
    except (JsonRefused, msgspec.ValidationError) as error:
        raise NotAuthentic(f"not an event envelope: {error}") from error
    author = resolve(envelope.sender_did)
    key = author.signing_keys.get(envelope.sender_signing_key_id) if author else None
    # Verify all received members, also unknown ones, not only those in ``envelope``.
    signed = {name: value for name, value in members.items() if name != "signature"}
    if key is None or not verify_object(key, signed, envelope.signature):
        raise NotAuthentic(f"the envelope is not signed by {envelope.sender_did}")
    return envelope


def seal_for_transit(plaintext: bytes, root_secret: bytes) -> str:
    """Encrypt with a contract's root secret."""
    return b64encode(seal(root_secret, plaintext))


def open_from_transit(sealed: str, root_secret: bytes) -> bytes:
    """Decrypt with a contract's root secret.

    Raises:
        NotAuthentic: the text was sealed with another secret, or was changed.
    """
    return opened(root_secret, sealed, "the message", "this contract's root secret")
