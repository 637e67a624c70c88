"""``GET /invitation``: how a wallet and its owner come by an invitation (RFC 0434).

Without a query it is the short URL of the public invitation, with ``id`` and ``label`` that of
another one: a redirect to the long URL, or the message itself to a client that asks for JSON. With
an invitation in the query it is the page that a browser shows of a long URL: a QR code, a link,
nothing else. The page holds no script, and of what stands in the query nothing but a label.
"""

from __future__ import annotations

from functools import lru_cache
from html import escape
from http import HTTPStatus
from string import Template
from typing import Final

import orjson
import segno
from aiohttp import hdrs, web

from actors.host.clock import Clock
from http_edge.didcomm.protocols.invitations import (
    PARAMETERS,
    Invitations,
    MediatorInvitation,
    Protocol,
)
from http_edge.listener.pages import HTML, accepted, page_headers
from http_edge.listener.routes import JSON

UNKNOWN: Final = "UNKNOWN_INVITATION"
EXPIRED: Final = "EXPIRED_INVITATION"

_PAGES_MAX: Final = 64
_QR_MASK: Final = 3
"""One of eight that are all valid. To compare them all takes 40 ms in place of 10."""
_STYLE: Final = """
:root { color-scheme: light dark; font: 1.1rem/1.5 system-ui, sans-serif; }
body { margin: 0 auto; padding: 1.5rem 1rem; max-width: 26rem; text-align: center; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
svg { display: block; width: 100%; margin: 1rem 0; border-radius: .5rem; }
a { display: block; padding: .75rem; border-radius: .5rem; background: #0b57d0; color: #fff;
    text-decoration: none; }
small, code { display: block; margin-top: 1rem; opacity: .8; overflow-wrap: anywhere; }
code { font-size: .65rem; text-align: left; user-select: all; }
"""
_PAGE: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>$label</title>
<style>$style</style>
</head>
<body>
<h1>$label</h1>
<p>Scan this code with your wallet to receive your messages through this mediator.</p>
$code
<a href="$link">Open in a wallet on this device</a>
<small>$terms</small>
<code>$url</code>
</body>
</html>
""")


_HEADERS: Final = page_headers(_STYLE)


class InvitationPage:
    """Answers ``GET /invitation`` of one mediator."""

    def __init__(self, invitations: Invitations, base_url: str, *, clock: Clock) -> None:
        """The page below the mediator's URL ``base_url``."""
        self._invitations = invitations
        self._base_url = base_url
        self._clock = clock

    async def handle(self, request: web.Request) -> web.Response:
        """JSON, a redirect or the page; 404 for what is not ours, 410 for what is over.

        ``?protocol=connections`` asks for the connections 1.0 form of the public invitation.
        """
        given = _given(request)
        protocol = given[0] if given else _protocol(request)
        if protocol is None:
            return _error(HTTPStatus.NOT_FOUND, UNKNOWN)
        invitation = self._invitation(request, given)
        if invitation is None:
            return _error(HTTPStatus.NOT_FOUND, UNKNOWN)
        if invitation.terms.has_expired(self._clock()):
            return _error(HTTPStatus.GONE, EXPIRED)
        if _wants_json(request):
            return _response(orjson.dumps(invitation.message(protocol)), JSON)
        if given is None:
            response = web.Response(status=HTTPStatus.FOUND, headers=_HEADERS)
            response.headers[hdrs.LOCATION] = invitation.url(self._base_url, protocol)
            return response
        return _response(page(invitation, self._base_url, protocol).encode("utf-8"), HTML)

    def _invitation(
        self, request: web.Request, given: tuple[Protocol, str] | None
    ) -> MediatorInvitation | None:
        """The invitation that a request names; None where it is not one of ours."""
        if given:
            return self._invitations.read(*given)
        invitation_id = request.query.get("id")
        if invitation_id is None:
            return self._invitations.public()
        return self._invitations.read_short(invitation_id, request.query.get("label"))


@lru_cache(_PAGES_MAX)
def page(invitation: MediatorInvitation, base_url: str, protocol: Protocol) -> str:
    """The page of an invitation, as HTML; remembered, because a QR code takes 10 ms to make."""
    url = invitation.url(base_url, protocol)
    code = segno.make_qr(url, error="l", mask=_QR_MASK)
    return _PAGE.substitute(
        label=escape(invitation.label),
        style=_STYLE,
        code=code.svg_inline(omitsize=True, light="#fff", title="QR code of the invitation"),
        # The scheme that wallets register on phones; where none is installed, nothing happens.
        link=escape(f"didcomm://invite?{invitation.query(protocol)}"),
        terms=invitation.terms.in_words(),
        url=escape(url),
    )


def _given(request: web.Request) -> tuple[Protocol, str] | None:
    """The invitation in the query, if there is one."""
    for protocol, parameter in PARAMETERS.items():
        if parameter in request.query:
            return protocol, request.query[parameter]
    return None


def _protocol(request: web.Request) -> Protocol | None:
    """The protocol that is asked for; None where it is none of ours."""
    named = request.query.get("protocol", "out-of-band")
    return next((protocol for protocol in PARAMETERS if protocol == named), None)


def _wants_json(request: web.Request) -> bool:
    """Does ``Accept`` name JSON and not HTML, which every browser names?"""
    named = accepted(request)
    return JSON in named and HTML not in named


def _response(body: bytes, content_type: str) -> web.Response:
    charset = "utf-8" if content_type == HTML else None
    return web.Response(body=body, content_type=content_type, charset=charset, headers=_HEADERS)


def _error(status: HTTPStatus, code: str) -> web.Response:
    body = orjson.dumps({"error": code})
    return web.Response(status=status, body=body, content_type=JSON, headers=_HEADERS)
