"""Plaintext messages of DIDComm v2: headers, threads, and what a mediator acts on.

DIDComm Messaging 2.1, "Message Headers", "Threading", "ACKs", "DID Rotation", and the extension
"return-route". ``body`` holds the members of the protocol; an empty body may be missing (2.1), but
we always write one (2.0). Times are Unix seconds.
"""

from __future__ import annotations

from itertools import chain
from typing import Final

import orjson

from http_edge.crypto.encoding import base64_of_json
from http_edge.didcomm.envelopes.messages import (
    ID_CHARS_MAX,
    NEW_PREFIX,
    Acknowledgement,
    Answer,
    Attachment,
    Attachments,
    Json,
    Message,
    NewMessage,
    ProblemReport,
    Reply,
    read_any_type,
    read_id,
    read_return_route,
)
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX

VERSION: Final = "v2"
"""The name of this message version."""
MEDIA_TYPE: Final = "application/didcomm-plain+json"
TIME_S_MAX: Final = 2**40
"""A later time is not in seconds."""
_FORWARD: Final = ("routing", 2, "forward")
_REPORT: Final = NEW_PREFIX + "report-problem/2.0/problem-report"
_OWN_REPORT: Final = "problem-report"
"""The report of a protocol with reports among its own messages (message-pickup 4.0)."""
_NAMES: Final = {"disclosures": "disclose"}
"""Messages with another name than in DIDComm v1."""
_EMPTY: Final = NEW_PREFIX + "empty/1.0/empty"


def read(value: Json, addressed_to: str) -> Message | None:
    """Read a plaintext message; None if it has no type, no valid id or no valid body.

    ``addressed_to`` is the DID of ours that the message was packed to. The caller checks that
    ``from`` is the packing sender, and reads ``from_prior``.
    """
    kind, message_id, sender = read_any_type(value.get("type")), value.get("id"), value.get("from")
    body = value.get("body")
    if kind is None or not isinstance(message_id, str) or not 0 < len(message_id) <= ID_CHARS_MAX:
        return None
    if body is None:
        body = {}
    if not isinstance(body, dict) or not isinstance(sender, str | None):
        return None
    if sender is not None and len(sender) > DID_CHARS_MAX:
        return None
    # A fragment is not allowed: the id of a key stands for its DID.
    sender_did = (sender or "").partition("#")[0]
    attached = value.get("attachments")
    attachments = {} if attached is None else {"": attached}
    is_forward = kind.is_named(*_FORWARD)
    # A forward is not acknowledged, which would show whose messages wait here, and asks for nothing
    # back. Only in a forward a delay means something.
    wished: Json = {} if is_forward else value
    thread_id = read_id(wished, "thid") or message_id
    return Message(
        version=VERSION,
        type=kind,
        id=message_id,
        body=body,
        thread_id=thread_id,
        parent_thread_id=read_id(wished, "pthid"),
        return_route=read_return_route(wished),
        return_route_thread=read_id(wished, "return_route_thread") or thread_id,
        delay_ms=_integer(value.get("delay_milli")) if is_forward else None,
        wants_ack=_wants_ack(wished.get("please_ack"), message_id),
        attachments=attachments,
        is_forward=is_forward,
        addressed_to=addressed_to,
        sender_did=sender_did,
        expires_at_s=_time_s(value.get("expires_time")),
    )


def write(message: NewMessage, message_id: str) -> Json:
    """Write a message of ours without a thread; ``message_id`` is its default id."""
    head: Json = {"id": message.id or message_id, "type": NEW_PREFIX + message.kind}
    return {**head, "body": message.body, **_attached(message.attachments)}


def write_answer(answer: Answer, question: Message, message_id: str) -> Json:
    """Write an answer in the thread of the question."""
    thread = question.thread_id
    acknowledged: Json = {"ack": [question.id]} if question.wants_ack else {}
    match answer:
        case Reply():
            name = _NAMES.get(answer.name, answer.name)
            kind = question.type.sibling(name)
            parent: Json = {}
            if answer.names_parent and question.parent_thread_id:
                parent["pthid"] = question.parent_thread_id
            head: Json = {"id": message_id, "type": kind, "thid": thread, **parent, **acknowledged}
            return {**head, "body": answer.body, **_attached(answer.attachments)}
        case ProblemReport():
            # ``pthid`` is the thread that failed; by ``thid`` some agents find the answer to their
            # request. ``ack`` names the message that did, of several in the thread.
            own = question.type.sibling(_OWN_REPORT)
            report = own if answer.is_own else _REPORT
            head = {"id": message_id, "type": report, "thid": thread, "pthid": thread}
            body = {"code": answer.code_of(question), "comment": answer.comment}
            return {**head, "ack": [question.id], "body": body}
        case Acknowledgement():
            head = {"id": message_id, "type": _EMPTY, "thid": thread, "ack": [question.id]}
            return {**head, "body": {}}


def addressed(message: Json, sender_did: str, recipient_did: str) -> bytes:
    """Return a written message as text, with its sender and its one recipient."""
    head = {"typ": MEDIA_TYPE, "from": sender_did, "to": [recipient_did]}
    return orjson.dumps({**head, **message})


def write_attachment(attachment: Attachment) -> Json:
    """Write an attachment as JSON; none is signed: only handshakes of DIDComm v1 sign theirs."""
    assert attachment.jws is None
    if attachment.inlined:
        data: Json = {"json": orjson.Fragment(attachment.content)}
    else:
        data = {"base64": base64_of_json(attachment.content)}
    return {"id": attachment.id, "data": data}


def _attached(attachments: Attachments) -> Json:
    """Return the attachments of a message in one list, to whichever member they belong."""
    if not attachments:
        return {}
    listed = ([each] if isinstance(each, Attachment) else each for each in attachments.values())
    return {"attachments": list(map(write_attachment, chain.from_iterable(listed)))}


def _integer(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value)


def _time_s(value: object) -> int | None:
    """Return a time, 0 if it is before 1970; None for any other value."""
    time_s = _integer(value)
    return max(0, time_s) if time_s is not None and time_s <= TIME_S_MAX else None


def _wants_ack(wish: object, message_id: str) -> bool:
    """Say whether the list names this message, by its id in any case or by the empty text."""
    named = (
        {each.lower() for each in wish if isinstance(each, str)} if isinstance(wish, list) else ()
    )
    return "" in named or message_id.lower() in named
