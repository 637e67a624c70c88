"""The JSON parser for all external input: one text, one meaning (RFC 8259, I-JSON RFC 7493).

Two parsers that read one signed text differently are a forgery waiting to happen. So this parser
refuses everything that parsers disagree about: duplicate keys, NaN and infinities, integers that a
double cannot hold exactly (however written), lone surrogates, a byte order mark, bytes that are not
UTF-8, deep nesting. Every parsed value has a canonical form, which parses to the same value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, Final

import msgspec
import orjson

INTEGER_MAX: Final = 2**53 - 1
"""The largest integer that every JSON reader agrees about (RFC 7493 section 2.2)."""
_LONG_INTEGER: Final = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{17,}(?![0-9.eE])")
"""An integer with more digits than ``INTEGER_MAX``, which orjson may read as a float."""
_STRING: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
"""In a text that is no JSON, a string without an end reaches to the end of the text, so that no
byte is looked at twice."""
_ESCAPED_COLON: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u003[aA]")
_EXPONENT_FROM: Final = 1e21
"""From here on ECMAScript, and so canonical JSON, writes a number with an exponent."""
DEPTH_MAX: Final = 32
"""How deep arrays and objects may be nested."""
CONTAINERS_MAX: Final = 20_000
"""How many arrays and objects a text may have. A megabyte of empty arrays takes almost a second to
read; the largest honest command has a few thousand."""
ANSWER_CONTAINERS_MAX: Final = 50 * CONTAINERS_MAX
"""As CONTAINERS_MAX, for an answer: 100 MiB of memory. A hundred of the largest contracts that are
accepted, made of empty arrays alone, have half as many."""

FLOATS_MAX: Final = 4_000
"""How many numbers with a fraction or an exponent a text may have. Each takes 1 µs to write in
the canonical form; the largest honest command has one for each of its 1,000 events."""
_FEW: Final = 256
"""Brackets of one kind that are looked for one by one, before all are counted."""

_RULES: Final = frozenset(
    {
        "duplicate key",
        "integer out of range",
        "nested too deep",
        "number out of range",
        "too many parts",
    }
)
"""The reasons that this module itself gives; those of orjson may quote the text."""


class JsonRefused(ValueError):
    """The text is not JSON, or is JSON that readers disagree about."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    @property
    def rule(self) -> str:
        """The rule that the text breaks, never a value from it."""
        return self.reason if self.reason in _RULES else "is not JSON in UTF-8"


def rule_of(error: msgspec.ValidationError, root: str = "") -> str:
    """The rule that a value breaks: ``<member>: <rule>``, never a value from it.

    It is msgspec's message, with the path of the member below ``root``.
    """
    rule, _, path = str(error).partition(" - at `$")
    member = root + path.rstrip("`")
    missing = rule.removeprefix("Object missing required field `")
    if missing != rule:
        member, rule = f"{member}.{missing.rstrip('`')}", "is missing"
    return f"{member}: {rule[0].lower()}{rule[1:]}".lstrip(".: ")


def parse(body: bytes) -> object:
    """The value of a JSON text.

    Strangers send the text, so no form of it costs more than about 0.1 ms for each KiB.

    Raises:
        JsonRefused: see the module's rules.
    """
    return parse_and_look(body)[0]


def object_in(body: bytes, read: Callable[[bytes], object] = parse) -> dict[str, Any] | None:
    """The value of a JSON text, by ``parse`` or ``parse_answer``, if it is an object, else None."""
    try:
        value = read(body)
    except JsonRefused:
        return None
    return value if isinstance(value, dict) else None


def parse_and_look(body: bytes) -> tuple[object, bool]:
    """The value of a JSON text, and whether it contains a float (see ``canonical``).

    Raises:
        JsonRefused: see the module's rules.
    """
    return _read(body, CONTAINERS_MAX, DEPTH_MAX, FLOATS_MAX)


def parse_answer(body: bytes) -> object:
    """Parse a mediator's answer by the same rules, but with ``ANSWER_CONTAINERS_MAX``.

    An answer holds the messages of many senders, each of whom kept within the bounds of a command.
    Together, or nested in an answer, they must not make it unreadable. The caller bounds its
    length.

    Raises:
        JsonRefused: see the module's rules.
    """
    return _read(body, ANSWER_CONTAINERS_MAX, 2 * DEPTH_MAX, len(body))[0]


def _read(body: bytes, containers_max: int, depth_max: int, floats_max: int) -> tuple[object, bool]:
    """The value of a JSON text within these bounds, and whether it contains a float."""
    _check_containers(body, containers_max)
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise JsonRefused(error.msg) from None
    floats = _has_floats(value, depth_max, floats_max)
    # orjson keeps only the last of two equal keys. The length shows whether it dropped any: orjson
    # writes no token longer than it read it. It writes a string with the shortest escapes, an
    # integer with its own digits ("-0" as "0"), and no white space; dropping a member shortens the
    # text by at least `"":0,`. So if the length is equal, nothing was dropped. Only floats can grow
    # ("1e5" to "100000.0") and hide a loss.
    if floats or len(orjson.dumps(value)) != len(body):
        _check_as_written(body, value, has_floats=floats)
    return value, floats


def _check_containers(body: bytes, containers_max: int) -> None:
    """Refuse a text with more arrays and objects, before memory is taken for them.

    Raises:
        JsonRefused: it has more opening brackets than ``containers_max``.
    """
    # Most long texts have few brackets of either kind: finding that out costs less than counting.
    if len(body) <= containers_max or not any(_has_many(body, each) for each in b"[{"):
        return
    # Brackets within strings do not count, because a payload is opaque. Few texts get this far.
    if _brackets(body) > containers_max and _brackets(_STRING.sub(b"", body)) > containers_max:
        raise JsonRefused("too many parts")


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _has_many(body: bytes, character: int) -> bool:
    """Does a character occur more than ``_FEW`` times?"""
    at = -1
    for _ in range(_FEW + 1):
        at = body.find(character, at + 1)
        if at < 0:
            return False
    return True


def _check_as_written(body: bytes, value: object, *, has_floats: bool) -> None:
    """Refuse a text of which orjson has lost something.

    Raises:
        JsonRefused: orjson dropped a member, or read an integer as a float.
    """
    # Without a float no integer was read as one, and searching takes longer than all of the rest.
    if has_floats and _LONG_INTEGER.search(body) and _LONG_INTEGER.search(_STRING.sub(b'""', body)):
        raise JsonRefused("integer out of range")
    colons = body.count(b":")
    if not colons:
        return
    # A text has one colon for each member, and the colons in its strings. The value of a text with
    # a dropped member lacks at least the colon of that member.
    if b"u003" in body:
        colons += len(_ESCAPED_COLON.findall(body))
    for level in _levels(value):
        members = [each for each in level if type(each) is dict]
        texts = [each for each in level if type(each) is str]
        colons -= sum(map(len, members)) + "".join(chain(texts, *members)).count(":")
    if colons:
        raise JsonRefused("duplicate key")


def _levels(value: object) -> Iterator[list[Any]]:
    """The values nested in a value, level by level, beginning with the value itself."""
    level = [value]
    while level:
        yield level
        kinds = set(map(type, level))
        lists = [each for each in level if type(each) is list] if list in kinds else []
        dicts = [each for each in level if type(each) is dict] if dict in kinds else []
        level = [
            *chain.from_iterable(lists),
            *chain.from_iterable(each.values() for each in dicts),
        ]


def kinds_in(value: object) -> set[type]:
    """The types that occur in a value."""
    kinds: set[type] = set()
    for level in _levels(value):
        kinds.update(map(type, level))
    return kinds


def _has_floats(  # noqa: C901 - one loop, of the fewest steps for each value
    value: object, depth_max: int, floats_max: int
) -> bool:
    """Does a value contain a float? Refuses deep nesting, many floats, and numbers out of range."""
    floats = 0
    level: list[Any] = [value]
    # Not by ``_levels``: before the first value that costs more than all of most messages here.
    for _ in range(depth_max + 1):
        below: list[Any] = []
        is_last = True
        for each in level:
            kind = type(each)
            if kind is str:
                continue  # first: envelopes and acknowledgements are texts
            if kind is int:
                if not -INTEGER_MAX <= each <= INTEGER_MAX:
                    raise JsonRefused("integer out of range")
            elif kind is dict or kind is list:
                is_last = False
                below += each.values() if kind is dict else each
            elif kind is float:
                floats += 1
                # "1e16" is refused like 10000000000000000, because that is its canonical form.
                if INTEGER_MAX < abs(each) < _EXPONENT_FROM:
                    raise JsonRefused("number out of range")
        if floats > floats_max:
            raise JsonRefused("too many parts")
        if is_last:
            return floats > 0
        level = below
    raise JsonRefused("nested too deep")
