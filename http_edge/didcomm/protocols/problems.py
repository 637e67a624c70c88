"""Problem reports: what went wrong with a message, for its authenticated sender.

The message version writes the report (``envelopes.messages.ProblemReport``). This module defines
its codes in RFC 0035 and in report-problem 2.0, its sentence, and who may retry.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import (
    QUESTION_TYPE,
    InvalidMember,
    MessageType,
    ProblemReport,
    WhoRetries,
)

_REPORT_NAMES: Final = frozenset({"problem-report", "problem_report"})


class Problem(Enum):
    """Every reported problem; the values are the codes (RFC 0035 ``description.code``).

    ``version-not-supported`` comes from RFC 0003, ``e.m.live-mode-not-supported`` from pickup;
    ``mediation_not_granted`` is common among agents (RFC 0211 names none).
    """

    UNKNOWN_MESSAGE_TYPE = "unknown-message-type"
    """The mediator does not support the protocol, or this message in it."""
    VERSION_NOT_SUPPORTED = "version-not-supported"
    """The mediator supports the protocol in another major version."""
    INVALID_MESSAGE = "invalid-message"
    """A member is missing, of the wrong type or out of range; nothing was changed."""
    NOT_CONNECTED = "not-connected"
    """No connection has the sender's key."""
    ROTATED = "did-rotated"
    """The sender's DID was given up for another DID, which now speaks for its account."""
    NOT_MEDIATED = "mediation_not_granted"
    """The sender has not asked for mediation."""
    UNKNOWN_RECIPIENT = "unknown-recipient"
    """A forward is for a name that no agent has registered."""
    LIVE_MODE_NOT_SUPPORTED = "e.m.live-mode-not-supported"
    """Live mode was asked for over a transport that ends with its answer (RFC 0685)."""
    QUEUE_FULL = "queue-full"
    """The answer must wait in the sender's queue, which has no room."""
    MESSAGE_TOO_LARGE = "message-too-large"
    """The answer is larger than the sender's queue permits."""
    NOT_QUEUING = "not-queuing"
    """The answer must wait, but the sender has turned off queuing."""
    RATE_LIMITED = "rate-limited"
    """The sender sent more messages than it may."""
    EXPIRED = "expired"
    """The message arrived after its own expiry time."""
    MISSING_VALUE = "missing-value"
    """Only one of token and platform of a device is null (RFC 0734)."""
    NOT_REGISTERED_FOR_PUSH = "not-registered-for-push-notifications"
    """The sender asked for its device and has none (RFC 0734)."""
    INSUFFICIENT_STORAGE = "insufficient-storage"
    """The mediator is short of disk and stores nothing until some is free; nothing was changed."""
    TOO_MANY_ERRORS = "max-errors-exceeded"
    """Too many of the sender's messages were refused; no more are reported for a while."""
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or the mediator was overloaded."""

    @property
    def code_2(self) -> str:
        """The code of report-problem 2.0: error, scope (protocol or message), descriptors."""
        return _CODES_2[self]

    @property
    def sentence(self) -> str:
        """The problem in English."""
        return _SENTENCES[self]

    @property
    def refused(self) -> str:
        """The problem's name for the operator (``Outcome.refused``)."""
        return "" if self is Problem.TRY_AGAIN else self.value

    @property
    def who_retries(self) -> WhoRetries:
        """``you`` if the same message may succeed later, else ``none``."""
        return "you" if self in _TO_RETRY else "none"


_TO_RETRY: Final = frozenset(
    {
        Problem.QUEUE_FULL,
        Problem.RATE_LIMITED,
        Problem.INSUFFICIENT_STORAGE,
        Problem.TRY_AGAIN,
    }
)
_CODES_2: Final = {
    # The codes of Identus, which clients were written against, if it has one for the case.
    Problem.UNKNOWN_MESSAGE_TYPE: "e.p.msg.unsupported",
    Problem.VERSION_NOT_SUPPORTED: "e.p.msg.unsupported",
    Problem.INVALID_MESSAGE: f"e.p.msg.{QUESTION_TYPE}",
    Problem.NOT_CONNECTED: "e.p.req.not_enroll",
    Problem.ROTATED: "e.p.did-rotated",
    Problem.NOT_MEDIATED: "e.p.req.not_enroll",
    Problem.UNKNOWN_RECIPIENT: "e.p.req.not_enroll",
    Problem.LIVE_MODE_NOT_SUPPORTED: "e.m.live-mode-not-supported",
    Problem.QUEUE_FULL: "e.p.me.res.storage",
    Problem.MESSAGE_TOO_LARGE: "e.m.me.res.storage.message_too_big",
    Problem.NOT_QUEUING: "e.m.req.not-queuing",
    Problem.RATE_LIMITED: "e.m.me.res.rate-limited",
    Problem.EXPIRED: "e.m.req.time",
    # RFC 0734 names these codes, and its reports are messages of its own.
    Problem.MISSING_VALUE: "missing-value",
    Problem.NOT_REGISTERED_FOR_PUSH: "not-registered-for-push-notifications",
    Problem.INSUFFICIENT_STORAGE: "e.p.me.res.storage",
    Problem.TOO_MANY_ERRORS: "e.p.req.max-errors-exceeded",
    Problem.TRY_AGAIN: "e.m.me.try-again",
}
_SENTENCES: Final = {
    Problem.UNKNOWN_MESSAGE_TYPE: "This type of message is not supported",
    Problem.VERSION_NOT_SUPPORTED: "This version of the protocol is not supported",
    Problem.INVALID_MESSAGE: "A part of the message is missing or invalid",
    Problem.NOT_CONNECTED: "There is no connection with this key",
    Problem.ROTATED: "This DID was replaced by another DID",
    Problem.NOT_MEDIATED: "Mediation has not been granted",
    Problem.UNKNOWN_RECIPIENT: "No agent has registered this recipient",
    Problem.LIVE_MODE_NOT_SUPPORTED: "Connection does not support Live Delivery",
    Problem.QUEUE_FULL: "The queue of the sender has no room for the answer",
    Problem.MESSAGE_TOO_LARGE: "The answer is too large for the queue of the sender",
    Problem.NOT_QUEUING: "The sender has turned off queuing, so the answer cannot wait",
    Problem.RATE_LIMITED: "Too many messages, please wait",
    Problem.EXPIRED: "This message has expired",
    Problem.MISSING_VALUE: "Both or none of device_token and device_platform must be null",
    Problem.NOT_REGISTERED_FOR_PUSH: "There is no device to notify",
    Problem.INSUFFICIENT_STORAGE: "The mediator is short of disk space and stores nothing new",
    Problem.TOO_MANY_ERRORS: "Too many errors; further errors are not reported for a while",
    Problem.TRY_AGAIN: "The outcome is unknown, please try again",
}
_BY_REFUSAL: Final = {
    Refusal.NOT_CONNECTED: Problem.NOT_CONNECTED,
    Refusal.NOT_MEDIATED: Problem.NOT_MEDIATED,
    Refusal.NOT_SPEAKING: Problem.ROTATED,
    Refusal.SPEAKS_FOR_ANOTHER: Problem.TRY_AGAIN,
    Refusal.TEMPORARILY_UNAVAILABLE: Problem.TRY_AGAIN,
    Refusal.RATE_LIMITED: Problem.RATE_LIMITED,
    Refusal.INSUFFICIENT_STORAGE: Problem.INSUFFICIENT_STORAGE,
}


def problem_of(refusal: Refusal) -> Problem:
    """Return the problem to report when an identity refused what a message asked for."""
    return _BY_REFUSAL.get(refusal, Problem.INVALID_MESSAGE)


def report_of(
    problem: Problem | InvalidMember, *, is_own: bool = False
) -> tuple[ProblemReport, str]:
    """Return the report of a problem, and its name for the operator; ``is_own`` as in the report.

    The comment names a member that breaks a rule, and the rule, but never the value: a report may
    end up in the logs of others.
    """
    comment = ""
    if isinstance(problem, InvalidMember):
        comment = f": {problem.sentence}"
        problem = Problem.INVALID_MESSAGE
    report = ProblemReport(
        problem.value, problem.sentence + comment, problem.who_retries, problem.code_2, is_own
    )
    return report, problem.refused


def is_problem_report(kind: MessageType) -> bool:
    """Say whether a message is a problem report of any protocol, never answered with another.

    Older protocols spell its name with an underscore.
    """
    return kind.name in _REPORT_NAMES
