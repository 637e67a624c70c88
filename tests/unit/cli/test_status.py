"""``poste status``: shows all that a mediator answers of itself, and says when none answers."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest

from http_edge.server.exits import Exit
from tests.unit.cli.conftest import Run, answering

Serve: TypeAlias = Callable[[int, bytes], str]

ANSWER = {
    "identities": 12_345,
    "queue_oldest_age_s": 1.5,
    "ready": True,
    "log": {"position": 99, "commits_per_s": 2.25},
    "hosts": [{"name": "host-0", "commits": 7}, {"name": "host-1", "rows": None}],
    "shards": [{"shard": "shard-0", "host": "a"}, {"shard": "shard-1", "host": "b"}],
    "edges": [],
    "note": "a\x1b[2Jb",
}


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that gives every GET /status the same answer."""
    with ExitStack() as servers:
        yield lambda status, body: servers.enter_context(answering({"/status": (status, body)}))


def test_every_key_of_the_answer_is_shown(run: Run, serve: Serve) -> None:
    listen = serve(200, json.dumps(ANSWER).encode())
    ran = run("status", "--listen", listen)
    assert ran.code == Exit.OK
    for shown in ("identities", "12_345", "1.5", "log.position", "log.commits_per_s", "2.25"):
        assert shown in ran.out
    assert re.search(r"name +host-0 +host-1 *\n.*\n +commits +7 +- *\n +rows +- +- *\n", ran.out)
    assert re.search(r"shard +host *\n.*\n +shard-0 +a *\n +shard-1 +b *\n", ran.out)
    for shown in ("Hosts", "name", "commits", "rows", "host-1", "Shards"):
        assert shown in ran.out
    assert "\x1b" not in ran.out


def test_json_is_passed_on_whole(run: Run, serve: Serve) -> None:
    listen = serve(200, json.dumps(ANSWER).encode())
    assert json.loads(run("status", "--url", f"http://{listen}/", "--json").out) == ANSWER


def test_proxies_of_the_environment_are_not_asked(
    run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert run("status", "--listen", serve(200, b"{}")).code == Exit.OK


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"{}", "answered 404"),
        (200, b"<html>", "did not answer with a status"),
        (200, b"[]", "did not answer with a status"),
        (200, b"\xff", "did not answer with a status"),
    ],
)
def test_an_answer_that_is_no_status_is_named(
    run: Run, serve: Serve, status: int, body: bytes, why: str
) -> None:
    ran = run("status", "--listen", serve(status, body))
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert why in ran.err


def test_no_server_is_exit_code_3_and_the_remedy(run: Run, serve: Serve) -> None:
    ran = run("status", "--listen", "127.0.0.1:1")
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "no mediator answers at http://127.0.0.1:1" in ran.err
    assert "poste serve" in ran.err


@pytest.mark.parametrize("url", ["ftp://h", "localhost:8080", ""])
def test_a_url_of_another_kind_is_a_mistake_of_usage(run: Run, url: str) -> None:
    assert run("status", "--url", url or "http://").code == Exit.USAGE
