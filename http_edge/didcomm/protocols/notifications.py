"""Acknowledgements, sent on request, and received notifications (RFC 0015, 0317, 0035).

In DIDComm v2 an acknowledgement is the message ``empty`` with a header, and problem reports are
messages of report-problem 2.0. An ``empty`` message has no content of its own: its purpose is in
its headers, which the mediator follows before it asks any protocol.

The mediator sends one acknowledgement after it has handled the message: it says both that the
message was received and what the outcome is. A message that is answered anyway is not also
acknowledged: the answer, in the same thread, says as much, and only one message can go back over
HTTP.

Others' reports need no answer. A problem report is never answered with another one, or two agents
that misunderstand each other would never stop.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from http_edge.didcomm.envelopes.messages import Acknowledgement, Message
from http_edge.didcomm.protocols.protocol import NOT_DONE, Family, Outcome, no_answer


def acknowledged(message: Message, outcome: Outcome) -> Outcome:
    """Add an acknowledgement to ``outcome`` if the message asked for one and gets no reply.

    Acknowledgements and problem reports get none, nor does a message that did nothing. A forward is
    read as one that asks for none (RFC 0317: mediators must not).
    """
    is_answered = outcome.reply is not None or outcome.envelope is not None
    if is_answered or outcome is NOT_DONE or not _is_due(message):
        return outcome
    return msgspec.structs.replace(outcome, reply=Acknowledgement())


def families() -> Sequence[Family]:
    """Return report-problem, empty, and notification, by which agents send the same messages."""
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
    return message.wants_ack and not (kind.is_ack or kind.is_problem_report)
