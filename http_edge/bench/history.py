"""QUERY_EVENTS over one identity's long history: every filter, first page and deep page."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from typing import Final

import orjson

from http_edge.bench.connection import Connection
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.population import direct
from http_edge.bench.subject import Subject
from http_edge.client import Identity

EVENTS_PER_COMMAND: Final = 500
_PAYLOAD: Final = "x" * 256
_TAGS: Final = 100
_CONTACTS: Final = 50
_REPEATS: Final = 50
_PAGE_SIZE: Final = 10
_FIRST_S: Final = 1_600_000_000
_OK: Final = 200
_NS_PER_S: Final = 1_000_000_000


async def save_history(
    subject: Subject,
    owner: Identity,
    events: int,
    *,
    progress: Callable[[int], None] = lambda _: None,
) -> Measurement:
    """Save that many events of one owner: one a second, 100 tags, 50 contacts, one in nine its own.

    Raises:
        RuntimeError: the mediator refused.
    """
    connection = await Connection.open(subject.target)
    latencies = array("Q")
    started = time.perf_counter_ns()
    with subject.costs() as spent:
        for first in range(0, events, EVENTS_PER_COMMAND):
            numbers = range(first, min(events, first + EVENTS_PER_COMMAND))
            saved = [_event(owner.did, number) for number in numbers]
            command = direct(owner, subject.mediator, {"type": "SAVE_EVENTS", "events": saved})
            sent = time.perf_counter_ns()
            await _accepted(connection, command)
            latencies.append(time.perf_counter_ns() - sent)
            progress(numbers.stop)
    connection.close()
    seconds = (time.perf_counter_ns() - started) / _NS_PER_S
    return measured(
        f"SAVE_EVENTS, {EVENTS_PER_COMMAND} each",
        latencies,
        seconds,
        figures={"events": events, "events_per_s": events / seconds},
        **spent.per(events, seconds),
    )


async def query_history(subject: Subject, owner: Identity, events: int) -> list[Measurement]:
    """Each filter 50 times, one query at a time.

    Raises:
        RuntimeError: the mediator refused.
    """
    connection = await Connection.open(subject.target)
    results = []
    for name, where, page in _queries(events):
        payload = {
            "type": "QUERY_EVENTS",
            "filter": where,
            "pagination": {"page": page, "page_size": _PAGE_SIZE},
        }
        latencies, body = array("Q"), b""
        started = time.perf_counter_ns()
        for _ in range(_REPEATS):
            command = direct(owner, subject.mediator, payload)
            sent = time.perf_counter_ns()
            body = await _accepted(connection, command)
            latencies.append(time.perf_counter_ns() - sent)
        seconds = (time.perf_counter_ns() - started) / _NS_PER_S
        total = orjson.loads(body)["payload"]["pagination"]["total"]
        title = f"QUERY_EVENTS of {events:_}: {name}"
        results.append(measured(title, latencies, seconds, figures={"matches": total}))
    connection.close()
    return results


def _queries(events: int) -> Iterator[tuple[str, dict[str, object], int]]:
    tenth_s = _FIRST_S + events // 10
    tag: dict[str, object] = {"encrypted_tags": [_tag(7)]}
    contact: dict[str, object] = {"participant_did": _contact(7)}
    waiting: dict[str, object] = {"unprocessed_only": True}
    early: dict[str, object] = {"before_timestamp": tenth_s}
    yield "all", {}, 0
    yield "all, page in the middle", {}, events // 2 // _PAGE_SIZE
    yield "first tenth of the time", early, 0
    yield "one tag", tag, 0
    yield "one participant", contact, 0
    yield "unprocessed", waiting, 0
    yield "tag and time", tag | early, 0
    yield "participant and unprocessed", contact | waiting, 0


def _event(owner_did: str, number: int) -> dict[str, object]:
    contact = _contact(number % _CONTACTS)
    own = number % 9 == 0
    return {
        "sender_did": owner_did if own else contact,
        "recipient_did": contact if own else owner_did,
        "timestamp": _FIRST_S + number,
        "payload": _PAYLOAD,
        "encrypted_tags": [_tag(number % _TAGS)],
    }


def _contact(number: int) -> str:
    return f"did:web:contact-{number}.test"


def _tag(number: int) -> str:
    return f"{number:03}".ljust(86, "t")  # as long as a signature in base64


async def _accepted(connection: Connection, command: bytes) -> bytes:
    status, body = await connection.post(command)
    if status != _OK:
        raise RuntimeError(f"refused: {body[:80]!r}")
    return body
