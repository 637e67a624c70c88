"""Problem reports: what went wrong with a message, for its authenticated sender.

The message version writes the report (``envelopes.messages.ProblemReport``).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Final, Self

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import (
    QUESTION_TYPE,
    InvalidMember,
    ProblemReport,
    WhoRetries,
)


class Problem(Enum):
    """Every reported problem: its codes, one sentence, and who may retry.

    The value of a member is its code in RFC 0035 (``description.code``). ``version-not-supported``
    comes from RFC 0003, ``e.m.live-mode-not-supported`` from pickup (RFC 0685: live mode over a
    transport that ends with its answer); ``mediation_not_granted`` is common among agents (RFC 0211
    names none). Reports about devices are messages of their own protocol, with the codes of
    RFC 0734. ``QUOTA_EXCEEDED`` and ``KEY_TAKEN`` are only counted for the operator: they deny
    mediation, and a ``mediate-deny`` gives no reason.

    ``code_2`` is the code in report-problem 2.0: error, scope (protocol or message), descriptors;
    it is that of Identus, which clients were written against, if Identus has one for the case.
    ``who_retries`` is ``you`` if the same message may succeed later, else ``none``.
    """

    code_2: str
    sentence: str
    who_retries: WhoRetries

    def __new__(
        cls, code: str, code_2: str, sentence: str, who_retries: WhoRetries = "none"
    ) -> Self:
        """A member, with its facts beside its code."""
        member = object.__new__(cls)
        member._value_ = code
        member.code_2, member.sentence, member.who_retries = code_2, sentence, who_retries
        return member

    UNKNOWN_MESSAGE_TYPE = (
        "unknown-message-type",
        "e.p.msg.unsupported",
        "This type of message is not supported",
    )
    VERSION_NOT_SUPPORTED = (
        "version-not-supported",
        "e.p.msg.unsupported",
        "This version of the protocol is not supported",
    )
    INVALID_MESSAGE = (
        "invalid-message",
        f"e.p.msg.{QUESTION_TYPE}",
        "A part of the message is missing or invalid",
    )
    NOT_CONNECTED = (
        "not-connected",
        "e.p.req.not_enroll",
        "The sender is not connected; in DIDComm v2 a mediate-request connects it",
    )
    ROTATED = "did-rotated", "e.p.did-rotated", "This DID was replaced by another DID"
    NOT_MEDIATED = "mediation_not_granted", "e.p.req.not_enroll", "Mediation has not been granted"
    UNKNOWN_RECIPIENT = (
        "unknown-recipient",
        "e.p.req.not_enroll",
        "No agent has registered this recipient",
    )
    LIVE_MODE_NOT_SUPPORTED = (
        "e.m.live-mode-not-supported",
        "e.m.live-mode-not-supported",
        "Connection does not support Live Delivery",
    )
    QUEUE_FULL = (
        "queue-full",
        "e.p.me.res.storage",
        "The queue of the sender has no room for the answer",
        "you",
    )
    MESSAGE_TOO_LARGE = (
        "message-too-large",
        "e.m.me.res.storage.message_too_big",
        "The answer is too large for the queue of the sender",
    )
    NOT_QUEUING = (
        "not-queuing",
        "e.m.req.not-queuing",
        "The sender has turned off queuing, so the answer cannot wait",
    )
    RATE_LIMITED = (
        "rate-limited",
        "e.m.me.res.rate-limited",
        "Too many messages, please wait",
        "you",
    )
    EXPIRED = "expired", "e.m.req.time", "This message has expired"
    MISSING_VALUE = (
        "missing-value",
        "missing-value",
        "Both or none of device_token and device_platform must be null",
    )
    NOT_REGISTERED_FOR_PUSH = (
        "not-registered-for-push-notifications",
        "not-registered-for-push-notifications",
        "There is no device to notify",
    )
    INSUFFICIENT_STORAGE = (
        "insufficient-storage",
        "e.p.me.res.storage",
        "The mediator is short of disk space and stores nothing new",
        "you",
    )
    TOO_MANY_ERRORS = (
        "max-errors-exceeded",
        "e.p.req.max-errors-exceeded",
        "Too many errors; further errors are not reported for a while",
    )
    QUOTA_EXCEEDED = (
        "quota-exceeded",
        "e.p.me.res.storage",
        "The keylist has no room for the name of the sender",
    )
    KEY_TAKEN = "key-taken", "e.p.req.key-taken", "The name of the sender belongs to another agent"
    TRY_AGAIN = "try-again", "e.m.me.try-again", "The outcome is unknown, please try again", "you"

    @property
    def refused(self) -> str:
        """The problem's name for the operator (``Outcome.refused``)."""
        return "" if self is Problem.TRY_AGAIN else self.value


_BY_REFUSAL: Final = {
    Refusal.NOT_CONNECTED: Problem.NOT_CONNECTED,
    Refusal.NOT_MEDIATED: Problem.NOT_MEDIATED,
    Refusal.NOT_SPEAKING: Problem.ROTATED,
    Refusal.SPEAKS_FOR_ANOTHER: Problem.TRY_AGAIN,
    Refusal.NOT_OWNER: Problem.TRY_AGAIN,
    Refusal.TEMPORARILY_UNAVAILABLE: Problem.TRY_AGAIN,
    Refusal.RATE_LIMITED: Problem.RATE_LIMITED,
    Refusal.INSUFFICIENT_STORAGE: Problem.INSUFFICIENT_STORAGE,
    Refusal.RECIPIENT_QUEUE_FULL: Problem.QUEUE_FULL,
    Refusal.MESSAGE_TOO_LARGE: Problem.MESSAGE_TOO_LARGE,
    Refusal.NOT_QUEUING: Problem.NOT_QUEUING,
    Refusal.MESSAGE_EXPIRED: Problem.EXPIRED,
    Refusal.KEY_UNKNOWN: Problem.UNKNOWN_RECIPIENT,
    Refusal.KEY_TAKEN: Problem.KEY_TAKEN,
    Refusal.QUOTA_EXCEEDED: Problem.QUOTA_EXCEEDED,
    # Handled where they occur: by the handshakes, and by the pump of a socket.
    Refusal.INVITATION_USED: Problem.INVALID_MESSAGE,
    Refusal.LIVE_ELSEWHERE: Problem.INVALID_MESSAGE,
    # Of Decentrl's commands alone.
    Refusal.INVALID_COMMAND: Problem.INVALID_MESSAGE,
    Refusal.INVALID_SIGNATURE: Problem.INVALID_MESSAGE,
    Refusal.INVALID_SIGNATURES: Problem.INVALID_MESSAGE,
    Refusal.UNAUTHORIZED_COMMAND: Problem.INVALID_MESSAGE,
    Refusal.TIMESTAMP_OUT_OF_RANGE: Problem.INVALID_MESSAGE,
    Refusal.DUPLICATE_NONCE: Problem.INVALID_MESSAGE,
    Refusal.SENDER_NOT_FOUND: Problem.INVALID_MESSAGE,
    Refusal.SENDER_SIGNING_KEY_NOT_FOUND: Problem.INVALID_MESSAGE,
    Refusal.RECIPIENT_NOT_FOUND: Problem.INVALID_MESSAGE,
    Refusal.RECIPIENT_NOT_REGISTERED: Problem.INVALID_MESSAGE,
    Refusal.COMMUNICATION_CONTRACT_NOT_FOUND: Problem.INVALID_MESSAGE,
}
"""A row for each refusal; transports and handshakes have reasons of their own for some problems."""


def problem_of(refusal: Refusal) -> Problem:
    """Return the problem to report when an identity refused what a message asked for."""
    return _BY_REFUSAL[refusal]


def report_of(
    problem: Problem | InvalidMember, *, is_own: bool = False, supported: Sequence[str] = ()
) -> ProblemReport:
    """Return the report of a problem; ``is_own`` as in the report.

    The comment names a member that breaks a rule, and the rule, but never the value: a report may
    end up in the logs of others. It names what is ``supported`` instead of what was sent.
    """
    comment = f"; supported: {', '.join(supported)}" if supported else ""
    if isinstance(problem, InvalidMember):
        comment = f": {problem.sentence}"
        problem = Problem.INVALID_MESSAGE
    return ProblemReport(
        problem.value, problem.sentence + comment, problem.who_retries, problem.code_2, is_own
    )
