"""Plaintext messages of DIDComm v1: types, threads and the decorators that a mediator acts on.

RFC 0003 and RFC 0348 (types), RFC 0008 (threads), RFC 0092 (return route), RFC 0032 (timing),
RFC 0317 (please ack), RFC 0017 (attachments), RFC 0234 (signatures). One object holds the members
of the protocol and the decorators. An answer spells its type as the question does, because old
agents know no other spelling.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from http_edge.crypto.encoding import base64_of_json
from http_edge.didcomm.envelopes.messages import (
    ID_CHARS_MAX,
    NEW_PREFIX,
    OLD_PREFIX,
    Acknowledgement,
    Answer,
    Attachment,
    Attachments,
    Json,
    Message,
    MessageType,
    NewMessage,
    ProblemReport,
    Reply,
    read_any_type,
    read_id,
    read_return_route,
    read_whole,
)
from http_edge.didcomm.envelopes.signed import sign_member

VERSION: Final = "v1"
"""The name of this message version."""
_TIME_CHARS_MAX: Final = 40
"""A time with nanoseconds and an offset has 35."""
_LEAP_SECOND: Final = re.compile(r"(:\d\d):60")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DELAY_MS_MAX: Final = 600_000
"""RFC 0032: a delay beyond ten minutes should not be honoured."""
_FORWARD: Final = ("routing", 1, "forward")
_ANY_TYPE: Final = re.compile(r".+/[0-9][^/]*/[^/]+\Z")
"""RFC 0003: a document and a protocol in it, the version, the name of the message."""
_ATTACHED: Final = "~attach"
_ACK_CASES: Final = ("RECEIPT", "OUTCOME")
_REPORT: Final = "notification/1.0/problem-report"
"""The alias of ``report-problem/1.0`` that RFC 0035 uses in its sample and RFC 0685 prescribes:
the agents in use know no other, and answer an unknown type with a problem report of their own."""
_OWN_REPORT: Final = "problem-report"
"""The report of a protocol with reports among its own messages (message-pickup 4.0)."""
_ACK: Final = "notification/1.0/ack"


def read(value: Json) -> Message | None:
    """Read a plaintext message; None if it has no type or an invalid id.

    The id may be missing: the texts of pickup show requests without one.
    """
    kind, message_id = _type(value.get("@type")), _message_id(value.get("@id"))
    if kind is None or message_id is None:
        return None
    # The extension of RFC 0212 has ``~timing`` in its examples and ``~timings`` in its text.
    timing = _decorator(value, "~timing") or _decorator(value, "~timings")
    is_forward = kind.is_named(*_FORWARD)
    # In a forward no decorator but the expiry matters.
    wished: Json = {} if is_forward else value
    thread, transport = _decorator(wished, "~thread"), _decorator(wished, "~transport")
    thread_id = read_id(thread, "thid") or message_id
    return Message(
        VERSION,
        kind,
        message_id,
        value,
        thread_id,
        read_id(thread, "pthid"),
        read_return_route(transport),
        read_id(transport, "return_route_thread") or thread_id,
        None if is_forward else _delay_ms(timing.get("delay_milli")),
        _wants_ack(wished),
        {
            name.removesuffix(_ATTACHED): attached
            for name, attached in wished.items()
            if name.endswith(_ATTACHED)
        },
        is_forward=is_forward,
        expires_at_s=_time_s(timing.get("expires_time")),
    )


def write(message: NewMessage, message_id: str) -> Json:
    """Write a message of ours without a thread as JSON; ``message_id`` is its default id."""
    head = {"@type": NEW_PREFIX + message.kind, "@id": message.id or message_id}
    return {**head, **message.body, **_attached(message.attachments)}


def write_answer(answer: Answer, question: Message, message_id: str) -> Json:
    """Write an answer as JSON, in the thread and in the spelling of the question."""
    thread: Json = {"thid": question.thread_id}
    match answer:
        case Reply():
            kind = question.type.sibling(answer.name)
            if answer.names_parent and question.parent_thread_id:
                thread["pthid"] = question.parent_thread_id
            return {**_head(kind, message_id, thread), **_members(answer)}
        case ProblemReport():
            # ``pthid`` is the question's id (RFC 0035); ``thid`` is its thread, by which a waiting
            # sender finds the answer to its request (RFC 0008).
            thread["pthid"] = question.id
            if answer.is_own:
                description = {"code": answer.code_of(question), "en": answer.comment}
                kind = question.type.sibling(_OWN_REPORT)
                return {**_head(kind, message_id, thread), "description": description}
            head = _head(_alike(question.type, _REPORT), message_id, thread)
            description = {"code": answer.code, "en": answer.comment}
            return {**head, "description": description, "who_retries": answer.who_retries}
        case Acknowledgement():
            return {**_head(_alike(question.type, _ACK), message_id, thread), "status": "OK"}


def write_attachment(attachment: Attachment) -> Json:
    """Write an attachment as JSON."""
    if attachment.inlined:
        # RFC 0212 writes the id as ``@id``, but Credo reads ``id``.
        message = orjson.Fragment(attachment.content)
        return {"@id": attachment.id, "id": attachment.id, "message": message}
    head: Json = {"@id": attachment.id}
    if attachment.media_type:
        head["mime-type"] = attachment.media_type
    if attachment.jws is None:
        return {**head, "data": {"base64": base64_of_json(attachment.content)}}
    # ACA-Py accepts only the standard alphabet here. Signed content stays unchanged.
    text = b64encode(attachment.content).decode("ascii")
    return {**head, "data": {"base64": text, "jws": attachment.jws}}


def _head(kind: str, message_id: str, thread: Json) -> Json:
    """Return the members that each answer has; a question without an id has begun no thread."""
    named = {name: thread_id for name, thread_id in thread.items() if thread_id}
    return {"@type": kind, "@id": message_id, **({"~thread": named} if named else {})}


def _alike(kind: MessageType, other: str) -> str:
    """Return the type of another protocol in the same spelling, or else in the new one."""
    return (OLD_PREFIX if kind.prefix == OLD_PREFIX else NEW_PREFIX) + other


def _members(reply: Reply) -> Json:
    signed = {
        f"{name}~sig": sign_member(signed.value, signed.key, signed.at_s)
        for name, signed in reply.signed.items()
    }
    return {**reply.body, **_attached(reply.attachments), **signed}


def _attached(attachments: Attachments) -> Json:
    return {
        name + _ATTACHED: write_attachment(one)
        if isinstance(one, Attachment)
        else list(map(write_attachment, one))
        for name, one in attachments.items()
    }


def _type(text: object) -> MessageType | None:
    """Parse a type of RFC 0003; a type of another document becomes that of an unknown protocol."""
    kind = read_any_type(text)
    is_known = kind is not None and bool(kind.family)
    return kind if is_known or (isinstance(text, str) and _ANY_TYPE.match(text)) else None


def _message_id(value: object) -> str | None:
    """Return the id of a message, empty if it has none; None if it is invalid."""
    if value is None:
        return ""
    return value if isinstance(value, str) and 0 < len(value) <= ID_CHARS_MAX else None


def _decorator(value: Json, name: str) -> Mapping[str, object]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _delay_ms(delay: object) -> int | None:
    delay_ms = int(delay) if isinstance(delay, float) else read_whole(delay)
    return None if delay_ms is None or delay_ms <= 0 else min(delay_ms, _DELAY_MS_MAX)


def _time_s(text: object) -> int | None:
    """Return a time in Unix seconds, 0 if it is before 1970; None for any other value.

    A time without an offset from UTC counts as none, because it may be any of many. Letters may be
    small, and a leap second is the one before it (RFC 3339).
    """
    if not isinstance(text, str) or len(text) > _TIME_CHARS_MAX:
        return None
    try:
        at = datetime.fromisoformat(_LEAP_SECOND.sub(r"\1:59", text.upper()))
    except ValueError:
        return None
    return None if at.tzinfo is None else max(0, (at - _EPOCH) // timedelta(seconds=1))


def _wants_ack(value: Json) -> bool:
    wish = value.get("~please_ack")
    if not isinstance(wish, dict):
        return False
    cases = wish.get("on", _ACK_CASES)  # the first drafts had no ``on``
    return isinstance(cases, list | tuple) and any(case in cases for case in _ACK_CASES)
