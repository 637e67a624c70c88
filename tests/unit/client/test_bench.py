"""The parts of the benchmark that its figures rest on."""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from http_edge.bench.connection import ResponseReader
from http_edge.bench.decentrl import plan
from http_edge.bench.load import run_apart
from http_edge.bench.measurement import Measurement, measured, percentile
from http_edge.bench.messages import prepare
from http_edge.bench.population import PAYLOAD_BYTES, messages, pairs
from http_edge.bench.processes import ProcessTree
from http_edge.bench.report import Report, as_json, print_report
from http_edge.bench.server import NotReady, OwnServer
from http_edge.bench.shots import fire
from http_edge.bench.subject import Subject
from http_edge.bench.target import Target
from http_edge.cli.bench import bench
from http_edge.cli.output import Exit
from http_edge.strict_json import parse
from tests.unit.client.scripted_mediator import ScriptedMediator, error

RESPONSE = b"HTTP/1.1 %d OK\r\nContent-Length: %d\r\nX: y\r\n\r\n%b"


def response(status: int, body: bytes) -> bytes:
    return RESPONSE % (status, len(body), body)


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:80",
        "http://mediator.test:80",
        "https://127.0.0.1:80",
        "http://127.0.0.1",
        "http://127.0.0.1:80/path",
        "http://localhost.evil.test:80",
        "http://[::ffff:10.0.0.1]:80",
        "",
    ],
)
def test_only_this_machine_is_measured(url: str) -> None:
    with pytest.raises(ValueError, match=r"machine|is not http"):
        Target.at(url)
    assert CliRunner().invoke(bench, ["decentrl", "--url", url]).exit_code == Exit.USAGE


@pytest.mark.parametrize("url", ["http://127.0.0.1:80", "http://[::1]:80", "http://localhost:80"])
def test_loopback_is_this_machine(url: str) -> None:
    assert Target.at(url).url == url


@given(
    answers=st.lists(st.tuples(st.integers(100, 599), st.binary(max_size=200)), max_size=5),
    size=st.integers(1, 50),
)
def test_responses_are_read_whatever_pieces_they_come_in(
    answers: list[tuple[int, bytes]], size: int
) -> None:
    reader = ResponseReader()
    for status, body in answers:
        stream = response(status, body)
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [read for piece in pieces if (read := reader.feed(piece))] == [(status, body)]


@pytest.mark.parametrize(
    "stream",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        response(200, b"") + b"x",
        b"x" * 20_000,
    ],
)
def test_what_is_not_understood_is_no_answer(stream: bytes) -> None:
    with pytest.raises(ValueError, match=r"HTTP|Content-Length|after|end"):
        ResponseReader().feed(stream)


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    ordered = sorted(values)
    for percent in (1, 50, 99, 100):
        found = percentile(ordered, percent)
        assert sum(value <= found for value in ordered) * 100 >= percent * len(ordered)
        assert sum(value < found for value in ordered) * 100 < percent * len(ordered)


def test_a_measurement_is_what_its_latencies_say() -> None:
    latencies = [ms * 1_000_000 for ms in range(1, 101)]
    assert measured("it", latencies, 2.0, commits_per_s=7.0) == Measurement(
        name="it",
        count=100,
        seconds=2.0,
        per_s=50.0,
        p50_ms=50.0,
        p95_ms=95.0,
        p99_ms=99.0,
        commits_per_s=7.0,
    )
    assert measured("nothing", [], 0.0).p50_ms is None


async def test_every_command_is_sent_once_and_refusals_are_counted(
    mediator: ScriptedMediator,
) -> None:
    target = Target.at(mediator.url)
    people = pairs(3, mediator.document)
    commands = list(messages(people, 20))
    mediator.script.extend([error("RATE_LIMITED", 429)] * 2)
    shots = await fire(target, commands, connections=4, seconds_max=30)
    assert (shots.accepted, sum(shots.refused.values())) == (18, 2)
    assert sorted(command["header"]["nonce"] for command in mediator.received) == sorted(
        parse(command)["header"]["nonce"]  # type: ignore[index]
        for command in commands
    )
    assert {len(command["payload"]) for command in mediator.received} == {PAYLOAD_BYTES}


async def test_a_run_ends_when_its_time_is_over(mediator: ScriptedMediator) -> None:
    people = pairs(1, mediator.document)
    target = Target.at(mediator.url)
    shots = await fire(target, list(messages(people, 5)), connections=1, seconds_max=0)
    assert shots.accepted + len(shots.refused) == 0


async def test_a_refused_set_up_stops_the_benchmark(mediator: ScriptedMediator) -> None:
    people = pairs(1, mediator.document)
    subject = Subject(Target.at(mediator.url), mediator.document)
    mediator.answer("SAVE_COMMUNICATION_CONTRACT", error("INVALID_SIGNATURES", 401))
    with pytest.raises(RuntimeError, match="INVALID_SIGNATURES"):
        await prepare(subject, [people[0].recipient], people)
    assert mediator.types == ["REQUEST_COMMUNICATION_CONTRACT", "SAVE_COMMUNICATION_CONTRACT"]


def test_the_edge_alone_accepts_messages_from_the_load_process(tmp_path: Path) -> None:
    with OwnServer(tmp_path, echo=True) as server:
        people = pairs(2, ScriptedMediator("did:web:bench.test").document)
        heard: list[int] = []
        shots = run_apart(
            server.target,
            list(messages(people, 300)),
            connections=8,
            seconds_max=30,
            progress=heard.append,
        )
        forged = [command.replace(b"xxxx", b"yyyy", 1) for command in messages(people, 8)]
        refused = run_apart(server.target, forged, connections=1, seconds_max=30)
        assert server.processes.cpu_s() > 0
    assert (shots.accepted, shots.refused) == (300, {})
    assert heard == [256]
    assert refused.refused == {'{"type":"ERROR","code":"INVALID_SIGNATURE"}': 8}


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(NotReady, match="no_such_setting"),
        OwnServer(tmp_path, settings={"no_such_setting": "1"}),
    ):
        pass


def test_a_tree_counts_its_children() -> None:
    tree = ProcessTree(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in tree.pids()
        child.communicate(b"\n")
    assert child.pid not in tree.pids()
    assert tree.memory_bytes() > 1024 * 1024


def test_a_quick_plan_is_a_small_one() -> None:
    quick = plan(quick=True, saved_events=None, scale=True)
    whole = plan(quick=False, saved_events=1_000_000, scale=True)
    assert [run.connections for run in whole.runs] == [1, 16, 64]
    assert sum(run.seconds_max for run in quick.runs) < 10
    assert (whole.saved_events, whole.identities, whole.queued) == (1_000_000, 100_000, 1_000_000)
    assert quick.identities * 100 < whole.identities


def test_a_report_shows_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    line = Measurement(
        name="it", count=1, seconds=1.0, per_s=1.0, figures={"mib": 2.5}, refused={"no\x1b": 3}
    )
    report = Report({"cores": 2}, {"pairs": 64}, [line])
    print_report(report)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "refused: no\\x1b" in shown
    assert msgspec.convert(as_json(report), Report) == report
    assert array("Q").itemsize == 8  # what the packed latencies rest on
