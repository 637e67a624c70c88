"""What an audit shows is what the log says, event by event."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from eventstore.log import events as e
from eventstore.log.pseudonyms import pseudonym_of
from eventstore.parquet.audit.answering import Period
from projections.audit import (
    REPLAYS,
    events_until,
    queue_refusals,
    records,
    refused_commands,
    stuck_messages,
)
from projections.program import projections
from projections.spark.export import open_export
from projections.tables.projection import Step
from tests.histories import IDENTITIES, START_MS
from tests.projections.audited import KEY, SECRET, SampleLog, iso, key, sample
from tests.unit.cli.conftest import Run, run

__all__ = ["key", "run", "sample"]

ALL = 10_000
PATIENT_S, OFTEN = 300, 3


def _at(at_ms: int | None) -> datetime | None:
    return None if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC)


@pytest.fixture(scope="module")
def step(spark: SparkSession, sample: SampleLog) -> Step:
    export = open_export(str(sample.export))
    return events_until(spark, export, export.last)


@pytest.fixture
def audit(spark_here: SparkSession, run: Run) -> Run:
    """``poste audit``; the program answers in this process, in the one session of all tests."""
    return partial(run, "audit")


@pytest.mark.spark
def test_refused_commands_are_summed_up_over_edges_and_periods(
    step: Step, sample: SampleLog
) -> None:
    expected: Counter[tuple[str, str, str]] = Counter()
    for stored in sample.of(e.RefusalsCounted):
        assert isinstance(stored.event, e.RefusalsCounted)
        for refused in stored.event.refusals:
            expected[refused.command, refused.reason, refused.sender_did] += refused.count
    rows = records(refused_commands(step), ALL)
    assert {(r["command"], r["reason"], r["sender_did"]): r["count"] for r in rows} == expected
    hers = next(row for row in rows if row["sender_did"] == IDENTITIES[0])
    assert (hers["count"], hers["edges"]) == (5, 2)
    assert (hers["first_at"], hers["last_at"]) == (iso(60_000), iso(140_000))
    replays = records(refused_commands(step, reasons=REPLAYS), ALL)
    assert {row["reason"] for row in replays} == set(REPLAYS)
    later = Period(datetime.fromtimestamp(120, UTC), datetime.fromtimestamp(180, UTC))
    assert [row["count"] for row in records(refused_commands(step, later), ALL)] == [2]
    # The host that recorded the count has a clock that is behind that of the edge.
    recorded_at = F.timestamp_millis(F.lit(119_000).cast("long"))
    behind = replace(step, events=step.events.withColumn("recorded_at", recorded_at))
    assert [row["count"] for row in records(refused_commands(behind, later), ALL)] == [2]


@pytest.mark.spark
def test_an_audit_since_the_first_time_of_the_calendar_is_of_everything(step: Step) -> None:
    since = Period(datetime.min.replace(tzinfo=UTC))
    rows = records(refused_commands(step, since), ALL)
    assert rows == records(refused_commands(step), ALL) != []
    found, every = (
        records(stuck_messages(step, 0, older_than_s=1, deliveries_min=1, period=one), ALL)
        for one in (since, Period())
    )
    assert found == every != []


@pytest.mark.spark
def test_queues_that_began_to_refuse_are_counted(step: Step, sample: SampleLog) -> None:
    expected = Counter(
        (s.identity, s.event.recipient_key, s.event.reason)
        for s in sample.of(e.QueueRefused)
        if isinstance(s.event, e.QueueRefused)
    )
    rows = records(queue_refusals(step), ALL)
    assert expected
    assert {
        (row["identity"], row["recipient_key"], row["reason"]): row["count"] for row in rows
    } == expected
    earlier = Period(until=datetime(2023, 1, 1, tzinfo=UTC))
    assert records(queue_refusals(step, earlier), 1) == []


@pytest.mark.spark
def test_a_period_of_refusals_begins_with_its_first_millisecond_and_ends_before_its_last(
    step: Step, sample: SampleLog
) -> None:
    def counts(since_ms: int | None, until_ms: int | None) -> list[int]:
        period = Period(_at(since_ms), _at(until_ms))
        return sorted(row["count"] for row in records(refused_commands(ours, period), ALL))

    first = sample.of(e.RefusalsCounted)[-2].position
    ours = replace(step, events=step.events.where(F.col("position") >= first))
    # The counts are 1 at 1 ms, 3 from 60 to 70 s, 9 from 61 to 119 s, 2 from 130 to 140 s.
    assert counts(70_000, 130_000) == [3, 9]
    assert counts(70_001, 130_001) == [2, 9]
    assert counts(119_001, 130_000) == []
    assert counts(None, 60_000) == [1]
    assert counts(None, 60_001) == [1, 3]
    assert counts(None, 1) == []
    assert counts(140_000, None) == [2]
    assert counts(140_001, None) == []


@pytest.mark.spark
def test_a_count_whose_host_has_a_clock_an_hour_behind_is_not_left_out(step: Step) -> None:
    recorded_at = F.timestamp_millis(F.lit(3_600_000).cast("long"))
    behind = replace(step, events=step.events.withColumn("recorded_at", recorded_at))
    refusals = F.transform(
        "refusals", lambda one: one.withField("last_at", F.timestamp_millis(F.lit(7_200_000)))
    )
    late = replace(behind, events=behind.events.withColumn("refusals", refusals))
    found = records(refused_commands(late, Period(_at(7_200_000))), ALL)
    assert found == records(refused_commands(late), ALL) != []


@pytest.mark.spark
def test_refusing_queues_of_a_period_are_those_from_its_beginning_until_before_its_end(
    step: Step, sample: SampleLog
) -> None:
    times_ms = sorted(s.event.at_ms for s in sample.of(e.QueueRefused))
    first_ms, some_ms, last_ms = times_ms[0], times_ms[len(times_ms) // 2], times_ms[-1]
    assert first_ms < some_ms < last_ms

    def count(since_ms: int | None, until_ms: int | None) -> int:
        found = queue_refusals(step, Period(_at(since_ms), _at(until_ms)))
        return sum(row["count"] for row in records(found, ALL))

    before = sum(at_ms < some_ms for at_ms in times_ms)
    assert count(None, some_ms) == before > 0
    assert count(some_ms, None) == len(times_ms) - before
    assert count(some_ms, some_ms + 1) == times_ms.count(some_ms)
    assert count(last_ms, None) == times_ms.count(last_ms)
    assert (count(None, first_ms), count(last_ms + 1, None)) == (0, 0)


@pytest.mark.spark
def test_a_message_is_stuck_once_it_has_waited_longer_than_the_bound(
    step: Step, sample: SampleLog
) -> None:
    *_, (message_id, queued_at) = sorted(
        ((row[5], row[4]) for row in sample.queues), key=lambda found: found[1]
    )
    queued_ms = round(queued_at.timestamp() * 1000)
    for waited_ms, is_stuck in ((60_000, False), (60_001, True)):
        at_ms = queued_ms + waited_ms
        for period in (Period(queued_at), Period(None, queued_at)):
            found = stuck_messages(
                step, at_ms, older_than_s=60, deliveries_min=1_000, period=period
            )
            listed = message_id in [row["message_id"] for row in records(found, ALL)]
            assert listed == (is_stuck and period.until is None)


@pytest.mark.spark
def test_messages_that_are_stuck_are_listed_worst_first(step: Step, sample: SampleLog) -> None:
    at_ms = round(sample.last.timestamp() * 1000)
    rows = records(stuck_messages(step, at_ms, older_than_s=PATIENT_S, deliveries_min=OFTEN), ALL)
    expected = {}
    for _, _, _, position, queued_at, message_id, *_, deliveries, _ in sample.queues:
        age_s = (sample.last - queued_at).total_seconds()
        if age_s > PATIENT_S or deliveries >= OFTEN:
            over = max(age_s / PATIENT_S, deliveries / OFTEN)
            expected[message_id] = (-over, position)
    assert len(expected) > 2
    assert [row["message_id"] for row in rows] == sorted(expected, key=lambda i: expected[i])
    times = sorted(datetime.fromisoformat(row["queued_at"]) for row in rows)
    since = times[len(times) // 2]
    for period in (Period(since), Period(None, since), Period(since, since)):
        found = stuck_messages(
            step, at_ms, older_than_s=PATIENT_S, deliveries_min=OFTEN, period=period
        )
        expected_rows = [
            row
            for row in rows
            if (period.since is None or datetime.fromisoformat(row["queued_at"]) >= since)
            and (period.until is None or datetime.fromisoformat(row["queued_at"]) < since)
        ]
        assert records(found, ALL) == expected_rows


@pytest.mark.spark
def test_what_much_is_read_of_is_compared_with_what_was_signed(
    audit: Run, sample: SampleLog, tmp_path: Path
) -> None:
    copy = shutil.copytree(sample.export, tmp_path / "copy")
    file = next(copy.glob("events/*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # the mark of the format alone: Spark reads what stands before it
    file.write_bytes(bytes(content))
    refused = audit("refused", "--from", str(copy))
    assert (refused.code, "SHA-256 is not that of the manifest" in refused.err) == (4, True)
    skipped = audit("refused", "--from", str(copy), "--skip-hashes")
    assert "not compared with what was signed" in skipped.err
    assert "SHA-256" not in skipped.err


@pytest.mark.spark
def test_all_audits_are_as_of_a_position_or_a_time(audit: Run, sample: SampleLog) -> None:
    early = iso(START_MS + 60_000)
    for command in (["identity", IDENTITIES[0]], ["refused"]):
        arguments = [*command, "--from", str(sample.export), "--json", "--as-of"]
        assert json.loads(audit(*arguments, early).out)["at"] == early
        assert json.loads(audit(*arguments, "40").out)["position"] == 40
        beyond = audit(*arguments, "9" * 30)
        assert (beyond.code, "the export ends at" in beyond.err) == (2, True)


@pytest.mark.spark
def test_no_command_shows_a_payload_and_with_a_key_none_shows_a_name(
    audit: Run, sample: SampleLog, key: str
) -> None:
    secret = next(
        s.event.message_id
        for s in sample.of(e.MessageQueued)
        if isinstance(s.event, e.MessageQueued) and s.event.payload.size_bytes == len(SECRET)
    )
    arguments = [
        ["message", secret],
        ["identity", IDENTITIES[1]],
        ["refused", "--since", "1970-01-01T00:00:00Z"],
        ["stuck", "--older-than-s", "1"],
    ]
    found, options = [], ["--from", str(sample.export), "--pseudonymise", key]
    for command in arguments:
        done = audit(*command, *options)
        assert (done.code, done.err) == (0, "")
        found.append(done.out)
        assert SECRET.decode() not in done.out
        assert SECRET.hex() not in done.out
        assert "did:" not in done.out
    assert pseudonym_of(IDENTITIES[0], KEY) in found[0]
    by_pseudonym = audit("identity", pseudonym_of(IDENTITIES[1], KEY), *options)
    assert by_pseudonym.out == found[1]


def test_a_pseudonym_without_its_key_and_a_position_as_a_time_are_refused(
    run: Run, sample: SampleLog
) -> None:
    for command, why in (
        (["identity", "p:00"], "--pseudonymise"),
        (["replays", "--since", "12"], "is not a time"),
        (["refused", "--until", "soon"], "neither a position nor a time"),
        *(
            ([command, "--since", "2030-01-02", "--until", "2030-01-02"], "is empty")
            for command in ("refused", "replays", "stuck")
        ),
    ):
        done = run("audit", *command, "--from", str(sample.export))
        assert (done.code, why in done.err) == (2, True)


@pytest.mark.parametrize("option", ["--limit", "--older-than-s", "--deliveries-min"])
def test_a_number_that_spark_cannot_take_is_refused_before_it_starts(run: Run, option: str) -> None:
    for number in ("0", str(2**31), "9" * 30):
        done = run("audit", "stuck", "--from", "x", option, number)
        assert (done.code, f"Invalid value for '{option}'" in done.err) == (2, True)


def test_what_is_no_question_is_refused_by_the_program() -> None:
    for text in ("", "{}", '{"source": "x", "subject": {"type": "message"}, "rows_max": 1}'):
        done = CliRunner().invoke(projections, ["audit", text])
        assert (done.exit_code, "use poste audit" in done.stderr) == (2, True)


@pytest.mark.parametrize("master", ["bad", "local[x]", "http://127.0.0.1:7077", ""])
def test_a_master_that_spark_does_not_know_is_refused_before_java_starts(master: str) -> None:
    for command in (["rebuild", "--from", "x", "--to", "y"], ["audit", "{}"]):
        done = CliRunner().invoke(projections, [*command, "--master", master])
        assert (done.exit_code, "is not of the form local, local[2]" in done.stderr) == (2, True)


def test_a_heap_in_which_java_cannot_start_is_refused_before_it_starts() -> None:
    for mib in ("0", "511", "some"):
        done = CliRunner().invoke(projections, ["report", "--memory-mib", mib])
        assert (done.exit_code, "'--memory-mib'" in done.stderr) == (2, True)


@pytest.mark.spark
def test_a_list_that_was_cut_says_so(audit: Run, sample: SampleLog) -> None:
    shown = audit("replays", "--limit", "1", "--from", str(sample.export))
    assert "only 1 are shown (--limit)" in shown.out


@pytest.mark.spark
def test_poste_asks_a_process_with_spark_and_prints_its_answer(sample: SampleLog) -> None:
    poste = [sys.executable, "-c", "from http_edge.cli.main import main; main()"]
    arguments = ["audit", "refused", "--from", str(sample.export), "--master", "local[1]", "--json"]
    ran = subprocess.run([*poste, *arguments], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    refused = json.loads(ran.stdout)["refused"]
    assert sum(row["count"] for row in refused) == sum(
        one.count
        for stored in sample.of(e.RefusalsCounted)
        if isinstance(stored.event, e.RefusalsCounted)
        for one in stored.event.refusals
    )
