"""``poste status``: shows whatever a mediator tells of itself, and says when none answers."""

import json
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeAlias

import pytest

from http_edge.cli.output import Exit
from tests.unit.cli.conftest import Run

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
    """A server on a free port that gives every GET /status the same answer."""
    servers: list[HTTPServer] = []
    threads: list[threading.Thread] = []

    def start(status: int, body: bytes) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(status if self.path == "/status" else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threads.append(threading.Thread(target=server.serve_forever))
        threads[-1].start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


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
