"""Problem reports: what went wrong with a message, for its authenticated sender.

How a report is written is the message version's (``envelopes.messages.ProblemReport``); its codes
in RFC 0035 and in report-problem 2.0, its sentence and who may retry are said here.
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
    """Every problem that is reported; the values are the codes (RFC 0035 ``description.code``).

    ``version-not-supported`` is RFC 0003's, ``e.m.live-mode-not-supported`` is pickup's, and
    ``mediation_not_granted`` is what agents know from one another (RFC 0211 names none).
    """

    UNKNOWN_MESSAGE_TYPE = "unknown-message-type"
    """The protocol, or the message in it, is not spoken here."""
    VERSION_NOT_SUPPORTED = "version-not-supported"
    """The protocol is spoken here in another major version."""
    INVALID_MESSAGE = "invalid-message"
    """A member is missing, of the wrong type or out of range; nothing was changed."""
    NOT_CONNECTED = "not-connected"
    """The sender's key is of no connection."""
    ROTATED = "did-rotated"
    """The sender's DID was given up for another one, which speaks for its account now."""
    NOT_MEDIATED = "mediation_not_granted"
    """The sender has not asked for mediation."""
    UNKNOWN_RECIPIENT = "unknown-recipient"
    """A forward is for a name that no agent has registered."""
    LIVE_MODE_NOT_SUPPORTED = "e.m.live-mode-not-supported"
    """Live mode was asked for over a transport that ends with its answer (RFC 0685)."""
    QUEUE_FULL = "queue-full"
    """The answer, which has to wait in the sender's queue, has no room there."""
    MESSAGE_TOO_LARGE = "message-too-large"
    """The answer is larger than the sender's queue takes."""
    NOT_QUEUING = "not-queuing"
    """The answer has to wait, and the sender wants no messages to wait for it."""
    RATE_LIMITED = "rate-limited"
    """The sender sent more messages than it may."""
    EXPIRED = "expired"
    """The message says itself until when it means something, and came later."""
    INSUFFICIENT_STORAGE = "insufficient-storage"
    """The mediator is short of disk and stores nothing until some is free; nothing was changed."""
    TOO_MANY_ERRORS = "max-errors-exceeded"
    """So much of the sender was refused that no more of it is reported for a while."""
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or there was too much to do."""

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
        """Its name for the operator (``Outcome.refused``)."""
        return "" if self is Problem.TRY_AGAIN else self.value

    @property
    def who_retries(self) -> WhoRetries:
        """May the same message succeed later (``you``), or never (``none``)?"""
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
    # Those of Identus, which clients were written against, as far as it has one for the case.
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
    Problem.INSUFFICIENT_STORAGE: "e.p.me.res.storage",
    Problem.TOO_MANY_ERRORS: "e.p.req.max-errors-exceeded",
    Problem.TRY_AGAIN: "e.m.me.try-again",
}
_SENTENCES: Final = {
    Problem.UNKNOWN_MESSAGE_TYPE: "This type of message is not supported",
    Problem.VERSION_NOT_SUPPORTED: "This version of the protocol is not supported",
    Problem.INVALID_MESSAGE: "A part of the message is missing or not valid",
    Problem.NOT_CONNECTED: "There is no connection with this key",
    Problem.ROTATED: "This DID was given up for another one",
    Problem.NOT_MEDIATED: "Mediation has not been granted",
    Problem.UNKNOWN_RECIPIENT: "No agent has registered this recipient",
    Problem.LIVE_MODE_NOT_SUPPORTED: "Connection does not support Live Delivery",
    Problem.QUEUE_FULL: "The queue of the sender has no room for the answer",
    Problem.MESSAGE_TOO_LARGE: "The answer is too large for the queue of the sender",
    Problem.NOT_QUEUING: "The sender wants no answer to wait for it",
    Problem.RATE_LIMITED: "Too many messages, please wait",
    Problem.EXPIRED: "The time for this message is over",
    Problem.INSUFFICIENT_STORAGE: "The mediator is short of disk and stores nothing new",
    Problem.TOO_MANY_ERRORS: "Too many errors, no more are reported for a while",
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
    """The problem to report when an identity refused what a message asked for."""
    return _BY_REFUSAL.get(refusal, Problem.INVALID_MESSAGE)


def report_of(
    problem: Problem | InvalidMember, *, is_own: bool = False
) -> tuple[ProblemReport, str]:
    """The report of a problem, and its name for the operator; ``is_own`` as in the report.

    A member that breaks a rule is named with the rule in the comment, never with its value: a
    report may go through the logs of others.
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
    """Is it a problem report, of any protocol? Such a message is never answered with another.

    The older protocols write it with an underscore.
    """
    return kind.name in _REPORT_NAMES
