"""Why a message is not taken, whatever carried it: one closed set, and what leads to each."""

from __future__ import annotations

from enum import Enum
from typing import Final

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import UnpackRefusal
from http_edge.didcomm.protocols.problems import Problem


class RejectionReason(Enum):
    """Why a message was not taken; the transport says so where the sender is unknown."""

    NOT_AN_ENVELOPE = "not-an-envelope"
    UNDECRYPTABLE = "undecryptable"
    NOT_A_MESSAGE = "not-a-message"
    ANONYMOUS = "anonymous"
    """Only a forward may come without a proven sender."""
    TOO_DEEP = "forward-too-deep"
    UNKNOWN_RECIPIENT = "unknown-recipient"
    """Only where the configuration says so; by default it looks like success."""
    QUEUE_FULL = "queue-full"
    MESSAGE_TOO_LARGE = "message-too-large"
    NOT_QUEUING = "not-queuing"
    EXPIRED = "expired"
    """The time is over that it was of use for, by its own word (DIDComm v2, ``expires_time``)."""
    RATE_LIMITED = "rate-limited"
    INSUFFICIENT_STORAGE = "insufficient-storage"
    """The mediator is short of disk: what is stored is refused until some is free."""
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or there is too much to do."""


_OF_REFUSALS: Final = {
    Refusal.RECIPIENT_QUEUE_FULL: RejectionReason.QUEUE_FULL,
    Refusal.MESSAGE_TOO_LARGE: RejectionReason.MESSAGE_TOO_LARGE,
    Refusal.NOT_QUEUING: RejectionReason.NOT_QUEUING,
    Refusal.INSUFFICIENT_STORAGE: RejectionReason.INSUFFICIENT_STORAGE,
    Refusal.MESSAGE_EXPIRED: RejectionReason.EXPIRED,
}
UNPACK_REFUSALS: Final = {
    UnpackRefusal.NOT_AN_ENVELOPE: RejectionReason.NOT_AN_ENVELOPE,
    UnpackRefusal.NOT_FOR_US: RejectionReason.NOT_AN_ENVELOPE,
    UnpackRefusal.UNDECRYPTABLE: RejectionReason.UNDECRYPTABLE,
}
REPORTED: Final = {
    RejectionReason.NOT_A_MESSAGE: Problem.INVALID_MESSAGE,
    RejectionReason.QUEUE_FULL: Problem.QUEUE_FULL,
    RejectionReason.MESSAGE_TOO_LARGE: Problem.MESSAGE_TOO_LARGE,
    RejectionReason.NOT_QUEUING: Problem.NOT_QUEUING,
    RejectionReason.INSUFFICIENT_STORAGE: Problem.INSUFFICIENT_STORAGE,
    RejectionReason.RATE_LIMITED: Problem.RATE_LIMITED,
    RejectionReason.EXPIRED: Problem.EXPIRED,
}
"""What a message that was not taken is answered with in an envelope, if its sender is proven."""
_BY_PROBLEM: Final = {problem: reason for reason, problem in REPORTED.items()}


def rejected_by(problem: Problem) -> RejectionReason:
    """How the transport says a problem, where no report can go back; by default it is over soon."""
    return _BY_PROBLEM.get(problem, RejectionReason.TRY_AGAIN)


def reason_of(refusal: Refusal | None) -> RejectionReason:
    """Why a message was not taken of which an identity refused a part."""
    if refusal is None:
        return RejectionReason.TRY_AGAIN
    return _OF_REFUSALS.get(refusal, RejectionReason.TRY_AGAIN)
