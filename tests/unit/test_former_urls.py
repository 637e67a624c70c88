"""The URLs that a mediator had: a log keeps some, for the DIDs of DIDComm v2 that contain them."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from eventstore.stores.advisory_lock import advisory_lock
from eventstore.stores.open_log import open_log
from http_edge.server.exits import Exit, Stop
from http_edge.server.log_check import check_log, note_start, why_unserved
from http_edge.server.start_notes import FORMER_URLS_MAX
from http_edge.settings.settings import Settings
from tests.unit.test_start_order import mediator_of

FORMER, PRESENT = "https://former.example", "https://present.example"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, public_url=FORMER)
    check_log(made)
    return made


def at(settings: Settings, url: str) -> Settings:
    """These settings of a mediator that has moved."""
    return settings.model_copy(update={"public_url": url})


def marks(settings: Settings) -> dict[str, str]:
    with closing(open_log(settings.log_dsn)) as log:
        return log.settings()


def test_a_start_knows_the_urls_of_all_starts_before_it_and_not_its_own(settings: Settings) -> None:
    third = "https://third.example"
    starts = [(FORMER, []), (PRESENT, [FORMER]), (PRESENT, [FORMER]), (third, [FORMER, PRESENT])]
    for url, former in [*starts, (FORMER, [PRESENT, third])]:
        assert note_start(at(settings, url), {}) == former


def test_of_many_urls_the_oldest_leave(settings: Settings) -> None:
    urls = [f"https://{number}.example" for number in range(FORMER_URLS_MAX + 3)]
    *_, former = [note_start(at(settings, url), {}) for url in urls]
    assert former == urls[2:-1]
    assert len(former) == FORMER_URLS_MAX


def test_the_url_that_an_earlier_build_noted_is_known_and_this_one_notes_it_as_well(
    settings: Settings,
) -> None:
    with closing(open_log(settings.log_dsn)) as log:
        log.mark("public_url", FORMER)
    assert note_start(at(settings, PRESENT), {}) == [FORMER]
    assert marks(settings)["public_url"] == PRESENT
    earlier_moved = "https://earlier.example"
    with closing(open_log(settings.log_dsn)) as log:
        log.mark("public_url", earlier_moved)
    assert note_start(at(settings, PRESENT), {}) == [FORMER, earlier_moved]


async def test_a_start_that_fails_its_last_check_has_noted_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    note_start(settings, {})
    before = marks(settings)
    moved = at(settings, PRESENT).on_node("a", "127.0.0.1")
    assert check_log(moved) == {}
    mediator = mediator_of(moved)

    async def refused(_: object) -> None:
        raise Stop(Exit.USAGE, "Another node of the cluster has the same name")

    monkeypatch.setattr("http_edge.server.serve.ClusterNode.join", refused)
    with pytest.raises(Stop, match="the same name"):
        await mediator.serve([])
    assert marks(settings) == before


@pytest.mark.postgres
def test_former_urls_are_known_while_the_first_of_several_databases_is_away(
    tmp_path: Path, two_postgres_urls: str
) -> None:
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=two_postgres_urls)
    node = at(made, FORMER).on_node("a", "127.0.0.1")
    assert note_start(node, check_log(node)) == []
    assert note_start(at(node, PRESENT), {0: "away"}) == [FORMER]
    assert why_unserved(at(node, PRESENT), 0) is None
    assert note_start(at(node, "https://third.example"), {}) == [FORMER, PRESENT]


@pytest.mark.postgres
def test_of_two_nodes_that_start_at_once_with_new_urls_the_second_knows_that_of_the_first(
    tmp_path: Path, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Settings(did="did:web:mediator.example", data_dir=tmp_path, log=postgres_url)
    node, lock = at(made, FORMER).on_node("a", "127.0.0.1"), ExitStack()
    assert note_start(node, check_log(node)) == []

    def note_meanwhile(_s: float) -> None:
        with closing(open_log(node.log_dsn)) as log:
            log.mark("public_urls", f'["{FORMER}","https://first.example"]')
        lock.close()

    monkeypatch.setattr("http_edge.server.log_check.time.sleep", note_meanwhile)
    with lock:
        bounds = node.postgres.bounds
        lock.enter_context(advisory_lock(node.log_dsn, "notes of a start", bounds))
        assert note_start(at(node, PRESENT), {}) == [FORMER, "https://first.example"]
