"""What operators may see and do: on loopback, with a token that follows from the keys.

Whoever can read the key file can make the token; nobody else on the machine learns who has a queue
here, and no page in a browser of this machine can empty one.
"""

from __future__ import annotations

import hmac
from hashlib import blake2b
from http import HTTPStatus
from typing import Any, Final

import orjson
from aiohttp import hdrs, web

from actors.clock import Clock, NewId
from actors.commands import PurgeQueue, QueryConnection, QueryQueue
from actors.host_port import HostUnavailable
from actors.refusals import Refusal
from actors.replies import Connected, Purged, QueueState
from eventstore.log import WaitingQueue
from eventstore.seal import command_key
from http_edge.didcomm.identities import Identities
from http_edge.gateway import Gateway
from http_edge.mediator_keys import MediatorKeys
from http_edge.memory import Memory, QuestionRefused
from http_edge.whole_log import waiting_queues

_PERSON: Final = b"poste-operator"
_TOKEN_BYTES: Final = 32
QUEUES_MAX: Final = 10_000
"""Queues in one answer; an operator looks at those that wait longest."""


def operator_token(keys: MediatorKeys) -> str:
    """The token of whoever holds the mediator's keys."""
    token = blake2b(digest_size=_TOKEN_BYTES, key=keys.signing_seed, person=_PERSON)
    return token.hexdigest()


class OperatorFront:
    """Answers operators; the caller has made sure that they ask from loopback."""

    def __init__(
        self,
        keys: MediatorKeys,
        gateway: Gateway,
        identities: Identities,
        *,
        clock: Clock,
        new_id: NewId,
    ) -> None:
        """A front of the mediator behind a gateway."""
        self._authorization = f"Bearer {operator_token(keys)}".encode()
        self._gateway = gateway
        self._identities = identities
        self._memory = Memory(gateway)
        self._clock = clock
        self._new_id = new_id

    async def show(self, request: web.Request) -> web.Response:
        """``GET /queues``: what waits longest; with ``did`` the one queue in full."""
        self.authorize(request)
        did = request.query.get("did")
        try:
            limit = min(int(request.query.get("limit", "100")), QUEUES_MAX)
        except ValueError:
            raise web.HTTPBadRequest from None
        try:
            queues = await waiting_queues(self._gateway, max(limit, 0), did=did)
        except HostUnavailable:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        answer: dict[str, Any] = {"queues": [self._row(queue) for queue in queues]}
        if did is not None:
            answer["agent"] = await self._agent(did)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")

    async def purge(self, request: web.Request) -> web.Response:
        """``POST /queues/purge?did=``: remove all that waits; its owner never gets it."""
        self.authorize(request)
        did = request.query.get("did", "")
        if not did.startswith("did:"):
            raise web.HTTPBadRequest
        key = command_key(did, self._new_id())
        purged = await self._identities.ask(did, PurgeQueue(), key, Purged)
        if isinstance(purged, Refusal):
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        body = orjson.dumps({"did": did, "purged": purged.messages})
        return web.Response(body=body, content_type="application/json")

    async def inspect(self, request: web.Request) -> web.Response:
        """``POST /memory``: what the hosts know; msgpack of ``actors.inspection``."""
        self.authorize(request)
        try:
            answer = await self._memory.answer(await request.read())
        except QuestionRefused as error:
            raise web.HTTPBadRequest from error
        except HostUnavailable:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE)
        return web.Response(body=answer, content_type="application/msgpack")

    def authorize(self, request: web.Request) -> None:
        """Let nobody pass without the operator's token.

        Raises:
            HTTPUnauthorized: the request carries another one, or none.
        """
        given = request.headers.get(hdrs.AUTHORIZATION, "").encode("utf-8", "surrogateescape")
        if not hmac.compare_digest(given, self._authorization):
            raise web.HTTPUnauthorized

    def _row(self, queue: WaitingQueue) -> dict[str, Any]:
        return {
            "did": queue.did,
            "messages": queue.messages,
            "bytes": queue.bytes,
            "oldest_age_s": self._age_s(queue.oldest_at_ms),
            "outbound": queue.outbound,
        }

    async def _agent(self, did: str) -> dict[str, Any] | None:
        """The identity as a DIDComm agent, None if it is none."""
        connected = await self._identities.ask(did, QueryConnection(), b"", Connected)
        state = await self._identities.ask(did, QueryQueue(), b"", QueueState)
        if isinstance(connected, Refusal) or isinstance(state, Refusal):
            return None
        policy = state.policy
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
            "will_queue": policy.will_queue,
            "age_s_max": policy.age_s_max,
            "messages_max": policy.messages_max,
            "message_bytes_max": policy.message_bytes_max,
            "bytes_max": policy.bytes_max,
        }

    def _age_s(self, at_ms: int) -> float | None:
        return max(0.0, (self._clock() - at_ms) / 1000) if at_ms else None
