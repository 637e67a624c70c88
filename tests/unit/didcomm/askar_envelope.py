"""RFC 0019 once more, over Askar, which shares no code with libsodium: the other side of tests."""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any

import base58
from aries_askar import Key, KeyAlg
from aries_askar.crypto_box import (
    crypto_box,
    crypto_box_open,
    crypto_box_seal,
    crypto_box_seal_open,
    random_nonce,
)

Change = Callable[[dict[str, Any]], None]


def askar_key(seed: bytes) -> Key:
    """The Ed25519 key of a seed."""
    return Key.from_secret_bytes(KeyAlg.ED25519, seed)


def askar_pack(
    message: bytes,
    to: Sequence[bytes],
    sender: Key | None,
    *,
    change: Change | None = None,
    sender_text: bytes | None = None,
) -> bytes:
    """An envelope as ACA-Py writes it: blanks in the JSON, no padding.

    ``change`` alters the header before it is authenticated; ``sender_text`` is sealed in place of
    the sender's key.
    """
    content_key = Key.generate(KeyAlg.C20P)
    secret = content_key.get_secret_bytes()
    recipients = [_boxed(secret, key, sender, sender_text) for key in to]
    header = {
        "enc": "xchacha20poly1305_ietf",
        "typ": "JWM/1.0",
        "alg": "Authcrypt" if sender else "Anoncrypt",
        "recipients": recipients,
    }
    if change is not None:
        change(header)
    protected = to_b64(json.dumps(header).encode())
    sealed = content_key.aead_encrypt(message, aad=protected.encode())
    ciphertext, tag, nonce = sealed.parts
    parts = {"iv": nonce, "ciphertext": ciphertext, "tag": tag}
    return json.dumps(
        {"protected": protected} | {name: to_b64(part) for name, part in parts.items()}
    ).encode()


def askar_unpack(body: bytes, own: Key) -> tuple[bytes, bytes | None]:
    """The message and the sender's raw key, or None for an anonymous one."""
    envelope = json.loads(body)
    header = json.loads(from_b64(envelope["protected"]))
    kid = base58.b58encode(own.get_public_bytes()).decode()
    entry = next(one for one in header["recipients"] if one["header"]["kid"] == kid)
    own_x, box = own.convert_key(KeyAlg.X25519), from_b64(entry["encrypted_key"])
    sender: bytes | None = None
    if header["alg"] == "Authcrypt":
        text = crypto_box_seal_open(own_x, from_b64(entry["header"]["sender"]))
        sender = base58.b58decode(text)
        secret = crypto_box_open(own_x, _x25519(sender), box, from_b64(entry["header"]["iv"]))
    else:
        assert "sender" not in entry["header"]
        secret = crypto_box_seal_open(own_x, box)
    message = Key.from_secret_bytes(KeyAlg.C20P, secret).aead_decrypt(
        from_b64(envelope["ciphertext"]),
        nonce=from_b64(envelope["iv"]),
        tag=from_b64(envelope["tag"]),
        aad=envelope["protected"].encode(),
    )
    return message, sender


def to_b64(data: bytes) -> str:
    """Base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def from_b64(text: str) -> bytes:
    """Base64url; refuses padding, as the strictest agents do."""
    assert "=" not in text
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _x25519(verkey: bytes) -> Key:
    return Key.from_public_bytes(KeyAlg.ED25519, verkey).convert_key(KeyAlg.X25519)


def _boxed(
    secret: bytes, to: bytes, sender: Key | None, sender_text: bytes | None
) -> dict[str, Any]:
    header = {"kid": base58.b58encode(to).decode()}
    if sender is None:
        return {"encrypted_key": to_b64(crypto_box_seal(_x25519(to), secret)), "header": header}
    nonce = random_nonce()
    text = sender_text or base58.b58encode(sender.get_public_bytes())
    header["sender"] = to_b64(crypto_box_seal(_x25519(to), text))
    header["iv"] = to_b64(nonce)
    box = crypto_box(_x25519(to), sender.convert_key(KeyAlg.X25519), secret, nonce)
    return {"encrypted_key": to_b64(box), "header": header}
