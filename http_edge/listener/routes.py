"""The routes that a protocol family declares and ``HttpListener`` serves, and how it finds one.

A route has a method, a path, a handler and a kind: ``PlainRoute`` for a request without a body,
``BodyRoute`` for a POST whose body the listener receives within its bounds, ``SocketRoute`` for a
WebSocket. The listener adds CORS headers, the request id, rates, bounds and errors.

A path that ends in ``/``, other than ``/`` itself, stands for every longer path.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import Final, Literal, NamedTuple, Self, TypeAlias

from aiohttp import hdrs, web

JSON: Final = "application/json"
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
BodyHandler: TypeAlias = Callable[[web.Request, bytes], Awaitable[web.StreamResponse]]
Admission: TypeAlias = Callable[[web.Request], web.StreamResponse | None]
"""Refuses a request by its head alone, or returns None to let it pass."""
ErrorBody: TypeAlias = Callable[[str], bytes]
"""The JSON text of an error; the argument is the value of a ``Rejection``, or the name of another
HTTP status that a handler raised."""
_GET: Final = (hdrs.METH_GET, hdrs.METH_HEAD)
_POST: Final = (hdrs.METH_POST,)


class HttpReason(Enum):
    """A reason for which a request is rejected, with its answer over HTTP beside it."""

    status: HTTPStatus
    retry_after_s: int
    """``Retry-After`` in seconds, after which a retry may succeed; 0 for none."""

    def __new__(cls, reason: str, status: HTTPStatus, retry_after_s: int = 0) -> Self:
        """A member of a set of reasons."""
        member = object.__new__(cls)
        member._value_ = reason
        member.status, member.retry_after_s = status, retry_after_s
        return member


class Rejection(HttpReason):
    """Why the listener itself rejects a request; refusal counts use the values as reasons.

    A token bucket gives a more exact time for a retry.
    """

    MALFORMED = "MALFORMED", HTTPStatus.BAD_REQUEST
    """Not HTTP, or a head that is too long."""
    BODY_INCOMPLETE = "BODY_INCOMPLETE", HTTPStatus.BAD_REQUEST
    """The connection ended within the body."""
    BODY_TIMEOUT = "BODY_TIMEOUT", HTTPStatus.REQUEST_TIMEOUT
    BODY_TOO_LARGE = "BODY_TOO_LARGE", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    BODY_ENCODED = "BODY_ENCODED", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    """The body has a ``Content-Encoding``."""
    NOT_FOUND = "NOT_FOUND", HTTPStatus.NOT_FOUND
    METHOD_NOT_ALLOWED = "METHOD_NOT_ALLOWED", HTTPStatus.METHOD_NOT_ALLOWED
    EXPECTATION_FAILED = "EXPECTATION_FAILED", HTTPStatus.EXPECTATION_FAILED
    """``Expect`` has another value than ``100-continue``."""
    UPGRADE_REQUIRED = "UPGRADE_REQUIRED", HTTPStatus.UPGRADE_REQUIRED
    """The path of a WebSocket without an upgrade."""
    RATE_LIMITED = "RATE_LIMITED", HTTPStatus.TOO_MANY_REQUESTS, 1
    TOO_BUSY = "TOO_BUSY", HTTPStatus.SERVICE_UNAVAILABLE, 1
    """The edge drains, or is at a limit of what it works on: no handler has seen the request."""
    INTERNAL_ERROR = "INTERNAL_ERROR", HTTPStatus.INTERNAL_SERVER_ERROR


def retry_after_s(wait_s: float) -> int:
    """Seconds for ``Retry-After``: the wait for a token, rounded up, and at least one."""
    return max(1, int(wait_s + 0.999))


@dataclass(frozen=True, slots=True)
class PlainRoute:
    """A request without a body, or with a small body that the handler reads itself.

    ``per_address_per_s`` is a rate limit of this route for each client address, in addition to that
    of all requests; None sets no further limit.
    """

    method: Literal["GET", "POST"]
    path: str
    handle: Handler
    per_address_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class BodyRoute:
    """A POST whose body the listener receives and counts before it calls the handler."""

    path: str
    handle: BodyHandler
    refuse: Admission | None = None


@dataclass(frozen=True, slots=True)
class SocketRoute:
    """A GET that becomes a WebSocket; the handler serves it until it closes."""

    path: str
    handle: Handler
    refuse: Admission | None = None


Route: TypeAlias = PlainRoute | BodyRoute | SocketRoute


@dataclass(frozen=True, slots=True)
class RouteGroup:
    """The routes of one protocol family, or of operators.

    ``protocol`` names the group in counts and measures (``telemetry.refusal_counts.PROTOCOLS``).
    """

    protocol: str
    routes: Sequence[Route]


class Served(NamedTuple):
    """The handlers of one declared path by method, and the group that declares it."""

    path: str
    group: RouteGroup
    handlers: dict[str, Handler]


class Router:
    """The declared paths of one listener; finds the route of a request by its whole path.

    aiohttp's router looks for a shorter path for every ``/`` of an unknown one, before any
    middleware: a head of 16 KB took 40 ms. This one takes as long for any path.
    """

    def __init__(self) -> None:
        self._at: dict[str, Served] = {}
        self._below: dict[str, Served] = {}

    def add(self, route: Route, group: RouteGroup, handler: Handler) -> None:
        """Serve a route with this handler; a GET answers HEAD, too."""
        is_below = route.path.endswith("/") and route.path != "/"
        table = self._below if is_below else self._at
        served = table.setdefault(route.path, Served(route.path, group, {}))
        is_get = isinstance(route, SocketRoute) or (
            isinstance(route, PlainRoute) and route.method == hdrs.METH_GET
        )
        served.handlers.update(dict.fromkeys(_GET if is_get else _POST, handler))

    def find(self, path: str) -> Served | None:
        """Return what is declared for a decoded path, or None."""
        if (served := self._at.get(path)) is not None:
            return served
        for prefix, served in self._below.items():
            if path.startswith(prefix) and path != prefix:
                return served
        return None
