"""``GET /`` in a browser: what answers here, for a person who follows the address of a mediator."""

from __future__ import annotations

from html import escape
from string import Template
from typing import Final

from aiohttp import web

from http_edge.listener.pages import HTML, page_headers
from http_edge.settings.settings import Settings

PROJECT_URL: Final = "https://github.com/poste-restante/poste"
_STYLE: Final = """
:root { color-scheme: light dark; font: 1.1rem/1.5 system-ui, sans-serif; }
body { margin: 0 auto; padding: 1.5rem 1rem; max-width: 34rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
code { display: block; font-size: .85rem; overflow-wrap: anywhere; user-select: all; }
"""
_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>$name</title>
<style>$style</style>
</head>
<body>
<h1>$name</h1>
<p>This is a mediator: it holds encrypted messages until their owner, or the owner's wallet,
fetches and acknowledges them. It cannot read them.</p>
<p>Its DID is</p>
<code>$did</code>
<ul>$links</ul>
</body>
</html>
""")


def home_page(settings: Settings) -> web.Response:
    """The page of the mediator with these settings; one response for each request."""
    links = [(".well-known/did.json", "its DID document"), (PROJECT_URL, "the project Poste")]
    if settings.didcomm.enabled and settings.didcomm.registration in {"open", "allow_list"}:
        links.insert(0, ("invitation", "the invitation for wallets"))
    text = _PAGE.substitute(
        name=escape(settings.didcomm.label),
        style=_STYLE,
        did=escape(settings.mediator_did),
        links="".join(f'<li><a href="{href}">{words}</a></li>' for href, words in links),
    )
    headers = page_headers(_STYLE)
    return web.Response(text=text, content_type=HTML, charset="utf-8", headers=headers)
