"""The endpoints of the Decentrl mediator protocol (DCTRL-0004 section 3, DCTRL-0007)."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import hdrs, web

from http_edge.decentrl.answers import respond
from http_edge.decentrl.commands import CommandEndpoint
from http_edge.decentrl.public_events import PREFIX, PublicEventsEndpoint
from http_edge.decentrl.sockets import SocketEndpoint
from http_edge.listener.pages import HTML, accepted
from http_edge.listener.routes import JSON, BodyRoute, PlainRoute, RouteGroup, SocketRoute
from http_edge.settings.settings import Rates
from http_edge.telemetry.refusal_counts import DECENTRL


def decentrl_routes(  # noqa: PLR0913, PLR0917 - one for each route
    document: bytes,
    web_document: bytes,
    home_page: Callable[[], web.Response],
    commands: CommandEndpoint,
    sockets: SocketEndpoint,
    public_events: PublicEventsEndpoint,
    rates: Rates,
) -> RouteGroup:
    """The routes of one mediator; ``document`` is its DID document as JSON.

    ``web_document`` is the document for resolvers of its did:web, with the additions of other
    protocols. ``home_page`` answers a browser at ``/`` instead of the document.
    """

    async def show_document(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type=JSON)

    async def show_web_document(_: web.Request) -> web.Response:
        return web.Response(body=web_document, content_type=JSON)

    async def show_document_or_page(request: web.Request) -> web.Response:
        named = accepted(request)
        is_browser = HTML in named and JSON not in named
        response = home_page() if is_browser else await show_document(request)
        response.headers[hdrs.VARY] = hdrs.ACCEPT
        return response

    async def execute(_: web.Request, body: bytes) -> web.StreamResponse:
        return respond(await commands.handle(body))

    return RouteGroup(
        DECENTRL,
        [
            BodyRoute("/", execute),
            PlainRoute("GET", "/", show_document_or_page),
            PlainRoute("GET", "/.well-known/did.json", show_web_document),
            # For a did:web with a path, which the proxy in front removes.
            PlainRoute("GET", "/did.json", show_web_document),
            PlainRoute(
                "GET",
                PREFIX,
                public_events.handle,
                per_address_per_s=rates.public_reads_per_address_per_s,
            ),
            SocketRoute("/ws", sockets.handle),
        ],
    )
