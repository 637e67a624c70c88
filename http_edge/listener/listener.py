"""The HTTP listener: identifies, rate-limits, routes and receives requests, and translates errors.

The listener knows no protocol. It serves route groups. Every exception of a handler but a lost
connection becomes a JSON error here. Unless CORS is off, every answer carries its headers, also an
error or one to an unknown path, because a browser hides an answer without them (DCTRL-0004 section
3).
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Sequence
from http import HTTPStatus
from time import perf_counter
from typing import Final

from aiohttp import HttpVersion11, hdrs, web
from aiohttp.web_protocol import RequestPayloadError
from typing_extensions import override

from actors.core.rate_limits import RateLimit
from actors.host.clock import Clock
from actors.host.vital_thread import end_process
from http_edge.dispatch.slots import counted
from http_edge.listener.address_charge import (
    AddressCharge,
    AddressRates,
    charge_body,
    charged_to,
    paying_address,
    rate_of,
)
from http_edge.listener.bounded_server import BoundedServer, Request, may_upgrade, say_continue
from http_edge.listener.client_address import ClientAddress
from http_edge.listener.connection import Connection, peer_of
from http_edge.listener.connections import Connections
from http_edge.listener.in_flight import InFlight
from http_edge.listener.routes import (
    JSON,
    BodyRoute,
    ErrorBody,
    Handler,
    PlainRoute,
    Rejection,
    Route,
    RouteGroup,
    Router,
    Served,
    SocketRoute,
    retry_after_s,
)
from http_edge.listener.transfers import Cut, Transfer
from http_edge.settings.settings import Settings
from http_edge.telemetry import request_id
from http_edge.telemetry.edge_measures import EdgeMeasures
from http_edge.telemetry.refusal_counts import RefusalCounts

_LOG = logging.getLogger(__name__)
# aiohttp logs the text of each client that names sub-protocols, of which this server has none.
logging.getLogger("aiohttp.websocket").setLevel(logging.ERROR)
_LIMITED_AT_ONCE: Final = 32
"""Refused requests of one address that wait equally long for their answers: each further group of
this size waits ``rates.limited_answer_s`` longer, up to ten times that."""
_LIMITED_TIMES_MAX: Final = 10
_LIMITED_MAX: Final = _LIMITED_AT_ONCE * _LIMITED_TIMES_MAX
"""Connections beyond are cut: thousands of waiting requests are a hundred thousand objects, and
each garbage collection of them stops the edge for 50 ms."""
_CONTINUE: Final = "100-continue"
_UNREAD_BYTES: Final = 64 * 1024
"""The longest body that is still read after its request was answered, to keep the connection."""
_UNREAD_S: Final = 0.5
"""How long a client that still sends a longer body may take to read the answer."""

_CUT_BODY: Final[dict[Cut, Rejection]] = {
    Cut.SLOW: Rejection.BODY_TIMEOUT,
    Cut.BYTES_PER_ADDRESS: Rejection.RATE_LIMITED,
    Cut.BYTES: Rejection.TOO_BUSY,
}


class HttpListener:
    """Serves the routes of one edge."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: Settings,
        groups: Sequence[RouteGroup],
        in_flight: InFlight,
        *,
        clock: Clock,
        refusals: RefusalCounts,
        measures: EdgeMeasures,
        error_body: ErrorBody,
        cors: bool = True,
    ) -> None:
        """A listener for route groups; with ``cors``, pages of other origins may read its answers.

        Requests to unknown paths count for the first group. ``refusals`` counts requests that are
        rejected before a handler sees them; ``error_body`` writes the answers to them.
        """
        self._settings = settings
        self._limits = settings.limits
        self._groups = groups
        self._in_flight = in_flight
        self._clock = clock
        self._refusals = refusals
        self._measures = measures
        self._error_body = error_body
        # Not the server software and its version.
        self._headers: dict[str, str] = {hdrs.SERVER: "poste"}
        if cors:
            origin = settings.protocol.cors_allowed_origin
            self._headers[hdrs.ACCESS_CONTROL_ALLOW_ORIGIN] = origin
            # Without this a script in a browser cannot read when to try again.
            self._headers[hdrs.ACCESS_CONTROL_EXPOSE_HEADERS] = hdrs.RETRY_AFTER
        self._cors = cors
        self._address = ClientAddress(settings.rates.trusted_proxies)
        self.connections = Connections(
            settings.limits,
            in_flight.bodies,
            address_of=self._address.of_connection,
            affords=lambda address, new: self._rates.has_unproven(address, self._now_s(), new),
            on_cut=measures.cuts.add,
            headers=self._headers,
        )
        self._rates = AddressRates(settings.rates, settings.edges)
        self._limited: Counter[str] = Counter()
        self._upgrades = self._rate(settings.rates.sockets_auth_per_address_per_s)
        self._router = Router()
        for group in groups:
            in_flight.sockets.setdefault(group.protocol, 0)
            for route in group.routes:
                self._router.add(route, group, self._handler(route, group))
        self._server = BoundedServer(
            self._guard, self._answer_malformed, self.connections, settings.limits, _Request
        )

    async def start(self, listening: socket.socket) -> None:
        """Accept connections on a listening socket, within the limits."""
        await self._server.start(listening)

    async def stop(self) -> None:
        """Stop accepting connections, and end the open ones."""
        await self._server.stop()

    def _handler(self, route: Route, group: RouteGroup) -> Handler:
        """Wrap the handler of a route in the limits of its kind."""
        match route:
            case PlainRoute():
                return self._rated(route)
            case BodyRoute():
                return self._receiving(route, group)
            case SocketRoute():
                return self._upgrading(route, group)

    async def _guard(self, request: web.BaseRequest) -> web.StreamResponse:
        """Give the request an id, and answer it whatever happens."""
        assert isinstance(request, web.Request)
        request_id.begin(request.headers.get(request_id.HEADER))
        response = await self._guarded(request)
        if not request.content.is_eof():
            await self._answer_unread(request, response)
        # A proxy of HTTP/1.0 may take what follows chunks for a part of the body (RFC 9112 6.1);
        # the parser of aiohttp drops what the same read brought behind an upgrade.
        is_ambiguous = request.version < HttpVersion11 and hdrs.TRANSFER_ENCODING in request.headers
        if is_ambiguous or hdrs.UPGRADE in request.headers:
            response.force_close()
            peer_of(request).close()
        if _LOG.isEnabledFor(logging.DEBUG):
            served = self._served(request)
            path = "" if served is None else served.path
            about = {"method": request.method, "path": path, "status": response.status}
            _LOG.debug("request answered", extra=about)
        return response

    async def _guarded(self, request: web.Request) -> web.StreamResponse:
        """Apply the rate limit and run the handler; exceptions become JSON errors."""
        address = self._address.of(request)
        refused = await self._charged(request, address)
        if refused is not None:
            return refused
        charged_to(AddressCharge(self._rates, address, self._now_s))
        if request.method == hdrs.METH_OPTIONS and self._cors:
            # Not a route for OPTIONS: one that matches any path would make an unknown path a 405.
            return _preflight()
        try:
            return await self._handled(request)
        except web.HTTPRequestEntityTooLarge:
            return self._reject(request, Rejection.BODY_TOO_LARGE)
        except web.HTTPException as error:
            status = HTTPStatus(error.status)
            return self._written(status, status.name)
        except RequestPayloadError:
            return self._error(Rejection.MALFORMED)
        except ConnectionError:
            raise
        except MemoryError as error:
            end_process("a request ran out of memory", error)
        except Exception:  # noqa: BLE001 - the last resort: logged, and an error in JSON
            _LOG.exception("request failed")
            return self._error(Rejection.INTERNAL_ERROR)

    async def _handled(self, request: web.Request) -> web.StreamResponse:
        """Run the handler of the path and method, if there is one."""
        served = self._served(request)
        if served is None:
            return self._error(Rejection.NOT_FOUND)
        handler = served.handlers.get(request.method)
        if handler is None:
            response = self._error(Rejection.METHOD_NOT_ALLOWED)
            response.headers[hdrs.ALLOW] = ",".join(sorted(served.handlers))
            return response
        if request.headers.get(hdrs.EXPECT, _CONTINUE).lower() != _CONTINUE:
            response = self._error(Rejection.EXPECTATION_FAILED)
            response.force_close()
            return response
        return await handler(request)

    async def _answer_malformed(self, request: web.BaseRequest, status: int) -> web.StreamResponse:
        """Answer malformed HTTP, which costs its address what any request costs: it takes as long.

        What a trusted proxy forwards costs nothing, because the client cannot be read from it.
        """
        assert isinstance(request, web.Request)
        address = self._address.of_connection(request.remote or "")
        refused = None if address is None else await self._charged(request, address)
        if refused is not None:
            return refused
        return self._written(status, Rejection.MALFORMED.value)

    async def _charged(self, request: web.Request, address: str) -> web.Response | None:
        """Take a token of the address; if there is none, return the refusal after a delay."""
        peer = peer_of(request)
        peer.address = address
        wait_s = self._rates.requests.take(address, self._now_s())
        self.connections.pays(peer)
        if wait_s is None:
            return None
        await self._take_time(peer)
        return self._reject(request, Rejection.RATE_LIMITED, wait_s)

    async def _take_time(self, peer: Connection) -> None:
        """Delay the refusal of a request whose address exceeds its rate.

        A client that is refused at once retries at once, and a refusal costs nearly as much as a
        served request. The delay limits the refusals per second on a connection, and grows with
        the number that wait. If hundreds wait already, the connection is cut unless it is a
        proxy's; once as many wait as an address may have connections, further ones wait only as
        long as the first.
        """
        address = peer.address
        waiting = self._limited[address]
        if waiting >= _LIMITED_MAX and not peer.is_shared:
            peer.cut(Cut.OWING)
            return
        is_full = waiting >= self._settings.limits.connections_per_address_max
        times = 1 if is_full else min(1 + waiting // _LIMITED_AT_ONCE, _LIMITED_TIMES_MAX)
        with counted(self._limited, address):
            await asyncio.sleep(self._settings.rates.limited_answer_s * times)

    async def _answer_unread(self, request: web.Request, response: web.StreamResponse) -> None:
        """Answer a request before its body has arrived, and do not read a long body.

        A client that sends megabytes would keep the edge busy with a refused body. Instead the
        kernel holds the client back; it can read the answer, and is reset if it goes on sending.
        A client that waited to be asked for its body may not send it at all.
        """
        if hdrs.EXPECT in request.headers:
            response.force_close()
        if (request.content_length or _UNREAD_BYTES + 1) <= _UNREAD_BYTES:
            return
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        await asyncio.sleep(_UNREAD_S)
        peer_of(request).cut(Cut.UNREAD)

    def _rated(self, route: PlainRoute) -> Handler:
        if route.per_address_per_s is None:
            return route.handle
        rate, handle = self._rate(route.per_address_per_s), route.handle

        async def rated(request: web.Request) -> web.StreamResponse:
            limited = self._take(rate, peer_of(request).address, request)
            return await handle(request) if limited is None else limited

        return rated

    def _receiving(self, route: BodyRoute, group: RouteGroup) -> Handler:
        """Receive a body and call the handler, within the limits of requests in flight."""
        in_flight, handle, refuse = self._in_flight, route.handle, route.refuse
        answered = self._measures.answer[group.protocol]

        async def received(request: web.Request) -> web.StreamResponse:
            refused = None if refuse is None else refuse(request)
            if refused is not None:
                return refused
            address = peer_of(request).address
            body = await self._body(request, address)
            if isinstance(body, web.Response):
                return body
            try:
                if not in_flight.has_room:
                    return self._reject(request, Rejection.TOO_BUSY)
                payer = paying_address() or None
                if not in_flight.slots.has_one_for(payer):
                    return self._reject(request, Rejection.RATE_LIMITED)
                charge_body(len(body))
                started_s = perf_counter()
                with in_flight.request_of(peer_of(request), len(body), payer):
                    try:
                        return await handle(request, body)
                    finally:
                        answered.observe(perf_counter() - started_s)
            finally:
                in_flight.bodies.release(address, len(body))

        return received

    async def _body(self, request: web.Request, address: str) -> bytes | web.Response:
        """The body, whose bytes count until their release, or the answer that rejects it."""
        if hdrs.CONTENT_ENCODING in request.headers:
            # A compressed body could be a bomb, and no client of these protocols sends one.
            return self._reject(request, Rejection.BODY_ENCODED)
        if (request.content_length or 0) > self._limits.body_bytes_max:
            return self._reject(request, Rejection.BODY_TOO_LARGE)
        if request.content.is_eof():
            body = request.content.read_nowait()  # arrived with the head: nothing to wait for
            if len(body) > self._limits.body_bytes_max:
                return self._reject(request, Rejection.BODY_TOO_LARGE)
            refused = self._in_flight.bodies.take(address, len(body))
            return body if refused is None else self._reject(request, _CUT_BODY[refused])
        if not self._in_flight.has_room_for_body(address):
            return self._reject(request, Rejection.RATE_LIMITED)
        no_room = self._in_flight.bodies.no_room_for(address, request.content_length or 0)
        if no_room is not None:
            return self._reject(request, _CUT_BODY[no_room])
        try:
            await say_continue(request)
            arrived = await self._arriving(request, address)
            if isinstance(arrived, bytes):
                return arrived
            response = self._reject(request, arrived)
        except ConnectionError:
            # The client went away: no one reads this answer, and it is not worth a log line.
            response = self._error(Rejection.BODY_INCOMPLETE)
        response.force_close()
        return response

    async def _arriving(self, request: web.Request, address: str) -> bytes | Rejection:
        """Read a body as it arrives, or say why it was cut; each byte counts from its arrival.

        Raises:
            HTTPRequestEntityTooLarge: the body has no length in its head, and is too large.
        """
        bodies, chunks, causes = self._in_flight.bodies, list[bytes](), list[Cut]()
        loop, bytes_max = asyncio.get_running_loop(), self._limits.body_bytes_max

        def cut(cause: Cut) -> None:
            causes.append(cause)
            if not deadline.expired():  # else it wakes the task already
                deadline.reschedule(loop.time())

        body = Transfer(address, loop.time(), cut)
        try:
            async with asyncio.timeout(self._limits.body_read_s_max) as deadline:
                with self._in_flight.body_of(body):
                    while chunk := await request.content.readany():
                        body.moved_bytes += len(chunk)
                        if body.moved_bytes > bytes_max:
                            raise web.HTTPRequestEntityTooLarge(bytes_max, body.moved_bytes)
                        chunks.append(chunk)
                        bodies.grow(body, len(chunk))
                    if causes:
                        raise TimeoutError
        except TimeoutError:
            return _CUT_BODY[causes[0] if causes else Cut.SLOW]
        return b"".join(chunks)

    def _upgrading(self, route: SocketRoute, group: RouteGroup) -> Handler:
        """Serve a WebSocket, within the limits on open sockets."""
        in_flight, handle, refuse = self._in_flight, route.handle, route.refuse

        async def upgraded(request: web.Request) -> web.StreamResponse:
            refused = None if refuse is None else refuse(request)
            if refused is not None:
                return refused
            address = peer_of(request).address
            limited = self._take(self._upgrades, address, request)
            if limited is not None:
                return limited
            if not may_upgrade(request):
                response = self._error(Rejection.UPGRADE_REQUIRED)
                response.headers[hdrs.UPGRADE] = "websocket"
                response.headers[hdrs.CONNECTION] = "Upgrade, close"  # RFC 9110 7.8
                response.headers[hdrs.SEC_WEBSOCKET_VERSION] = "13"  # RFC 6455 4.4
                response.force_close()
                return response
            if not in_flight.has_room_for_socket(address):
                return self._reject(request, Rejection.TOO_BUSY)
            with in_flight.socket_of(address, group.protocol):
                return await handle(request)

        return upgraded

    def _rate(self, per_s: float) -> RateLimit:
        return rate_of(per_s, self._settings.rates, self._settings.edges)

    def _take(self, rate: RateLimit, address: str, request: web.Request) -> web.Response | None:
        """Take a token of the client's address; return the rejecting answer if there is none."""
        wait_s = rate.take(address, self._now_s())
        return None if wait_s is None else self._reject(request, Rejection.RATE_LIMITED, wait_s)

    def _now_s(self) -> float:
        return self._clock() / 1000

    def _reject(
        self, request: web.Request, rejection: Rejection, wait_s: float | None = None
    ) -> web.Response:
        """Count and answer a request that was not read: its sender and command are unknown."""
        self._refusals.count(self._group(request).protocol, "", rejection.value)
        return self._error(rejection, wait_s)

    def _error(self, rejection: Rejection, wait_s: float | None = None) -> web.Response:
        response = self._written(rejection.status, rejection.value)
        if wait_s is not None:
            response.headers[hdrs.RETRY_AFTER] = str(retry_after_s(wait_s))
        elif rejection.retry_after_s:
            response.headers[hdrs.RETRY_AFTER] = str(rejection.retry_after_s)
        return response

    def _written(self, status: int, code: str) -> web.Response:
        return web.Response(status=status, body=self._error_body(code), content_type=JSON)

    def _group(self, request: web.Request) -> RouteGroup:
        """The group that declares the path; unknown paths belong to the first group."""
        served = self._served(request)
        return self._groups[0] if served is None else served.group

    def _served(self, request: web.Request) -> Served | None:
        return self._router.find(request.rel_url.path_safe or "/")


class _Request(Request):
    """A request whose every answer has the header lines of its listener."""

    @override
    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        if name := request_id.current():  # malformed HTTP has none
            response.headers[request_id.HEADER] = name
        response.headers.update(peer_of(self).connections.headers)


def _preflight() -> web.Response:
    return web.Response(
        status=HTTPStatus.NO_CONTENT,
        headers={
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: "GET, POST, OPTIONS",
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: "Content-Type",
            hdrs.ACCESS_CONTROL_MAX_AGE: "86400",
        },
    )
