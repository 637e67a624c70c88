"""Reasons for rejecting a message on any transport: a closed set, and what maps to each reason."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import UnpackRejection
from http_edge.didcomm.protocols.problems import Problem, problem_of
from http_edge.listener.routes import HttpReason


class RejectionReason(HttpReason):
    """Why a message was rejected; the transport gives the reason if the sender is not proven."""

    NOT_AN_ENVELOPE = "not-an-envelope", HTTPStatus.BAD_REQUEST
    UNDECRYPTABLE = "undecryptable", HTTPStatus.BAD_REQUEST
    SENDER_UNRESOLVED = "sender-unresolved", HTTPStatus.SERVICE_UNAVAILABLE, 30
    """The host of the sender's DID document did not answer, which is cached as long."""
    NOT_A_MESSAGE = "not-a-message", HTTPStatus.BAD_REQUEST
    ANONYMOUS = "anonymous", HTTPStatus.BAD_REQUEST
    """Only a forward may come without a proven sender."""
    NOT_CONNECTED = "not-connected", HTTPStatus.FORBIDDEN
    ROTATED = "did-rotated", HTTPStatus.FORBIDDEN
    """These two only for an acknowledgement or a handshake without a return route."""
    TOO_DEEP = "forward-too-deep", HTTPStatus.BAD_REQUEST
    UNKNOWN_RECIPIENT = "unknown-recipient", HTTPStatus.NOT_FOUND
    """Only if the settings say so; by default the sender gets the answer of a success."""
    QUEUE_FULL = "queue-full", HTTPStatus.TOO_MANY_REQUESTS, 60
    MESSAGE_TOO_LARGE = "message-too-large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    NOT_QUEUING = "not-queuing", HTTPStatus.CONFLICT
    EXPIRED = "expired", HTTPStatus.GONE
    """The message came after its own expiry (``expires_time``)."""
    RATE_LIMITED = "rate-limited", HTTPStatus.TOO_MANY_REQUESTS, 1
    INSUFFICIENT_STORAGE = "insufficient-storage", HTTPStatus.SERVICE_UNAVAILABLE, 60
    """The mediator is short of disk and refuses what it would have to store until some is free."""
    TRY_AGAIN = "try-again", HTTPStatus.SERVICE_UNAVAILABLE, 1
    """The outcome is unknown, or the mediator is overloaded."""


UNPACK_REJECTIONS: Final = {
    UnpackRejection.NOT_AN_ENVELOPE: RejectionReason.NOT_AN_ENVELOPE,
    UnpackRejection.UNDECRYPTABLE: RejectionReason.UNDECRYPTABLE,
    UnpackRejection.NOT_A_MESSAGE: RejectionReason.NOT_A_MESSAGE,
}
REPORTED: Final = {
    RejectionReason.NOT_A_MESSAGE: Problem.INVALID_MESSAGE,
    RejectionReason.NOT_CONNECTED: Problem.NOT_CONNECTED,
    RejectionReason.ROTATED: Problem.ROTATED,
    RejectionReason.QUEUE_FULL: Problem.QUEUE_FULL,
    RejectionReason.MESSAGE_TOO_LARGE: Problem.MESSAGE_TOO_LARGE,
    RejectionReason.NOT_QUEUING: Problem.NOT_QUEUING,
    RejectionReason.INSUFFICIENT_STORAGE: Problem.INSUFFICIENT_STORAGE,
    RejectionReason.RATE_LIMITED: Problem.RATE_LIMITED,
    RejectionReason.EXPIRED: Problem.EXPIRED,
}
"""The problem reported to the proven sender of a rejected message, in an envelope."""
_BY_PROBLEM: Final = {problem: reason for reason, problem in REPORTED.items()}


def rejected_by(problem: Problem) -> RejectionReason:
    """Return the transport's reason for a problem; ``TRY_AGAIN`` for one that has none there."""
    return _BY_PROBLEM.get(problem, RejectionReason.TRY_AGAIN)


def reason_of(refusal: Refusal) -> RejectionReason:
    """Return the reason to reject a message after an identity's refusal."""
    return rejected_by(problem_of(refusal))
