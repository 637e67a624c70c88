"""Envelopes of DIDComm v2 over joserfc, which shares no code with those here: the other side."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

from joserfc import jwe
from joserfc.drafts.jwe_ecdh_1pu import register_ecdh_1pu
from joserfc.jwk import ECKey, OKPKey

from tests.unit.didcomm.askar_jwe import apv_of

register_ecdh_1pu()
ALGORITHMS: Final = ["ECDH-ES+A256KW", "ECDH-1PU+A256KW", "A256CBC-HS512", "A256GCM"]
JoseKey = ECKey | OKPKey


def jose_key(jwk: Mapping[str, Any]) -> JoseKey:
    """The key of a JWK."""
    return OKPKey.import_key(dict(jwk)) if jwk["kty"] == "OKP" else ECKey.import_key(dict(jwk))


def jose_pack(
    message: bytes,
    to: Sequence[tuple[str, JoseKey]],
    sender: tuple[str, JoseKey] | None,
    *,
    enc: str = "A256CBC-HS512",
) -> bytes:
    """An envelope with the ephemeral key in the protected header."""
    header: dict[str, Any] = {
        "typ": "application/didcomm-encrypted+json",
        "alg": "ECDH-1PU+A256KW" if sender else "ECDH-ES+A256KW",
        "enc": enc,
        "apv": _b64(apv_of(sorted(kid for kid, _ in to))),
    }
    if sender is not None:
        header |= {"apu": _b64(sender[0].encode()), "skid": sender[0]}
    whole = jwe.GeneralJSONEncryption(header, message)
    for kid, key in to:
        whole.add_recipient({"kid": kid}, key)
    sealed = jwe.encrypt_json(
        whole, None, algorithms=ALGORITHMS, sender_key=sender[1] if sender else None
    )
    return json.dumps(sealed).encode()


def jose_open(body: bytes, own: JoseKey, sender: JoseKey | None) -> bytes:
    """The message in an envelope for one recipient."""
    opened = jwe.decrypt_json(json.loads(body), own, algorithms=ALGORITHMS, sender_key=sender)
    assert opened.plaintext is not None
    return opened.plaintext


def _b64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
