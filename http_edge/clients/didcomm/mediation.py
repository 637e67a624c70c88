"""Coordinate mediation: requests for mediation, and the keylist.

Version 1.0 (RFC 0211), and 2.0 and 3.0 (didcomm.org).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from http_edge.clients.didcomm.connection import Key, spelled
from http_edge.clients.didcomm.errors import ProblemReported, UnexpectedAnswer
from http_edge.clients.didcomm.protocol_session import ProtocolSession, record_of
from http_edge.didcomm.envelopes.keys import curve_public, read_key
from http_edge.didcomm.envelopes.messages import Json

_PROTOCOL = "coordinate-mediation/1.0"


@dataclass(frozen=True, slots=True)
class Mediation:
    """The mediator's grant: the endpoint for senders, and the keys that they wrap forwards for."""

    endpoint: str
    routing_keys: tuple[bytes, ...]


class KeylistResult(msgspec.Struct, frozen=True):
    """The result of one change: success, no_change, client_error or server_error."""

    recipient_key: str
    action: str
    result: str


class KeylistKey(msgspec.Struct, frozen=True):
    """One registered key."""

    recipient_key: str


class Pagination(msgspec.Struct, frozen=True):
    """The numbers of keys in this answer, before it and after it."""

    count: int
    offset: int
    remaining: int


class Keylist(msgspec.Struct, frozen=True):
    """Registered keys, and the pagination if it was requested."""

    keys: tuple[KeylistKey, ...]
    pagination: Pagination | None = None


class _Grant(msgspec.Struct, frozen=True):
    endpoint: str
    routing_keys: tuple[str, ...]


class SpeaksMediation(ProtocolSession):
    """Coordinate mediation 1.0."""

    async def request_mediation(self) -> Mediation:
        """Request mediation; a repeated request gets the same grant.

        Raises:
            ProblemReported: the mediator denied it (code ``mediate-deny``) or reported a problem.
        """
        grant = record_of(await _granted(self, _PROTOCOL), _Grant)
        return Mediation(grant.endpoint, tuple(_routing_key(text) for text in grant.routing_keys))

    async def update_keylist(
        self, add: Sequence[Key] = (), remove: Sequence[Key] = ()
    ) -> list[KeylistResult]:
        """Register and remove keys; return the result of each, in order, additions first.

        Raises:
            ProblemReported: mediation was not granted, or the whole update is refused.
        """
        answer = await self.request(
            f"{_PROTOCOL}/keylist-update",
            "keylist-update-response",
            updates=_updates("recipient_key", map(spelled, add), map(spelled, remove)),
        )
        return record_of(answer.get("updated"), list[KeylistResult])

    async def query_keylist(self, limit: int | None = None, offset: int = 0) -> Keylist:
        """Query the registered keys, all or up to ``limit`` of them from ``offset`` on."""
        page = _page(limit, offset)
        answer = await self.request(f"{_PROTOCOL}/keylist-query", "keylist", **page)
        return record_of(answer, Keylist)


async def _granted(session: ProtocolSession, protocol: str, **members: object) -> Json:
    """Request mediation; return the grant. Raises: ProblemReported if the mediator denies it."""
    kind = f"{protocol}/mediate-request"
    answer = await session.request(kind, "mediate-grant|mediate-deny", **members)
    if str(answer["@type"]).endswith("/mediate-deny"):
        raise ProblemReported("mediate-deny", "the mediator denies mediation", answer)
    return answer


def _updates(member: str, add: Iterable[str], remove: Iterable[str]) -> list[Json]:
    changes = [*((name, "add") for name in add), *((name, "remove") for name in remove)]
    return [{member: name, "action": action} for name, action in changes]


def _page(limit: int | None, offset: int) -> Json:
    return {} if limit is None else {"paginate": {"limit": limit, "offset": offset}}


def _routing_key(text: str) -> bytes:
    """Raises: UnexpectedAnswer."""
    key = read_key(text)
    if key is None or curve_public(key) is None:
        raise UnexpectedAnswer("a routing key that is no Ed25519 key, or that nothing is packed to")
    return key


class MediationVersion(NamedTuple):
    """A version for DIDComm v2: its protocol, the names of its messages, the member of its list."""

    protocol: str
    update: str
    query: str
    listing: str
    listed: str


MEDIATION_2: Final = MediationVersion(
    "coordinate-mediation/2.0", "keylist-update", "keylist-query", "keylist", "keys"
)
MEDIATION_3: Final = MediationVersion(
    "coordinate-mediation/3.0", "recipient-update", "recipient-query", "recipient", "dids"
)


class RecipientResult(msgspec.Struct, frozen=True):
    """The result of one change: success, no_change, client_error or server_error."""

    recipient_did: str
    action: str
    result: str


class RegisteredDid(msgspec.Struct, frozen=True):
    """One registered recipient."""

    recipient_did: str


class RecipientList(msgspec.Struct, frozen=True):
    """Registered recipients, and the pagination if it was requested."""

    dids: tuple[RegisteredDid, ...]
    pagination: Pagination | None = None


class SpeaksMediation2(ProtocolSession):
    """Coordinate mediation in the version ``mediation_version``."""

    mediation_version: MediationVersion = MEDIATION_2

    async def request_mediation(self, invitation_id: str = "") -> str:
        """Request mediation, which establishes the relation; return the DID that is granted.

        A repeated request gets the same grant. ``invitation_id`` is the id of the invitation that
        the wallet follows.

        Raises:
            ProblemReported: the mediator denied it (code ``mediate-deny``) or reported a problem.
        """
        thread = {"~thread": {"pthid": invitation_id}} if invitation_id else {}
        granted = (await _granted(self, self.mediation_version.protocol, **thread)).get(
            "routing_did"
        )
        if isinstance(granted, list) and granted:
            granted = granted[0]
        if not isinstance(granted, str):
            raise UnexpectedAnswer("a grant without a DID")
        return granted

    async def update_recipients(
        self, add: Sequence[str] = (), remove: Sequence[str] = ()
    ) -> list[RecipientResult]:
        """Register and remove recipients; return the result of each, in order, additions first.

        Raises:
            ProblemReported: mediation was not granted, or the whole update is refused.
        """
        version = self.mediation_version
        answer = await self.request(
            f"{version.protocol}/{version.update}",
            f"{version.update}-response",
            updates=_updates("recipient_did", add, remove),
        )
        return record_of(answer.get("updated"), list[RecipientResult])

    async def query_recipients(self, limit: int | None = None, offset: int = 0) -> RecipientList:
        """Query the registered recipients, all or up to ``limit`` of them from ``offset`` on."""
        page, version = _page(limit, offset), self.mediation_version
        kind = f"{version.protocol}/{version.query}"
        answer = await self.request(kind, version.listing, **page)
        return record_of({**answer, "dids": answer.get(version.listed)}, RecipientList)
