"""Ids of invitations. An id contains the terms and a MAC, so invitations are not stored.

An id is the base64url of 36 bytes: a byte of flags, 5 bytes of expiry in Unix seconds (0: never),
8 bytes that make it unique (0: the public invitation), 6 bytes of MAC of the label, so that no one
else can put words on the mediator's page, and 16 bytes of MAC of all these. Every process with the
mediator's key file can verify its ids. One id admits a DIDComm wallet and a Decentrl identity
alike.
"""

from __future__ import annotations

import hmac
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Final

import msgspec

from http_edge.crypto.encoding import b64decode, b64decode_exactly, b64encode

_VERSION: Final = 0x10
_SINGLE_USE: Final = 0x01
_EXPIRY_BYTES: Final = 5
UNIQUE_BYTES: Final = 8
_MAC_BYTES: Final = 16
_LABEL_BYTES: Final = 6
_TERMS_BYTES: Final = 1 + _EXPIRY_BYTES + UNIQUE_BYTES + _LABEL_BYTES
_PERSON: Final = b"poste-invitation"
_LABEL_PERSON: Final = b"poste-inv-label"
PUBLIC: Final = bytes(UNIQUE_BYTES)
"""The unique bytes of the public invitation."""
_UNIQUE: Final = slice(1 + _EXPIRY_BYTES, 1 + _EXPIRY_BYTES + UNIQUE_BYTES)
_LABEL: Final = slice(_TERMS_BYTES - _LABEL_BYTES, _TERMS_BYTES)


class InvitationTerms(msgspec.Struct, frozen=True):
    """What an invitation grants; ``expires_at_s`` is Unix seconds, or None for never."""

    id: str
    single_use: bool
    expires_at_s: int | None

    def has_expired(self, now_ms: float) -> bool:
        """Has the invitation expired at this time, in Unix milliseconds?"""
        return self.expires_at_s is not None and now_ms >= self.expires_at_s * 1000

    def in_words(self) -> str:
        """A sentence that says for how many wallets the invitation is, and until when."""
        number = "one wallet" if self.single_use else "any number of wallets"
        if self.expires_at_s is None:
            return f"For {number}, without expiry."
        until = datetime.fromtimestamp(self.expires_at_s, UTC)
        return f"For {number}, until {until:%Y-%m-%d %H:%M} UTC."


class InvitationIds:
    """Makes and verifies the invitation ids of one mediator."""

    def __init__(self, seed: bytes, *, public: bool) -> None:
        """Ids with MACs by a secret seed; ``public`` admits the public invitation."""
        self._seed = seed
        self._public = public

    def make(
        self, unique: bytes, label: str, *, single_use: bool, expires_at_s: int | None
    ) -> InvitationTerms:
        """Make an invitation with this label; return its terms, id included."""
        flags = _VERSION | (_SINGLE_USE if single_use else 0)
        expiry = (expires_at_s or 0).to_bytes(_EXPIRY_BYTES, "big")
        written = bytes([flags]) + expiry + unique + self._label_mac(label)
        text = b64encode(written + self._mac(written))
        return InvitationTerms(text, single_use, expires_at_s)

    def read(self, text: str) -> InvitationTerms | None:
        """The terms of an invitation by this mediator, from its id; None for any other text.

        Does not check whether the invitation has expired or is used up.
        """
        whole = b64decode_exactly(text, _TERMS_BYTES + _MAC_BYTES)
        if whole is None or b64encode(whole) != text:
            return None
        terms, mac = whole[:_TERMS_BYTES], whole[_TERMS_BYTES:]
        if not hmac.compare_digest(self._mac(terms), mac):
            return None
        if terms[_UNIQUE] == PUBLIC and not self._public:
            return None
        expires_at_s = int.from_bytes(terms[1 : 1 + _EXPIRY_BYTES], "big")
        return InvitationTerms(text, bool(terms[0] & _SINGLE_USE), expires_at_s or None)

    def has_label(self, terms: InvitationTerms, label: str) -> bool:
        """Was the invitation made with this label?"""
        return hmac.compare_digest(self._label_mac(label), b64decode(terms.id)[_LABEL])

    def _mac(self, terms: bytes) -> bytes:
        return blake2b(terms, digest_size=_MAC_BYTES, key=self._seed, person=_PERSON).digest()

    def _label_mac(self, label: str) -> bytes:
        text = label.encode("utf-8")
        return blake2b(
            text, digest_size=_LABEL_BYTES, key=self._seed, person=_LABEL_PERSON
        ).digest()
