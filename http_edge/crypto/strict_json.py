"""The one JSON parser for input from outside: one text, one meaning (RFC 8259, I-JSON RFC 7493).

Two parsers that read one signed text differently are a forgery waiting to happen, so whatever
parsers disagree about is refused: duplicate keys, NaN and infinities, integers that a double
cannot hold exactly (however written), lone surrogates, a byte order mark, bytes that are not
UTF-8, deep nesting. Whatever is read has a canonical form, which is read as the same value.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

import orjson

INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader agrees about (RFC 7493 section 2.2)."""
_INTEGER_CHARS_MAX: Final = len(str(-INTEGER_MAX))
_EXPONENT_FROM: Final = 1e21
"""From here on ECMAScript, and so canonical JSON, writes a number with an exponent."""
DEPTH_MAX: Final = 32
"""How many arrays and objects may stand inside one another."""
CONTAINERS_MAX: Final = 20_000
"""How many arrays and objects a text may have, brackets within its strings included. A megabyte of
empty arrays takes almost a second to read; the largest honest command has a few thousand."""


RULES: Final = frozenset(
    {
        "duplicate key",
        "integer out of range",
        "nested too deep",
        "number out of range",
        "too many parts",
    }
)
"""Reasons of this module's own; those of the parsers may quote the text."""


class JsonRefused(ValueError):
    """The text is not JSON, or is JSON that readers disagree about."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse(body: bytes) -> object:
    """The value of a JSON text.

    Raises:
        JsonRefused: see the module's rules.
    """
    # A text that is short enough needs no count.
    if len(body) > CONTAINERS_MAX and body.count(b"[") + body.count(b"{") > CONTAINERS_MAX:
        raise JsonRefused("too many parts")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise JsonRefused(error.msg) from None
    # orjson keeps the last of two equal keys. That it dropped none is shown by the length: what
    # orjson writes is never longer than what it read, token by token. A string is written with
    # the shortest escapes, an integer with its own digits ("-0" as "0"), white space not at all;
    # a dropped member takes at least `"":0,` with it. So where nothing but equal length is
    # found, nothing was dropped. Only floats can grow ("1e5" to "100000.0") and hide a loss.
    if not _has_floats(value, DEPTH_MAX) and len(orjson.dumps(value)) == len(body):
        return value
    return parse_slowly(body)


def parse_slowly(body: bytes) -> object:
    """``parse`` for white space, floats and unusual escapes: same rules, same values.

    Raises:
        JsonRefused: see the module's rules.
    """
    try:
        value: object = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
        _has_floats(value, DEPTH_MAX)
        orjson.dumps(value)
    except JsonRefused:
        raise
    except RecursionError:
        raise JsonRefused("nested too deep") from None
    except (TypeError, ValueError) as error:  # TypeError: orjson, of a lone surrogate
        raise JsonRefused(str(error)) from None
    return value


def _has_floats(value: Any, room: int) -> bool:
    """Whether there is a float anywhere; refuses deep nesting and large integers on the way."""
    kind = type(value)
    if kind is dict:
        children = value.values()
    elif kind is list:
        children = value
    elif kind is int:
        if not -INTEGER_MAX <= value <= INTEGER_MAX:
            raise JsonRefused("integer out of range")
        return False
    else:
        return kind is float
    if room == 0:
        raise JsonRefused("nested too deep")
    floats = False
    for child in children:
        if type(child) is not str and _has_floats(child, room - 1):
            floats = True
    return floats


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) != len(members):
        raise JsonRefused("duplicate key")
    return found


def _integer(digits: str) -> int:
    # By length first: int() takes quadratic time and has a limit of its own.
    if len(digits) > _INTEGER_CHARS_MAX:
        raise JsonRefused("integer out of range")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    # "1e16" is refused as 10000000000000000 is, for that is how its canonical form is written.
    if math.isinf(number) or INTEGER_MAX < abs(number) < _EXPONENT_FROM:
        raise JsonRefused("number out of range")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise JsonRefused(f"{name} is not JSON")
