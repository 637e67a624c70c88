"""A page of records is one JSON text, however many pieces it leaves in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from actors.core.commands import Page
from actors.core.refusals import Refusal
from http_edge.decentrl.answers import Answer, records

PAGE = Page(2, 50)


def page_of(items: list[dict[str, Any]]) -> Answer:
    return records("events", items, 123, PAGE)


def expected(items: list[dict[str, Any]]) -> dict[str, Any]:
    pagination = {"page": 2, "page_size": 50, "total": 123}
    return {"type": "SUCCESS", "payload": {"events": items, "pagination": pagination}}


@pytest.mark.parametrize("size", [0, 1, 60_000, 131_072, 300_000])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_no_piece_is_longer_than_its_bound_and_one_record(size: int, count: int) -> None:
    items = [{"id": str(number), "payload": "é" * size} for number in range(count)]
    answer = page_of(items)
    assert json.loads(b"".join([answer.body, *answer.more])) == expected(items)
    assert max(map(len, [answer.body, *answer.more])) <= 128 * 1024 + 2 * size + 100


@pytest.mark.parametrize("count", [2, 20])
def test_a_page_is_bounded_by_what_is_written_of_it(count: int) -> None:
    """One control character takes six bytes in JSON."""
    items = [{"payload": "\x01" * 200_000}] * count
    bound = count * 1_200_000
    refused = records("events", items, count, Page(0, count, bound))
    assert refused.refusal is Refusal.INVALID_COMMAND
    assert json.loads(refused.body)["detail"] == f"page_size: the page is more than {bound} bytes"
    fitting = records("events", items, count, Page(0, count, bound + 1_000))
    assert fitting.refusal is None


def test_one_record_is_a_page_of_any_size() -> None:
    """It could not be read at all else."""
    assert records("events", [{"payload": "\x01" * 200_000}], 1, Page(0, 1, 1)).refusal is None
