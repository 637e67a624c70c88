"""Problem reports (RFC 0035): what went wrong with a message, told to its authenticated sender.

The type is ``notification/1.0/problem-report``, the alias of ``report-problem/1.0`` that
RFC 0035 uses in its sample and RFC 0685 prescribes: the agents in use know no other, and answer
an unknown type with a problem report of their own.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, Literal, TypeAlias

from actors.refusals import Refusal
from http_edge.didcomm.messages import Json, Message, MessageType

WhoRetries: TypeAlias = Literal["you", "none"]

_TYPE: Final = "notification/1.0/problem-report"
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
    TRY_AGAIN = "try-again"
    """The outcome is unknown, or there was too much to do."""

    @property
    def sentence(self) -> str:
        """The problem in English."""
        return _SENTENCES[self]

    @property
    def refused(self) -> str:
        """What the operator is told of it (``Outcome.refused``)."""
        return "" if self is Problem.TRY_AGAIN else self.value

    @property
    def who_retries(self) -> WhoRetries:
        """May the same message succeed later (``you``), or never (``none``)?"""
        return "you" if self is Problem.TRY_AGAIN else "none"


_SENTENCES: Final = {
    Problem.UNKNOWN_MESSAGE_TYPE: "This type of message is not supported",
    Problem.VERSION_NOT_SUPPORTED: "This version of the protocol is not supported",
    Problem.INVALID_MESSAGE: "A part of the message is missing or not valid",
    Problem.NOT_CONNECTED: "There is no connection with this key",
    Problem.NOT_MEDIATED: "Mediation has not been granted",
    Problem.LIVE_MODE_NOT_SUPPORTED: "Connection does not support Live Delivery",
    Problem.TRY_AGAIN: "The outcome is unknown, please try again",
}
_BY_REFUSAL: Final = {
    Refusal.NOT_CONNECTED: Problem.NOT_CONNECTED,
    Refusal.NOT_MEDIATED: Problem.NOT_MEDIATED,
    Refusal.TEMPORARILY_UNAVAILABLE: Problem.TRY_AGAIN,
    Refusal.RATE_LIMITED: Problem.TRY_AGAIN,
}


def problem_of(refusal: Refusal) -> Problem:
    """The problem to report when an identity refused what a message asked for."""
    return _BY_REFUSAL.get(refusal, Problem.INVALID_MESSAGE)


def problem_report(to: Message, problem: Problem, new_id: str) -> Json:
    """A problem report about ``to``, in the spelling of its type (RFC 0348).

    Its thread names ``to`` twice: ``pthid`` is its id (RFC 0035), and ``thid`` is its thread, by
    which a waiting sender finds the answer to its request (RFC 0008).
    """
    return {
        "@type": to.type.prefix + _TYPE,
        "@id": new_id,
        "~thread": {"thid": to.thread_id, "pthid": to.id},
        "description": {"code": problem.value, "en": problem.sentence},
        "who_retries": problem.who_retries,
    }


def is_problem_report(kind: MessageType) -> bool:
    """Is it a problem report, of any protocol? Such a message is never answered with another.

    The older protocols write it with an underscore.
    """
    return kind.name in _REPORT_NAMES
