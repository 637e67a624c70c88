"""What the figures of the benchmarks rest on."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from http_edge.clients.decentrl import MediatorClient
from http_edge.clients.didcomm import Mediation, Recipient, fetch_invitation
from http_edge.clients.load.closed_loop import LoadResult, percentile
from http_edge.clients.load.didcomm_agents import DidCommAgents, Mailbox
from http_edge.didcomm.envelopes.keys import KeyPair
from tests.bench import decentrl, didcomm
from tests.bench.agents import PacedLoad, unregistered
from tests.bench.compare import comparison
from tests.bench.load import Connection, Run, run_apart
from tests.bench.processes import ProcessTree, accepted_at
from tests.bench.projections import run_program
from tests.bench.report import Measurement, measured, of_rounds, print_report, report
from tests.bench.scraped import COMMIT_S, COMMITS, counted, plus
from tests.bench.server import EdgeAlone
from tests.histories import NOTHING, write_history

EVENTS = 600


@given(st.lists(st.integers(0, 1000), min_size=1))
def test_a_percentile_is_a_value_that_so_many_do_not_exceed(values: list[int]) -> None:
    ordered = sorted(values)
    for percent in (1, 50, 99, 100):
        found = percentile(ordered, percent)
        assert sum(value <= found for value in ordered) * 100 >= percent * len(ordered)
        assert sum(value < found for value in ordered) * 100 < percent * len(ordered)


def test_a_measurement_is_what_its_latencies_say() -> None:
    line = measured("it", [ms * 1_000_000 for ms in range(1, 101)], 2.0)
    assert line == Measurement(
        name="it", count=100, seconds=2.0, per_s=50.0, p50_ms=50.0, p95_ms=95.0, p99_ms=99.0
    )
    assert measured("nothing", [], 0.0).p50_ms is None


def test_a_ratio_is_of_two_runs_of_one_round() -> None:
    old = [Measurement(name="it", count=1, seconds=1, per_s=per_s) for per_s in (100, 50, 10)]
    new = [Measurement(name="it", count=1, seconds=1, per_s=per_s) for per_s in (110, 50, 9)]
    found = comparison("it", "accepted/s", old, new)
    assert (found.old, found.new, found.ratios) == (50, 50, [1.1, 1.0, 0.9])


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_an_answer_is_read_whatever_pieces_it_comes_in(size: int) -> None:
    connection = Connection("test", "/", "text/plain")
    connection.connection_made(SilentTransport())  # type: ignore[arg-type]
    for status in (200, 503):
        answer = b"HTTP/1.1 %d X\r\nX: y\r\ncontent-length: 4\r\n\r\nbody" % status
        waiting = connection.post(b"")
        coroutine = waiting.__await__()
        next(coroutine)
        for at in range(0, len(answer), size):
            connection.data_received(answer[at : at + size])
        with pytest.raises(StopIteration) as ended:
            next(coroutine)
        assert ended.value.value == (None if status == 200 else "503")


class SilentTransport:
    def write(self, data: bytes) -> None:
        assert data.startswith(b"POST / HTTP/1.1\r\n")


async def test_the_edge_alone_accepts_what_is_signed_and_refuses_what_is_forged(
    tmp_path: Path,
) -> None:
    with EdgeAlone(tmp_path) as server:
        async with MediatorClient(server.url) as client:
            agents = await unregistered(client, 2)
            bodies, progress = list(agents.messages(300)), list[int]()
            accepted = run_apart(agents, bodies, Run(8, 300, 30.0), progress=progress.append)
            forged = [body.replace(b"xxxx", b"yyyy", 1) for body in agents.messages(8)]
            refused = run_apart(agents, forged, Run(1, 8, 30.0))
        async with aiohttp.ClientSession() as session:
            invitation = await fetch_invitation(session, f"{server.url}/invitation")
        mediation = Mediation(f"{server.url}/didcomm", (invitation.key,))
        boxes = [Mailbox(None, Recipient(KeyPair.new(), mediation))]  # type: ignore[arg-type]
        wallets = DidCommAgents(boxes)
        forwards = run_apart(wallets, list(wallets.messages(4)), Run(2, 9, 30.0), numbered=True)
        assert server.tree.cpu_s() > 0
    assert (accepted.accepted, accepted.refused) == (300, {})
    assert progress[-1] == 256
    assert refused.refused == {"401 INVALID_SIGNATURE": 8}
    assert (forwards.accepted, forwards.refused) == (9, {})


def test_a_load_that_fails_says_why(tmp_path: Path) -> None:
    mediation = Mediation("http://127.0.0.1:1/didcomm", ())
    agents = DidCommAgents([Mailbox(None, Recipient(KeyPair.new(), mediation))])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="Connect"):
        run_apart(agents, [b"{}"], Run(1, 1, 1.0))
    with pytest.raises(RuntimeError, match="it went wrong"):
        run_program([sys.executable, "-c", "raise SystemExit('it went wrong')"], tmp_path)


async def test_a_paced_load_counts_what_did_not_arrive() -> None:
    load = PacedLoad(2, 1_000)

    async def post(body: bytes) -> str | None:
        if body == b"1":
            return "429"
        load.arrived(int(body), 10**18)
        return None

    await load.send([post], [b"0", b"1"])
    assert (len(load.latencies), load.refused) == (1, 1)


def test_a_tree_counts_its_children() -> None:
    tree = ProcessTree(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in tree.pids()
        child.communicate(b"\n")
    assert child.pid not in tree.pids()
    assert 1024 * 1024 < tree.own_memory_bytes() < tree.memory_bytes()


def test_connections_are_counted_where_they_were_accepted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = server.getsockname()
        assert accepted_at({place}) == 0
        with socket.create_connection(place) as one, socket.create_connection(place):
            assert accepted_at({place}) == 2
            assert accepted_at({one.getsockname()}) == 1
            assert accepted_at({("127.0.0.2", place[1])}) == 0


def test_what_processes_have_counted_is_summed_up() -> None:
    shown = """
# TYPE poste_commits_total counter
poste_commits_total{process="host-0"} 3
poste_commits_total{process="host-1"} 4
# TYPE poste_host_stage_seconds histogram
poste_host_stage_seconds_sum{process="host-0",stage="commit"} 0.5
poste_host_stage_seconds_sum{process="host-0",stage="waited"} 9
"""
    once = counted(shown)
    assert once == {COMMITS: 7, COMMIT_S: 0.5}
    assert plus(plus(once, once), {COMMITS: 1}, -1) == {COMMITS: 13, COMMIT_S: 1.0}


def test_a_quick_plan_is_a_twentieth() -> None:
    for quick, whole in (
        (
            decentrl.plan(quick=True, saved_events=None, scale=False).runs,
            decentrl.plan(quick=False, saved_events=None, scale=False).runs,
        ),
        (
            didcomm.plan(quick=True, scale=False, sockets=None).runs,
            didcomm.plan(quick=False, scale=False, sockets=None).runs,
        ),
    ):
        assert [run.connections for run in whole] == [1, 16, 64]
        assert [run.count * 20 for run in quick] == [run.count for run in whole]


def test_rounds_are_shown_by_the_middle_one_with_the_ratios_of_all() -> None:
    slow, fast, middle = [
        measured("it", [1] * count, 1.0, refused={"no": count}) for count in (1, 9, 4)
    ]
    pages = [measured("it", [1], 1.0, figures={"messages_per_s": rate}) for rate in (2, 3, 2)]
    shown = of_rounds([slow, fast, middle], "ratio", [slow, fast, middle], pages)
    assert (shown.count, shown.refused) == (4, {"no": 14})
    assert shown.figures == {"ratio": 2.0, "ratio_min": 0.5, "ratio_max": 3.0}
    assert of_rounds(pages).figures == {"messages_per_s": 2}


def test_a_report_shows_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    line = measured("it", [1_000_000], 1.0, figures={"mib": 2.5}, refused={"no\x1b": 3})
    print_report(report(Run(1, 1, 1.0), [line]))
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "refused: no\\x1b" in shown
    assert LoadResult(b"\0" * 16, {}, 1.0, 0.0).accepted == 2


def test_a_written_history_is_sealed_and_the_same_for_a_seed(tmp_path: Path) -> None:
    states = []
    for name in "ab":
        with closing(open_log(f"sqlite:{tmp_path / name}.db")) as log:
            written = NOTHING
            # At once, and in two parts.
            for events in (EVENTS,) if name == "a" else (EVENTS // 3, EVENTS):
                written = write_history(log, events, payload_bytes=50, seed=7, after=written)
            *findings, summary = verify(log)
            assert findings == []
            assert isinstance(summary, Summary)
            assert summary.position == written.events >= EVENTS
            states.append([row.state for row in log.read_log(limit=10 * EVENTS)])
    assert states[0] == states[1]
