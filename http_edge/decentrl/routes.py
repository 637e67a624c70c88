"""The endpoints of the Decentrl mediator protocol (DCTRL-0004 section 3, DCTRL-0007).

``GET /`` answers a browser, in which a person opens the address of a mediator, with a page.
"""

from __future__ import annotations

from html import escape
from string import Template
from typing import Final

from aiohttp import hdrs, web

from http_edge.decentrl.answers import respond
from http_edge.decentrl.commands import CommandEndpoint
from http_edge.decentrl.public_events import PREFIX, PublicEventsEndpoint
from http_edge.decentrl.sockets import SocketEndpoint
from http_edge.listener.pages import HTML, PageFrame, accepted
from http_edge.listener.routes import JSON, BodyRoute, PlainRoute, RouteGroup, SocketRoute
from http_edge.settings.settings import Settings
from http_edge.telemetry.refusal_counts import DECENTRL

PROJECT_URL: Final = "https://github.com/poste-restante/poste"
_FRAME: Final = PageFrame("""\
body { max-width: 34rem; }
code { display: block; font-size: .85rem; overflow-wrap: anywhere; user-select: all; }
""")
_BODY: Final = Template("""\
<p>This is a mediator: it holds encrypted messages until their owner, or the owner's wallet,
fetches and acknowledges them. It cannot read them.</p>
<p>Its DID is</p>
<code>$did</code>
<ul>$links</ul>
""")


def decentrl_routes(
    settings: Settings,
    document: bytes,
    web_document: bytes,
    commands: CommandEndpoint,
    sockets: SocketEndpoint,
    public_events: PublicEventsEndpoint,
) -> RouteGroup:
    """The routes of one mediator; ``document`` is its DID document as JSON.

    ``web_document`` is the document for resolvers of its did:web, with the additions of other
    protocols.
    """

    async def show_document_or_page(request: web.Request) -> web.Response:
        named = accepted(request)
        is_browser = HTML in named and JSON not in named
        response = _home_page(settings) if is_browser else _shown(document)
        response.headers[hdrs.VARY] = hdrs.ACCEPT
        return response

    async def show_web_document(_: web.Request) -> web.Response:
        return _shown(web_document)

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
                per_address_per_s=settings.rates.public_reads_per_address_per_s,
            ),
            SocketRoute("/ws", sockets.handle),
        ],
    )


def _shown(document: bytes) -> web.Response:
    return web.Response(body=document, content_type=JSON)


def _home_page(settings: Settings) -> web.Response:
    links = [(".well-known/did.json", "its DID document"), (PROJECT_URL, "the project Poste")]
    if settings.didcomm.enabled and settings.didcomm.invites_everyone:
        links.insert(0, ("invitation", "the invitation for wallets"))
    body = _BODY.substitute(
        did=escape(settings.mediator_did),
        links="".join(f'<li><a href="{href}">{words}</a></li>' for href, words in links),
    )
    text = _FRAME.html(settings.didcomm.label, body)
    return web.Response(text=text, content_type=HTML, charset="utf-8", headers=_FRAME.headers)
