"""An identity: its DID and the secrets that never leave the device (DCTRL-0001, DCTRL-0002).

Secrets: the Ed25519 signing seed, the X25519 pre-key, the AES-256 storage key, and one ephemeral
X25519 key for each contract. No ``repr`` shows them; the file that holds them is the owner's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec
from nacl.utils import random as random_bytes

from http_edge.clients.decentrl.errors import NotAuthentic, UnusableIdentity
from http_edge.crypto.aes_gcm import open_sealed, seal
from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.key_agreement import KEY_BYTES, new_key_pair
from http_edge.crypto.key_agreement import public_key as agreement_key
from http_edge.crypto.private_files import KeyFileRefused, read_private, replace_private
from http_edge.crypto.signatures import public_key, sign, sign_object
from http_edge.dids import decentrl
from http_edge.dids.document import signing_key_id

STORAGE_KEY_BYTES: Final = 32
_SEED_BYTES: Final = 32


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The identity file; secrets are base64."""

    did: str
    mediator_did: str
    signing_seed: str
    prekey_private: str
    storage_key: str
    contract_keys: dict[str, str]


def opened(key: bytes, sealed: str, what: str, named: str) -> bytes:
    """Decrypt a text that was sealed with ``key``; the error names what it is, and the key.

    Raises:
        NotAuthentic: the text was sealed with another key, or was changed.
    """
    try:
        plaintext = open_sealed(key, b64decode(sealed))
    except ValueError:
        plaintext = None
    if plaintext is None:
        raise NotAuthentic(f"{what} does not open with {named}")
    return plaintext


@dataclass(frozen=True, slots=True)
class Identity:
    """A did:decentrl with its secrets.

    Attributes:
        did: The identity's DID; it holds both public keys, so another key is another DID.
        mediator_did: The mediator that the DID names.
        signing_seed: Ed25519 seed.
        prekey_private: X25519 private key of the pre-key in the DID document.
        storage_key: AES-256 key for the identity's own history.
        contract_keys: Ephemeral X25519 private keys by the public key's text in the contract.
            Each requested or answered contract adds a key, without which the contract's messages
            cannot be read: save the identity before the key is sent (``save`` of ``Account``).
    """

    did: str
    mediator_did: str
    signing_seed: bytes = field(repr=False)
    prekey_private: bytes = field(repr=False)
    storage_key: bytes = field(repr=False)
    contract_keys: dict[str, bytes] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def create(cls, alias: str, mediator_did: str) -> Self:
        """A new identity with fresh keys.

        Raises:
            ValueError: the alias is empty or longer than 256 bytes, or the mediator has no DID.
        """
        seed = random_bytes(_SEED_BYTES)
        prekey_private, prekey_public = new_key_pair()
        return cls(
            did=decentrl.make_did(alias, public_key(seed), prekey_public, mediator_did),
            mediator_did=mediator_did,
            signing_seed=seed,
            prekey_private=prekey_private,
            storage_key=random_bytes(STORAGE_KEY_BYTES),
        )

    @property
    def signing_key_id(self) -> str:
        """The id of the signing key in the DID document."""
        return signing_key_id(self.did)

    def sign(self, value: object) -> str:
        """Signature over canonical JSON of ``value`` (DCTRL-0002 8)."""
        return sign_object(value, self.signing_seed)

    def encrypt_tag(self, tag: str) -> str:
        """The tag as the mediator sees it: the signature of its text (DCTRL-0002 11).

        Deterministic, so that equal tags can be compared; opaque without the text.
        """
        return b64encode(sign(self.signing_seed, tag.encode()))

    def seal_for_storage(self, plaintext: bytes) -> str:
        """Encrypt with the storage key."""
        return b64encode(seal(self.storage_key, plaintext))

    def open_from_storage(self, sealed: str) -> bytes:
        """Decrypt the result of ``seal_for_storage``.

        Raises:
            NotAuthentic: the text was not sealed with this identity's storage key, or was changed.
        """
        return opened(self.storage_key, sealed, "a stored event", "this identity's storage key")

    def save(self, path: Path) -> None:
        """Write the identity to a file that only its owner can read (mode 0600), atomically."""
        content = _File(
            did=self.did,
            mediator_did=self.mediator_did,
            signing_seed=b64encode(self.signing_seed),
            prekey_private=b64encode(self.prekey_private),
            storage_key=b64encode(self.storage_key),
            contract_keys={public: b64encode(key) for public, key in self.contract_keys.items()},
        )
        text = msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
        replace_private(path, text)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read an identity from its file.

        Raises:
            UnusableIdentity: others may read the file, it is malformed, or its keys or its
                mediator are not those that its DID names.
            OSError: the file is missing or cannot be read.
        """
        try:
            body = read_private(path)
        except KeyFileRefused as error:
            raise UnusableIdentity(str(error)) from error
        try:
            content = msgspec.json.decode(body, type=_File)
            identity = cls(
                did=content.did,
                mediator_did=content.mediator_did,
                signing_seed=b64decode(content.signing_seed),
                prekey_private=b64decode(content.prekey_private),
                storage_key=b64decode(content.storage_key),
                contract_keys={
                    public: b64decode(key) for public, key in content.contract_keys.items()
                },
            )
        except (msgspec.DecodeError, ValueError) as error:
            raise UnusableIdentity(f"{path} is no identity file: {error}") from error
        identity._check(path)
        return identity

    def _check(self, path: Path) -> None:
        document = decentrl.resolve(self.did)
        secrets = (self.signing_seed, self.storage_key, self.prekey_private)
        if document is None or any(len(key) != _SEED_BYTES for key in secrets):
            raise UnusableIdentity(f"{path} holds a malformed DID or key")
        if any(len(key) != KEY_BYTES for key in self.contract_keys.values()):
            raise UnusableIdentity(f"{path} holds a malformed key of a contract")
        if document.signing_keys.get(self.signing_key_id) != public_key(self.signing_seed):
            raise UnusableIdentity(f"{path} holds a DID that names another signing key")
        if document.pre_key != agreement_key(self.prekey_private):
            raise UnusableIdentity(f"{path} holds a DID that names another pre-key")
        if decentrl.mediator_of(self.did) != self.mediator_did:
            raise UnusableIdentity(f"{path} holds a DID that names another mediator")
