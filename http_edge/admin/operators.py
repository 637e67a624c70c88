"""Access for operators, on a listener of their own, with the token in the data directory.

A process that can read the token's file has access. Other users of the machine do not learn who has
a queue here, no page in a browser on this machine can empty a queue, and no proxy leads here.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import hdrs, web
from msgspec.structs import asdict

from actors.core.commands import FindKeyOwner, PurgeQueue, QueryConnection, QueryQueue
from actors.core.refusals import Refusal
from actors.core.replies import Connected, KeyOwner, Purged, QueueState
from actors.host.clock import Clock, new_id
from actors.host.port import HostUnavailable
from eventstore.log.event_log import WaitingQueue
from eventstore.log.seal import command_key
from http_edge.admin.memory import Memory, QuestionRefused
from http_edge.didcomm.envelopes.agent_documents import account_did, resolve_document
from http_edge.didcomm.envelopes.keys import did_key
from http_edge.didcomm.envelopes.peer_documents import resolve
from http_edge.didcomm.envelopes.recipient_names import canonical_name, twins
from http_edge.didcomm.identities import Identities, key_target
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.whole_log import waiting_queues
from http_edge.listener.routes import JSON, Handler, PlainRoute

_OF_PROXIES: Final = (hdrs.FORWARDED, hdrs.X_FORWARDED_FOR, hdrs.X_FORWARDED_HOST, "X-Real-IP")
"""Headers of proxies: a sender of one is a proxy, or pretends to be another client."""
QUEUES_MAX: Final = 10_000
"""Queues in one answer, those with the longest waits first."""


def for_operators(token: str, handle: Handler) -> Handler:
    """Admit only operators to a handler: requests with their token that come through no proxy.

    The result raises HTTPNotFound for requests through a proxy, HTTPUnauthorized without the token.
    It answers 503 if a host or the placer does not answer.
    """
    authorization = f"Bearer {token}".encode()

    async def answer(request: web.Request) -> web.StreamResponse:
        if any(header in request.headers for header in _OF_PROXIES):
            raise web.HTTPNotFound
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, authorization):
            raise web.HTTPUnauthorized
        try:
            return await handle(request)
        except HostUnavailable:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)

    return answer


class QueueEndpoint:
    """Serves operators the queues of identities, and what hosts have in memory."""

    def __init__(self, gateway: Gateway, identities: Identities, *, clock: Clock) -> None:
        self._gateway = gateway
        self._identities = identities
        self._memory = Memory(gateway)
        self._clock = clock

    def routes(self) -> Sequence[PlainRoute]:
        """``/queues`` and ``/memory``."""
        return [
            PlainRoute("GET", "/queues", self._show),
            PlainRoute("POST", "/queues/purge", self._purge),
            PlainRoute("POST", "/memory", self._inspect),
        ]

    async def _show(self, request: web.Request) -> web.Response:
        """``GET /queues``: the queues with the longest waits; with ``did`` one queue in full.

        ``known`` says whether the log has the identity ``did``; for one that is no agent,
        ``account`` is as in ``account_of``.
        """
        did = request.query.get("did")
        try:
            limit = min(int(request.query.get("limit", "100")), QUEUES_MAX)
        except ValueError:
            raise web.HTTPBadRequest from None
        queues = await waiting_queues(self._gateway, max(limit, 0), did=did)
        answer: dict[str, Any] = {"queues": [self._row(queue) for queue in queues]}
        if did is not None:
            answer["known"] = await self._memory.knows(did)
            answer["agent"] = await self._agent(did)
            if answer["agent"] is None:
                answer |= await account_of(self._identities, did)
        return json_answer(answer)

    async def _purge(self, request: web.Request) -> web.Response:
        """``POST /queues/purge?did=``: remove all waiting messages; their owner never gets them.

        An identity that the log does not have stays unknown. For one that is no agent, ``account``
        is as in ``account_of``: what waits for its agent waits there.
        """
        did = request.query.get("did", "")
        if not did.startswith("did:"):
            raise web.HTTPBadRequest
        known, key, count = await self._memory.knows(did), command_key(did, new_id()), 0
        is_agent = known and await self._agent(did) is not None
        account = {} if is_agent else await account_of(self._identities, did)
        if known:
            purged = await self._identities.ask(did, PurgeQueue(), key, Purged)
            if isinstance(purged, Refusal):
                return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
            count = purged.messages
        return json_answer({"did": did, "known": known, "purged": count, **account})

    async def _inspect(self, request: web.Request) -> web.Response:
        """``POST /memory``: the memory of the hosts; msgpack of ``actors.host.inspection``."""
        try:
            answer = await self._memory.answer(await request.read())
        except QuestionRefused as error:
            raise web.HTTPBadRequest from error
        return web.Response(body=answer, content_type="application/msgpack")

    def _row(self, queue: WaitingQueue) -> dict[str, Any]:
        return {
            "did": queue.did,
            "messages": queue.messages,
            "bytes": queue.bytes,
            "oldest_age_s": self._age_s(queue.oldest_at_ms),
            "outbound": queue.outbound,
        }

    async def _agent(self, did: str) -> dict[str, Any] | None:
        """The figures of the identity as a DIDComm agent; None if it is no agent."""
        connected = await self._identities.ask(did, QueryConnection(), b"", Connected)
        state = await self._identities.ask(did, QueryQueue(), b"", QueueState)
        if isinstance(connected, Refusal) or isinstance(state, Refusal):
            return None
        return {
            "label": connected.connection.label,
            "protocol": connected.connection.protocol,
            "mediated": connected.mediated,
            "has_endpoint": bool(connected.connection.endpoint),
            "messages": state.messages,
            "leased": state.messages - state.available,
            "live": state.live,
            "last_added_age_s": self._age_s(state.last_added_ms),
            "last_delivered_age_s": self._age_s(state.last_delivered_ms),
            "last_removed_age_s": self._age_s(state.last_removed_ms),
            **asdict(state.policy),
        }

    def _age_s(self, at_ms: int) -> float | None:
        return max(0.0, (self._clock() - at_ms) / 1000) if at_ms else None


async def account_of(identities: Identities, did: str) -> dict[str, str]:
    """``account``: the agent that a DID speaks for, that has registered it or a key in it, or none.

    An account is the identity of one DID alone, while a wallet has many and may spell each at
    length. Those that it registered lead to the account by their names (``recipient_names``); that
    of its connection has the key in its document, or is another spelling.

    Raises:
        HostUnavailable: the owner of a name is not known now, so there may be an account.
    """
    spoken = await identities.find_account(did, b"")
    if isinstance(spoken, Refusal):
        raise HostUnavailable(did)
    if spoken.account_did:
        return {"account": spoken.account_did}
    name = canonical_name(did)
    for each in () if name is None else (name, *twins(name)):
        found = await identities.ask(key_target(each), FindKeyOwner(), b"", KeyOwner)
        if isinstance(found, KeyOwner) and found.owner_did != did:
            return {"account": found.owner_did}
        if isinstance(found, Refusal) and found is not Refusal.KEY_UNKNOWN:
            raise HostUnavailable(each)
    for own in other_spellings(did):
        known = await identities.find_account(own, b"")
        if isinstance(known, Refusal):
            raise HostUnavailable(own)
        if known.connected:
            return {"account": own}
    return {}


def other_spellings(did: str) -> Sequence[str]:
    """The DIDs that the identity of an agent may have if it writes by ``did``, in either version.

    They follow from ``did`` alone: the short form of a did:peer does not give its keys.
    """
    older, newer = resolve(did), resolve_document(did)
    keys = set[bytes]() if older is None else {*older.recipient_keys}
    if newer is not None:
        keys |= {*filter(None, map(newer.signing_twin, newer.agreement.values()))}
    return sorted({account_did(did), *map(did_key, keys)} - {did})


def json_answer(answer: object, status: int = HTTPStatus.OK) -> web.Response:
    """The answer of an operators' endpoint."""
    return web.Response(status=status, body=orjson.dumps(answer), content_type=JSON)
