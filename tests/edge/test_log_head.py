"""``GET /log/head``: the signed head of the log, for everybody who wants to hold it."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from eventstore.log.event_log import EventLog
from eventstore.log.public_key import PublicKey
from eventstore.log.tree_head import TreeHead, sign_head, verified_head
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.listener.routes import PlainRoute
from http_edge.server.log_head import HeadFile, LogHeadEndpoint, public_head, renewed_head
from http_edge.server.status_files import status_path
from http_edge.settings.settings import Settings
from tests.edge.mediator import KEYS, MEDIATOR_DID, HandClock, Mediator

KEY = PublicKey(KEYS.signing_public)
NONE = "head: none is published; the mediator does not export its log, or has not exported it yet"


def note(size: int, origin: str = MEDIATOR_DID) -> bytes:
    head = TreeHead(origin, size, bytes(32))
    return sign_head(head, KEY, lambda text: signatures.sign(KEYS.signing_seed, text))


async def test_where_none_is_published_that_is_said_in_the_form_of_the_protocol(
    mediator: Mediator,
) -> None:
    answer = await mediator.get("/log/head")
    assert answer.refusal == (404, "NOT_FOUND")
    assert answer.json["detail"] == NONE


async def test_the_newest_head_is_answered_as_it_was_signed(
    mediator: Mediator, clock: HandClock
) -> None:
    published = HeadFile(mediator.settings.data_dir)
    published.publish(note(1))
    clock.advance(1)
    answer = await mediator.get("/log/head")
    assert (answer.status, answer.body) == (200, note(1))
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["Cache-Control"] == "public, max-age=60"
    assert verified_head(answer.body, KEY).size == 1
    published.publish(note(2))
    assert (await mediator.get("/log/head")).body == note(1)
    clock.advance(1)
    assert (await mediator.get("/log/head")).body == note(2)


async def test_what_is_no_head_is_not_answered(mediator: Mediator, clock: HandClock) -> None:
    published = HeadFile(mediator.settings.data_dir)
    for content in (b"", note(1)[:-1], b"\xff" * 100):
        published.publish(content)
        clock.advance(1)
        assert (await mediator.get("/log/head")).refusal == (404, "NOT_FOUND")


async def test_a_head_that_cannot_be_used_is_not_called_unpublished(
    mediator: Mediator, clock: HandClock
) -> None:
    HeadFile(mediator.settings.data_dir).publish(b"no head")
    clock.advance(1)
    damaged = await mediator.get("/log/head")
    path = status_path(mediator.settings.data_dir, "log-head.txt", None)
    path.unlink()
    path.mkdir()
    clock.advance(1)
    unreadable = await mediator.get("/log/head")
    for answer in (damaged, unreadable):
        assert answer.refusal == (404, "NOT_FOUND")
        assert "cannot be used" in answer.json["detail"]
        assert str(path) not in answer.json["detail"]


@pytest.mark.parametrize(
    "settings", [{"rates": {"public_reads_per_address_per_s": 1, "burst_s": 2}}]
)
async def test_heads_have_the_rate_of_public_pages(mediator: Mediator, clock: HandClock) -> None:
    answers = await asyncio.gather(*[mediator.get("/log/head") for _ in range(4)])
    assert sorted(answer.status for answer in answers) == [404, 404, 429, 429]
    clock.advance(2)
    assert (await mediator.get("/log/head")).status == 404


async def test_each_database_of_a_log_has_a_head_of_its_own(
    tmp_path: Path, clock: HandClock
) -> None:
    two = "postgresql://127.0.0.1:9/one postgresql://127.0.0.1:9/two"
    settings = Settings(data_dir=tmp_path, log=two)
    HeadFile(tmp_path, 1).publish(note(7, f"{MEDIATOR_DID}/db-1"))
    routes = LogHeadEndpoint(settings, clock).routes()
    answers = {}
    for route in routes:
        assert isinstance(route, PlainRoute)
        answer = await route.handle(make_mocked_request("GET", route.path))
        assert isinstance(answer, web.Response)
        answers[route.path] = (answer.status, answer.body)
    assert answers["/log/db-1/head"] == (200, note(7, f"{MEDIATOR_DID}/db-1"))
    assert answers["/log/db-0/head"][0] == 404
    status, body = answers["/log/head"]
    assert isinstance(body, bytes)
    assert (status, b"/log/db-0/head, /log/db-1/head" in body) == (404, True)


def test_a_head_is_renewed_once_in_an_interval_for_all_nodes_alike(tmp_path: Path) -> None:
    """On a fixed time also if nothing is sealed: else a new one says when that was."""
    hour_s = 3_600
    with (
        closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as one,
        closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as two,
    ):

        def shown(log: EventLog, newest: int, after_s: float, every_s: float = hour_s) -> int:
            now_ms = 1_700_000_000_000 + round(after_s * 1_000)
            head = renewed_head(log, note(newest), every_s, now_ms)
            assert public_head(one) == public_head(two) == head
            return verified_head(head, KEY).size

        assert public_head(one) is None
        assert shown(one, 3, 0) == 3
        assert shown(two, 4, -60) == 3  # by a clock that is behind
        assert shown(two, 4, hour_s - 0.001) == 3
        assert shown(one, 4, hour_s) == 4
        assert shown(one, 4, 2 * hour_s) == 4
        assert shown(one, 5, 2 * hour_s + 1) == 4
        assert shown(two, 5, 3 * hour_s) == 5
        assert shown(one, 6, 1) == 6  # by a clock that is no longer ahead
        assert [shown(one, size, 2, every_s=0) for size in (7, 8)] == [7, 8]
        assert shown(two, 9, 1, every_s=0) == 9
