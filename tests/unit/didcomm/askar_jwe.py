"""Envelopes of DIDComm v2 over Askar, which shares no code with those here: the other side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from aries_askar import Key, KeyAlg
from aries_askar.ecdh import Ecdh1PU, EcdhEs

from tests.unit.didcomm.askar_envelope import from_b64, to_b64

Change = Callable[[dict[str, Any]], None]
ALGS: Final = {"X25519": KeyAlg.X25519, "P-256": KeyAlg.P256, "P-384": KeyAlg.P384}
ENCS: Final = {
    "A256CBC-HS512": KeyAlg.A256CBC_HS512,
    "A256GCM": KeyAlg.A256GCM,
    "XC20P": KeyAlg.XC20P,
}


class Named(NamedTuple):
    """A key and its id."""

    kid: str
    key: Key


def apv_of(kids: Sequence[str]) -> bytes:
    """The hash of key ids in this order."""
    return hashlib.sha256(".".join(kids).encode()).digest()


def jwe(
    message: bytes,
    to: Sequence[Named],
    sender: Named | None,
    *,
    enc: str = "A256CBC-HS512",
    apv: bytes | None = None,
    change: Change | None = None,
) -> bytes:
    """An envelope; ``change`` alters its header before that is authenticated."""
    crv = json.loads(to[0].key.get_jwk_public())["crv"]
    ephemeral = Key.generate(ALGS[crv])
    epk = json.loads(ephemeral.get_jwk_public())
    apv = apv_of(sorted(one.kid for one in to)) if apv is None else apv
    header: dict[str, Any] = {
        "typ": "application/didcomm-encrypted+json",
        "alg": "ECDH-1PU+A256KW" if sender else "ECDH-ES+A256KW",
        "enc": enc,
        "epk": {name: epk[name] for name in ("crv", "kty", "x", "y") if name in epk},
        "apv": to_b64(apv),
    }
    apu = b""
    if sender is not None:
        apu = sender.kid.encode()
        header |= {"apu": to_b64(apu), "skid": sender.kid}
    if change is not None:
        change(header)
    content_key = Key.generate(ENCS[enc])
    protected = to_b64(json.dumps(header).encode())
    sealed = content_key.aead_encrypt(message, aad=protected.encode())
    ciphertext, tag, nonce = sealed.parts
    recipients = []
    for one in to:
        if sender is None:
            es = EcdhEs("ECDH-ES+A256KW", b"", apv)
            wrapped = es.sender_wrap_key(KeyAlg.A256KW, ephemeral, one.key, content_key)
        else:
            pu = Ecdh1PU("ECDH-1PU+A256KW", apu, apv)
            wrapped = pu.sender_wrap_key(
                KeyAlg.A256KW, ephemeral, sender.key, one.key, content_key, cc_tag=tag
            )
        recipients.append({"header": {"kid": one.kid}, "encrypted_key": to_b64(wrapped.ciphertext)})
    parts = {"iv": nonce, "ciphertext": ciphertext, "tag": tag}
    return json.dumps(
        {"protected": protected, "recipients": recipients}
        | {name: to_b64(part) for name, part in parts.items()}
    ).encode()


def open_jwe(body: bytes, own: Named, sender: Key | None) -> bytes:
    """The message in an envelope for ``own``."""
    envelope = json.loads(body)
    header = json.loads(from_b64(envelope["protected"]))
    entry = next(one for one in envelope["recipients"] if one["header"]["kid"] == own.kid)
    ephemeral = Key.from_jwk(header["epk"])
    apv, tag = from_b64(header["apv"]), from_b64(envelope["tag"])
    wrapped, enc = from_b64(entry["encrypted_key"]), ENCS[header["enc"]]
    if sender is None:
        es = EcdhEs("ECDH-ES+A256KW", b"", apv)
        content_key = es.receiver_unwrap_key(KeyAlg.A256KW, enc, ephemeral, own.key, wrapped)
    else:
        pu = Ecdh1PU("ECDH-1PU+A256KW", from_b64(header["apu"]), apv)
        content_key = pu.receiver_unwrap_key(
            KeyAlg.A256KW, enc, ephemeral, sender, own.key, wrapped, cc_tag=tag
        )
    opened: bytes = content_key.aead_decrypt(
        from_b64(envelope["ciphertext"]),
        nonce=from_b64(envelope["iv"]),
        tag=tag,
        aad=envelope["protected"].encode(),
    )
    return opened
