"""Every event type that was ever released is read, and written, as on its first day.

One file for each topic: the stored bytes in hexadecimal, and what they mean as JSON (bytes in
base64). A file never changes; a new shape of an event is a new topic with a file of its own.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventstore.log.codec import decode, encode
from eventstore.log.errors import CorruptRow
from eventstore.log.events import TOPIC_BY_TYPE, TYPE_BY_TOPIC
from eventstore.log.streams import identity_stream

FOLDER = Path(__file__).parent


class Example(msgspec.Struct, forbid_unknown_fields=True):
    state_hex: str
    event: dict[str, Any]


class Golden(msgspec.Struct, forbid_unknown_fields=True):
    topic: str
    examples: list[Example]


def _golden(topic: str) -> Golden:
    return msgspec.json.decode((FOLDER / f"{topic}.json").read_bytes(), type=Golden)


def test_every_topic_has_its_golden_file_and_every_file_its_topic() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == set(TYPE_BY_TOPIC)
    assert len(TYPE_BY_TOPIC) == len(TOPIC_BY_TYPE)


def test_a_golden_file_has_examples_of_its_own_topic() -> None:
    for topic in TYPE_BY_TOPIC:
        golden = _golden(topic)
        assert golden.topic == topic
        assert golden.examples


@pytest.mark.parametrize("topic", sorted(TYPE_BY_TOPIC))
def test_stored_bytes_still_mean_the_same(topic: str) -> None:
    for example in _golden(topic).examples:
        event = decode(topic, bytes.fromhex(example.state_hex))
        assert type(event) is TYPE_BY_TOPIC[topic]
        assert msgspec.json.decode(msgspec.json.encode(event)) == example.event
        assert event == msgspec.convert(example.event, TYPE_BY_TOPIC[topic])
        for name, value in example.event.items():
            if isinstance(value, int | float):  # 1 and 1.0 are equal
                assert type(getattr(event, name)) is type(value), name


@pytest.mark.parametrize("topic", sorted(TYPE_BY_TOPIC))
def test_the_same_event_is_still_stored_as_the_same_bytes(topic: str) -> None:
    for example in _golden(topic).examples:
        event = msgspec.convert(example.event, TYPE_BY_TOPIC[topic])
        row = encode(identity_stream("did:example:any"), 1, event)
        assert (row.topic, row.state.hex()) == (topic, example.state_hex)


@pytest.mark.parametrize(
    ("topic", "count"),
    [
        *(("saved-events-erased.1", count) for count in (-1, 10_001, 2**62)),
        *(("saved-events-unlisted.1", count) for count in (0, 320_001, 2**62)),
    ],
)
def test_a_row_that_was_made_up_says_no_more_than_one_step_erases(topic: str, count: int) -> None:
    event = decode(topic, bytes.fromhex(_golden(topic).examples[0].state_hex))
    made_up = msgspec.structs.replace(event, count=count)
    with pytest.raises(CorruptRow):
        decode(topic, encode(identity_stream("did:example:any"), 1, made_up).state)
