"""What the benchmarks of clusters make of what they saw."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from http_edge.bench.answers import (
    Answer,
    Heard,
    Judgement,
    between,
    judged,
    served_again_s,
    unaccepted,
)
from http_edge.bench.cluster import commands
from http_edge.bench.layers import in_sessions, layer_of, per_1000, spent_s
from http_edge.cli.bench import bench
from http_edge.cli.output import Exit


def answer(text: str, sent_s: float, answered_s: float, heard: Heard = Heard.ACCEPTED) -> Answer:
    return Answer(text, sent_s, answered_s, heard, "" if heard is Heard.ACCEPTED else "503")


OK, NO, UNKNOWN = Heard.ACCEPTED, Heard.REFUSED, Heard.UNKNOWN


@pytest.mark.parametrize(
    ("writers", "seconds"),
    [
        # Never noticed: the first message after the fault counts.
        ([[answer("a", 9, 9.5), answer("b", 10.5, 11)]], 1.0),
        # The one on its way when the fault came says nothing about afterwards.
        ([[answer("a", 9.5, 10.5)]], None),
        ([[answer("a", 11, 12, NO)]], None),
        ([[answer("a", 9.5, 12, UNKNOWN), answer("b", 12.5, 13)]], 3.0),
        # Served for a moment, then not: only the last return counts.
        ([[answer("a", 11, 12), answer("b", 12, 14, NO), answer("c", 14, 15)]], 5.0),
        # The slowest of all decides.
        ([[answer("a", 11, 12)], [answer("b", 11, 16)]], 6.0),
        ([[answer("a", 11, 12)], []], None),
        # A refusal before the fault is another's.
        ([[answer("a", 8, 9, NO), answer("b", 10, 10.5)]], 0.5),
    ],
)
def test_served_again_is_when_the_last_writer_is_served_for_good(
    writers: list[list[Answer]], seconds: float | None
) -> None:
    assert served_again_s(writers, 10.0) == seconds


def test_what_was_fetched_is_held_against_what_was_heard() -> None:
    answers = [
        answer("once", 0, 1),
        answer("lost", 0, 1),
        answer("twice", 0, 1),
        answer("perhaps", 0, 1, UNKNOWN),
        answer("perhaps not", 0, 1, UNKNOWN),
        answer("refused", 0, 1, NO),
        answer("refused and there", 0, 1, NO),
    ]
    fetched = ["once", "twice", "twice", "perhaps", "refused and there", "nobody's"]
    assert judged(answers, fetched) == Judgement(lost=1, duplicated=1, unexpected=2)
    assert judged(answers[:1], ["once"]) == Judgement(0, 0, 0)


def test_answers_belong_to_the_time_they_were_sent_in() -> None:
    writers = [[answer("a", 1, 5), answer("b", 5, 6)], [answer("c", 4, 9, NO)]]
    found = between(writers, 1, 5)
    assert [one.text for one in found] == ["a", "c"]
    assert unaccepted(found) == {"503": 1}
    line = commands("name", found, 2.0, {"moves": 3})
    assert (line.count, line.per_s, line.p50_ms) == (1, 0.5, 4_000.0)
    assert line.figures == {"longest_ms": 4_000.0, "moves": 3}
    assert line.refused == {"503": 1}


def test_a_process_is_of_the_layer_that_ray_names() -> None:
    titles = ["ray::RayEdge.serve", "ray::RayIdentityHost", "ray::RayPlacer", "raylet", ""]
    assert [layer_of(title) for title in titles] == ["edges", "hosts", "ray", "ray", "ray"]


def test_what_a_layer_spends_is_told_for_1000_messages() -> None:
    assert per_1000({"edges": 1.0}, {"edges": 3.0}, 4_000) == {"edges_cpu_s_per_1000": 0.5}
    assert per_1000({"edges": 1.0}, {"edges": 3.0}, 0) == {}


def test_processes_are_found_by_their_session() -> None:
    session = os.getsid(0)
    assert os.getpid() in [seen.pid for seen in in_sessions([session])]
    assert list(in_sessions([])) == []
    spent = spent_s([session], [], None)
    assert spent["ray"] > 0
    assert "database" not in spent


@pytest.mark.parametrize("which", ["cluster", "failover"])
def test_a_database_that_cannot_be_used_is_a_clear_error(which: str) -> None:
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    ended = CliRunner().invoke(bench, [which, f"--log={nowhere}"])
    assert ended.exit_code == Exit.FINDING
    assert "the database cannot be used" in ended.output
