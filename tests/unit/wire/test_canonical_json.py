from __future__ import annotations

import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from http_edge.crypto.canonical_json import NotCanonical, canonical
from http_edge.crypto.strict_json import INTEGER_MAX
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


@given(plain)
def test_the_fast_path_writes_what_rfc_8785_says(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@given(mixed)
def test_floats_and_foreign_keys_are_written_as_rfc_8785_says(value: Any) -> None:
    assert canonical(value) == rfc8785.dumps(value)


@pytest.mark.parametrize("row", rows("js_numbers.json"), ids=lambda row: row["double"])
def test_numbers_are_written_as_javascript_does(row: dict[str, str]) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(row["double"]))
    assert canonical(number) == row["text"].encode()


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
