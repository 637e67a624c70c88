"""Acknowledgements and problem reports: given on request, and taken (RFC 0015, 0317, 0035).

In DIDComm v2 an acknowledgement is the message ``empty`` with a header, and problem reports are of
report-problem 2.0. An ``empty`` message has no content of its own: what it is sent for stands in
its headers, which are followed before any protocol is asked.

One acknowledgement is sent, after the message has been handled: it says both that the message
was received and what came of it. A message that is answered anyway is not acknowledged besides:
its answer, in the same thread, says as much, and over HTTP only one message can go back.

What others report needs no answer. A problem report is never answered with another one, or two
agents that misunderstand each other would never come to an end.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from http_edge.didcomm.envelopes.messages import Acknowledgement, Message
from http_edge.didcomm.protocols.problems import is_problem_report
from http_edge.didcomm.protocols.protocol import Family, Outcome, no_answer


def acknowledged(message: Message, outcome: Outcome) -> Outcome:
    """``outcome``, with an acknowledgement as its reply if one was asked for and none is there.

    Never for forwards (RFC 0317: mediators must not), acknowledgements and problem reports.
    """
    if outcome.reply is not None or outcome.envelope is not None or not _is_due(message):
        return outcome
    return msgspec.structs.replace(outcome, reply=Acknowledgement())


def families() -> Sequence[Family]:
    """report-problem, notification, under which agents send the same messages, and empty."""
    handlers = {"problem-report": no_answer, "ack": no_answer}
    roles = ("notifier", "notified")
    return (
        Family("report-problem", 1, (0,), roles, handlers),
        Family("report-problem", 2, (0,), roles, {"problem-report": no_answer}),
        Family("notification", 1, (0,), roles, handlers),
        Family("empty", 1, (0,), (), {"empty": no_answer}),
    )


def _is_due(message: Message) -> bool:
    kind = message.type
    is_routing = message.is_forward or kind.family == "routing"
    return message.wants_ack and not (is_routing or kind.name == "ack" or is_problem_report(kind))
