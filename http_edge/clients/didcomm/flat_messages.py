"""Converts messages of DIDComm v2 to flat ones and back: the library works with one form.

A flat message has the form of DIDComm v1: ``@type``, ``@id``, the members of its protocol, and
beside them ``~thread``, ``~transport`` and ``~attach``; ``~from_prior`` is a header of v2 alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from http_edge.didcomm.envelopes.messages import Json, read_type

_DECORATORS: Final = frozenset(
    {"@type", "@id", "~thread", "~transport", "~attach", "~please_ack", "~from_prior"}
)
_REPORT: Final = "problem-report"


def from_flat(message: Json) -> Json:
    """Convert a flat message to DIDComm v2, without its sender and recipient."""
    body = {name: value for name, value in message.items() if name not in _DECORATORS}
    written: Json = {"id": message["@id"], "type": message["@type"], "body": body}
    for name in ("thid", "pthid"):
        if (value := member(message, "~thread").get(name)) is not None:
            written[name] = value
    transport = member(message, "~transport")
    written |= {name: transport[name] for name in _ROUTES if name in transport}
    if "~please_ack" in message:
        written["please_ack"] = [""]
    if "~from_prior" in message:
        written["from_prior"] = message["~from_prior"]
    attached = message.get("~attach")
    if isinstance(attached, list):
        written["attachments"] = [{"id": one["@id"], "data": one["data"]} for one in attached]
    return written


def to_flat(message: Json) -> Json:
    """Convert a message of DIDComm v2 to a flat one."""
    inner = member(message, "body").items()
    body = {name: value for name, value in inner if name not in _DECORATORS}
    thread = {name: message[name] for name in ("thid", "pthid") if name in message}
    flat: Json = {"@type": message.get("type"), "@id": message.get("id"), **body}
    if thread:
        flat["~thread"] = thread
    kind = read_type(message.get("type"))
    if kind is not None and kind.name == _REPORT:
        flat["description"] = {"code": body.get("code"), "en": body.get("comment", "")}
    attached = message.get("attachments")
    if isinstance(attached, list):
        flat["~attach"] = [
            {"@id": one.get("id"), "data": one.get("data")}
            for one in attached
            if isinstance(one, dict)
        ]
    return flat


def delivered_in(message: Json | bytes) -> dict[str, Json]:
    """The messages in a delivery of pickup 2.0 or later, by their ids; empty for all else."""
    if isinstance(message, bytes):
        return {}
    kind, attached = read_type(message.get("@type")), message.get("~attach")
    if kind is None or kind.name != "delivery" or not isinstance(attached, list):
        return {}
    objects = [one for one in attached if isinstance(one, dict)]
    found = {one["@id"]: one for one in objects if isinstance(one.get("@id"), str)}
    return found if len(found) == len(attached) else {}


_ROUTES: Final = ("return_route", "return_route_thread")


def member(message: Json, name: str) -> Mapping[str, object]:
    """The member of a message that is an object; empty if there is none."""
    found = message.get(name)
    return found if isinstance(found, dict) else {}
