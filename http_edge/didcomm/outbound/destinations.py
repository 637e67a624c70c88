"""Checked delivery of one message to one endpoint, by POST or WebSocket (RFC 0025).

A stranger names the endpoint. An endpoint must be a URL that all parsers read alike, so that the
checked host is the host that is connected to. Then: one look-up of its name, public addresses of
other machines only (or those of networks that the operator allows), connections only to the
looked-up addresses, no redirect, no proxy, no cookie, a bounded time, no reading of the answer's
body, and bounds on the deliveries under way (``slots``) to each address, so that many names for
one host gain nothing.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import aiohttp
from aiohttp import hdrs
from yarl import URL

from http_edge.crypto.tls import trusted_by_this_machine
from http_edge.didcomm.envelopes.versions import media_type_of
from http_edge.didcomm.outbound.slots import Slots, Turn
from http_edge.dids.addresses import CheckedNames, Lookup, Permitted, lookup_in_threads, may_reach
from http_edge.dids.bounded_answers import BoundedConnector, plain_session
from http_edge.settings.settings import Outbound

CHARS_MAX: Final = 2_048
SOCKET_SCHEMES: Final = frozenset({"ws", "wss"})
# One scheme, one host, maybe a port; no user, and no character that some parser drops or changes.
_SHAPE: Final = re.compile(
    r"(?:https?|wss?)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:[/?#][!#-;=?-\[\]_a-z~]*)?\Z",
    re.IGNORECASE | re.ASCII,
)
# A last label of only digits would be an address in an old spelling ("127.1").
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*"
    r"(?![0-9]+\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z",
    re.IGNORECASE | re.ASCII,
)
_HEADERS: Final = {"User-Agent": "poste"}
_ADDRESSES_MAX: Final = 4
"""Addresses of one name that are tried; each has bounds of its own."""
_ANSWER_BYTES_MAX: Final = 16_384
"""Bytes read of one answer, head and frames included: its status, or one frame that closes."""
_REFUSALS: Final = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.CONFLICT,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.INTERNAL_SERVER_ERROR,
    }
)
_DECLINES: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.GONE})
_CLOSE_ACCEPTANCES: Final = frozenset({0, aiohttp.WSCloseCode.OK})
"""The library reads a close frame without a code, which is valid (RFC 6455), as 0."""
_CLOSE_STATUSES_FROM: Final = 4_000
"""A mediator such as this one closes a socket with so much more than the status over HTTP."""
_CLOSE_REFUSALS: Final = frozenset(
    {
        aiohttp.WSCloseCode.UNSUPPORTED_DATA,
        aiohttp.WSCloseCode.INVALID_TEXT,
        aiohttp.WSCloseCode.POLICY_VIOLATION,
        aiohttp.WSCloseCode.MESSAGE_TOO_BIG,
        aiohttp.WSCloseCode.INTERNAL_ERROR,
    }
)


class DeliveryOutcome(Enum):
    """The outcome of a delivery. All but ``ACCEPTED`` leave the message in its queue."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The endpoint works but refuses this message: ACA-Py answers 400, in some versions 500, to an
    envelope that it cannot open."""
    DECLINED = "declined"
    """404 or 410: what a mediator answers for a recipient that it does not know, or a message that
    has expired, and what a proxy answers for every message while its server is away."""
    UNAVAILABLE = "unavailable"
    """The answer says nothing about the message, or broke off; a redirect, for example."""
    NOT_REACHED = "not_reached"
    TIMED_OUT = "timed_out"


_ANSWERS: Final = frozenset({DeliveryOutcome.ACCEPTED, DeliveryOutcome.REFUSED})


def read_endpoint(text: str) -> URL | None:
    """Parse an http, https, ws or wss URL with a host and without user information, else None."""
    if len(text) > CHARS_MAX or not _SHAPE.match(text):
        return None
    try:
        url = URL(text)
    except ValueError:
        return None
    host = hostname_of(url)
    if not url.port or not (is_address(host) or _NAME.match(host)):
        return None
    return url.with_fragment(None)


def hostname_of(url: URL) -> str:
    """Return the host of an endpoint, without brackets; no other part of it may be logged."""
    return url.raw_host or ""


def is_address(host: str) -> bool:
    """Say whether a host is a numeric address, in its one usual spelling."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # an address with a zone means another host elsewhere


class Destination:
    """An endpoint with known and permitted addresses, for a few messages one by one."""

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: URL, timeout_s: float, turn: Turn
    ) -> None:
        """Deliver through ``session``, each message in at most ``timeout_s``, in this turn."""
        self._session = session
        self._turn = turn
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    async def send(self, envelope: bytes) -> DeliveryOutcome:
        """Deliver one envelope; return every failure as an outcome."""
        outcome = await self._turn.timed(self._outcome(envelope)) or DeliveryOutcome.TIMED_OUT
        if outcome in _ANSWERS:
            self._turn.answered()
        elif outcome is DeliveryOutcome.TIMED_OUT:
            self._turn.timed_out()
        return outcome

    async def _outcome(self, envelope: bytes) -> DeliveryOutcome:
        is_socket = self._endpoint.scheme in SOCKET_SCHEMES
        try:
            async with asyncio.timeout(self._timeout_s):
                return await (self._send_frame(envelope) if is_socket else self._post(envelope))
        except TimeoutError:
            return DeliveryOutcome.TIMED_OUT
        except aiohttp.ClientConnectorError:
            return DeliveryOutcome.NOT_REACHED
        except (aiohttp.ClientError, OSError):
            return DeliveryOutcome.UNAVAILABLE

    async def _post(self, envelope: bytes) -> DeliveryOutcome:
        # The body of the answer is not read: closing the response drops it.
        async with self._session.post(
            self._endpoint,
            data=io.BytesIO(envelope),
            headers={hdrs.CONTENT_TYPE: media_type_of(envelope)},
            allow_redirects=False,
        ) as response:
            if HTTPStatus.OK <= response.status < HTTPStatus.MULTIPLE_CHOICES:
                return DeliveryOutcome.ACCEPTED
            return _failure(response.status)

    async def _send_frame(self, envelope: bytes) -> DeliveryOutcome:
        """Open a socket for one binary frame; the closing handshake confirms its reception."""
        async with self._session.ws_connect(
            self._endpoint,
            timeout=aiohttp.ClientWSTimeout(ws_close=self._timeout_s),
            max_msg_size=_ANSWER_BYTES_MAX,
        ) as websocket:
            await websocket.send_bytes(envelope)
            await websocket.close()
            code = websocket.close_code
        if code in _CLOSE_ACCEPTANCES:
            return DeliveryOutcome.ACCEPTED
        if code in _CLOSE_REFUSALS:
            return DeliveryOutcome.REFUSED
        return _failure((code or 0) - _CLOSE_STATUSES_FROM)


def _failure(status: int) -> DeliveryOutcome:
    """Return what an HTTP status that is no success says."""
    if status in _DECLINES:
        return DeliveryOutcome.DECLINED
    return DeliveryOutcome.REFUSED if status in _REFUSALS else DeliveryOutcome.UNAVAILABLE


class Destinations:
    """Makes the destinations of one edge, within the bounds of deliveries under way.

    ``lookup``, ``permitted`` and ``tls`` exist so that tests can run the same checks against a
    server on this machine.
    """

    def __init__(
        self,
        settings: Outbound,
        *,
        lookup: Lookup | None = None,
        permitted: Permitted | None = None,
        tls: ssl.SSLContext | None = None,
        via: str = "",
    ) -> None:
        """Deliver within the operator's settings; ``via`` is this mediator's pseudonym."""
        self._settings = settings
        self._headers = {**_HEADERS, hdrs.VIA: f"1.1 {via}"} if via else _HEADERS
        self._permitted = permitted or self._is_allowed
        # As many threads as slots: no look-up waits for the thread of another one.
        threads_max = settings.in_flight_max + settings.in_flight_slow_max
        self._lookup = lookup or lookup_in_threads("endpoint-names", threads_max)
        self._tls = tls or trusted_by_this_machine()
        self._slots = Slots(settings)

    def is_quick(self, endpoint: URL, agent: str) -> bool:
        """Did an agent's endpoint answer quickly the last time?"""
        return self._slots.is_quick(agent, str(endpoint))

    @asynccontextmanager
    async def to(self, endpoint: URL, agent: str = "") -> AsyncIterator[Destination | None]:
        """Yield the destination at an agent's endpoint, None if it has no permitted address.

        Wait for the endpoint's turn, and keep the turn until the context ends.
        """
        async with self._slots.turn(agent, str(endpoint)) as turn:
            addresses = await self._addresses(endpoint, turn)
            if not addresses:
                yield None
                return
            await turn.take(set(addresses))
            async with _session(addresses, self._tls, self._headers) as session:
                yield Destination(session, endpoint, self._settings.timeout_s, turn)

    async def _addresses(self, endpoint: URL, turn: Turn) -> Sequence[str]:
        host, port = hostname_of(endpoint), endpoint.port or 0
        if is_address(host):
            return [host] if self._permitted(host, port) else []
        await turn.take({host})
        lookup = asyncio.ensure_future(self._lookup(host, port))
        names = CheckedNames(lambda *_: asyncio.shield(lookup), self._permitted)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                found = await turn.timed(names.resolve(host, port)) or []
            return [each["host"] for each in found[:_ADDRESSES_MAX]]
        except OSError as error:
            if isinstance(error, TimeoutError):
                turn.timed_out()
            return []
        finally:
            # Its thread cannot be stopped: the name service may answer long after the time limit.
            turn.give_back_after(lookup)

    def _is_allowed(self, address: str, port: int) -> bool:
        if may_reach(address, port):
            return True
        parsed = ip_address(address)
        return any(parsed in network for network in self._settings.allowed_networks)


def _session(
    addresses: Sequence[str], tls: ssl.SSLContext, headers: Mapping[str, str]
) -> aiohttp.ClientSession:
    """Open a session that reaches only these addresses, even if the name has changed since."""

    async def known(_host: str, _port: int) -> Sequence[str]:
        return addresses

    def open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
        # The last check, however the library has read names, literals and answers.
        family, kind, protocol, _, place = address
        if place[0] not in addresses:
            raise OSError("not an address of this destination")
        return socket.socket(family, kind, protocol)

    connector = BoundedConnector(
        _ANSWER_BYTES_MAX,
        resolver=CheckedNames(known, lambda *_: True),
        use_dns_cache=False,
        ssl=tls,
        limit=1,
        socket_factory=open_socket,
    )
    return plain_session(connector, headers, _refuse_redirect)


async def _refuse_redirect(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Refuse redirects, which the library always follows when it opens a WebSocket."""
    response = await handler(request)
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        response.close()
        raise aiohttp.ClientError("redirected")
    return response
