"""DIDComm over HTTP: one envelope in a POST, at most one back in its answer (RFC 0025, RFC 0092).

What was not taken is told by status and a short JSON body, the same for every sender: at this
point nobody is known. A sender that is known gets problem reports in envelopes instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

import orjson
from aiohttp import hdrs, web

from actors.clock import NewId
from actors.commands import DeliverMessages, ReleaseLeases
from actors.refusals import Refusal
from actors.replies import Delivery, Done
from http_edge.config import DidComm
from http_edge.didcomm.conversation import Conversation, Heard, Line, Trouble
from http_edge.didcomm.handling import Asked
from http_edge.didcomm.identities import Identities
from http_edge.send_queue import all_sent

ENVELOPE: Final = "application/didcomm-envelope-enc"
MEDIA_TYPES: Final = frozenset(
    {
        "",
        ENVELOPE,
        "application/ssi-agent-wire",
        "application/didcomm-encrypted+json",
        "application/didcomm-plain+json",
        "application/didcomm-signed+json",
        "application/json",
        "application/jwe",
        "application/jwe+json",
        "application/octet-stream",
        "text/plain",
    }
)
"""What agents name an envelope (RFC 0044 and before); the browser forms of ``fetch`` among them."""
_MIRRORED: Final = frozenset({ENVELOPE, "application/ssi-agent-wire", "application/jwe"})
STATUS: Final[Mapping[Trouble, HTTPStatus]] = {
    Trouble.NOT_AN_ENVELOPE: HTTPStatus.BAD_REQUEST,
    Trouble.UNDECRYPTABLE: HTTPStatus.BAD_REQUEST,
    Trouble.NOT_A_MESSAGE: HTTPStatus.BAD_REQUEST,
    Trouble.ANONYMOUS: HTTPStatus.BAD_REQUEST,
    Trouble.TOO_DEEP: HTTPStatus.BAD_REQUEST,
    Trouble.UNKNOWN_RECIPIENT: HTTPStatus.NOT_FOUND,
    Trouble.QUEUE_FULL: HTTPStatus.TOO_MANY_REQUESTS,
    Trouble.MESSAGE_TOO_LARGE: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    Trouble.NOT_QUEUING: HTTPStatus.CONFLICT,
    Trouble.RATE_LIMITED: HTTPStatus.TOO_MANY_REQUESTS,
    Trouble.TRY_AGAIN: HTTPStatus.SERVICE_UNAVAILABLE,
}
_SENT_S_MAX: Final = 2.0
"""A slow network takes an answer within this, or the messages in it are offered again."""
_RETRY_AFTER_S: Final = {
    Trouble.QUEUE_FULL: 60,
    Trouble.RATE_LIMITED: 1,
    Trouble.TRY_AGAIN: 1,
}


def trouble(what: Trouble) -> web.Response:
    """The answer to a message that was not taken."""
    response = refusal(STATUS[what], what.value)
    if what in _RETRY_AFTER_S:
        response.headers[hdrs.RETRY_AFTER] = str(_RETRY_AFTER_S[what])
    return response


def refusal(status: HTTPStatus, code: str) -> web.Response:
    """An error of this endpoint: JSON with its code."""
    body = orjson.dumps({"error": code})
    return web.Response(status=status, body=body, content_type="application/json")


class DidCommFront:
    """Answers ``POST /didcomm`` once the body has arrived."""

    def __init__(
        self,
        settings: DidComm,
        conversation: Conversation,
        identities: Identities,
        *,
        new_id: NewId,
    ) -> None:
        """A front for one edge."""
        self._settings = settings
        self._conversation = conversation
        self._identities = identities
        self._new_id = new_id

    async def handle(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """The answer to an envelope, whatever it holds."""
        if len(body) > self._settings.message_bytes_max:
            return trouble(self._conversation.refused(Trouble.MESSAGE_TOO_LARGE))
        line = Line(self._new_id)
        heard = await self._conversation.hear(body, line)
        if isinstance(heard, Trouble):
            return trouble(heard)
        back, handed_over = heard.back, []
        if heard.outcome is not None:
            handed_over = list(heard.outcome.handed_over)
        if back is None and heard.asked is not None and _wants_a_waiting_one(heard):
            back, handed_over = await self._waiting_one(heard.asked)
        if back is None:
            return web.Response(status=HTTPStatus.ACCEPTED)
        response = web.Response(body=back, content_type=_media_type(request))
        if handed_over and heard.asked is not None:
            await self._hand_over(request, response, heard.asked, handed_over)
        return response

    async def _waiting_one(self, asked: Asked) -> tuple[bytes | None, list[str]]:
        """Implicit pickup: one message that waits goes back as it is (RFC 0092)."""
        command = DeliverMessages(
            session=asked.session,
            channel="implicit",
            limit=1,
            bytes_max=self._settings.delivery_bytes_max,
            lease_ms=round(self._settings.lease_s * 1000),
        )
        delivery = await self._identities.ask(asked.sender.did, command, asked.command, Delivery)
        if isinstance(delivery, Refusal) or not delivery.messages:
            return None, []
        (message,) = delivery.messages
        return message.payload, [message.message_id]

    async def _hand_over(
        self, request: web.Request, response: web.Response, asked: Asked, message_ids: list[str]
    ) -> None:
        """Write the answer first: only what the other side's machine has taken leaves the queue.

        These protocols have no acknowledgement; this is as near to one as HTTP comes.
        """
        if request.transport is not None:
            # "Written" shall mean that the kernel has it: it sends that even if we are killed.
            request.transport.set_write_buffer_limits(high=0)
        try:
            await response.prepare(request)
            await response.write_eof()
            arrived = await all_sent(request.transport, seconds_max=_SENT_S_MAX)
        except ConnectionError:
            arrived = False
        if arrived:
            await self._conversation.handed_over(asked, message_ids)
        else:
            release = ReleaseLeases(asked.session)
            await self._identities.ask(asked.sender.did, release, asked.command, Done)


def _wants_a_waiting_one(heard: Heard) -> bool:
    return (
        heard.asked is not None
        and heard.outcome is not None
        and heard.asked.open_route
        and heard.outcome.implicit
    )


def _media_type(request: web.Request) -> str:
    """The sender's own word for an envelope, where it is one: old agents know no other."""
    return request.content_type if request.content_type in _MIRRORED else ENVELOPE
