"""Two processes that both believe to own a partition: the log knows one."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.core.replies import Reply
from eventstore.log.event_log import EventLog
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from tests.cluster.accounts import client, healthy, in_flight, message, newcomer, post
from tests.cluster.server import HOST, Server, send
from tests.crash import commands
from tests.crash.commands import NOT_OWNER, UNAVAILABLE, introduced, introduction, query, texts_in
from tests.crash.owner import Owner

pytestmark = pytest.mark.cluster
PAUSE_S = 0.02
"""Between two messages of an owner: all of them fit on one page of the queue."""


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def dsn(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'log.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def first(dsn: str) -> Iterator[Owner]:
    """An owner with a message that it has accepted."""
    with Owner(dsn) as owner:
        assert introduced(owner.ask(*introduction()))
        assert owner.ask(commands.message("of the first")) != [UNAVAILABLE]
        yield owner


def assert_sound(log: EventLog) -> None:
    """Nothing is wrong with the log: every version once, every chain whole."""
    *findings, summary = verify(log)
    assert findings == []
    assert isinstance(summary, Summary)
    log.close()


def test_the_stale_owner_is_refused_by_the_log_and_stops(dsn: str, first: Owner) -> None:
    with Owner(dsn) as second:
        assert second.ask(commands.message("of the second")) != [UNAVAILABLE]
        for text in ("stale", "stale again"):
            assert first.ask(commands.message(text)) == [NOT_OWNER]
        assert first.ask(query("stale query")) == [NOT_OWNER]
        assert texts_in(second.ask(query("query"))) == ["of the first", "of the second"]
    assert_sound(open_log(dsn))


def test_an_owner_that_was_paused_while_another_took_over_stores_nothing_more(
    dsn: str, first: Owner
) -> None:
    first.signal(signal.SIGSTOP)
    assert first.send(commands.message("of the zombie"))
    with Owner(dsn) as second:
        assert second.ask(commands.message("of the second")) != [UNAVAILABLE]
        first.signal(signal.SIGCONT)
        assert first.answer() == [NOT_OWNER]
        assert texts_in(second.ask(query("query"))) == ["of the first", "of the second"]
    assert_sound(open_log(dsn))


def test_two_owners_that_write_at_once_never_both_succeed(dsn: str, first: Owner) -> None:
    with Owner(dsn) as second:
        # The first writes while the second starts and claims the partition, and once after it.
        assert second.send(commands.message("of the second"))
        texts, stale, is_claimed = list[str](), list[list[Reply] | None](), False
        while not is_claimed:
            is_claimed = second.has_answered(PAUSE_S)
            texts.append(f"{len(texts)}")
            stale.append(first.ask(commands.message(texts[-1])))
        kept = commands.accepted(texts, stale)
        kept += commands.accepted(["of the second"], [second.answer()])
        assert texts_in(second.ask(query("query"))) == ["of the first", *kept]
        assert kept[0] == texts[0]
        assert kept[-1] == "of the second"
        assert stale[-1] == [NOT_OWNER]
    assert_sound(open_log(dsn))


async def test_a_host_that_lost_its_partitions_while_it_hung_says_so_and_accepts_nothing(
    tmp_path: Path,
) -> None:
    settings = {"limits.host_call_s_max": "3", "shards": "1"}
    with Server(tmp_path / "data", **settings) as server:
        async with client(server.url) as mediator:
            stranger = await newcomer(mediator, "stranger")
            (host,) = server.pids(HOST)
            send(host, signal.SIGSTOP)
            (request,) = await in_flight(mediator, [message(stranger, stranger, "in flight")])
            assert (await request)[0] == 503
            with Owner(server.dsn) as second:
                assert introduced(second.ask(*introduction()))
                send(host, signal.SIGCONT)
                assert (await post(mediator, message(stranger, stranger, "later")))[0] == 503
                assert not await healthy(mediator)
        assert_sound(server.log())
