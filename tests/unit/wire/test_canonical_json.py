from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given, reject
from hypothesis import strategies as st

from http_edge.crypto.canonical_json import (
    NotCanonical,
    canonical,
    members_in,
    object_of,
    takes_long,
)
from http_edge.crypto.strict_json import INTEGER_MAX, JsonRefused, parse_and_look
from tests.calls import calls_counted
from tests.unit.wire.vectors import rows

ascii_text = st.text(st.characters(max_codepoint=127))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-INTEGER_MAX, INTEGER_MAX), st.text(), ascii_text
)
plain = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(ascii_text, inner))
mixed = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("text", "is_long"),
    [
        ("plain", False),
        ("\N{EURO SIGN}", False),
        (r"\u20ac", False),
        (r"\ud7ff", False),
        ("\U0001f600", True),
        (r"\ud83d\ude00", True),
        (r"\uD83D\uDE00", True),
    ],
)
def test_only_floats_and_astral_characters_take_long_to_write(text: str, is_long: bool) -> None:
    body = f'{{"any": "{text}"}}'.encode()
    assert takes_long(body, has_floats=False) is is_long
    assert takes_long(body, has_floats=True)


@given(plain)
def test_the_fast_path_writes_what_rfc_8785_says(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(mixed)
def test_floats_and_foreign_keys_are_written_as_rfc_8785_says(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(mixed)
def test_what_was_seen_when_it_was_read_changes_nothing_of_what_is_written(value: Any) -> None:
    try:
        read, has_floats = parse_and_look(canonical(value))
    except JsonRefused:
        reject()
    assert canonical(read, has_floats=has_floats) == canonical(read)


@pytest.mark.thorough
@given(st.dictionaries(st.text(), mixed), st.data())
def test_an_object_of_members_of_another_is_written_as_by_itself(
    value: dict[str, Any], data: st.DataObject
) -> None:
    members = members_in(canonical(value))
    assert {name: canonical(member) for name, member in value.items()} == members
    kept = data.draw(st.sets(st.sampled_from([*value]))) if value else set()
    part = object_of({name: text for name, text in members.items() if name in kept})
    assert part == canonical({name: value[name] for name in kept})


@given(mixed)
def test_no_json_of_a_stranger_is_written_by_slow_code(value: Any) -> None:
    """What is signed is written before the signature is checked.

    Python takes up to 6 times as long for values of few bytes, and 8 to 16 times for texts that
    are escaped. A command of 32 KiB would take 10 ms of the event loop instead of 6.5.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rfc8785, "dumps", pytest.fail)
        canonical([value, {"\U0001f600": 1, "\uffff": 1e-6}])


def test_an_empty_object_beside_a_fraction_costs_three_calls() -> None:
    """No other object is as short, so a body of a stranger has most of these."""
    value = [0.5, *[{} for _ in range(1_000)]]
    with calls_counted() as counted:
        canonical(value)
    assert counted[0] <= 3_030


@given(st.integers(0, 2**64 - 1))
def test_every_double_is_written_as_rfc_8785_says(bits: int) -> None:
    (number,) = struct.unpack(">d", bits.to_bytes(8, "big"))
    if math.isfinite(number):
        assert canonical(number) == rfc8785.dumps(number)


@given(st.integers(-25, 25), st.floats(1, 10))
def test_doubles_around_every_border_are_written_as_rfc_8785_says(
    power: int, digits: float
) -> None:
    border = 10.0**power
    for number in (digits * border, round(digits) * border, math.nextafter(border, digits - 5)):
        for signed in (number, -number):
            assert canonical([signed]) == rfc8785.dumps([signed])


def test_numbers_are_written_as_javascript_does() -> None:
    for row in rows("js_numbers.json"):
        (number,) = struct.unpack(">d", bytes.fromhex(row["double"]))
        assert canonical(number) == row["text"].encode(), row["double"]


def test_keys_are_sorted_by_utf_16_code_units_at_every_depth() -> None:
    value = {"b": [{"\uffff": 1, "\N{GRINNING FACE}": 2}], "a": {"10": 1, "9": 2}, "": 0}
    expected = '{"":0,"a":{"10":1,"9":2},"b":[{"\N{GRINNING FACE}":2,"\uffff":1}]}'
    assert canonical(value) == expected.encode()


def test_only_what_must_be_escaped_is_escaped() -> None:
    text = '\b\t\n\f\r"\\/\x00\x1b\x7f\u2028\N{EURO SIGN}'
    expected = '"\\b\\t\\n\\f\\r\\"\\\\/\\u0000\\u001b\x7f\u2028\N{EURO SIGN}"'
    assert canonical(text) == expected.encode()


def test_the_example_of_rfc_8785_is_written_as_there() -> None:
    value = {
        "numbers": [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000f\u000aA'\u0042\u0022\u005c\\\"/",
        "literals": [None, True, False],
    }
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"\u20ac$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    assert canonical(value) == expected.encode()


def _deep(depth: int) -> object:
    value: object = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        [-float("inf")],
        2**53,
        {"a": -(2**53)},
        2**64,
        "\ud800",
        {"\ud800": 1},
        {"\N{EURO SIGN}": "\ud800"},
        {1: 2},
        {"a": b"bytes"},
        {1, 2},
        object(),
        _deep(100_000),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_cannot_say_has_no_canonical_form(value: object) -> None:
    with pytest.raises(NotCanonical):
        canonical(value)
