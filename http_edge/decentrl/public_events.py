"""``GET /public/:did`` (DCTRL-0007): a page of the public events of one identity."""

from __future__ import annotations

import math
import re
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

from aiohttp import web
from multidict import MultiMapping
from yarl import URL

from actors.core.commands import Page
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Read
from actors.host.packed_page import FoundPage
from eventstore.log.event_log import PublicEventsFilter, PublicEventsPage
from eventstore.log.events import Seconds
from http_edge.crypto.strict_json import INTEGER_MAX
from http_edge.decentrl.answers import (
    Answer,
    Rejected,
    answer_of,
    invalid,
    page_refused,
    records,
    refuse,
    reject,
    respond,
)
from http_edge.decentrl.payloads import PAGE_OFFSET_MAX
from http_edge.dispatch.gateway import Gateway
from http_edge.listener.address_charge import charge_public, is_owing, page_turn
from http_edge.settings.settings import Limits
from http_edge.telemetry.refusal_counts import DECENTRL, RefusalCounts

# The syntax of DIDs, and what padded base64 adds to it in a did:decentrl.
_DID: Final = re.compile(r"did:[a-z0-9]+:([A-Za-z0-9._:+/=-]|%[0-9A-Fa-f]{2})+")
_NUMBER: Final = re.compile(r"-?(?=.{1,32}\Z)[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
"""A number as JSON writes it, of at most 32 characters: the timestamp of every event is one."""
_COUNT: Final = re.compile(r"[0-9]{1,16}")


PREFIX: Final = "/public/"


class PublicEventsEndpoint:
    """Answers ``GET /public/:did``."""

    def __init__(self, limits: Limits, gateway: Gateway, refusals: RefusalCounts) -> None:
        """``refusals`` counts malformed queries and those of an address that owes tokens."""
        self._limits = limits
        self._gateway = gateway
        self._refusals = refusals

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """The page that the target names, or INVALID_COMMAND."""
        # From the raw target, because the router has decoded the DID. Split, because the raw prefix
        # may have escapes, too.
        segment = request.rel_url.raw_path.split("/", 2)[2]
        query = _read_target(segment, request.rel_url, self._limits)
        if isinstance(query, Rejected):
            self._refusals.count(DECENTRL, "", query.code.value)
            return respond(reject(query))
        # The cost of a page is known only once it is read: so an address reads one page at a time,
        # and none while it owes for the last.
        async with page_turn(is_public=True):
            if is_owing():
                self._refusals.count(DECENTRL, "", Refusal.RATE_LIMITED.value)
                return respond(refuse(Refusal.RATE_LIMITED))
            answer = await self._page(query)
        return respond(answer)

    async def _page(self, query: Read) -> Answer:
        """Read the page and charge its address."""
        matching, where = 0, query.where
        assert isinstance(where, PublicEventsFilter)

        def answering(found: FoundPage) -> Answer:
            nonlocal matching
            matching = found.total
            return _answer(found, query.page)

        found = await self._gateway.read(query)
        if isinstance(found, Refused):
            answer = reject(page_refused(found, query.page))
        else:
            answer = await answer_of(found, answering)
        # A page that is too large was read all the same. Looking for an event in the list of a tag
        # takes as long as writing a byte.
        is_read = answer.refusal is Refusal.INVALID_COMMAND
        size_bytes = self._limits.page_bytes_max if is_read else answer.size_bytes
        charge_public(size_bytes + matching * max(1, len(where.tags)))
        return answer


def read(segment: str, query: MultiMapping[str], limits: Limits) -> Read | Rejected:
    """Parse the query, or say why it is an INVALID_COMMAND; unknown parameters are ignored.

    ``segment`` is the DID as in the raw target. Its escapes are decoded exactly once: a did:web
    with a port contains a ``%3A`` of its own, and a ``+`` is a plus. ``tags`` may be repeated, as
    tags that contain commas require, or be one comma-separated list.
    """
    try:
        did = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return invalid("path: is not percent-encoded UTF-8")
    if not _DID.fullmatch(did) or len(did) > limits.did_bytes_max:
        return invalid("path: names no DID")
    number, size = query.get("page", "0"), query.get("page_size", str(limits.page_size_default))
    after, before = query.get("after_timestamp"), query.get("before_timestamp")
    if not (_COUNT.fullmatch(number) and _COUNT.fullmatch(size)):
        return invalid("page, page_size: are whole numbers from 0")
    if not 1 <= int(size) <= limits.public_page_size_max:
        return invalid(f"page_size: is not from 1 to {limits.public_page_size_max}")
    if int(number) * int(size) > PAGE_OFFSET_MAX:
        return invalid("page: is beyond any record")
    if any(bound is not None and not _is_number(bound) for bound in (after, before)):
        return invalid("after_timestamp, before_timestamp: are numbers of seconds")
    tags = query.getall("tags", [])
    if len(tags) == 1:
        tags = [tag for tag in dict.fromkeys(tags[0].split(",")) if tag]
    if len(tags) > limits.tags_per_query_max:
        return invalid(f"tags: are more than {limits.tags_per_query_max}")
    where = PublicEventsFilter(
        channel_id=query.get("channel_id"),
        tags=tags,
        after_timestamp_s=_seconds(after),
        before_timestamp_s=_seconds(before),
    )
    return Read(did, Page(int(number), int(size), limits.page_bytes_max), where)


def _read_target(segment: str, target: URL, limits: Limits) -> Read | Rejected:
    """``read`` with the query of a target, of which yarl replaces what is not UTF-8."""
    try:
        unquote_to_bytes(target.raw_query_string).decode()
    except UnicodeError:
        return invalid("query: is not percent-encoded UTF-8")
    return read(segment, target.query, limits)


def _answer(found: object, page: Page) -> Answer:
    assert isinstance(found, PublicEventsPage), "a host answers what it was asked"
    events = [
        {
            "id": event.event_id,
            "channel_id": event.channel_id,
            "event": event.event,
            "tags": event.tags,
            "timestamp": event.timestamp_s,
            "event_signature": event.event_signature,
        }
        for event in found.events
    ]
    return records("events", events, found.total, page)


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None and math.isfinite(float(text))


def _seconds(text: str | None) -> Seconds | None:
    if text is None:
        return None
    seconds = float(text)
    # As in commands: integers are exact, and beyond the integers of JSON there are only floats.
    return int(text) if text.lstrip("-").isdigit() and abs(seconds) <= INTEGER_MAX else seconds
