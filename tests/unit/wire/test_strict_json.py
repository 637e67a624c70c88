from __future__ import annotations

import json
import math
from collections.abc import Sequence

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.strict_json import (
    ANSWER_CONTAINERS_MAX,
    CONTAINERS_MAX,
    DEPTH_MAX,
    FLOATS_MAX,
    INTEGER_MAX,
    JsonRefused,
    parse,
    parse_answer,
)


def parse_slowly(body: bytes) -> object:
    """The same rules by the standard library: the reference that ``parse`` is compared with."""
    try:
        value: object = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_object,
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_float,
        )
        _check_depth(value, DEPTH_MAX)
        orjson.dumps(value)
    except JsonRefused:
        raise
    except (RecursionError, TypeError, ValueError) as error:
        raise JsonRefused(str(error)) from None
    return value


def _object(members: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(members)
    if len(found) != len(members):
        raise JsonRefused("duplicate key")
    return found


def _integer(digits: str) -> int:
    if len(digits) > len(str(-INTEGER_MAX)) or not -INTEGER_MAX <= int(digits) <= INTEGER_MAX:
        raise JsonRefused("integer out of range")
    return int(digits)


def _float(digits: str) -> float:
    number = float(digits)
    if math.isinf(number) or INTEGER_MAX < abs(number) < 1e21:
        raise JsonRefused("number out of range")
    return number


def _refuse_constant(name: str) -> object:
    raise JsonRefused(f"{name} is not JSON")


def _check_depth(value: object, room: int) -> None:
    if isinstance(value, dict | list):
        if room == 0:
            raise JsonRefused("nested too deep")
        for each in value.values() if isinstance(value, dict) else value:
            _check_depth(each, room - 1)


REFUSED = {
    "duplicate key": b'{"a":1,"a":2}',
    "duplicate key in depth": b'[{"b":[{"a":1,"a":1}]}]',
    "duplicate key behind an escape": b'{"a":1,"\\u0061":2}',
    "duplicate key with a float": b'{"a":1.5,"a":1e5}',
    "duplicate key of a long integer": b'{"a":1' + b"0" * 30 + b',"a":1}',
    "NaN": b"NaN",
    "Infinity": b"[Infinity]",
    "minus Infinity": b'{"a":-Infinity}',
    "overflowing float": b"1e999",
    "overflowing negative float": b"[-1e999]",
    "2^53": b"9007199254740992",
    "-2^53": b"-9007199254740992",
    "2^53 with a fraction": b"[9007199254740992.0]",
    "an integer beyond 2^53 with an exponent": b"1e16",
    "a negative integer beyond 2^53 with an exponent": b"-9.99e20",
    "2^64": b"18446744073709551616",
    "very long integer": b"1" * 5000,
    "lone high surrogate": b'"\\ud800"',
    "lone low surrogate": b'["\\udc00"]',
    "lone surrogate in a key": b'{"\\ud800":1}',
    "reversed surrogates": b'"\\udc00\\ud800"',
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a":1}'.encode("utf-16"),
    "bytes that are not UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "surrogate in UTF-8": b'"\xed\xa0\x80"',
    "too deep": b"[" * (DEPTH_MAX + 1) + b"]" * (DEPTH_MAX + 1),
    "too deep in objects": b'{"a":' * (DEPTH_MAX + 1) + b"1" + b"}" * (DEPTH_MAX + 1),
    "absurdly deep": b"[" * 100_000 + b"]" * 100_000,
    "absurdly deep, not closed": b'{"a":' * 100_000,
    "absurdly deep behind a duplicate": b'{"a":' + b"[" * 900 + b"]" * 900 + b',"a":1}',
    "nothing": b"",
    "white space": b" \n",
    "two values": b"{} {}",
    "trailing comma": b"[1,]",
    "comment": b"[1] // one",
    "single quotes": b"{'a':1}",
    "control character": b'"\x00"',
    "leading zero": b"[01]",
    "plus": b"[+1]",
    "bare point": b"[1.]",
    "other white space": b"\xc2\xa0[]",
    "2^64 and more digits": b"[1" + b"0" * 21 + b"]",
    "a negative integer of many digits": b'{"a":-1' + b"0" * 30 + b"}",
    "a long integer beside one in a text": b'["1' + b"0" * 30 + b'",1' + b"0" * 30 + b"]",
    "duplicate key beside colons": b'{"a:":"\\u003a\\\\u003a:","a:":1}',
    "other digits": '["a",\N{ARABIC-INDIC DIGIT ONE}]'.encode(),
}


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_json_that_readers_disagree_about_is_refused(body: bytes) -> None:
    with pytest.raises(JsonRefused) as refused:
        parse(body)
    assert refused.value.reason


@pytest.mark.parametrize("body", REFUSED.values(), ids=REFUSED.keys())
def test_the_slow_path_alone_refuses_the_same(body: bytes) -> None:
    with pytest.raises(JsonRefused):
        parse_slowly(body)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b' {"a" : [1, 2.5, null, true] }\r\n\t', {"a": [1, 2.5, None, True]}),
        (b'{"a":{"a":{"a":1}},"b":{"a":1}}', {"a": {"a": {"a": 1}}, "b": {"a": 1}}),
        (b"9007199254740991", INTEGER_MAX),
        (b"-9007199254740991", -INTEGER_MAX),
        (b"-9007199254740991.0", float(-INTEGER_MAX)),
        (b"-0", 0),
        (b'[ "1' + b"0" * 30 + b'"]', ["1" + "0" * 30]),
        (b"[1.0000000000000000000000000000, 1E+000000000000000000001]", [1.0, 10.0]),
        (b'{"a\\u003A:" : "\\\\u003a\\\\\\u003a"}', {"a::": "\\u003a\\:"}),
        (b"1699123456.789", 1699123456.789),
        (b"1e-400", 0.0),
        (b"1e15", 1e15),
        (b"-1e21", -1e21),
        (b"1.7976931348623157e308", 1.7976931348623157e308),
        (b'"\\ud83d\\ude00 \\u0000 \\/ \x7f"', "\N{GRINNING FACE} \x00 / \x7f"),
        ('{"\N{GRINNING FACE}":1,"\uffff":2}'.encode(), {"\N{GRINNING FACE}": 1, "\uffff": 2}),
        (b"[" * DEPTH_MAX + b"]" * DEPTH_MAX, eval("[" * DEPTH_MAX + "]" * DEPTH_MAX)),  # noqa: S307 - our own brackets
    ],
)
def test_everything_else_is_read_for_what_it_says(body: bytes, value: object) -> None:
    assert parse(body) == value
    assert parse_slowly(body) == value


def test_a_fraction_stays_a_fraction_and_an_integer_an_integer() -> None:
    value = parse(b'{"a":1,"b":1.0}')
    assert isinstance(value, dict)
    assert [type(member) for member in value.values()] == [int, float]


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-INTEGER_MAX - 2, INTEGER_MAX + 2),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner)
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """A JSON text written in some odd way, at times with a member said twice."""
    return _write(draw, draw(values)).encode()


def _write(draw: st.DrawFn, value: object) -> str:
    space = draw(st.sampled_from(["", "", "", " ", "\n\t"]))
    if isinstance(value, list):
        return space + "[" + ",".join(_write(draw, each) for each in value) + "]"
    if isinstance(value, dict):
        members = list(value.items())
        if members and draw(st.integers(0, 9)) == 0:
            members.insert(draw(st.integers(0, len(members))), draw(st.sampled_from(members)))
        written = (_write(draw, name) + ":" + _write(draw, each) for name, each in members)
        return space + "{" + ",".join(written) + "}"
    return space + json.dumps(value, ensure_ascii=draw(st.booleans())) + space


def _outcome(body: bytes, path: object) -> object:
    assert callable(path)
    try:
        return repr(path(body))
    except JsonRefused:
        return "refused"


def test_floats_have_a_number() -> None:
    """They are written in canonical form before the signature is checked."""
    assert parse(json.dumps([0.5] * FLOATS_MAX).encode()) == [0.5] * FLOATS_MAX
    assert parse(json.dumps([1] * 4 * FLOATS_MAX).encode())
    for value in ([0.5] * (FLOATS_MAX + 1), [[0.5] * FLOATS_MAX, [[{"a": 0.5}]]]):
        with pytest.raises(JsonRefused, match="too many parts"):
            parse(json.dumps(value).encode())


@pytest.mark.parametrize("text", ["[", "{", '"[', "\\[", '\\"{', "\n["])
def test_brackets_within_strings_are_no_parts(text: str) -> None:
    value = [text * (CONTAINERS_MAX + 1), {text * (CONTAINERS_MAX + 1): text}]
    assert parse(json.dumps(value).encode()) == value
    all_there_may_be = [*value, [[]] * (CONTAINERS_MAX - 3)]
    assert parse(json.dumps(all_there_may_be).encode()) == all_there_may_be
    with pytest.raises(JsonRefused, match="too many parts"):
        parse(json.dumps([*value, [[], {}] * (CONTAINERS_MAX // 2)]).encode())


@pytest.mark.parametrize("end", [b"", b"\\", b'\\"', b'"', b"\n"])
@pytest.mark.parametrize("part", [b'\\"', b"\\", b'"', b'"[', b"\\\n["])
def test_no_text_takes_long_to_count_whatever_it_ends_with(part: bytes, end: bytes) -> None:
    """One that is looked at anew from each of its quotes would take minutes."""
    with pytest.raises(JsonRefused):
        parse(b"[" * (CONTAINERS_MAX + 1) + b'"' + part * 300_000 + end)


def test_an_answer_has_more_parts_than_a_command_and_not_any_number() -> None:
    """A command of the deepest contract that is taken is answered two levels deeper."""
    many: list[list[object]] = [
        [[]] * (CONTAINERS_MAX + 1),
        [0.5] * (FLOATS_MAX + 1),
    ]
    for value in many:
        text = json.dumps(value).encode()
        assert parse_answer(text) == value
        with pytest.raises(JsonRefused, match="too many parts"):
            parse(text)
    too_many = b"[" + b",".join([b"[]"] * ANSWER_CONTAINERS_MAX) + b"]"
    with pytest.raises(JsonRefused, match="too many parts"):
        parse_answer(too_many)
    deep = b"[" * (DEPTH_MAX + 2) + b"]" * (DEPTH_MAX + 2)
    assert parse_answer(deep) == json.loads(deep)
    for depth in (2 * DEPTH_MAX + 1, 500, 100_000):
        with pytest.raises(JsonRefused):
            parse_answer(b"[" * depth + b"]" * depth)


@given(texts())
@example(b'{"a":1,"a":2}')
@example(b'{"a":1e5,"a":1e5}')
@example(b"1" + b"0" * 30)
@example(b"[-9007199254740992]")
def test_an_answer_is_read_by_the_same_rules(body: bytes) -> None:
    assert _outcome(body, parse_answer) == _outcome(body, parse_slowly)


def _padded(body: bytes) -> Sequence[bytes]:
    """The text behind other values, few or many, containers or not."""
    paddings = (b"0,", b"[]," * DEPTH_MAX, b"0," * 256)
    return [b"[" + each + body + b"]" for each in paddings]


@given(texts())
@example(b"1" + b"0" * 30)
@example(b'{"a":1,"a":2}')
@example(b"[" * (DEPTH_MAX - 1) + b"]" * (DEPTH_MAX - 1))
@example(b"[" * DEPTH_MAX + b"]" * DEPTH_MAX)
def test_among_others_a_text_is_read_as_it_is_alone(body: bytes) -> None:
    for text in _padded(body):
        assert _outcome(text, parse) == _outcome(text, parse_slowly)


@given(texts())
@example(b'{"a":1,"a":2}')
@example(b'{"a":1e5,"a":1e5}')
@example(b'{"":0,"":0,"b":1e22}')
@example(b"[-0,-0.0]")
def test_the_fast_and_the_slow_path_give_the_same_values_and_refusals(body: bytes) -> None:
    assert _outcome(body, parse) == _outcome(body, parse_slowly)


TRICKY = st.text('{}[]",:\\\\u03aA1.-e ').map(str.encode)


@given(st.lists(TRICKY | texts(), max_size=6).map(b"".join) | TRICKY.map(lambda t: b'{"' + t))
def test_colons_and_escapes_of_any_kind_hide_no_second_member(body: bytes) -> None:
    for text in (body, b'{"a":"' + body + b'","a":1}', b'{"a":"' + body + b'","b:":1}'):
        assert _outcome(text, parse) == _outcome(text, parse_slowly)


@given(st.binary() | st.text().map(str.encode) | st.text('{}[]",:\\u0a1.-e ').map(str.encode))
def test_any_bytes_are_read_or_refused_and_both_paths_agree(body: bytes) -> None:
    assert _outcome(body, parse) == _outcome(body, parse_slowly)


@given(texts())
@example(b"3.89393255305951e+16")
@example(b'{"\xef\xbf\xbf":1e21,"\xf0\x9f\x98\x80":1e-7}')
def test_what_is_read_has_a_canonical_form_that_is_read_as_the_same(body: bytes) -> None:
    try:
        value = parse(body)
    except JsonRefused:
        return
    text = canonical(value)
    assert parse(text) == value
    assert canonical(parse(text)) == text
