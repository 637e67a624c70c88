"""DIDComm over HTTP: one envelope in a POST, at most one in its answer (RFC 0025, RFC 0092).

A rejected message is answered with a status and a short JSON body, the same for every sender. The
answer of a protocol to an accepted message goes back in an envelope. A socket is closed with
``close_code`` if no sender is proven for whom a report could be packed.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import hdrs, web

from actors.core.commands import ReleaseLeases
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, Done
from http_edge.didcomm.delivery.hand_out import IMPLICIT, delivery_to
from http_edge.didcomm.envelopes.messages import OpenReport
from http_edge.didcomm.envelopes.versions import media_type_of
from http_edge.didcomm.inbound import Inbound, MessageRejection
from http_edge.didcomm.inbound_transport import InboundTransport
from http_edge.didcomm.protocols.protocol import Request, hand_over
from http_edge.didcomm.rejections import RejectionReason
from http_edge.listener.address_charge import charge_unproven
from http_edge.listener.in_flight import parked
from http_edge.listener.outgoing import all_sent
from http_edge.listener.written_answers import SmallAnswer
from http_edge.settings.settings import DidComm

_CLOSE_CODES_FROM: Final = 4_000
"""Close codes from here to 4999 are for private use (RFC 6455, section 7.4.2)."""
_STALLED_S_MAX: Final = 2.0
"""How long no byte of an answer may arrive before its messages are offered again."""


def close_code(what: RejectionReason) -> int:
    """Return the close code for a rejected message of an unproven sender: 4000 plus the status."""
    return _CLOSE_CODES_FROM + what.status


def rejection(what: RejectionReason, report: OpenReport | None = None) -> web.Response:
    """Return the answer to a rejected message, with a problem report if there is one."""
    response = error_answer(what.status, what.value)
    if report is not None:
        response = web.Response(
            status=what.status, body=report.body, content_type=report.media_type
        )
    if what.retry_after_s:
        response.headers[hdrs.RETRY_AFTER] = str(what.retry_after_s)
    return response


def error_answer(status: HTTPStatus, code: str) -> web.Response:
    """Return an error of this endpoint: JSON with the code."""
    body = orjson.dumps({"error": code})
    return web.Response(status=status, body=body, content_type="application/json")


class DidCommEndpoint:
    """Answers ``POST /didcomm`` once the body has arrived."""

    def __init__(self, settings: DidComm, inbound: Inbound) -> None:
        self._settings = settings
        self._inbound = inbound

    def too_large(self, http_request: web.Request) -> web.Response | None:
        """Refuse a request whose ``Content-Length`` is too large, before its body is read."""
        if (http_request.content_length or 0) <= self._settings.message_bytes_max:
            return None
        charge_unproven(0)
        return rejection(self._inbound.rejected(RejectionReason.MESSAGE_TOO_LARGE))

    async def handle(self, http_request: web.Request, body: bytes) -> web.StreamResponse:
        """Answer a POST with any body."""
        if len(body) > self._settings.message_bytes_max:
            charge_unproven(len(body))
            return rejection(self._inbound.rejected(RejectionReason.MESSAGE_TOO_LARGE))
        transport = InboundTransport()
        received = await self._inbound.receive(body, transport)
        if isinstance(received, MessageRejection):
            return rejection(received.reason, received.open_report)
        request, outcome = received.request, received.outcome
        if request is None or outcome is None:
            return SmallAnswer(HTTPStatus.ACCEPTED)
        back, handed_over = received.back, list(outcome.handed_over)
        if back is None and request.peer.open_route and outcome.implicit:
            back, handed_over = await self._waiting_one(request)
        if back is None:
            return SmallAnswer(HTTPStatus.ACCEPTED)
        named = media_type_of(back, http_request.content_type)
        response = SmallAnswer(HTTPStatus.OK, back, named)
        if handed_over:
            await self._hand_over(http_request, response, request, handed_over)
        return response

    async def _waiting_one(self, request: Request) -> tuple[bytes | None, list[str]]:
        """Lease one waiting message for implicit pickup, to send back unchanged (RFC 0092)."""
        command = delivery_to(request.session, IMPLICIT, 1, self._settings)
        delivery = await request.ask(request.sender.did, command, Delivery)
        if isinstance(delivery, Refusal) or not delivery.messages:
            return None, []
        (message,) = delivery.messages
        return message.payload, [message.message_id]

    async def _hand_over(
        self,
        http_request: web.Request,
        response: web.StreamResponse,
        request: Request,
        message_ids: list[str],
    ) -> None:
        """Write the answer, then remove its messages from the queue if the peer's machine has it.

        These protocols have no acknowledgement; this is as near to one as HTTP comes.
        """
        try:
            # The listener's connections count an answer as written when the kernel has it, because
            # the kernel sends it even if we are killed.
            await response.prepare(http_request)
            await response.write_eof()
            with parked():  # a client that reads slowly takes no slot of others
                arrived = await all_sent(
                    http_request.transport,
                    seconds_max=self._settings.lease_s,
                    stalled_s_max=_STALLED_S_MAX,
                )
        except ConnectionError:
            arrived = False
        if arrived:
            await hand_over(request.identities, request.sender.did, request.command, message_ids)
        else:
            await request.ask(request.sender.did, ReleaseLeases(request.session), Done)
