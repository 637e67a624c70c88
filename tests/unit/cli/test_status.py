"""``poste status``: shows all that a mediator answers of itself, and says when none answers."""

import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeAlias

import pytest

from http_edge.admin import health
from http_edge.cli import running_mediator
from http_edge.server.data_dir import locked, mark_begun
from http_edge.server.exits import Exit, Stop
from http_edge.server.status_files import export_figures
from tests.unit.cli.conftest import Run, answering, data_dir_of

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


HOW = ("away", "full")
HANGS = {"hangs_after_s": 900.0}


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """The data directory of a server that gives every GET /status the same answer."""
    with ExitStack() as servers:

        def start(status: int, body: bytes) -> str:
            answers = {"/status": (status, body)}
            return data_dir_of(tmp_path, servers.enter_context(answering(answers)))

        yield start


def test_every_key_of_the_answer_is_shown(run: Run, serve: Serve) -> None:
    data_dir = serve(200, json.dumps(ANSWER).encode())
    ran = run("status", "--data-dir", data_dir)
    assert ran.code == Exit.OK
    for shown in ("identities", "12,345", "1.5", "log.position", "log.commits_per_s", "2.25"):
        assert shown in ran.out
    assert re.search(r"name +host-0 +host-1 *\n.*\n +commits +7 +- *\n +rows +- +- *\n", ran.out)
    assert re.search(r"shard +host *\n.*\n +shard-0 +a *\n +shard-1 +b *\n", ran.out)
    for shown in ("Hosts", "name", "commits", "rows", "host-1", "Shards"):
        assert shown in ran.out
    assert "\x1b" not in ran.out


def test_a_host_that_does_not_answer_is_named_with_a_remedy(run: Run, serve: Serve) -> None:
    data_dir = serve(200, json.dumps({**ANSWER, "silent_hosts": ["host-0", "host-1"]}).encode())
    ran = run("status", "--data-dir", data_dir)
    assert ran.code == Exit.OK
    assert "no answer from host-0, host-1\n" in ran.err
    assert "Remove the cause" in ran.err, "a node cannot start while a database is away"
    assert "restart the mediator" in ran.err


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (
            {"export": {**HANGS, "fault": "", "caught_up_age_s": 901}},
            ["export: nothing", "901 s", "answer"],
        ),
        ({"export": {**HANGS, "fault": "", "caught_up_age_s": 901, "last_step_age_s": 3}}, []),
        (
            {"export": {"fault": "the place is full", "fault_age_s": 0}},
            ["export: the place is full", "Remove"],
        ),
        (
            {"archive": {**HANGS, "fault": "", "last_round_age_s": 901}},
            ["archive: nothing", "restart"],
        ),
        (
            {"archive": {**HANGS, "last_round_age_s": 899}, "export": {**HANGS, "standby": True}},
            [],
        ),
        (
            {
                "archive": {
                    "databases": [{"fault": f"it is {how}", "fault_age_s": 9} for how in HOW]
                }
            },
            ["archive of database 0: it is away", "archive of database 1: it is full"],
        ),
        ({"export": export_figures(Path("elsewhere"), 99, 0)}, []),
    ],
)
def test_work_that_fails_or_hangs_is_named_with_a_remedy(
    run: Run, serve: Serve, parts: dict[str, object], said: list[str]
) -> None:
    ran = run("status", "--data-dir", serve(200, json.dumps({**ANSWER, **parts}).encode()))
    assert ran.code == Exit.OK
    assert all(each in " ".join(ran.err.split()) for each in said)
    assert bool(ran.err) == bool(said)


def test_a_mediator_that_was_killed_is_said_to_be_and_its_address_is_not_asked(
    run: Run, serve: Serve
) -> None:
    data_dir = serve(200, json.dumps(ANSWER).encode())
    address = Path(data_dir) / "operators-address"
    listens = address.read_text()
    with locked(Path(data_dir)):
        mark_begun(Path(data_dir))
        address.write_text(listens)
        assert run("status", "--data-dir", data_dir).code == Exit.OK
    (Path(data_dir) / "lock").write_text("4711")
    ran = run("status", "--data-dir", data_dir)
    assert ran.code == Exit.UNREACHABLE
    assert listens in " ".join(ran.err.split())
    for shown in ("was killed", "poste serve"):
        assert shown in " ".join(ran.err.split())
    with locked(Path(data_dir)) as was_killed:
        assert was_killed
        address.write_text(listens)
        assert run("status", "--data-dir", data_dir).code == Exit.OK


def test_no_start_or_restore_makes_the_address_of_a_killed_mediator_good_again(
    run: Run, serve: Serve
) -> None:
    """Another program may listen there: for it such a start fails, and leaves no mark of a kill."""
    data_dir = serve(200, json.dumps(ANSWER).encode())
    mark_begun(Path(data_dir))
    with locked(Path(data_dir)) as was_killed:
        assert was_killed
        ran = run("status", "--data-dir", data_dir)
        assert ran.code == Exit.UNREACHABLE
        assert "does not answer operators yet" in ran.err
    ran = run("status", "--data-dir", data_dir)
    assert ran.code == Exit.UNREACHABLE
    assert "no mediator runs on" in ran.err


def test_json_is_passed_on_whole(run: Run, serve: Serve) -> None:
    data_dir = serve(200, json.dumps(ANSWER).encode())
    assert json.loads(run("status", "--data-dir", data_dir, "--json").out) == ANSWER
    url = (Path(data_dir) / "operators-address").read_text()
    ran = run("status", "--data-dir", data_dir, "--url", f"{url}/", "--json")
    assert json.loads(ran.out) == ANSWER


def test_proxies_of_the_environment_are_not_asked(
    run: Run, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert run("status", "--data-dir", serve(200, b"{}")).code == Exit.OK


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"{}", "answered 404"),
        (200, b"<html>", "is not a status of poste"),
        (200, b"[]", "is not a status of poste"),
        (200, b"\xff", "is not a status of poste"),
        (200, b"[" * 100_000, "is not a status of poste"),
    ],
)
def test_an_answer_that_is_no_status_is_named(
    run: Run, serve: Serve, status: int, body: bytes, why: str
) -> None:
    ran = run("status", "--data-dir", serve(status, body))
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert why in ran.err


def test_no_server_is_exit_code_3_and_the_remedy(run: Run, tmp_path: Path) -> None:
    ran = run("status", "--data-dir", data_dir_of(tmp_path, "127.0.0.1:1"))
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert "no mediator answers at http://127.0.0.1:1" in ran.err
    assert "poste serve" in ran.err


def test_a_directory_on_which_none_runs_is_exit_code_3_and_the_remedy(
    run: Run, tmp_path: Path
) -> None:
    data_dir = data_dir_of(tmp_path, "127.0.0.1:1")
    (tmp_path / "operators-address").unlink()
    ran = run("status", "--data-dir", data_dir)
    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert f"no mediator runs on {data_dir}" in ran.err
    assert "poste serve" in ran.err


def test_a_mediator_that_starts_or_stops_is_said_to_do_so(run: Run, tmp_path: Path) -> None:
    data_dir = data_dir_of(tmp_path, "127.0.0.1:1")
    (tmp_path / "operators-address").unlink()
    for _ in range(2):
        with locked(tmp_path):
            ran = run("status", "--data-dir", data_dir)
        assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
        said = " ".join(ran.err.split())
        assert ("is starting or stopping" in said, "poste serve" in said) == (True, False)
        (tmp_path / "operators-token").unlink(missing_ok=True)  # as at the first start


def test_a_mediator_that_takes_too_long_is_not_said_to_be_missing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(Stop) as stopped:
            running_mediator.exchange("GET", url, "/status", seconds_max=0.05)
    assert stopped.value.exit_code == Exit.UNREACHABLE
    said = f"{stopped.value.message} {stopped.value.remedy}"
    assert ("did not answer within 0.05 s" in said, "poste serve" in said) == (True, False)


def test_a_mediator_that_answers_byte_by_byte_does_not_hold_a_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(running_mediator, "_WHOLE_S_MAX", 0.05)
    parts = [b"HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n", *[b"x"] * 200]
    is_over = threading.Event()

    def drip() -> None:
        with server.accept()[0] as client, suppress(OSError):
            for part in parts:
                client.sendall(part)
                is_over.wait(0.01)

    with socket.create_server(("127.0.0.1", 0)) as server:
        dripping = threading.Thread(target=drip)
        dripping.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Stop, match=r"not in whole within 0\.15 s") as stopped:
            running_mediator.exchange("GET", url, "/status", seconds_max=0.1)
        is_over.set()
        dripping.join()
    assert stopped.value.exit_code == Exit.UNREACHABLE


def test_a_command_waits_longer_than_the_mediator_waits_for_a_host_that_hangs() -> None:
    assert running_mediator._ANSWER_S_MAX > health._CHECK_S_MAX + 1


def test_without_a_token_its_place_and_the_remedy_are_named(run: Run, tmp_path: Path) -> None:
    ran = run("status", "--url", "http://127.0.0.1:1", "--data-dir", str(tmp_path))
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert str(tmp_path / "operators-token") in ran.err
    assert "--data-dir" in ran.err


@pytest.mark.parametrize(("mode", "token"), [(0o640, "0123456789abcdef"), (0o600, "short\r\n")])
def test_a_token_that_others_read_or_that_is_none_is_refused(
    run: Run, tmp_path: Path, mode: int, token: str
) -> None:
    (tmp_path / "operators-token").write_text(token)
    (tmp_path / "operators-token").chmod(mode)
    ran = run("status", "--url", "http://127.0.0.1:1", "--data-dir", str(tmp_path))
    assert (ran.code, ran.out) == (Exit.UNSAFE, "")
    assert str(tmp_path / "operators-token") in ran.err
    assert "short" not in ran.err


@pytest.mark.parametrize(
    "url", ["ftp://h", "localhost:8080", "http://a..b:1", "http://[", "http://h/ä", ""]
)
def test_a_url_of_another_kind_is_a_mistake_of_usage(run: Run, tmp_path: Path, url: str) -> None:
    data_dir = data_dir_of(tmp_path, "127.0.0.1:1")
    ran = run("status", "--data-dir", data_dir, "--url", url or "http://")
    assert ran.code == Exit.USAGE
