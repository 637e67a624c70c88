"""Invitations of the mediator: out-of-band 1.1 (RFC 0434) and 2.0, connections 1.0 (RFC 0160).

Each invitation can be written in all of these forms. An out-of-band URL holds both out-of-band
forms, each in its own parameter: a wallet of either generation finds the form that it reads.

Invitations are not stored. An id carries the invitation's terms (single or multiple use, expiry)
and a MAC made with the service key's seed, so every process that has the key file recognizes the
mediator's invitations by their ids; a foreign id looks like one that never existed.

``http_edge.crypto.invitation_ids`` defines the ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, Literal, TypeAlias, TypeGuard
from urllib.parse import urlencode

import msgspec

from actors.host.clock import NewId
from http_edge.crypto.encoding import b64decode, b64encode
from http_edge.crypto.invitation_ids import (
    PUBLIC,
    UNIQUE_BYTES,
    InvitationIds,
    InvitationTerms,
)
from http_edge.crypto.strict_json import object_in
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, read_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json, NewMessage
from http_edge.didcomm.envelopes.own_dids import PROFILE, OwnDids, own_services
from http_edge.didcomm.envelopes.versions import read_invitation, write_invitation

Protocol: TypeAlias = Literal["out-of-band", "out-of-band-2", "connections"]

INVITATION_PATH: Final = "/invitation"
"""Path of the invitation page below the mediator's URL."""
PARAMETERS: Final[dict[Protocol, str]] = {
    "out-of-band": "oob",
    "out-of-band-2": "_oob",
    "connections": "c_i",
}
"""The query parameter that holds an invitation, by protocol."""
SHORT_PARAMETER: Final = "_oobid"
"""The query parameter that holds the id of an out-of-band 2.0 invitation alone."""
HANDSHAKES: Final = tuple(
    NEW_PREFIX + protocol for protocol in ("didexchange/1.1", "didexchange/1.0", "connections/1.0")
)
"""The handshakes that an out-of-band invitation offers, in order of preference."""
GOAL_CODE: Final = "aries.vc.mediate"
"""Wallets built on Bifold recognize a mediator's invitation by this code, which no RFC lists."""
GOAL_CODE_2: Final = "request-mediate"
"""The goal code of DIDComm v2 invitations, as mediators of that generation write it."""
GOAL_CODES: Final = (GOAL_CODE, GOAL_CODE_2)
GOAL: Final = "Receive your messages through this mediator"
"""Shown to persons. ACA-Py refuses a goal code without a goal."""
LABEL_CHARS_MAX: Final = 64
"""Longest label, as in the settings; each character makes the QR code denser."""
EXPIRES_S_MAX: Final = 253_402_300_799
"""The last second of the year 9999, the last one that can be written as a date."""
ENCODED_CHARS_MAX: Final = 4096
"""Longest accepted invitation in a URL; ours have about 800 characters."""
CODE_CHARS_MAX: Final = 2_048
"""Longest URL in a QR code (version 34 of 40): few cameras read a denser code. The usual URL with
the invitations for both generations has 1,600 characters."""

_ACCEPT: Final = ("didcomm/aip1", "didcomm/aip2;env=rfc19")
_KINDS: Final[dict[Protocol, str]] = {
    "out-of-band": "out-of-band/1.1/invitation",
    "out-of-band-2": "out-of-band/2.0/invitation",
    "connections": "connections/1.0/invitation",
}


class MediatorInvitation(msgspec.Struct, frozen=True):
    """An invitation to an endpoint and a key of 32 bytes; ``did`` is a DID that encodes both."""

    terms: InvitationTerms
    label: str
    key: bytes
    endpoint: str
    did: str

    def message(self, protocol: Protocol) -> Json:
        """Return the invitation as a message of ``protocol``.

        That of out-of-band 1.1 has only one service, because ACA-Py refuses two. By the label we
        recognize an invitation later, also in out-of-band 2.0.
        """
        body: Json = {"label": self.label}
        match protocol:
            case "out-of-band":
                body |= {
                    "goal_code": GOAL_CODE,
                    "goal": GOAL,
                    "accept": list(_ACCEPT),
                    "handshake_protocols": list(HANDSHAKES),
                    "services": [
                        {
                            "id": "#inline",
                            "type": "did-communication",
                            "recipientKeys": [did_key(self.key)],
                            "serviceEndpoint": self.endpoint,
                        }
                    ],
                }
            case "out-of-band-2":
                body |= {"goal_code": GOAL_CODE_2, "goal": GOAL, "accept": [PROFILE]}
            case "connections":
                body |= {"recipientKeys": [base58(self.key)], "serviceEndpoint": self.endpoint}
        written = NewMessage(_KINDS[protocol], body, id=self.terms.id)
        return write_invitation(written, self.did if protocol == "out-of-band-2" else "")

    def query(self, protocol: Protocol) -> str:
        """Return a query: ``oob=…&_oob=…``, ``_oob=…`` or ``c_i=…``, in base64url without padding.

        The older out-of-band form is followed by the newer one.
        """
        if protocol == "out-of-band":
            return f"{self._parameter(protocol)}&{self._parameter('out-of-band-2')}"
        return self._parameter(protocol)

    def _parameter(self, protocol: Protocol) -> str:
        # ASCII, with other characters escaped: some wallets decode the bytes only as ASCII.
        text = json.dumps(self.message(protocol), separators=(",", ":"))
        return f"{PARAMETERS[protocol]}={b64encode(text.encode('ascii'))}"

    def url(self, base: str, protocol: Protocol) -> str:
        """Return the URL of the message of ``protocol`` below the mediator's URL ``base``."""
        return f"{base}{INVITATION_PATH}?{self.query(protocol)}"

    def code_url(self, base: str, protocol: Protocol) -> str:
        """Return the URL for a QR code: the long one, or the short one if the label is too long."""
        long = self.url(base, protocol)
        return long if len(long) <= CODE_CHARS_MAX else self.short_url(base, protocol)

    def short_url(self, base: str, protocol: Protocol) -> str:
        """Return a URL that the mediator answers with the message, or with a redirect to ``url``.

        RFC 0434 calls this URL shortening. A wallet has to reach the mediator to read the message.
        """
        id_name = SHORT_PARAMETER if protocol == "out-of-band-2" else "id"
        named = {id_name: self.terms.id, "label": self.label}
        if protocol == "connections":
            named["protocol"] = protocol
        return f"{base}{INVITATION_PATH}?{urlencode(named)}"


class Invitations:
    """Makes the invitations of one mediator, and recognizes them."""

    def __init__(self, key: KeyPair, label: str, endpoint: str, *, public: bool = True) -> None:
        """Make invitations to the HTTP ``endpoint``, with ``label`` as the default.

        ``public`` says whether there is a public invitation. If not, its id counts as unknown,
        even if it was printed somewhere before.
        """
        self._key = key
        self.ids = InvitationIds(key.seed, public=public)
        """The ids, which are the terms of our invitations, not checked for expiry or use."""
        self._label = label
        self._endpoint = endpoint
        # Of the DIDs that contain their services, most agents resolve did:peer:2.
        self._did = OwnDids(key, own_services(endpoint)).peer2
        self._public = public

    def make(
        self, *, single_use: bool, expires_at_s: int | None, label: str | None, new_id: NewId
    ) -> MediatorInvitation:
        """Make a new invitation; ``expires_at_s`` is in Unix seconds, None for never.

        Raises:
            ValueError: the expiry is not a date up to the year 9999, or the label is invalid.
        """
        if expires_at_s is not None and not 0 < expires_at_s <= EXPIRES_S_MAX:
            raise ValueError("an invitation ends between the years 1970 and 9999")
        if label is not None and not is_label(label):
            raise ValueError(f"a label has 1 to {LABEL_CHARS_MAX} printable characters")
        unique = blake2b(new_id().encode("utf-8"), digest_size=UNIQUE_BYTES).digest()
        label = label or self._label
        terms = self.ids.make(unique, label, single_use=single_use, expires_at_s=expires_at_s)
        return self._invitation(terms, label)

    def public(self) -> MediatorInvitation | None:
        """Return the public invitation, always the same, or None if there is none."""
        terms = self.ids.make(PUBLIC, self._label, single_use=False, expires_at_s=None)
        return self._invitation(terms, self._label) if self._public else None

    def read(self, protocol: Protocol, encoded: str) -> MediatorInvitation | None:
        """Return an invitation of ours from its URL's parameter; None for anything else.

        The invitation is made anew from its id and label; the rest of the text is not used.
        """
        message = read_invitation(_message(encoded))
        if message is None:
            return None
        kind = message.type
        is_of_protocol = _KINDS[protocol].startswith(f"{kind.family}/{kind.major}.")
        if not is_of_protocol or kind.name != "invitation":
            return None
        is_ours = self._key.public in map(read_key, _keys(message.body))
        if not is_ours and protocol != "out-of-band-2":
            return None
        return self.read_short(message.id, message.text("label") or "")

    def read_short(self, invitation_id: str, label: object) -> MediatorInvitation | None:
        """Return an invitation of ours by the id and label in its short URL.

        A label that is None stands for the mediator's own. None for anything else, including a
        label that is not the invitation's.
        """
        label = self._label if label is None else label
        terms = self.ids.read(invitation_id)
        if terms is None or not isinstance(label, str):
            return None
        return self._invitation(terms, label) if self.ids.has_label(terms, label) else None

    def _invitation(self, terms: InvitationTerms, label: str) -> MediatorInvitation:
        return MediatorInvitation(terms, label, self._key.public, self._endpoint, self._did)


def is_label(value: object) -> TypeGuard[str]:
    """Say whether a value is a valid label: printable, on one line, and not too long."""
    return isinstance(value, str) and 0 < len(value) <= LABEL_CHARS_MAX and value.isprintable()


def _message(encoded: str) -> Json:
    """Return the JSON object in a parameter, or an empty one."""
    if len(encoded) > ENCODED_CHARS_MAX:
        return {}
    try:
        return object_in(b64decode(encoded)) or {}
    except ValueError:
        return {}


def _keys(message: Json) -> Iterator[object]:
    """Yield the recipient keys of an invitation of either DIDComm v1 protocol."""
    services = message.get("services", [message])
    for service in services if isinstance(services, list) else ():
        keys = service.get("recipientKeys") if isinstance(service, dict) else None
        yield from keys if isinstance(keys, list) else ()
