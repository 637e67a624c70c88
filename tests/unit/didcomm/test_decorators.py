"""Whatever JSON stands where a decorator should, a message is read, and to types that hold."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Message
from http_edge.didcomm.envelopes.v1 import plaintext

MEMBERS: Final = {
    "~thread": ["thid", "pthid"],
    "~transport": ["return_route", "return_route_thread"],
    "~timing": ["delay_milli"],
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
    message = plaintext.read(orjson.dumps({**head, **decorators}))
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
        assert (message.id, message.type) == (bare.id, bare.type)


@given(DECORATORS)
def test_whatever_the_decorators_are_the_message_is_of_the_declared_types(
    decorators: dict[str, Any],
) -> None:
    read(decorators)
