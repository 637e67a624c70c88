"""What the figures of the attacks rest on, and one attack from its start to its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Mapping

import click
import pytest

from tests.attacks.__main__ import attacks
from tests.attacks.attack import Attack, Bounds
from tests.attacks.figures import Latency, Phase, Quiet, Row, broken, times
from tests.attacks.frames import frame
from tests.attacks.honest import Felt
from tests.attacks.registry import ATTACKS
from tests.attacks.table import print_rows
from tests.attacks.target import AttackResult, Options, Target
from tests.tidy.modules import ROOT

PAGE = "deploy/docs/pages/internals/attacks.md"
MS = 1_000_000


async def _nothing(_: Target) -> AsyncIterator[None]:
    yield


ATTACK = Attack(name="it", about="", rate="", program=_nothing)


def row(
    beside_ms: int = 10,
    *,
    refused: Mapping[str, int] | None = None,
    answers: dict[str, int] | None = None,
    **changed: int,
) -> Row:
    """A row of an attack beside which everything took so long, and 10 ms alone."""
    alone, beside = (
        Felt(array("Q", [ms * MS] * 100), array("Q", [ms * MS] * 100)) for ms in (10, beside_ms)
    )
    beside.refused.update(refused or {})
    figures = {"edge_bytes": 0, "host_bytes": 0, "log_bytes": 0, "disk_p99_ms": 1, **changed}
    did = AttackResult(20, 1_000, 10.0, answers or {"200": 20})
    return Row.of(ATTACK, alone, beside, did, seconds=10.0, **figures)


def test_a_row_that_keeps_all_bounds_breaks_none() -> None:
    found = row(30)
    assert broken(found, Quiet.of([found]), Bounds(log_mb_a_day_max=0, stored_per_sent_max=0)) == []


@pytest.mark.parametrize(
    ("found", "bounds", "words"),
    [
        (row(31), Bounds(), ["accept p99 times 3.1 > 3", "deliver p99 times 3.1 > 3"]),
        (row(refused={"429": 2}), Bounds(), ["honest: 2 429"]),
        (
            row(answers={"500 INTERNAL_ERROR": 1, "503": 9}),
            Bounds(),
            ["answered 500 INTERNAL_ERROR"],
        ),
        (row(edge_bytes=513 << 20), Bounds(), ["edge MiB 513.0 > 512"]),
        (row(host_bytes=513 << 20), Bounds(), ["host MiB 513.0 > 512"]),
        (row(log_bytes=11_600), Bounds(log_mb_a_day_max=100), ["log MB/day 100.2 > 100"]),
        (row(log_bytes=2_000), Bounds(stored_per_sent_max=1.5), ["stored by sent 2.0 > 1.5"]),
    ],
)
def test_each_bound_that_a_row_breaks_is_named(
    found: Row, bounds: Bounds, words: list[str]
) -> None:
    assert broken(found, Quiet.of([found]), bounds) == words


def test_the_quiet_is_that_of_the_whole_run() -> None:
    assert Quiet.of([row(), row()]).accepted == Latency(200, 10.0, 10.0)
    assert times(Latency(), Latency(1, 1.0, 1.0)) is None


def test_what_never_arrived_counts_as_refused() -> None:
    assert Phase.of(Felt(missing=2)).refused == {"not delivered": 2}


def test_a_frame_has_the_length_that_it_says() -> None:
    assert frame(9, b"x" * 125)[:2] == bytes([0x89, 0xFD])
    assert frame(2, b"x" * 126)[1:4] == bytes([0xFE, 0, 126])
    assert frame(2, b"x" * 65_536)[1:10] == bytes([0xFF, 0, 0, 0, 0, 0, 1, 0, 0])


async def test_an_attack_keeps_its_pace_and_its_end() -> None:
    target = Target("http://127.0.0.1:1", ["127.0.0.2"], Options(seconds=0.5))

    async def once() -> None:
        raise ConnectionResetError

    target.begin()
    started_s = time.monotonic()
    await target.repeat(100, once, at_once=4)
    assert time.monotonic() - started_s >= 0.5
    assert 1 <= target.sent <= 51
    assert target.answers == {"ConnectionResetError": target.sent}


def test_only_this_machine_is_attacked() -> None:
    for url in ("http://192.0.2.1:80", "https://example.org", "nonsense"):
        with pytest.raises(click.BadParameter):
            attacks.make_context("attacks", ["--url", url, "update-tags"])
    attacks.make_context("attacks", ["--url", "http://127.0.0.1:1", "update-tags"])


def test_every_attack_is_in_the_guide() -> None:
    page = (ROOT / PAGE).read_text("utf-8")
    assert [name for name in ATTACKS if f"`{name}`" not in page] == []


def test_the_table_shows_what_a_stranger_wrote_harmlessly(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = row(answers={"\x1b": 1})
    print_rows([found], {"it": Quiet.of([found])}, {"it": ["too loud"]})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "too loud" in shown


@pytest.mark.cluster
def test_an_attack_runs_from_its_start_to_its_end() -> None:
    # Beside other tests nothing may be left of the cores for an attack that gives way to them.
    options = ["--seconds", "2", "--competes", "--json"]
    command = [sys.executable, "-m", "tests.attacks", "small-reads", *options]
    # On a disk that others use, it would be measured up to four times.
    steady = {**os.environ, "TMPDIR": tempfile.gettempdir()}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=steady
    )
    said = json.loads(done.stdout)
    (measured,) = said["rows"]
    assert done.returncode == (1 if said["broken"]["small-reads"] else 0), done.stderr
    assert measured["answers"]["200"] > 100
    assert measured["beside"]["accepted"]["count"] == 40
    assert measured["edge_mib"] > 10
