"""Acknowledgements on request: the ``~please_ack`` decorator (RFC 0317, RFC 0015).

One acknowledgement is sent, after the message has been handled: it says both that the message
was received and what came of it. A message that is answered anyway is not acknowledged besides:
its answer, in the same thread, says as much, and over HTTP only one message can go back.
"""

from __future__ import annotations

from typing import Final

import msgspec

from actors.clock import NewId
from http_edge.didcomm.handling import Outcome
from http_edge.didcomm.messages import Json, Message
from http_edge.didcomm.problems import is_problem_report

_TYPE: Final = "notification/1.0/ack"
_CASES: Final = ("RECEIPT", "OUTCOME")


def acknowledged(message: Message, outcome: Outcome, new_id: NewId) -> Outcome:
    """``outcome``, with an acknowledgement as its reply if one was asked for and none is there.

    Never for forwards (RFC 0317: mediators must not), acknowledgements and problem reports.
    """
    if outcome.reply is not None or outcome.envelope is not None or not _is_asked_for(message):
        return outcome
    reply: Json = {
        "@type": message.type.prefix + _TYPE,
        "@id": new_id(),
        "~thread": {"thid": message.thread_id},
        "status": "OK",
    }
    return msgspec.structs.replace(outcome, reply=reply)


def _is_asked_for(message: Message) -> bool:
    kind = message.type
    if kind.family == "routing" or kind.name == "ack" or is_problem_report(kind):
        return False
    decorator = message.body.get("~please_ack")
    if not isinstance(decorator, dict):
        return False
    cases = decorator.get("on", list(_CASES))  # the first drafts had no ``on``
    return isinstance(cases, list) and any(case in cases for case in _CASES)
