"""The query of ``GET /public/:did`` (DCTRL-0007): which page of whose public events."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

import msgspec
from multidict import MultiMapping

from actors.commands import Page
from eventstore.events import Seconds
from eventstore.log import PublicEventsFilter
from http_edge.config import Limits

# The syntax of DIDs, and what padded base64 adds to it in a did:decentrl.
_DID: Final = re.compile(r"did:[a-z0-9]+:([A-Za-z0-9._:+/=-]|%[0-9A-Fa-f]{2})+")
_NUMBER: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,9})?")
_COUNT: Final = re.compile(r"[0-9]{1,9}")


class PublicQuery(msgspec.Struct, frozen=True):
    """A page of the public events of ``did``."""

    did: str
    page: Page
    where: PublicEventsFilter


def read(segment: str, query: MultiMapping[str], limits: Limits) -> PublicQuery | None:
    """The query, or None for INVALID_COMMAND; unknown parameters are ignored.

    ``segment`` is the DID as it stands in the target. Its escapes are decoded exactly once: a
    did:web with a port holds a ``%3A`` of its own, and a ``+`` is a plus. ``tags`` may be
    repeated, the form for tags that hold commas, or be one list between commas.
    """
    try:
        did = unquote(segment, errors="strict")
    except UnicodeDecodeError:
        return None
    if not _DID.fullmatch(did) or len(did) > limits.did_bytes_max:
        return None
    number, size = query.get("page", "0"), query.get("page_size", str(limits.page_size_default))
    after, before = query.get("after_timestamp"), query.get("before_timestamp")
    if not (_COUNT.fullmatch(number) and _COUNT.fullmatch(size)):
        return None
    if not 1 <= int(size) <= limits.public_page_size_max:
        return None
    if any(bound is not None and not _NUMBER.fullmatch(bound) for bound in (after, before)):
        return None
    tags = query.getall("tags", [])
    if len(tags) == 1:
        tags = [tag for tag in dict.fromkeys([tags[0], *tags[0].split(",")]) if tag]
    if len(tags) > limits.tags_per_query_max:
        return None
    where = PublicEventsFilter(
        channel_id=query.get("channel_id"),
        tags=tags,
        after_timestamp_s=_seconds(after),
        before_timestamp_s=_seconds(before),
    )
    return PublicQuery(did, Page(int(number), int(size)), where)


def _seconds(text: str | None) -> Seconds | None:
    if text is None:
        return None
    return float(text) if "." in text else int(text)
