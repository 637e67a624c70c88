"""The erasure of an identity by an operator: in steps, so that no request takes long."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from actors.core.commands import EraseIdentity
from actors.core.erasure import CONTINUED, FOREIGN, OPERATOR
from actors.core.refusals import Refusal
from actors.core.replies import Erased
from actors.host.clock import new_id
from eventstore.log.seal import command_key
from http_edge.admin.memory import Memory
from http_edge.admin.operators import account_of, json_answer, other_spellings
from http_edge.didcomm.accounts import ErasedAccounts
from http_edge.didcomm.identities import Identities
from http_edge.dispatch.gateway import Gateway
from http_edge.listener.routes import PlainRoute

_STEPS: Final = 32
"""Steps in one request: together some tenths of a second."""


class ErasureEndpoint:
    """Erases identities."""

    def __init__(
        self, gateway: Gateway, identities: Identities, erased: ErasedAccounts, *, records_max: int
    ) -> None:
        """Each step erases up to ``records_max`` records in one transaction."""
        self._memory = Memory(gateway)
        self._identities = identities
        self._erased = erased
        self._records_max = records_max

    def routes(self) -> Sequence[PlainRoute]:
        """``/identities/erase``."""
        return [PlainRoute("POST", "/identities/erase", self._erase)]

    async def _erase(self, request: web.Request) -> web.Response:
        """``POST /identities/erase?did=``: do some steps; ``is_over`` after the last one.

        Another DID of an account erases nothing, and is answered with the account (``account_of``).
        With ``&begun=true`` it only continues an erasure. With ``&foreign=true`` the DID may be one
        that never registered or connected here, and belongs to no account, in no spelling: its
        names leave the rows of others. An erasure that has begun is completed even if the operator
        sends no further request.
        """
        did = request.query.get("did", "")
        by = CONTINUED if request.query.get("begun") == "true" else OPERATOR
        is_foreign = request.query.get("foreign") == "true"
        if not did.startswith("did:") or not did.isprintable():
            raise web.HTTPBadRequest
        records = 0
        for _ in range(_STEPS):
            key = command_key(did, new_id())
            step = await self._identities.ask(
                did, EraseIdentity(by, self._records_max), key, Erased, by_mediator=True
            )
            if step is Refusal.SPEAKS_FOR_ANOTHER:
                if await self._erased.free(did, key):
                    continue
                answer = {"did": did, "known": True, "is_over": False, "speaks_for": True}
                return json_answer({**answer, **await account_of(self._identities, did)})
            if isinstance(step, Refusal):
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
            by = CONTINUED
            records += step.records
            await self._erased.let_go(did, key, step)
            if step.is_over:
                account = {} if step.is_known else await account_of(self._identities, did)
                if is_foreign and not (step.is_known or account):
                    account = await self._known_as(did)
                    if not account:
                        by, is_foreign = FOREIGN, False
                        continue
                answer = {"did": did, "known": step.is_known, "is_over": True, "records": records}
                return json_answer({**answer, **account})
        return json_answer({"did": did, "known": True, "is_over": False, "records": records})

    async def _known_as(self, did: str) -> dict[str, str]:
        """``account``: the identity of an agent that wrote by this DID, also one that has ended.

        Raises:
            HostUnavailable: a host does not answer.
        """
        for own in other_spellings(did):
            if await self._memory.knows(own):
                return {"account": own}
        return {}
