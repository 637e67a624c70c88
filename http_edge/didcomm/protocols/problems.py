"""Problem reports (RFC 0035): what went wrong with a message, for its authenticated sender.

How a report is written is the message version's (``envelopes.messages.ProblemReport``); its code,
its sentence and who may retry are said here.
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from actors.core.refusals import Refusal
from http_edge.didcomm.envelopes.messages import (
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
    NOT_MEDIATED = "mediation_not_granted"
    """The sender has not asked for mediation."""
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
    INSUFFICIENT_STORAGE = "insufficient-storage"
    """The mediator is short of disk and stores nothing until some is free; nothing was changed."""
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or there was too much to do."""

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
_SENTENCES: Final = {
    Problem.UNKNOWN_MESSAGE_TYPE: "This type of message is not supported",
    Problem.VERSION_NOT_SUPPORTED: "This version of the protocol is not supported",
    Problem.INVALID_MESSAGE: "A part of the message is missing or not valid",
    Problem.NOT_CONNECTED: "There is no connection with this key",
    Problem.NOT_MEDIATED: "Mediation has not been granted",
    Problem.LIVE_MODE_NOT_SUPPORTED: "Connection does not support Live Delivery",
    Problem.QUEUE_FULL: "The queue of the sender has no room for the answer",
    Problem.MESSAGE_TOO_LARGE: "The answer is too large for the queue of the sender",
    Problem.NOT_QUEUING: "The sender wants no answer to wait for it",
    Problem.RATE_LIMITED: "Too many messages, please wait",
    Problem.INSUFFICIENT_STORAGE: "The mediator is short of disk and stores nothing new",
    Problem.TRY_AGAIN: "The outcome is unknown, please try again",
}
_BY_REFUSAL: Final = {
    Refusal.NOT_CONNECTED: Problem.NOT_CONNECTED,
    Refusal.NOT_MEDIATED: Problem.NOT_MEDIATED,
    Refusal.TEMPORARILY_UNAVAILABLE: Problem.TRY_AGAIN,
    Refusal.RATE_LIMITED: Problem.TRY_AGAIN,
    Refusal.INSUFFICIENT_STORAGE: Problem.INSUFFICIENT_STORAGE,
}


def problem_of(refusal: Refusal) -> Problem:
    """The problem to report when an identity refused what a message asked for."""
    return _BY_REFUSAL.get(refusal, Problem.INVALID_MESSAGE)


def report_of(problem: Problem | InvalidMember) -> tuple[ProblemReport, str]:
    """The report of a problem, and its name for the operator.

    A member that breaks a rule is named with the rule in the comment, never with its value: a
    report may go through the logs of others.
    """
    if isinstance(problem, InvalidMember):
        invalid = Problem.INVALID_MESSAGE
        comment = f"{invalid.sentence}: {problem.sentence}"
        return ProblemReport(invalid.value, comment, invalid.who_retries), invalid.refused
    return ProblemReport(problem.value, problem.sentence, problem.who_retries), problem.refused


def is_problem_report(kind: MessageType) -> bool:
    """Is it a problem report, of any protocol? Such a message is never answered with another.

    The older protocols write it with an underscore.
    """
    return kind.name in _REPORT_NAMES
