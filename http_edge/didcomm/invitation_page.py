"""``GET /invitation``: invitations for wallets and their owners (RFC 0434, DIDComm v2).

Without a query, this is the short URL of the public invitation; with ``id`` or ``_oobid`` and
``label`` it is that of another invitation. A short URL redirects to the long URL, or answers a
client that asks for JSON with the message. With an invitation in the query, this is the long URL:
it shows a browser a page with a QR code and a link, and answers other clients with the message. One
code serves wallets of both generations. A page contains no script, and nothing from the query but a
label. What is refused is refused to a browser by a page, too.
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
    SHORT_PARAMETER,
    Invitations,
    MediatorInvitation,
    Protocol,
)
from http_edge.listener.address_charge import charge_public
from http_edge.listener.pages import HTML, PageFrame, accepted
from http_edge.listener.routes import JSON

UNKNOWN: Final = "UNKNOWN_INVITATION"
EXPIRED: Final = "EXPIRED_INVITATION"

_PAGES_MAX: Final = 64
_QR_MASK: Final = 3
"""One of eight valid masks. Comparing all of them takes 40 ms instead of 10."""
_FRAME: Final = PageFrame("""\
body { max-width: 26rem; text-align: center; }
svg { display: block; width: 100%; margin: 1rem 0; border-radius: .5rem; }
a { display: block; padding: .75rem; border-radius: .5rem; background: #0b57d0; color: #fff;
    text-decoration: none; }
small, code { display: block; margin-top: 1rem; opacity: .8; overflow-wrap: anywhere; }
code { font-size: .65rem; text-align: left; user-select: all; }
""")
_REFUSED: Final = {
    UNKNOWN: (
        HTTPStatus.NOT_FOUND,
        "No such invitation",
        "This mediator has no such invitation. The link may be cut off: copy it as a whole.",
    ),
    EXPIRED: (HTTPStatus.GONE, "Invitation expired", "Get a new one from the mediator's operator."),
}
"""The status, the title and the sentence for a person."""
_BODY: Final = Template("""\
<p>Scan this code with your wallet to receive your messages through this mediator.</p>
$code
<a href="$link">Open in a wallet on this device</a>
<small>$terms</small>
<code>$url</code>
""")


class InvitationPage:
    """Answers ``GET /invitation`` of one mediator."""

    def __init__(self, invitations: Invitations, base_url: str, *, clock: Clock) -> None:
        """Serve the page below the mediator's URL ``base_url``."""
        self._invitations = invitations
        self._base_url = base_url
        self._clock = clock

    async def handle(self, request: web.Request) -> web.Response:
        """Answer with JSON, a redirect or a page; 404 if unknown or foreign, 410 if expired.

        ``?protocol=connections`` asks for the connections 1.0 form of the public invitation,
        ``?protocol=out-of-band-2`` for the out-of-band 2.0 form alone.
        """
        carried = ((each, request.query.get(name)) for each, name in PARAMETERS.items())
        given = next(((each, text) for each, text in carried if text is not None), None)
        protocol = given[0] if given else _protocol(request)
        if protocol is None:
            return _refused(request, UNKNOWN)
        invitation = self._invitation(request, given)
        if invitation is None:
            return _refused(request, UNKNOWN)
        if invitation.terms.has_expired(self._clock()):
            return _refused(request, EXPIRED)
        if _wants_json(request, is_long=given is not None):
            return _response(orjson.dumps(invitation.message(protocol)), JSON)
        if given is None:
            response = web.Response(status=HTTPStatus.FOUND, headers=_FRAME.headers)
            response.headers[hdrs.LOCATION] = invitation.url(self._base_url, protocol)
            return response
        return _response(page(invitation, self._base_url, protocol).encode("utf-8"), HTML)

    def _invitation(
        self, request: web.Request, given: tuple[Protocol, str] | None
    ) -> MediatorInvitation | None:
        """Return the invitation that a request names; None if it is not one of ours."""
        if given:
            return self._invitations.read(*given)
        invitation_id = request.query.get(SHORT_PARAMETER, request.query.get("id"))
        if invitation_id is None:
            return self._invitations.public()
        return self._invitations.read_short(invitation_id, request.query.get("label"))


@lru_cache(_PAGES_MAX)
def page(invitation: MediatorInvitation, base_url: str, protocol: Protocol) -> str:
    """Return an invitation's page as HTML; cached, because a QR code takes 10 ms to make."""
    url = invitation.url(base_url, protocol)
    code = segno.make_qr(invitation.code_url(base_url, protocol), error="l", mask=_QR_MASK)
    body = _BODY.substitute(
        code=code.svg_inline(omitsize=True, light="#fff", title="QR code of the invitation"),
        # The scheme that wallets register on phones; without a wallet the link does nothing.
        link=escape(f"didcomm://invite?{invitation.query(protocol)}"),
        terms=invitation.terms.in_words(),
        url=escape(url),
    )
    return _FRAME.html(invitation.label, body)


def _protocol(request: web.Request) -> Protocol | None:
    """Return the requested protocol; None if we have no such protocol."""
    if SHORT_PARAMETER in request.query:
        return "out-of-band-2"
    named = request.query.get("protocol", "out-of-band")
    return next((protocol for protocol in PARAMETERS if protocol == named), None)


def _wants_json(request: web.Request, *, is_long: bool) -> bool:
    """Say whether ``Accept`` names JSON but not HTML, which every browser names.

    At a long URL ``Accept`` need not name JSON: some wallets follow the redirect from a short URL
    and read the answer; others read the long URL itself.
    """
    named = accepted(request)
    return HTML not in named and (is_long or JSON in named)


def _response(body: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK) -> web.Response:
    charge_public(len(body))
    charset = "utf-8" if content_type == HTML else None
    return web.Response(
        status=status,
        body=body,
        content_type=content_type,
        charset=charset,
        headers=_FRAME.headers,
    )


def _refused(request: web.Request, code: str) -> web.Response:
    status, title, sentence = _REFUSED[code]
    if HTML in accepted(request):
        return _response(_FRAME.html(title, f"<p>{sentence}</p>\n").encode(), HTML, status)
    return _response(orjson.dumps({"error": code}), JSON, status)
