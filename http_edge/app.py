"""The HTTP surface of DCTRL-0004 section 3: routes, CORS, and errors in the protocol's form.

Whatever goes wrong in a handler becomes a JSON error here, in one place; every answer carries the
CORS headers, errors and unknown paths included, because a browser hides an answer without them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from time import perf_counter
from typing import Any, Final, TypeAlias

import orjson
from aiohttp import hdrs, web

from actors.clock import Clock, NewId
from actors.commands import Read
from actors.refusals import Refusal
from http_edge import export_status, request_id
from http_edge.client_address import ClientAddress
from http_edge.config import Settings
from http_edge.decentrl import answers, public_reading
from http_edge.decentrl.commands import CommandFront
from http_edge.decentrl.errors import Answer, error_body, refuse
from http_edge.decentrl.sockets import SocketFront
from http_edge.didcomm import front, mediation
from http_edge.didcomm.mediation import Mediation
from http_edge.edge_report import EdgeMeasures
from http_edge.gateway import Gateway
from http_edge.health import Health
from http_edge.in_flight import InFlight
from http_edge.operators import OperatorFront
from http_edge.rate_limits import RateLimit
from http_edge.refusal_counts import DECENTRL, DIDCOMM, PROTOCOLS, RefusalCounts
from http_edge.shards import ShardFront

_LOG = logging.getLogger(__name__)
JSON: Final = "application/json"
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Work: TypeAlias = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "::ffff:127.0.0.1"})
_INVITATION: Final = "/invitation"
_DIDCOMM_PATHS: Final = frozenset({mediation.PATH, _INVITATION})
_TOO_BUSY: Final = refuse(Refusal.TEMPORARILY_UNAVAILABLE)
_NOT_BEGUN: Final = "TOO_BUSY"
"""The reason of what was not even begun; nothing is counted whose outcome is unknown."""


def respond(answer: Answer) -> web.Response:
    """An answer as an HTTP response."""
    response = web.Response(status=answer.status, body=answer.body, content_type=JSON)
    if answer.retry_after_s is not None:
        response.headers[hdrs.RETRY_AFTER] = str(answer.retry_after_s)
    return response


class HttpSurface:
    """The handlers of one edge."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: Settings,
        document: bytes,
        commands: CommandFront,
        sockets: SocketFront,
        gateway: Gateway,
        health: Health,
        *,
        operators: OperatorFront,
        shards: ShardFront,
        didcomm: Mediation | None,
        clock: Clock,
        new_id: NewId,
        refusals: RefusalCounts,
        measures: EdgeMeasures,
    ) -> None:
        """The surface of one mediator; ``document`` is its DID document as JSON.

        ``refusals`` counts what is refused before anybody reads it.
        """
        self._settings = settings
        self._limits = settings.limits
        self._document = document
        self._commands = commands
        self._notices = sockets
        self._gateway = gateway
        self._health = health
        self._operators = operators
        self._shards = shards
        self._mediation = didcomm
        self._clock = clock
        self._new_id = new_id
        self._refusals = refusals
        self._measures = measures
        self._address = ClientAddress(settings.rates.trusted_proxies)
        rates = settings.rates
        self._requests = _limit(settings, rates.per_address_per_s)
        self._public_reads = _limit(settings, rates.public_reads_per_address_per_s)
        self._upgrades = _limit(settings, rates.sockets_auth_per_address_per_s)
        self.in_flight = InFlight(
            requests_max=settings.limits.commands_in_flight_max,
            bytes_max=settings.limits.bodies_bytes_max,
        )
        self._receiving: Counter[str] = Counter()
        self.sockets_open: Counter[str] = Counter(dict.fromkeys(PROTOCOLS, 0))
        self._sockets: Counter[str] = Counter()
        self.draining = False

    def application(self) -> web.Application:
        """The application with all its routes."""
        app = web.Application(
            middlewares=[self._guard], client_max_size=self._limits.body_bytes_max
        )
        app.on_response_prepare.append(self._allow_origin)
        app.router.add_post("/", self._command)
        app.router.add_get("/", self._did_document)
        app.router.add_get("/.well-known/did.json", self._did_document)
        app.router.add_get("/health", self._health_check)
        app.router.add_get("/livez", self._live_check)
        app.router.add_get("/readyz", self._ready_check)
        app.router.add_get("/status", self._status)
        app.router.add_get("/queues", self._queues)
        app.router.add_post("/queues/purge", self._purge)
        app.router.add_post("/memory", self._memory)
        app.router.add_get("/shards", self._show_shards)
        app.router.add_post("/shards/{order:move|drain|undrain}", self._order_shards)
        app.router.add_post("/identities/{order:dedicate|release}", self._order_identity)
        app.router.add_get("/public/{did:.+}", self._public_events)
        app.router.add_get("/ws", self._socket)
        if self._mediation is not None:
            app.router.add_post(mediation.PATH, self._envelope)
            app.router.add_get(mediation.PATH, self._envelope_socket)
            app.router.add_get(_INVITATION, self._mediation.page.handle)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Name the request, and have it answered whatever happens."""
        request_id.begin(request.headers.get(request_id.HEADER), self._new_id)
        response = await self._guarded(request, handler)
        if _LOG.isEnabledFor(logging.DEBUG):
            resource = request.match_info.route.resource
            path = resource.canonical if resource is not None else ""
            about = {"method": request.method, "path": path, "status": response.status}
            _LOG.debug("request answered", extra=about)
        return response

    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Rates before the handler; any failure after it becomes a JSON error."""
        wait_s = self._take(self._requests, request)
        if wait_s is not None:
            return respond(refuse(Refusal.RATE_LIMITED, wait_s))
        if request.method == hdrs.METH_OPTIONS:
            # Of every path, and without a route: one that matches any path would make an
            # unknown path a 405.
            return _preflight()
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge:
            self._count(request, "BODY_TOO_LARGE")
            return _error(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, Refusal.INVALID_COMMAND.value)
        except web.HTTPException as error:
            status = HTTPStatus(error.status)
            response = _error(status, _CODES.get(status, status.name))
            if hdrs.ALLOW in error.headers:
                response.headers[hdrs.ALLOW] = error.headers[hdrs.ALLOW]
            return response
        except ConnectionError:
            raise
        except Exception:  # noqa: BLE001 - the last resort: logged, and an error in JSON
            _LOG.exception("request failed")
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR, "INTERNAL_ERROR")

    async def _allow_origin(self, _: web.Request, response: web.StreamResponse) -> None:
        response.headers[request_id.HEADER] = request_id.current()
        response.headers[hdrs.SERVER] = "poste"  # not what runs it, in which version
        response.headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = (
            self._settings.protocol.cors_allowed_origin
        )

    async def _did_document(self, _: web.Request) -> web.Response:
        return web.Response(body=self._document, content_type=JSON)

    async def _health_check(self, _: web.Request) -> web.Response:
        detail = "draining" if self.draining else await self._health.detail()
        return _check(detail)

    async def _live_check(self, _: web.Request) -> web.Response:
        """This process takes requests: whoever asks would restart it otherwise."""
        return _check(None)

    async def _ready_check(self, _: web.Request) -> web.Response:
        """Requests are worth sending here: some of them, at least, can be answered."""
        return _check("draining" if self.draining else await self._health.unready())

    async def _queues(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        return await self._operators.show(request)

    async def _purge(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        return await self._operators.purge(request)

    async def _memory(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        return await self._operators.inspect(request)

    async def _show_shards(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        self._operators.authorize(request)
        return await self._shards.show()

    async def _order_shards(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        self._operators.authorize(request)
        return await self._shards.order(request)

    async def _order_identity(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        self._operators.authorize(request)
        return await self._shards.order_identity(request)

    async def _status(self, request: web.Request) -> web.Response:
        _only_from_here(request)
        figures = await self._health.figures()
        figures["refusals_of_this_edge"] = self._refusals.total
        if self._mediation is not None:
            figures["outbound"] = self._mediation.outbound()
        if self._settings.export.to is not None:
            figures["export"] = self._export_figures(figures)
        return web.Response(body=orjson.dumps(figures), content_type=JSON)

    def _export_figures(self, figures: dict[str, Any]) -> dict[str, Any]:
        """Of several databases each has its own."""
        positions = figures.get("log_positions", [figures.get("log_position")])
        data_dir, now_ms = self._settings.data_dir, self._clock()
        each = export_status.figures_by_database(data_dir, positions, now_ms)
        return each[0] if len(each) == 1 else {"databases": each}

    async def _command(self, request: web.Request) -> web.StreamResponse:
        return await self._work(request, self._answer_command)

    async def _answer_command(self, _: web.Request, body: bytes) -> web.StreamResponse:
        return respond(await self._commands.handle(body))

    async def _envelope(self, request: web.Request) -> web.StreamResponse:
        assert self._mediation is not None
        if self._mediation.comes_round(request):
            return self._refuse_envelope(request, HTTPStatus.CONFLICT, "message-loop")
        named = request.headers.get(hdrs.CONTENT_TYPE, "")
        # Most say it plainly; to take it apart costs more than to look it up.
        if named not in front.MEDIA_TYPES and request.content_type not in front.MEDIA_TYPES:
            status = HTTPStatus.UNSUPPORTED_MEDIA_TYPE
            return self._refuse_envelope(request, status, "unsupported-media-type")
        return await self._work(request, self._mediation.front.handle)

    async def _work(self, request: web.Request, answer: Work) -> web.StreamResponse:
        """Receive a body and have it answered, within the bounds of what is under way at once."""
        body = await self._body(request)
        if isinstance(body, web.Response):
            return body
        # Only what has arrived counts: nobody keeps others out by announcing a body.
        if self.draining or not self.in_flight.has_room(len(body)):
            self._count(request, _NOT_BEGUN)
            return respond(_TOO_BUSY)
        started_s = perf_counter()
        token = self.in_flight.begin(len(body))
        try:
            return await answer(request, body)
        finally:
            self.in_flight.end(token, len(body))
            self._measures.answer[_protocol(request)].observe(perf_counter() - started_s)

    async def _body(self, request: web.Request) -> bytes | web.Response:
        if hdrs.CONTENT_ENCODING in request.headers:
            # A compressed body could be a bomb, and no client of this protocol sends one.
            self._count(request, "BODY_ENCODED")
            return _error(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, Refusal.INVALID_COMMAND.value)
        if (request.content_length or 0) > self._limits.body_bytes_max:
            raise web.HTTPRequestEntityTooLarge(self._limits.body_bytes_max)
        if request.content.is_eof():
            return await request.read()  # it came with the head: nothing to wait for
        address = self._address.of(request)
        if self._receiving[address] >= self._limits.bodies_per_address_max:
            self._count(request, Refusal.RATE_LIMITED.value)
            return respond(refuse(Refusal.RATE_LIMITED))
        self._receiving[address] += 1
        try:
            async with asyncio.timeout(self._limits.body_read_s_max):
                return await request.read()
        except TimeoutError:
            self._count(request, "BODY_TIMEOUT")
            response = _error(HTTPStatus.REQUEST_TIMEOUT, Refusal.INVALID_COMMAND.value)
            response.force_close()
            return response
        except ConnectionError:
            # The client went away; nobody reads this, and it is not worth a line in the log.
            response = _error(HTTPStatus.BAD_REQUEST, Refusal.INVALID_COMMAND.value)
            response.force_close()
            return response
        finally:
            self._receiving[address] -= 1
            if not self._receiving[address]:
                del self._receiving[address]

    async def _public_events(self, request: web.Request) -> web.Response:
        wait_s = self._take(self._public_reads, request)
        if wait_s is not None:
            return respond(refuse(Refusal.RATE_LIMITED, wait_s))
        # From the raw target: the router has decoded the path already.
        path = request.raw_path.partition("?")[0]
        query = public_reading.read(path.removeprefix("/public/"), request.query, self._limits)
        if query is None:
            self._count(request, Refusal.INVALID_COMMAND.value)
            return respond(refuse(Refusal.INVALID_COMMAND))
        page = await self._gateway.read(Read(query.did, query.page, query.where))
        return respond(answers.answer(page, query.page))

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        return await self._upgrade(request, self._notices.handle)

    async def _envelope_socket(self, request: web.Request) -> web.StreamResponse:
        assert self._mediation is not None
        if self._mediation.comes_round(request):
            return self._refuse_envelope(request, HTTPStatus.CONFLICT, "message-loop")
        return await self._upgrade(request, self._mediation.sockets.handle)

    async def _upgrade(self, request: web.Request, serve: Handler) -> web.StreamResponse:
        """Serve a socket, within the bounds of how many there may be."""
        if not web.WebSocketResponse().can_prepare(request).ok:
            response = _error(HTTPStatus.UPGRADE_REQUIRED, "UPGRADE_REQUIRED")
            response.headers[hdrs.UPGRADE] = "websocket"
            return response
        wait_s = self._take(self._upgrades, request)
        if wait_s is not None:
            return respond(refuse(Refusal.RATE_LIMITED, wait_s))
        address = self._address.of(request)
        if (
            self.draining
            or self.sockets_open.total() >= self._limits.sockets_max
            or self._sockets[address] >= self._limits.sockets_per_address_max
        ):
            self._count(request, _NOT_BEGUN)
            return respond(_TOO_BUSY)
        protocol = _protocol(request)
        self.sockets_open[protocol] += 1
        self._sockets[address] += 1
        try:
            return await serve(request)
        finally:
            self.sockets_open[protocol] -= 1
            self._sockets[address] -= 1
            if not self._sockets[address]:
                del self._sockets[address]

    def close_sockets(self, code: int) -> None:
        """Close the sockets on which nobody is known yet, too."""
        if self._mediation is not None:
            self._mediation.sockets.close_all(code)

    def _take(self, rate: RateLimit, request: web.Request) -> float | None:
        """A token of the client's address, or the seconds until there is one."""
        wait_s = rate.take(self._address.of(request), self._clock() / 1000)
        if wait_s is not None:
            self._count(request, Refusal.RATE_LIMITED.value)
        return wait_s

    def _refuse_envelope(
        self, request: web.Request, status: HTTPStatus, code: str
    ) -> web.StreamResponse:
        self._count(request, code)
        return front.refusal(status, code)

    def _count(self, request: web.Request, reason: str) -> None:
        """Count a request that was refused unread: of nobody, and for nothing known."""
        self._refusals.count(_protocol(request), "", reason)


_CODES: Final = {
    HTTPStatus.NOT_FOUND: "NOT_FOUND",
    HTTPStatus.METHOD_NOT_ALLOWED: "METHOD_NOT_ALLOWED",
}


def _limit(settings: Settings, per_s: float) -> RateLimit:
    return RateLimit(per_s, burst_s=settings.rates.burst_s, keys_max=settings.rates.keys_max)


def _protocol(request: web.Request) -> str:
    return DIDCOMM if request.path in _DIDCOMM_PATHS else DECENTRL


def _check(trouble: str | None) -> web.Response:
    """The answer to a check of health: what is wrong, if anything is."""
    said = {"status": "ok"} if trouble is None else {"status": "error", "detail": trouble}
    status = HTTPStatus.OK if trouble is None else HTTPStatus.SERVICE_UNAVAILABLE
    return web.Response(status=status, body=orjson.dumps(said), content_type=JSON)


def _only_from_here(request: web.Request) -> None:
    """For the operator: on loopback alone, and not through a proxy."""
    if request.remote not in _LOOPBACK or hdrs.X_FORWARDED_FOR in request.headers:
        raise web.HTTPNotFound


def _preflight() -> web.Response:
    return web.Response(
        status=HTTPStatus.NO_CONTENT,
        headers={
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, OPTIONS",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: "Content-Type",
            hdrs.ACCESS_CONTROL_MAX_AGE: "86400",
        },
    )


def _error(status: HTTPStatus, code: str) -> web.Response:
    return web.Response(status=status, body=error_body(code), content_type=JSON)
