"""The erasure of an identity by an operator: in steps, so that no request takes long."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Final

from aiohttp import web

from actors.core.commands import EraseIdentity
from actors.core.erasure import (
    CONTINUED,
    ELSEWHERE,
    ELSEWHERE_LATER,
    ELSEWHERE_ONCE,
    FOREIGN,
    OPERATOR,
)
from actors.core.refusals import Refusal
from actors.core.replies import Erased
from actors.host.clock import new_id
from eventstore.log.seal import command_key
from http_edge.admin.memory import Memory
from http_edge.admin.operators import account_of, json_answer, other_spellings
from http_edge.didcomm.accounts import ErasedAccounts
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.identities import Identities, key_target
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
        With ``&begun=true`` it only continues an erasure; without it, nothing is erased while some
        databases of the log are ``away``: do not answer. With ``&foreign=true`` the DID may be one
        that never registered or connected here, and belongs to no account, in no spelling: its
        names leave the rows of others. An erasure that has begun is completed in its own database
        even if the operator sends no further request; the other ones know of it with the last.
        """
        did = request.query.get("did", "")
        by = CONTINUED if request.query.get("begun") == "true" else OPERATOR
        if not did.startswith("did:") or not did.isprintable():
            raise web.HTTPBadRequest
        key = command_key(did, new_id())
        if by == OPERATOR and (away := await self._erased.elsewhere(did, key, ELSEWHERE_LATER)):
            # Nor would these release its keys, and the DIDs that spoke for it.
            return json_answer({"did": did, "known": True, "is_over": False, "away": away})
        return await self._do_steps(did, by, is_foreign=request.query.get("foreign") == "true")

    async def _do_steps(self, did: str, by: str, *, is_foreign: bool) -> web.Response:
        records, former = 0, dict[str, bool]()
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
            where = ELSEWHERE_ONCE if by == OPERATOR and step.is_over else ELSEWHERE
            by = CONTINUED
            records += step.records
            await self._erased.let_go(did, key, step)
            if step.is_over:
                account = {} if step.is_known else await account_of(self._identities, did)
                if is_foreign and not (step.is_known or account):
                    account = await self._known_as(did)
                    if not account:
                        by, is_foreign = FOREIGN, False
                        former = await self._former(did)
                        continue
                answer = {"did": did, "known": step.is_known, "is_over": True, "records": records}
                answer |= former
                if step.is_known and (away := await self._erased.elsewhere(did, key, where)):
                    return json_answer({**answer, "away": away})
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

    async def _former(self, did: str) -> dict[str, bool]:
        """``was_registered``: an agent had this DID among its own, and has it no more.

        Nothing in memory says any more which agent, or whether its account is over.

        Raises:
            HostUnavailable: a host does not answer.
        """
        name = canonical_name(did)
        is_known = name is not None and await self._memory.knows(key_target(name))
        return {"was_registered": True} if is_known else {}
