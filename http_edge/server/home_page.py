"""``GET /``: a page for a person who opens the address of a mediator in a browser."""

from __future__ import annotations

from html import escape
from string import Template
from typing import Final

from aiohttp import web

from http_edge.listener.pages import HTML, PageFrame
from http_edge.settings.settings import Settings

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


def home_page(settings: Settings) -> web.Response:
    """The page of the mediator with these settings, as a new response."""
    links = [(".well-known/did.json", "its DID document"), (PROJECT_URL, "the project Poste")]
    if settings.didcomm.enabled and settings.didcomm.invites_everyone:
        links.insert(0, ("invitation", "the invitation for wallets"))
    body = _BODY.substitute(
        did=escape(settings.mediator_did),
        links="".join(f'<li><a href="{href}">{words}</a></li>' for href, words in links),
    )
    text = _FRAME.html(settings.didcomm.label, body)
    return web.Response(text=text, content_type=HTML, charset="utf-8", headers=_FRAME.headers)
