"""Whatever JSON stands where a decorator should, a message is read, and to types that hold."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json, Message
from http_edge.didcomm.envelopes.v1 import plaintext

MEMBERS: Final = {
    "~thread": ["thid", "pthid"],
    "~transport": ["return_route", "return_route_thread"],
    "~timing": ["delay_milli", "expires_time"],
    "~please_ack": ["on"],
}
LEAVES: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15)
    | st.text(max_size=4)
    | st.sampled_from(["all", "thread", "none", "RECEIPT", "OUTCOME", "x" * 300])
)
ANY: Final = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
)
DECORATORS: Final = st.fixed_dictionaries(
    {},
    optional={
        name: ANY | st.dictionaries(st.sampled_from(members), ANY)
        for name, members in MEMBERS.items()
    }
    | {"~attach": ANY, "did_doc~attach": ANY, "~l10n": ANY},
)
OF_EVERY_TYPE: Final[list[Any]] = [None, True, 0, -1, 1.5, 1e300, "", "x", [], [[]], {}, {"a": []}]


def read(decorators: dict[str, Any]) -> Message:
    """The message, and whether each of its fields is of the type that it is declared with."""
    head = {"@type": NEW_PREFIX + "trust_ping/1.0/ping", "@id": "1"}
    message = plaintext.read({**head, **decorators})
    assert message is not None
    fields = msgspec.structs.asdict(message)
    del fields["type"], fields["attachments"]
    msgspec.convert({**fields, "type": msgspec.to_builtins(message.type)}, Message)
    return message


@pytest.mark.parametrize("value", OF_EVERY_TYPE, ids=repr)
@pytest.mark.parametrize("name", MEMBERS)
def test_a_decorator_of_any_type_is_as_good_as_none(name: str, value: Any) -> None:
    bare = read({})
    for body in (value, dict.fromkeys(MEMBERS[name], value)):
        message = read({name: body})
        assert message.return_route == "none"
        assert message.thread_id in {"1", "x"}
        if name == "~please_ack":
            assert message.wants_ack == (isinstance(body, dict) and "on" not in body)
        elif name == "~timing":
            assert message.delay_ms in {None, 1, 600_000}
            assert message.expires_at_s is None
        assert (message.id, message.type) == (bare.id, bare.type)


@pytest.mark.parametrize(
    ("time", "expires_at_s"),
    [
        ("2019-01-25 18:25Z", 1_548_440_700),
        ("2019-01-25 18:25:01.999Z", 1_548_440_701),
        ("2019-01-25T18:25:00.123456789Z", 1_548_440_700),
        ("2019-01-25T18:25:00+05:30", 1_548_420_900),
        ("2019-01-25t18:25:00z", 1_548_440_700),
        ("2016-12-31T23:59:60Z", 1_483_228_799),
        ("2017-01-01 05:29:60.5+05:30", 1_483_228_799),
        ("1969-12-31T23:59:59Z", 0),
        ("0001-01-01T00:00+23:59", 0),
        ("9999-12-31T23:59:59-23:59", 253_402_387_139),
        ("2019-01-25 18:25", None),
        ("2019-01-25", None),
        ("2019-01-25 18:25:61Z", None),
        ("2019-01-25T18:25:00Z" + " " * 21, None),
        (1_548_440_700, None),
    ],
)
@pytest.mark.parametrize("kind", ["trust_ping/1.0/ping", "routing/1.0/forward"])
def test_the_time_at_which_a_message_expires_is_read_with_its_offset(
    kind: str, time: Any, expires_at_s: int | None
) -> None:
    body: Json = {"@type": NEW_PREFIX + kind, "@id": "1", "~timing": {"expires_time": time}}
    message = plaintext.read(body)
    assert message is not None
    assert message.expires_at_s == expires_at_s


@given(DECORATORS)
def test_whatever_the_decorators_are_the_message_is_of_the_declared_types(
    decorators: dict[str, Any],
) -> None:
    read(decorators)
