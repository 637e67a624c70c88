"""Write answers as the protocol's JSON: successes, pages, errors (DCTRL-0004 sections 8, 9, 11).

An error is ``{"type": "ERROR", "code": …, "detail": …}``. The first eleven codes are those of
11.2; the rest are extensions in the same form: RECIPIENT_QUEUE_FULL, QUOTA_EXCEEDED, RATE_LIMITED,
INSUFFICIENT_STORAGE, TEMPORARILY_UNAVAILABLE, NOT_FOUND, METHOD_NOT_ALLOWED,
EXPECTATION_FAILED, UPGRADE_REQUIRED, INTERNAL_ERROR.
``detail`` is an extension too, for a human reader: ``<member>: <rule that it breaks>``, never a
value from the request. The codes of the protocol have a detail, also when the listener sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any, Final, TypeAlias

import msgspec
import orjson
from aiohttp import hdrs, web

from actors.core.commands import Page
from actors.core.decision import exceeds
from actors.core.refusals import Refusal
from actors.core.replies import ContractRequestsPage, ContractsPage, MessagesPage, Refused
from actors.host.packed_page import FoundPage, unpack_page
from http_edge.listener.body_reads import in_reading_thread
from http_edge.listener.routes import JSON, Rejection, retry_after_s
from http_edge.listener.written_answers import PiecedBody, SmallAnswer

ERRORS: Final[dict[Refusal, tuple[int, str | None]]] = {
    Refusal.INVALID_COMMAND: (400, "payload: breaks a rule of its command"),
    Refusal.INVALID_SIGNATURE: (
        401,
        "signature: does not verify over the canonical JSON of header and payload",
    ),
    Refusal.INVALID_SIGNATURES: (401, "payload: a signature in it does not verify"),
    Refusal.UNAUTHORIZED_COMMAND: (
        401,
        "header.sender_did: is not registered here, or was given up in DIDComm",
    ),
    Refusal.TIMESTAMP_OUT_OF_RANGE: (401, "header.timestamp: is too far from the mediator's clock"),
    Refusal.DUPLICATE_NONCE: (401, "header.nonce: was used by this sender before"),
    Refusal.SENDER_NOT_FOUND: (404, "header.sender_did: does not resolve"),
    Refusal.SENDER_SIGNING_KEY_NOT_FOUND: (
        404,
        "header.sender_signing_key_id: is not a signing key in the sender's document",
    ),
    Refusal.RECIPIENT_NOT_FOUND: (404, "header.recipient_did: does not resolve"),
    Refusal.RECIPIENT_NOT_REGISTERED: (404, "header.recipient_did: is not registered here"),
    Refusal.COMMUNICATION_CONTRACT_NOT_FOUND: (
        404,
        "header.recipient_did: has no contract in force with the sender",
    ),
    Refusal.RECIPIENT_QUEUE_FULL: (429, None),
    Refusal.QUOTA_EXCEEDED: (429, None),
    Refusal.RATE_LIMITED: (429, None),
    Refusal.INSUFFICIENT_STORAGE: (
        503,
        "mediator: is short of disk space and refuses commands that store data",
    ),
    Refusal.TEMPORARILY_UNAVAILABLE: (503, None),
}
"""The HTTP status of each error, and its detail when no check gives a more exact one."""

_RETRY_AFTER_S: Final[dict[Refusal, int]] = {
    Refusal.RECIPIENT_QUEUE_FULL: 60,
    Refusal.QUOTA_EXCEEDED: 3_600,
    Refusal.RATE_LIMITED: 1,
    Refusal.INSUFFICIENT_STORAGE: 60,
    Refusal.TEMPORARILY_UNAVAILABLE: 1,
}
"""Seconds after which a retry may succeed: a queue empties when its owner comes back, a quota when
the owner cleans up, a busy or restarting host within a second or so."""


class Answer(msgspec.Struct, frozen=True):
    """An answer before it becomes an HTTP response: status, JSON text, Retry-After in seconds.

    ``refusal`` is the error that it reports, or None. A long text continues in ``more``, so that no
    step handles all of it at once.
    """

    status: int
    body: bytes
    retry_after_s: int | None = None
    refusal: Refusal | None = None
    more: Sequence[bytes] = ()

    @property
    def size_bytes(self) -> int:
        """The length of the whole text."""
        return len(self.body) + sum(map(len, self.more))


_LARGE_BYTES: Final = 256 * 1024
"""Larger pages are unpacked and written as JSON outside of the event loop: 2 ms for each MiB."""
_PIECE_BYTES: Final = 128 * 1024
"""A piece of a long text ends with the record that reaches this length."""

Answering: TypeAlias = Callable[[Any, Page | None], Answer]
"""Turns the reply to a command into its answer; ``Page`` is the page of a query."""


class Rejected(msgspec.Struct, frozen=True):
    """Why the edge rejects a command; an empty ``detail`` stands for that of ``ERRORS``."""

    code: Refusal
    detail: str = ""


def invalid(detail: str) -> Rejected:
    """The rejection of a command that breaks this rule."""
    return Rejected(Refusal.INVALID_COMMAND, detail)


def respond(answer: Answer) -> web.StreamResponse:
    """An answer as an HTTP response."""
    if answer.more:
        body = PiecedBody([answer.body, *answer.more], content_type=JSON)
        return web.Response(status=answer.status, body=body)
    if answer.retry_after_s is None:
        return SmallAnswer(answer.status, answer.body, JSON)
    response = web.Response(status=answer.status, body=answer.body, content_type=JSON)
    response.headers[hdrs.RETRY_AFTER] = str(answer.retry_after_s)
    return response


# ---- successes


def success(**members: Any) -> Answer:
    """A success with these members beside its type."""
    return Answer(HTTPStatus.OK, orjson.dumps({"type": "SUCCESS", **members}))


def always(answer: Answer) -> Answering:
    """Answer every accepted command with this."""
    return lambda _reply, _page: answer


def records(name: str, items: Sequence[Any], total: int, page: Page | None) -> Answer:
    """One page of records under their name (9.2); ``total`` is how many match.

    Escaping may make text six times as long in JSON: a page that becomes too long is refused.
    """
    assert page is not None, "a query has a page"
    pagination = {"page": page.number, "page_size": page.size, "total": total}
    pieces, written = [], 0
    piece = bytearray(b'{"type":"SUCCESS","payload":{"%b":[' % name.encode())
    # One by one, so that the event loop runs between the records of a large page (``answer_of``).
    for number, item in enumerate(items):
        if len(piece) >= _PIECE_BYTES:
            written += len(piece)
            if exceeds(page, len(items), written):
                break
            pieces.append(bytes(piece))
            piece.clear()
        if number:
            piece += b","
        piece += orjson.dumps(item)
    if exceeds(page, len(items), written + len(piece)):
        return reject(page_refused(Refused(Refusal.INVALID_COMMAND), page))
    piece += b'],"pagination":%b}}' % orjson.dumps(pagination)
    body, *more = *pieces, bytes(piece)
    return Answer(HTTPStatus.OK, body, more=more)


async def answer_of(packed: memoryview, answering: Callable[[FoundPage], Answer]) -> Answer:
    """Make the answer from a packed page; outside of the event loop if the page is large."""
    return await _made(lambda: answering(unpack_page(packed)), len(packed))


async def answer_to(reply: object, page: Page | None, answering: Answering) -> Answer:
    """Make the answer to the reply of a command; as ``answer_of`` if it is a large page."""
    return await _made(lambda: answering(reply, page), _records_bytes(reply))


async def _made(make: Callable[[], Answer], size_bytes: int) -> Answer:
    return make() if size_bytes <= _LARGE_BYTES else await in_reading_thread(make, size_bytes)


def _records_bytes(reply: object) -> int:
    """The bytes of the longest member of each record of a page; 0 for any other reply."""
    match reply:
        case ContractsPage():
            return sum(len(contract.signed) for contract in reply.contracts)
        case ContractRequestsPage():
            return sum(len(request.encrypted_contract_request) for request in reply.requests)
        case MessagesPage():
            return sum(len(message.payload) for message in reply.messages)
        case _:
            return 0


# ---- errors


def error_body(code: str, detail: str | None = None) -> bytes:
    """The protocol's error object (11.1)."""
    error = {"type": "ERROR", "code": code}
    return orjson.dumps(error if detail is None else {**error, "detail": detail})


def refuse(refusal: Refusal, wait_s: float | None = None) -> Answer:
    """The answer to a refused command."""
    if wait_s is None:
        return _REFUSALS[refusal]
    status, _ = ERRORS[refusal]
    return Answer(status, error_body(refusal.value), retry_after_s(wait_s), refusal)


def page_refused(refused: Refused, page: Page) -> Rejected:
    """The rejection of a query whose page the host refused."""
    if refused.code is not Refusal.INVALID_COMMAND:
        return Rejected(refused.code)
    return Rejected(refused.code, f"page_size: the page is more than {page.bytes_max} bytes")


def reject(rejected: Rejected) -> Answer:
    """The answer to a command that the edge rejects."""
    if not rejected.detail:
        return refuse(rejected.code)
    body = error_body(rejected.code.value, rejected.detail)
    return msgspec.structs.replace(_REFUSALS[rejected.code], body=body)


_REFUSALS: Final = {
    refusal: Answer(status, error_body(refusal.value, detail), _RETRY_AFTER_S.get(refusal), refusal)
    for refusal, (status, detail) in ERRORS.items()
}


def rejection_body(reason: str) -> bytes:
    """The error object of a request that the listener rejects (``listener.routes.ErrorBody``)."""
    code, detail = _REJECTIONS.get(reason, (reason, None))
    return error_body(code, detail)


_INVALID: Final = Refusal.INVALID_COMMAND.value
_REJECTIONS: Final[dict[str, tuple[str, str | None]]] = {
    Rejection.MALFORMED.value: (
        _INVALID,
        "request: is not HTTP, or has a header line that is too long",
    ),
    Rejection.BODY_INCOMPLETE.value: (_INVALID, "body: ends early"),
    Rejection.BODY_TIMEOUT.value: (_INVALID, "body: does not arrive in time"),
    Rejection.BODY_TOO_LARGE.value: (_INVALID, "body: has more bytes than this mediator accepts"),
    Rejection.BODY_ENCODED.value: (_INVALID, "body: has a Content-Encoding"),
    Rejection.NOT_FOUND.value: ("NOT_FOUND", "path: is unknown; a slash at its end counts"),
    Rejection.METHOD_NOT_ALLOWED.value: ("METHOD_NOT_ALLOWED", "method: is not one of Allow"),
    Rejection.UPGRADE_REQUIRED.value: ("UPGRADE_REQUIRED", "request: is not a WebSocket upgrade"),
    Rejection.TOO_BUSY.value: (Refusal.TEMPORARILY_UNAVAILABLE.value, None),
}
"""Codes and details of the listener's reasons; each other reason is a code without a detail."""
