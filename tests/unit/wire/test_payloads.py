"""What a payload may hold, and what is said of one that holds something else."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.core.commands import Page
from http_edge.decentrl import envelope
from http_edge.decentrl.command_table import DIRECT, PUBLIC
from http_edge.decentrl.envelope import CommandEnvelope
from http_edge.decentrl.payloads import PageRequest, PayloadInvalid, page_of, read_payload
from http_edge.decentrl.validator import Addressee
from http_edge.settings.settings import Limits
from tests.edge.test_registration import OWN_COMMANDS

LIMITS: Final = Limits()
CANARY: Final = st.just("canary")
ROWS: Final = {**DIRECT, **PUBLIC}
EVENT: Final = {
    "sender_did": "did:x:a",
    "recipient_did": "did:x:b",
    "timestamp": 1,
    "payload": "sealed",
}
EUROS: Final = "\N{EURO SIGN}" * (LIMITS.tag_bytes_max // 2)
"""Few enough characters, too many bytes."""
LONG_DID: Final = "did:x:" + "\N{EURO SIGN}" * (LIMITS.did_bytes_max // 2)
"""As ``EUROS``."""
SECRET: Final = "what was sent"


def detail_of(kind: str, **members: Any) -> str:
    with pytest.raises(PayloadInvalid) as invalid:
        read_payload(ROWS[kind].payload, {"type": kind, **members}, LIMITS)
    return invalid.value.detail


@pytest.mark.parametrize(
    ("kind", "members", "detail"),
    [
        ("ACKNOWLEDGE_PENDING_EVENTS", {}, "payload.event_ids: is missing"),
        (
            "ACKNOWLEDGE_PENDING_EVENTS",
            {"event_ids": SECRET},
            "payload.event_ids: expected `array`, got `str`",
        ),
        (
            "ACKNOWLEDGE_PENDING_EVENTS",
            {"event_ids": ["x", True]},
            "payload.event_ids[1]: expected `str`, got `bool`",
        ),
        (
            "ACKNOWLEDGE_PENDING_EVENTS",
            {"event_ids": [SECRET] * (LIMITS.ids_per_command_max + 1)},
            f"payload.event_ids: has more than {LIMITS.ids_per_command_max} items",
        ),
        (
            "QUERY_PENDING_EVENTS",
            {"filter": {"sender_did": 1}},
            "payload.filter.sender_did: expected `str | null`, got `int`",
        ),
        (
            "QUERY_EVENTS",
            {"filter": {"participant_did": LONG_DID}},
            f"payload.filter.participant_did: has more than {LIMITS.did_bytes_max} bytes",
        ),
        (
            "QUERY_EVENTS",
            {"filter": {"unprocessed_only": 1}},
            "payload.filter.unprocessed_only: expected `bool | null`, got `int`",
        ),
        (
            "QUERY_COMMUNICATION_CONTRACTS",
            {"filter": {"expires_at_after": True}},
            "payload.filter.expires_at_after: expected `int | float | null`, got `bool`",
        ),
        (
            "SAVE_EVENTS",
            {"events": [EVENT, {**EVENT, "timestamp": SECRET}]},
            "payload.events[1].timestamp: expected `int | float`, got `str`",
        ),
        (
            "SAVE_EVENTS",
            {"events": [{**EVENT, "sender_did": LONG_DID}]},
            f"payload.events[0].sender_did: has more than {LIMITS.did_bytes_max} bytes",
        ),
        (
            "SAVE_EVENTS",
            {"events": [{**EVENT, "encrypted_tags": ["t", EUROS]}]},
            f"payload.events[0].encrypted_tags[1]: has more than {LIMITS.tag_bytes_max} bytes",
        ),
        (
            "UPDATE_EVENT_TAGS",
            {"events": [{"event_id": "x", "encrypted_tags": [SECRET] * 10_000}]},
            f"payload.events[0].encrypted_tags: has more than {LIMITS.tags_per_event_max} items",
        ),
        (
            "SAVE_COMMUNICATION_CONTRACT",
            {"signed_communication_contract": [SECRET]},
            "payload.signed_communication_contract: expected `object`, got `array`",
        ),
        (
            "DELETE_PUBLIC_EVENT",
            {"event_ids": None, "event_id": True},
            "payload.event_id: expected `str | null`, got `bool`",
        ),
    ],
    ids=str,
)
def test_a_payload_against_its_schema_is_refused_with_the_member_and_the_rule(
    kind: str, members: dict[str, Any], detail: str
) -> None:
    assert detail_of(kind, **members) == detail


NO_TEXT: Final[list[Any]] = [None, 1, {}]
NO_TIME: Final[list[Any]] = [None, "1", True]
NO_OBJECT: Final[list[Any]] = [None, "text", [], 1]
NO_EVENTS: Final[list[Any]] = [None, {}, "text", [1], [None], [[]]]
TOO_MANY_IDS: Final = ["x"] * (LIMITS.ids_per_command_max + 1)
NO_IDS: Final[list[Any]] = [None, "id", [1], [None], ["id", {}], {}, TOO_MANY_IDS]
NO_TAGS: Final[list[Any]] = ["tag", [1], [None], ["x"] * (LIMITS.tags_per_event_max + 1), [EUROS]]
LONG_ID: Final = "x" * (LIMITS.id_bytes_max + 1)
REQUEST: Final = dict.fromkeys(["encrypted_contract_request", "requestor_ephemeral_public_key"], "")
PUBLIC_EVENT: Final = {"channel_id": "", "event": "", "timestamp": 1, "event_signature": ""}
CONTRACT: Final = "signed_communication_contract"
CONTRACT_IDS: Final = "communication_contract_ids"
NEW_TAGS: Final = {"event_id": "x", "encrypted_tags": []}
REQUEST_BYTES: Final = "x" * (LIMITS.contract_request_bytes_max + 1)
SAVED_BYTES: Final = "x" * (LIMITS.saved_event_bytes_max + 1)
PUBLIC_BYTES: Final = "x" * (LIMITS.public_event_bytes_max + 1)
TOO_MANY: Final = LIMITS.saved_events_per_command_max + 1

MEMBERS: Final[list[tuple[str, str, dict[str, Any], dict[str, list[Any]]]]] = [
    (
        "REQUEST_COMMUNICATION_CONTRACT", "", REQUEST,
        {name: [*NO_TEXT, REQUEST_BYTES] for name in REQUEST},
    ),
    ("REQUEST_COMMUNICATION_CONTRACT", "", REQUEST, {"invitation": [1, REQUEST_BYTES]}),
    ("SAVE_COMMUNICATION_CONTRACT", "", {CONTRACT: {}}, {CONTRACT: NO_OBJECT}),
    ("COMMUNICATION_CONTRACT_RESPONSE", "", {CONTRACT: {}}, {CONTRACT: NO_OBJECT}),
    ("ACKNOWLEDGE_PENDING_EVENTS", "", {"event_ids": []}, {"event_ids": NO_IDS}),
    (
        "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS", "",
        {CONTRACT_IDS: []}, {CONTRACT_IDS: NO_IDS},
    ),
    ("SAVE_EVENTS", "", {"events": []}, {"events": [*NO_EVENTS, [EVENT] * TOO_MANY]}),
    (
        "SAVE_EVENTS", "events[1].", EVENT,
        {
            "sender_did": [*NO_TEXT, LONG_DID], "recipient_did": [*NO_TEXT, LONG_DID],
            "timestamp": NO_TIME, "payload": [*NO_TEXT, SAVED_BYTES],
        },
    ),
    ("UPDATE_EVENT_TAGS", "", {"events": []}, {"events": [*NO_EVENTS, [NEW_TAGS] * TOO_MANY]}),
    (
        "UPDATE_EVENT_TAGS", "events[1].", NEW_TAGS,
        {"event_id": [*NO_TEXT, LONG_ID], "encrypted_tags": [None, *NO_TAGS]},
    ),
    (
        "PUBLISH_PUBLIC_EVENT", "", PUBLIC_EVENT,
        {
            "channel_id": [*NO_TEXT, EUROS], "event": [*NO_TEXT, PUBLIC_BYTES],
            "timestamp": NO_TIME, "event_signature": NO_TEXT,
        },
    ),
    ("QUERY_PENDING_EVENTS", "", {}, {"filter": ["text", [], 1, True]}),
    ("QUERY_PENDING_EVENTS", "filter.", {}, {"sender_did": [1, [], LONG_DID]}),
    (
        "QUERY_COMMUNICATION_CONTRACTS", "filter.", {},
        {
            "did": [1, [], LONG_DID],
            "expires_at_before": ["1", True, {}], "expires_at_after": ["1", True, {}],
        },
    ),
    (
        "QUERY_EVENTS", "filter.", {},
        {
            "after_timestamp": ["1", True], "before_timestamp": ["1", True],
            "participant_did": [1], "encrypted_tags": NO_TAGS, "unprocessed_only": [1, "true"],
        },
    ),
    ("SAVE_EVENTS", "events[1].", EVENT, {"contract_id": [1, LONG_ID], "encrypted_tags": NO_TAGS}),
    ("PUBLISH_PUBLIC_EVENT", "", PUBLIC_EVENT, {"tags": NO_TAGS}),
    ("ERASE_IDENTITY", "", {"did": ""}, {"did": [*NO_TEXT, LONG_DID]}),
    (
        "DELETE_PUBLIC_EVENT", "", {},
        {
            "event_ids": ["x", [1], TOO_MANY_IDS], "public_event_id": [1, []], "event_id": [1, []],
            "channel_id": [1],
        },
    ),
]  # fmt: skip
"""A command, where its members are, all that it must have, and what some of them may not be."""


def test_a_member_of_another_type_or_beyond_its_bound_is_refused() -> None:
    for kind, where, good, members in MEMBERS:
        above = where.rstrip(".").removesuffix("[1]")

        def below(bad: dict[str, Any], above: str = above, good: Any = good) -> dict[str, Any]:
            return {"": bad, "filter": {above: bad}, "events": {above: [good, bad]}}[above]

        read_payload(ROWS[kind].payload, below(good), LIMITS)
        for member, values in members.items():
            rest = {name: value for name, value in good.items() if name != member}
            for value in values:
                detail = detail_of(kind, **below({**rest, member: value}))
                assert f"payload.{where}{member}" in detail
            if member in good:
                assert detail_of(kind, **below(rest)) == f"payload.{where}{member}: is missing"


@pytest.mark.parametrize("kind", ROWS)
@given(
    members=st.dictionaries(
        st.sampled_from(["events", "event_ids", "filter", "pagination", "timestamp", "tags"]),
        st.recursive(
            st.just("canary"),
            lambda values: (
                st.lists(values, max_size=2) | st.dictionaries(st.just("canary"), values)
            ),
            max_leaves=3,
        ),
    )
)
def test_no_detail_repeats_what_was_sent(kind: str, members: dict[str, Any]) -> None:
    try:
        read_payload(ROWS[kind].payload, members, LIMITS)
    except PayloadInvalid as invalid:
        assert "canary" not in invalid.detail  # noqa: PT017 - many of these are valid


def test_null_is_absent_where_a_member_is_optional_and_unknown_members_are_ignored() -> None:
    payload = read_payload(
        ROWS["QUERY_EVENTS"].payload,
        {"type": "QUERY_EVENTS", "filter": None, "pagination": None, "later": [{}]},
        LIMITS,
    )
    assert payload == ROWS["QUERY_EVENTS"].payload()
    events = [{**EVENT, "contract_id": None, "encrypted_tags": None, "more": 1}]
    saved = read_payload(ROWS["SAVE_EVENTS"].payload, {"events": events}, LIMITS)
    assert (saved.events[0].contract_id, saved.events[0].encrypted_tags) == (None, None)


@pytest.mark.parametrize(
    ("page", "size", "result"),
    [
        (None, None, Page(0, LIMITS.page_size_default, LIMITS.page_bytes_max)),
        (2, 10, Page(2, 10, LIMITS.page_bytes_max)),
        (2.0, 10.0, Page(2, 10, LIMITS.page_bytes_max)),  # as a JavaScript client may write it
        (-0.0, 1, Page(0, 1, LIMITS.page_bytes_max)),
        (0, LIMITS.page_size_max, Page(0, LIMITS.page_size_max, LIMITS.page_bytes_max)),
        (0, 0, "payload.pagination.page_size: is not a whole number from 1 to 1000"),
        (
            0,
            LIMITS.page_size_max + 1,
            "payload.pagination.page_size: is not a whole number from 1 to 1000",
        ),
        (-1, 1, "payload.pagination.page: is not a whole number from 0"),
        (1.5, 1, "payload.pagination.page: is not a whole number from 0"),
        (0, 1.5, "payload.pagination.page_size: is not a whole number from 1 to 1000"),
        (2**53 - 1, 1, Page(2**53 - 1, 1, LIMITS.page_bytes_max)),
        (2**53 - 1, 2, "payload.pagination.page: is beyond any record"),
        (1e22, 1, "payload.pagination.page: is beyond any record"),
    ],
    ids=str,
)
def test_a_page_is_a_whole_number_within_the_bounds(
    page: float | None, size: float | None, result: Page | str
) -> None:
    try:
        found: Page | str = page_of(PageRequest(page, size), LIMITS)
    except PayloadInvalid as invalid:
        found = invalid.detail
    assert found == result


def test_the_commands_for_the_mediator_alone_are_those_that_need_a_registration() -> None:
    # Each of these is tried without a registration in tests/edge/test_registration.py.
    own = {payload["type"] for payload in OWN_COMMANDS} | {"ERASE_IDENTITY"}  # test_erasure.py
    needed = own | set(PUBLIC)
    assert {kind for kind, row in ROWS.items() if row.addressee is Addressee.MEDIATOR} == needed


HEADER: Final = {
    "channel": "DIRECT_AUTHENTICATED",
    "sender_did": "did:x:a",
    "sender_signing_key_id": "did:x:a#signing",
    "recipient_did": "did:x:b",
    "timestamp": 1,
    "nonce": "00000000-0000-4000-8000-000000000000",
}


def envelope_detail(command: dict[str, object]) -> str:
    read = envelope.read(json.dumps(command).encode(), did_bytes_max=LIMITS.did_bytes_max)
    assert not isinstance(read, CommandEnvelope)
    return read.detail


@pytest.mark.parametrize("member", ["header", "payload", "signature"])
def test_a_member_that_a_command_lacks_is_named_as_missing(member: str) -> None:
    command: dict[str, object] = {"header": HEADER, "payload": {}, "signature": ""}
    del command[member]
    assert envelope_detail(command) == f"{member}: is missing"


@pytest.mark.parametrize("member", HEADER)
def test_a_member_that_a_header_lacks_is_named_as_missing(member: str) -> None:
    header = {name: value for name, value in HEADER.items() if name != member}
    command: dict[str, object] = {"header": header, "payload": {}, "signature": ""}
    assert envelope_detail(command) == f"header.{member}: is missing"


@pytest.mark.parametrize("member", ["sender_did", "recipient_did"])
def test_a_did_of_a_header_is_bounded_in_bytes(member: str) -> None:
    command: dict[str, object] = {
        "header": {**HEADER, member: LONG_DID},
        "payload": {},
        "signature": "",
    }
    detail = envelope_detail(command)
    assert detail == f"header.{member}: has more than {LIMITS.did_bytes_max} bytes"
