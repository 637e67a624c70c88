"""Coordinate mediation 1.0: requests for mediation, and the keylist (RFC 0211)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from http_edge.clients.didcomm.connection import Key, spelled
from http_edge.clients.didcomm.errors import ProblemReported, UnexpectedAnswer
from http_edge.clients.didcomm.protocol_session import ProtocolSession, record_of
from http_edge.didcomm.envelopes.keys import curve_public, read_key

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
        answer = await self.request(f"{_PROTOCOL}/mediate-request", "mediate-grant|mediate-deny")
        if str(answer["@type"]).endswith("/mediate-deny"):
            raise ProblemReported("mediate-deny", "the mediator denies mediation", answer)
        grant = record_of(answer, _Grant)
        return Mediation(grant.endpoint, tuple(_routing_key(text) for text in grant.routing_keys))

    async def update_keylist(
        self, add: Sequence[Key] = (), remove: Sequence[Key] = ()
    ) -> list[KeylistResult]:
        """Register and remove keys; return the result of each, in order, additions first.

        Raises:
            ProblemReported: mediation was not granted, or the whole update is refused.
        """
        changes = [(key, "add") for key in add] + [(key, "remove") for key in remove]
        answer = await self.request(
            f"{_PROTOCOL}/keylist-update",
            "keylist-update-response",
            updates=[{"recipient_key": spelled(key), "action": action} for key, action in changes],
        )
        return record_of(answer.get("updated"), list[KeylistResult])

    async def query_keylist(self, limit: int | None = None, offset: int = 0) -> Keylist:
        """Query the registered keys, all or up to ``limit`` of them from ``offset`` on."""
        page = {} if limit is None else {"paginate": {"limit": limit, "offset": offset}}
        answer = await self.request(f"{_PROTOCOL}/keylist-query", "keylist", **page)
        return record_of(answer, Keylist)


def _routing_key(text: str) -> bytes:
    """Raises: UnexpectedAnswer."""
    key = read_key(text)
    if key is None or curve_public(key) is None:
        raise UnexpectedAnswer("a routing key that is no Ed25519 key, or that nothing is packed to")
    return key
