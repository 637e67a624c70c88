"""Read payloads into msgspec structs, within bounds from the settings.

A member of the wrong type makes the whole payload invalid; ``null`` counts as absent if a member is
optional; unknown members are ignored. Values are not converted: neither ``true`` nor ``"1"`` is a
number. (``crypto.strict_json`` has checked the JSON text before.)

A type declares its bound: ``Annotated[str, TAG_BYTES]``, where ``TAG_BYTES`` takes the value from
``settings.Limits``. Errors name the member and the rule, never the value.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, inspect

from actors.core.commands import Page
from http_edge.crypto.strict_json import rule_of
from http_edge.settings.settings import Limits

PAGE_OFFSET_MAX: Final = 2**53 - 1
P = TypeVar("P")
Bound: TypeAlias = Callable[[Limits], int]
_Check: TypeAlias = Callable[[Any, Limits], str | None]
"""Returns the rule that a value breaks, as ``<path below it>: <rule>``, or None."""


class PayloadInvalid(Exception):
    """The payload fails its schema: ``detail`` names the member and the rule."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


def at_most(**bound: Bound) -> Meta:
    """A bound on ``bytes`` (UTF-8) or ``items``."""
    return Meta(extra=bound)


DID_BYTES: Final = at_most(bytes=lambda limits: limits.did_bytes_max)
ID_BYTES: Final = at_most(bytes=lambda limits: limits.id_bytes_max)
IDS: Final = at_most(items=lambda limits: limits.ids_per_command_max)
TAGS: Final = at_most(items=lambda limits: limits.tags_per_event_max)
TAG_BYTES: Final = at_most(bytes=lambda limits: limits.tag_bytes_max)
REQUEST_BYTES: Final = at_most(bytes=lambda limits: limits.contract_request_bytes_max)
SAVED_EVENTS: Final = at_most(items=lambda limits: limits.saved_events_per_command_max)
SAVED_EVENT_BYTES: Final = at_most(bytes=lambda limits: limits.saved_event_bytes_max)
PUBLIC_EVENT_BYTES: Final = at_most(bytes=lambda limits: limits.public_event_bytes_max)

Did: TypeAlias = Annotated[str, DID_BYTES]
Id: TypeAlias = Annotated[str, ID_BYTES]
Tag: TypeAlias = Annotated[str, TAG_BYTES]
Tags: TypeAlias = Annotated[list[Tag], TAGS]
Ids: TypeAlias = Annotated[list[str], IDS]
Seconds: TypeAlias = int | float


class PageRequest(msgspec.Struct, frozen=True):
    """The requested page (9.1). A client may send ``10.0``: in JavaScript that equals ``10``."""

    page: int | float | None = None
    page_size: int | float | None = None


def read_payload(kind: type[P], payload: object, limits: Limits) -> P:
    """The payload as ``kind``, within the bounds.

    Raises:
        PayloadInvalid: the payload fails its schema.
    """
    if kind is str and isinstance(payload, str):
        return payload  # type: ignore[return-value]  # a message: nothing to convert or to bound
    try:
        value = msgspec.convert(payload, kind)
    except msgspec.ValidationError as error:
        raise PayloadInvalid(rule_of(error, "payload")) from None
    check = _bounds_of(kind)  # type: ignore[arg-type]  # a type is hashable
    broken = None if check is None else check(value, limits)
    if broken is not None:
        raise PayloadInvalid("payload" + broken)
    return value


def page_of(pagination: PageRequest | None, limits: Limits) -> Page:
    """The page that a query requests; without ``pagination`` the first, of the default size.

    Raises:
        PayloadInvalid: no such page can exist.
    """
    given = pagination or PageRequest()
    number, size = given.page or 0, given.page_size
    if size is None:
        size = limits.page_size_default
    if number != int(number) or number < 0:
        raise PayloadInvalid("payload.pagination.page: is not a whole number from 0")
    if size != int(size) or not 1 <= size <= limits.page_size_max:
        raise PayloadInvalid(
            f"payload.pagination.page_size: is not a whole number from 1 to {limits.page_size_max}"
        )
    if number * size > PAGE_OFFSET_MAX:
        raise PayloadInvalid("payload.pagination.page: is beyond any record")
    return Page(int(number), int(size), limits.page_bytes_max)


# ---- bounds of the settings


@cache
def _bounds_of(kind: type[Any]) -> _Check | None:
    return _check_of(inspect.type_info(kind))


def _check_of(info: inspect.Type) -> _Check | None:
    """The check of a type and all types below it; None if none of them has a bound."""
    match info:
        case inspect.Metadata(type=inner, extra=extra):
            return _both(_size_check(**extra) if extra else None, _check_of(inner))
        case inspect.StructType(fields=fields):
            checks = [(f.name, f.encode_name, _check_of(f.type)) for f in fields]
            return _members_check([(n, e, c) for n, e, c in checks if c is not None])
        case inspect.ListType(item_type=item):
            return _items_check(_check_of(item))
        case inspect.UnionType(types=types):
            # An optional member: only one of its types has a bound.
            return next(filter(None, map(_check_of, types)), None)
        case _:
            return None


def _size_check(**bound: Bound) -> _Check:
    ((unit, size_max_of),) = bound.items()

    def check(value: Any, limits: Limits) -> str | None:
        size = len(value.encode()) if unit == "bytes" else len(value)
        size_max = size_max_of(limits)
        return f": has more than {size_max} {unit}" if size > size_max else None

    return check


def _members_check(checks: list[tuple[str, str, _Check]]) -> _Check | None:
    def check(value: Any, limits: Limits) -> str | None:
        for name, wire_name, below in checks:
            member = getattr(value, name)
            if member is None:
                continue  # absent: it has no size
            broken = below(member, limits)
            if broken is not None:
                return f".{wire_name}{broken}"
        return None

    return check if checks else None


def _items_check(below: _Check | None) -> _Check | None:
    if below is None:
        return None

    def check(value: Any, limits: Limits) -> str | None:
        for index, item in enumerate(value):
            broken = below(item, limits)
            if broken is not None:
                return f"[{index}]{broken}"
        return None

    return check


def _both(first: _Check | None, second: _Check | None) -> _Check | None:
    if first is None or second is None:
        return first or second
    return lambda value, limits: first(value, limits) or second(value, limits)
