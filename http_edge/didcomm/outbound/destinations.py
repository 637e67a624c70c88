"""One message to one endpoint, by POST or WebSocket (RFC 0025), through every gate.

A stranger names the endpoint. What passes as one is a URL with one plain reading, so that the host
that is checked is the host that is connected to. Then: one look-up of its name, public addresses
only (or those of networks that the operator allows), connections to those very addresses, no
redirect, no proxy, no cookie, a bounded time, nothing read of what is answered, and bounds of
deliveries under way (``places``) for each address: many names for one host do not make it many.
"""

from __future__ import annotations

import asyncio
import io
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from enum import Enum
from http import HTTPStatus
from ipaddress import ip_address
from typing import Final

import aiohttp
from aiohttp import hdrs
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from http_edge.crypto.tls import trusted_by_this_machine
from http_edge.didcomm.envelopes.versions import media_type_of
from http_edge.didcomm.outbound.places import Places, Responsiveness, Turn
from http_edge.dids.addresses import CheckedNames, Lookup, is_public, lookup_in_threads
from http_edge.settings.settings import Outbound

CHARS_MAX: Final = 2_048
SOCKET_SCHEMES: Final = frozenset({"ws", "wss"})
# One scheme, one host, maybe a port; no user, and no character that some reader drops or changes.
_SHAPE: Final = re.compile(
    r"(?:https?|wss?)://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?(?:[/?#][!#-;=?-\[\]_a-z~]*)?\Z",
    re.IGNORECASE | re.ASCII,
)
# A last label of digits alone makes an address in an old spelling ("127.1") of a name.
_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*"
    r"(?![0-9]+\Z)[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z",
    re.IGNORECASE | re.ASCII,
)
_HEADERS: Final = {"User-Agent": "poste", "Accept-Encoding": "identity"}
_ADDRESSES_MAX: Final = 4
"""Addresses of one name that are tried; each is bounded on its own."""
_ANSWER_BYTES_MAX: Final = 65_536
"""A longer frame of the other side ends a WebSocket: nothing is expected there."""
_LOOKUPS_MAX: Final = 8
"""Threads for names at once, of endpoints that answer and of others; a look-up blocks its own."""
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
_CLOSE_ACCEPTANCES: Final = frozenset({0, aiohttp.WSCloseCode.OK})
"""0 is how the library reads a close frame without a code, which is a proper one (RFC 6455)."""
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
    """What became of a message. All but the first leave it in its queue."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    """The endpoint works and does not take this message: ACA-Py answers 400, in some versions 500,
    to an envelope that it cannot open."""
    UNAVAILABLE = "unavailable"
    """Not reached, or it answered what says nothing about the message, a redirect included."""
    TIMED_OUT = "timed_out"


_ANSWERS: Final = frozenset({DeliveryOutcome.ACCEPTED, DeliveryOutcome.REFUSED})


def read_endpoint(text: str) -> URL | None:
    """An http, https, ws or wss URL with a host and without user information, or None."""
    if len(text) > CHARS_MAX or not _SHAPE.match(text):
        return None
    try:
        url = URL(text)
    except ValueError:
        return None
    host = host_of(url)
    if not url.port or not (is_address(host) or _NAME.match(host)):
        return None
    return url.with_fragment(None)


def host_of(url: URL) -> str:
    """The host of an endpoint, without brackets: all that may be logged of it."""
    return url.raw_host or ""


def is_address(host: str) -> bool:
    """Is this a numeric address, in its one usual spelling?"""
    try:
        ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # an address with a zone means another host elsewhere


class Destination:
    """An endpoint whose addresses are known and permitted, for a few messages one by one."""

    def __init__(
        self, session: aiohttp.ClientSession, endpoint: URL, timeout_s: float, turn: Turn
    ) -> None:
        """Deliver through ``session``, each message in at most ``timeout_s``, in this turn."""
        self._session = session
        self._turn = turn
        self._endpoint = endpoint
        self._timeout_s = timeout_s

    async def send(self, envelope: bytes) -> DeliveryOutcome:
        """Deliver one envelope. Whatever goes wrong is an outcome."""
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
            return (
                DeliveryOutcome.REFUSED
                if response.status in _REFUSALS
                else DeliveryOutcome.UNAVAILABLE
            )

    async def _send_frame(self, envelope: bytes) -> DeliveryOutcome:
        """A socket for one binary frame; the closing handshake says that it was read."""
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
        return DeliveryOutcome.REFUSED if code in _CLOSE_REFUSALS else DeliveryOutcome.UNAVAILABLE


class Destinations:
    """The way out of one edge, and how many may be on it at once.

    ``lookup``, ``permitted`` and ``tls`` are there so that the same gates can be driven against a
    server on this machine.
    """

    def __init__(
        self,
        settings: Outbound,
        *,
        lookup: Lookup | None = None,
        permitted: Callable[[str], bool] | None = None,
        tls: ssl.SSLContext | None = None,
        via: str = "",
    ) -> None:
        """Deliveries within the operator's settings; ``via`` is what this mediator is known by."""
        self._settings = settings
        self._headers = {**_HEADERS, hdrs.VIA: f"1.1 {via}"} if via else _HEADERS
        self._permitted = permitted or self._is_allowed
        # Those of strangers cannot be waited for by the threads that others need.
        known = lookup or lookup_in_threads("known-names", _LOOKUPS_MAX)
        others = lookup or lookup_in_threads("other-names", _LOOKUPS_MAX)
        self._known_names = CheckedNames(known, self._permitted)
        self._other_names = CheckedNames(others, self._permitted)
        self._tls = tls or trusted_by_this_machine()
        self._places = Places(settings)

    @asynccontextmanager
    async def to(self, endpoint: URL, agent: str = "") -> AsyncIterator[Destination | None]:
        """The destination at the endpoint of an agent, None if it has no permitted address.

        Waits for its turn, and keeps it to the end of the context.
        """
        async with self._places.turn(agent, str(endpoint)) as turn:
            addresses = await self._addresses(endpoint, turn)
            if not addresses:
                yield None
                return
            await turn.take({found["host"] for found in addresses})
            async with _session(addresses, self._tls, self._headers) as session:
                yield Destination(session, endpoint, self._settings.timeout_s, turn)

    async def _addresses(self, endpoint: URL, turn: Turn) -> Sequence[ResolveResult]:
        host, port = host_of(endpoint), endpoint.port or 0
        if is_address(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            itself = ResolveResult(
                hostname=host, host=host, port=port, family=family, proto=0, flags=0
            )
            return [itself] if self._permitted(host) else []
        names = (
            self._known_names if turn.responsiveness is Responsiveness.QUICK else self._other_names
        )
        await turn.take()
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                found = await turn.timed(names.resolve(host, port))
            return (found or [])[:_ADDRESSES_MAX]
        except OSError as error:
            if isinstance(error, TimeoutError):
                turn.timed_out()
            return []
        finally:
            turn.give_back()

    def _is_allowed(self, address: str) -> bool:
        if is_public(address):
            return True
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._settings.allowed_networks)


class _Pinned(AbstractResolver):
    """The addresses that were checked, whatever the name says by now."""

    def __init__(self, addresses: Sequence[ResolveResult]) -> None:
        self._addresses = list(addresses)

    async def resolve(
        self,
        host: str,  # noqa: ARG002 - of one destination alone
        port: int = 0,  # noqa: ARG002
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[ResolveResult]:
        return self._addresses

    async def close(self) -> None:
        """Nothing is held."""


def _session(
    addresses: Sequence[ResolveResult], tls: ssl.SSLContext, headers: Mapping[str, str]
) -> aiohttp.ClientSession:
    """A session that reaches these addresses and no other."""
    reachable = frozenset(address["host"] for address in addresses)

    def open_socket(address: aiohttp.AddrInfoType) -> socket.socket:
        # The last gate: whatever the library made of names, literals and answers.
        family, kind, protocol, _, place = address
        if place[0] not in reachable:
            raise OSError("not an address of this destination")
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        resolver=_Pinned(addresses),
        use_dns_cache=False,
        ssl=tls,
        limit=1,
        socket_factory=open_socket,
    )
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        headers=headers,
        trust_env=False,
        middlewares=[_refuse_redirect],
    )


async def _refuse_redirect(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Opening a WebSocket would follow a redirect, and has no switch for that."""
    response = await handler(request)
    if HTTPStatus.MULTIPLE_CHOICES <= response.status < HTTPStatus.BAD_REQUEST:
        response.close()
        raise aiohttp.ClientError("redirected")
    return response
