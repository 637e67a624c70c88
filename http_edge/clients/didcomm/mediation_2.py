"""Coordinate mediation 2.0 and 3.0: requests for mediation, and the recipients (didcomm.org)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from http_edge.clients.didcomm.errors import ProblemReported, UnexpectedAnswer
from http_edge.clients.didcomm.mediation import Pagination
from http_edge.clients.didcomm.protocol_session import ProtocolSession, record_of

MediationVersion: TypeAlias = Literal["2.0", "3.0"]


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


class _Names(msgspec.Struct, frozen=True):
    update: str
    query: str
    listing: str
    listed: str


_NAMES: Final[dict[MediationVersion, _Names]] = {
    "2.0": _Names("keylist-update", "keylist-query", "keylist", "keys"),
    "3.0": _Names("recipient-update", "recipient-query", "recipient", "dids"),
}


class SpeaksMediation2(ProtocolSession):
    """Coordinate mediation in the version ``mediation_version``."""

    mediation_version: MediationVersion = "2.0"

    async def request_mediation(self, invitation_id: str = "") -> str:
        """Request mediation, which establishes the relation; return the DID that is granted.

        A repeated request gets the same grant. ``invitation_id`` is the id of the invitation that
        the wallet follows.

        Raises:
            ProblemReported: the mediator denied it (code ``mediate-deny``) or reported a problem.
        """
        thread = {"~thread": {"pthid": invitation_id}} if invitation_id else {}
        answer = await self.request(
            f"{self._protocol}/mediate-request", "mediate-grant|mediate-deny", **thread
        )
        if str(answer["@type"]).endswith("/mediate-deny"):
            raise ProblemReported("mediate-deny", "the mediator denies mediation", answer)
        granted = answer.get("routing_did")
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
        changes = [(did, "add") for did in add] + [(did, "remove") for did in remove]
        name = self._names.update
        answer = await self.request(
            f"{self._protocol}/{name}",
            f"{name}-response",
            updates=[{"recipient_did": did, "action": action} for did, action in changes],
        )
        return record_of(answer.get("updated"), list[RecipientResult])

    async def query_recipients(self, limit: int | None = None, offset: int = 0) -> RecipientList:
        """Query the registered recipients, all or up to ``limit`` of them from ``offset`` on."""
        page = {} if limit is None else {"paginate": {"limit": limit, "offset": offset}}
        names = self._names
        answer = await self.request(f"{self._protocol}/{names.query}", names.listing, **page)
        return record_of({**answer, "dids": answer.get(names.listed)}, RecipientList)

    @property
    def _protocol(self) -> str:
        return f"coordinate-mediation/{self.mediation_version}"

    @property
    def _names(self) -> _Names:
        return _NAMES[self.mediation_version]
