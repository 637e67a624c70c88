"""The mediator's long-lived keys, its operators' token, and the files that hold them.

Contracts are bound to these keys: losing them loses every registration, leaking them lets
another server pose as this one. They never enter the log.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Final

import msgspec

from http_edge.crypto import key_agreement, signatures
from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.private_files import KeyFileRefused, create_private, read_private

_TOKEN_BYTES: Final = 32
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,512}")


@dataclass(frozen=True)
class MediatorKeys:
    """The Ed25519 signing key and the X25519 pre-key of the mediator, 32 bytes each."""

    signing_seed: bytes = field(repr=False)
    pre_private: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.signing_seed) != signatures.SEED_BYTES:
            raise ValueError("the signing seed has 32 bytes")
        if len(self.pre_private) != key_agreement.KEY_BYTES:
            raise ValueError("the pre-key has 32 bytes")

    @cached_property
    def signing_public(self) -> bytes:
        """The Ed25519 public key."""
        return signatures.public_key(self.signing_seed)

    @cached_property
    def pre_public(self) -> bytes:
        """The X25519 public key."""
        return key_agreement.public_key(self.pre_private)

    @property
    def public_halves(self) -> tuple[bytes, bytes]:
        """The Ed25519 and the X25519 public key, 32 bytes each, by which keys are compared."""
        return self.signing_public, self.pre_public

    def sign(self, message: bytes) -> bytes:
        """The signature of a message by the signing key."""
        return signatures.sign(self.signing_seed, message)


def service_seed(keys: MediatorKeys) -> bytes:
    """The 32-byte seed of the MACs of invitations and of the one DIDComm key.

    That key serves invitations, connections and routing. Derived from
    the signing seed, so that it outlives restarts and is in every backup of it.
    """
    return blake2b(digest_size=32, key=keys.signing_seed, person=b"poste-didcomm").digest()


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The key file; both members are base64."""

    ed25519_seed: str
    x25519_private_key: str


def new_keys() -> MediatorKeys:
    """Fresh keys from the system's randomness."""
    return MediatorKeys(
        signing_seed=secrets.token_bytes(signatures.SEED_BYTES),
        pre_private=key_agreement.new_key_pair().private,
    )


def load_or_create(path: Path) -> MediatorKeys:
    """Load the keys from the file ``path``; create it with fresh keys if it does not exist.

    The file appears whole or not at all, survives a power cut, and only its owner can read it. If
    several processes start at once, one creates the file and all get the same keys.

    Raises:
        KeyFileRefused: others have access to the file, or it is malformed.
        OSError: the file cannot be read or made.
    """
    if not path.exists():
        create(path, new_keys())
    return load(path)


def load(path: Path) -> MediatorKeys:
    """The keys in the file ``path``. Raises as ``load_or_create``."""
    content = read_private(path)
    try:
        members = msgspec.json.decode(content, type=_File)
        return MediatorKeys(
            signing_seed=b64decode(members.ed25519_seed),
            pre_private=b64decode(members.x25519_private_key),
        )
    except (msgspec.DecodeError, ValueError):
        # Without the cause, which may quote the secret.
        raise KeyFileRefused(
            f"{path} is not a key file: it holds the JSON members"
            f" {' and '.join(_File.__struct_fields__)}, each 32 bytes in base64;"
            " restore it from a backup"
        ) from None


def create(path: Path, keys: MediatorKeys) -> None:
    """Write keys to ``path``, atomically and durably, unless the file exists."""
    content = msgspec.json.encode(
        _File(
            ed25519_seed=b64encode(keys.signing_seed),
            x25519_private_key=b64encode(keys.pre_private),
        )
    )
    create_private(path, content)


def operators_token(path: Path) -> str:
    """Load the operators' token from the file ``path``; create it like the keys if missing.

    Raises:
        KeyFileRefused: others have access to the file, or it holds no token.
        OSError: the file cannot be read or made.
    """
    if not path.exists():
        create_private(path, secrets.token_hex(_TOKEN_BYTES).encode())
    return load_operators_token(path)


def load_operators_token(path: Path) -> str:
    """The token in the file ``path``. Raises as ``operators_token``."""
    token = read_private(path).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise KeyFileRefused(
            f"{path} holds no token of operators, 16 to 512 letters, digits and -._~+/=:"
            " remove it, and the next start makes one"
        )
    return token
