from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from http_edge.didcomm.envelopes.messages import Json
from http_edge.didcomm.protocols.discover_features import QUERIES_MAX, DiscoverFeatures
from http_edge.didcomm.protocols.protocol import NOTHING, Family
from tests.unit.didcomm.requests import NEW, OLD, answer, message, outcome


def _spoken() -> Sequence[Family]:
    return FAMILIES


FEATURES = DiscoverFeatures(_spoken, 524_288)
ONE, TWO = FEATURES.families()
FAMILIES = (
    Family("messagepickup", 1, (0,), ("mediator",), {}),
    Family("messagepickup", 2, (0,), ("mediator",), {}),
    Family("didexchange", 1, (0, 1), ("responder",), {}),
    ONE,
    TWO,
)
ALL = [
    "messagepickup/1.0",
    "messagepickup/2.0",
    "didexchange/1.0",
    "didexchange/1.1",
    "discover-features/1.0",
    "discover-features/2.0",
]
INVALID = "invalid-message"


async def pids(query: str, prefix: str = NEW) -> list[str]:
    """The protocols disclosed to a query of version 1.0."""
    answered = await answer(ONE, message("discover-features/1.0/query", prefix, query=query))
    assert answered["@type"] == prefix + "discover-features/1.0/disclose"
    assert answered["~thread"] == {"thid": "message-1"}
    return [protocol["pid"] for protocol in cast("list[dict[str, str]]", answered["protocols"])]


async def disclosures(*queries: Any, prefix: str = NEW) -> list[Json]:
    """The features disclosed to queries of version 2.0."""
    asks = message("discover-features/2.0/queries", prefix, queries=list(queries))
    answered = await answer(TWO, asks)
    assert answered["@type"] == prefix + "discover-features/2.0/disclosures"
    assert answered["~thread"] == {"thid": "message-1"}
    return cast("list[Json]", answered["disclosures"])


def protocol(match: str) -> Json:
    return {"feature-type": "protocol", "match": match}


# ---- 1.0


async def test_a_star_asks_for_every_protocol_with_its_roles() -> None:
    answered = await answer(ONE, message("discover-features/1.0/query", query="*"))
    assert answered["protocols"] == [
        {"pid": NEW + "messagepickup/1.0", "roles": ["mediator"]},
        {"pid": NEW + "messagepickup/2.0", "roles": ["mediator"]},
        {"pid": NEW + "didexchange/1.0", "roles": ["responder"]},
        {"pid": NEW + "didexchange/1.1", "roles": ["responder"]},
        {"pid": NEW + "discover-features/1.0", "roles": ["responder"]},
        {"pid": NEW + "discover-features/2.0", "roles": ["responder"]},
    ]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("messagepickup/1.0", ["messagepickup/1.0"]),
        ("messagepickup/*", ["messagepickup/1.0", "messagepickup/2.0"]),
        ("didexchange/1.*", ["didexchange/1.0", "didexchange/1.1"]),
        ("messagepickup/3.*", []),
        ("messagepickup", []),
        ("*pickup/1.0", []),
        ("message*/1.0", []),
        ("messagepickup/1.?", []),
        ("messagepickup/1..", []),
        ("", []),
    ],
)
async def test_only_a_star_at_the_end_stands_for_more(query: str, found: list[str]) -> None:
    assert await pids(NEW + query) == [NEW + pid for pid in found]


async def test_a_protocol_is_disclosed_in_the_spelling_of_the_query() -> None:
    assert await pids(OLD + "messagepickup/1.0", prefix=NEW) == [OLD + "messagepickup/1.0"]
    assert await pids(NEW + "messagepickup/1.0", prefix=OLD) == [NEW + "messagepickup/1.0"]


@pytest.mark.parametrize("prefix", [NEW, OLD])
async def test_where_the_query_leaves_it_open_the_message_says_the_spelling(prefix: str) -> None:
    assert await pids("*", prefix) == [prefix + pid for pid in ALL]


@pytest.mark.parametrize("query", [None, 1, ["*"], {"match": "*"}])
async def test_a_query_that_is_no_text_is_a_problem(query: object) -> None:
    report = await answer(ONE, message("discover-features/1.0/query", query=query))
    assert cast("Json", report["description"])["code"] == INVALID


# ---- 2.0


async def test_queries_are_answered_together_and_nothing_twice() -> None:
    answered = await disclosures(
        protocol(NEW + "messagepickup/*"),
        protocol(NEW + "messagepickup/2.0"),
        {"feature-type": "constraint", "match": "max_receive_bytes"},
        {"feature-type": "aip", "match": "AIP2.*"},
    )
    assert answered == [
        {"feature-type": "protocol", "id": NEW + "messagepickup/1.0", "roles": ["mediator"]},
        {"feature-type": "protocol", "id": NEW + "messagepickup/2.0", "roles": ["mediator"]},
        {
            "feature-type": "constraint",
            "id": "max_receive_bytes",
            "value": "524288",
            "max_receive_bytes": "524288",
        },
        {"feature-type": "aip", "id": "AIP2.0/MEDIATE"},
    ]


async def test_protocols_are_https_unless_they_are_asked_for_otherwise() -> None:
    answered = await disclosures(protocol("*"), prefix=OLD)
    assert [feature["id"] for feature in answered] == [NEW + pid for pid in ALL]
    (old,) = await disclosures(protocol(OLD + "messagepickup/2.0"))
    assert old["id"] == OLD + "messagepickup/2.0"


@pytest.mark.parametrize("kind", ["gov-fw", "decorator", "unheard-of", None, 1, [], {}])
async def test_a_feature_type_without_features_gives_nothing(kind: object) -> None:
    assert await disclosures({"feature-type": kind, "match": "*"}) == []


async def test_goals_and_headers_are_disclosed() -> None:
    for kind, name in (("goal-code", "request-mediate"), ("header", "return_route")):
        found = {"feature-type": kind, "id": name}
        assert await disclosures({"feature-type": kind, "match": name}) == [found]
        assert found in await disclosures({"feature-type": kind, "match": "*"})


async def test_a_profile_with_credentials_in_it_is_not_claimed() -> None:
    for profile in ("AIP1", "AIP1.0", "AIP2.0"):
        assert await disclosures({"feature-type": "aip", "match": profile}) == []


@pytest.mark.parametrize(
    "query", [None, 1, "protocol", [], {}, {"match": "*"}, {"feature-type": "protocol"}]
)
async def test_a_malformed_query_does_not_spoil_the_others(query: object) -> None:
    answered = await disclosures(query, {"feature-type": "constraint", "match": "*"})
    assert [feature["id"] for feature in answered] == ["max_receive_bytes"]


async def test_queries_beyond_the_bound_are_not_answered() -> None:
    empty = [{"feature-type": "gov-fw", "match": "*"}] * QUERIES_MAX
    assert await disclosures(*empty, protocol("*")) == []
    assert len(await disclosures(*empty[1:], protocol("*"))) == len(ALL)


@pytest.mark.parametrize("queries", [None, "*", {}, 1])
async def test_queries_that_are_no_list_are_a_problem(queries: object) -> None:
    report = await answer(TWO, message("discover-features/2.0/queries", queries=queries))
    assert cast("Json", report["description"])["code"] == INVALID


async def test_what_others_disclose_unasked_is_not_answered() -> None:
    answered = message("discover-features/1.0/disclose", protocols=[])
    assert await outcome(ONE, answered) == NOTHING
    answered = message("discover-features/2.0/disclosures", disclosures=[])
    assert await outcome(TWO, answered) == NOTHING
