"""What an audit shows is what the log says, event by event."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from actors.core import commands as c
from eventstore.log import events as e
from eventstore.log.proof import ProvenMessage, check_proof
from eventstore.log.pseudonyms import pseudonym_of
from eventstore.log.public_key import PublicKey
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import identity_records, message_records
from eventstore.parquet.opening import open_exports
from eventstore.stores.open_log import open_log
from projections.__main__ import projections
from projections.audit.identity import identity_history, identity_traffic
from projections.audit.messages import (
    REPLAYS,
    AuditPeriod,
    events_until,
    message_life,
    queue_refusals,
    refused_commands,
    stuck_messages,
)
from projections.audit.program import records
from projections.spark.export import open_export
from projections.tables.projection import Step
from tests.histories import AGENTS, IDENTITIES, START_MS, History, random_script
from tests.projections.exports import SIGNER, export_log
from tests.projections.folding import Stored, fold, stored_events
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]

ALL = 10_000
SECRET = b"no command shows this"
KEY = bytes(range(40))
REFUSED = [
    e.RefusedCommands("decentrl", "queue", "DUPLICATE_NONCE", IDENTITIES[0], 3, 60_000, 70_000),
    e.RefusedCommands("decentrl", "", "INVALID_SIGNATURE", "", 9, 61_000, 119_000),
    e.RefusedCommands("didcomm", "keylist-update", "TIMESTAMP_OUT_OF_RANGE", AGENTS[0], 1, 1, 1),
]
REFUSED_LATER = [
    e.RefusedCommands("decentrl", "queue", "DUPLICATE_NONCE", IDENTITIES[0], 2, 130_000, 140_000),
]
APART = (
    e.MessageQueued,
    e.MessagesDelivered,
    e.MessagesRemoved,
    e.EventSaved,
    e.EventTagsUpdated,
    e.PublicEventPublished,
    e.PublicEventsDeleted,
    e.BatchSealed,
)
"""Shown by day, or not at all."""
PATIENT_S, OFTEN = 300, 3


@dataclass(frozen=True)
class SampleLog:
    """A random log of both protocols, its events and its tables, and the export of it."""

    events: list[Stored]
    queues: set[tuple[Any, ...]]
    export: Path

    def of(self, *kinds: type[e.Event]) -> list[Stored]:
        return [stored for stored in self.events if isinstance(stored.event, kinds)]

    @property
    def last(self) -> datetime:
        return datetime.fromtimestamp(max(s.event.at_ms for s in self.events) / 1000, UTC)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleLog:
    folder = tmp_path_factory.mktemp("sample")
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        history = History(log)
        history.play(random_script(5, 400))
        history._ask(IDENTITIES[1], IDENTITIES[0], c.QueueMessage(IDENTITIES[1], SECRET))
        for edge, refused in (("edge-0", REFUSED), ("edge-1", REFUSED_LATER)):
            counted = c.CountRefusals(edge, 60_000, 140_000, refused)
            history._ask(edge, f"edge:{edge}", counted)
        history.commit()
        export_log(log, folder / "export", rows_max=300)
        return SampleLog(list(stored_events(log)), fold(log)["queues"], folder / "export")


@pytest.fixture(scope="module")
def step(spark: SparkSession, sample: SampleLog) -> Step:
    export = open_export(str(sample.export))
    return events_until(spark, export, export.last)


@pytest.fixture
def audit(spark_here: SparkSession, run: Run) -> Run:
    """``poste audit``; the program answers in this process, in the one session of all tests."""
    return partial(run, "audit")


def iso(at_ms: int) -> str:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ids_in(event: e.Event) -> list[str]:
    match event:
        case e.MessageQueued(message_id=message_id):
            return [message_id]
        case e.MessagesDelivered(message_ids=ids) | e.MessagesRemoved(message_ids=ids):
            return ids
        case _:
            return []


def life(sample: SampleLog, message_id: str) -> list[tuple[Any, ...]]:
    """What is expected of a message; a seal covers what stands since the seal before it."""
    found: list[tuple[Any, ...]] = []
    open_rows: list[tuple[Any, ...]] = []
    for stored in sample.events:
        if isinstance(stored.event, e.BatchSealed):
            seal = (stored.event.partition, stored.position, stored.event.digest.hex())
            found += [(*row, *seal) for row in open_rows]
            open_rows = []
        elif message_id in ids_in(stored.event):
            word = type(stored.event).__name__.removeprefix("Messages").removeprefix("Message")
            by = getattr(stored.event, "channel", getattr(stored.event, "reason", None))
            at = iso(stored.event.at_ms)
            open_rows.append((at, word.lower(), by, stored.version, stored.position))
    return found


def lives(step: Step, message_id: str) -> list[tuple[Any, ...]]:
    names = ("recorded_at", "event", "by", "version", "position")
    seal = ("seal_partition", "seal_position", "seal_digest")
    rows = records(message_life(step, message_id), ALL)
    return [tuple(row[name] for name in (*names, *seal)) for row in rows]


@pytest.mark.spark
def test_the_life_of_a_message_is_shown_with_channels_reasons_and_seals(
    step: Step, sample: SampleLog
) -> None:
    handed_out = Counter(i for s in sample.of(e.MessagesDelivered) for i in ids_in(s.event))
    [(often, deliveries)] = handed_out.most_common(1)
    acknowledged = next(
        ids_in(s.event)[0] for s in sample.of(e.MessagesRemoved) if s.identity in IDENTITIES
    )
    for message_id in (often, acknowledged):
        expected = life(sample, message_id)
        assert lives(step, message_id) == expected
    assert deliveries > 2
    assert [word for _, word, *_ in life(sample, acknowledged)] == ["queued", "removed"]
    assert lives(step, "unknown") == []


def history_of(sample: SampleLog, did: str) -> list[int]:
    """Positions of what an identity did and was arguments, newest first."""
    owners: dict[str, str] = {}
    found = []
    for stored in sample.events:
        owner = stored.identity
        match stored.event:
            case e.KeyClaimed(key=key, owner_did=owner):
                owners[key] = owner
            case e.KeyReleased(key=key):
                owner = owners[key]
            case e.InvitationUsed(by_did=by):
                owner = by
            case _:
                pass
        if owner == did and not isinstance(stored.event, APART):
            found.append(stored.position)
    return found[::-1]


def traffic_of(sample: SampleLog, did: str) -> Counter[tuple[str, str, str]]:
    """How much of what by what, all on one day."""
    found: Counter[tuple[str, str, str]] = Counter()
    day = iso(START_MS)[:10]
    for stored in sample.events:
        is_own = stored.identity == did
        match stored.event:
            case e.MessageQueued(sender_did=sender, protocol=protocol):
                found[day, "sent", protocol] += sender == did
                found[day, "queued", protocol] += is_own
            case e.MessagesDelivered(channel=by, message_ids=ids):
                found[day, "delivered", by] += is_own * len(ids)
            case e.MessagesRemoved(reason=by, message_ids=ids):
                found[day, "removed", by] += is_own * len(ids)
            case e.EventSaved():
                found[day, "saved", ""] += is_own
            case e.PublicEventPublished():
                found[day, "published", ""] += is_own
            case _:
                pass
    return +found


@pytest.mark.spark
@pytest.mark.parametrize("did", [AGENTS[1], IDENTITIES[1]])
def test_an_identity_is_shown_by_what_it_did_and_by_its_messages(
    step: Step, sample: SampleLog, did: str
) -> None:
    history = records(identity_history(step, did), ALL)
    assert [row["position"] for row in history] == history_of(sample, did)
    assert all(row["details"] or row["type"] == "mediation-granted" for row in history)
    rows = records(identity_traffic(step, did), ALL)
    assert {(row["day"], row["what"], row["by"]): row["count"] for row in rows} == traffic_of(
        sample, did
    )


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
    [hers] = records(refused_commands(step, sender_did=IDENTITIES[0]), ALL)
    assert (hers["count"], hers["edges"]) == (5, 2)
    assert (hers["first_at"], hers["last_at"]) == (iso(60_000), iso(140_000))
    replays = records(refused_commands(step, reasons=REPLAYS), ALL)
    assert {row["reason"] for row in replays} == set(REPLAYS)
    later = AuditPeriod(datetime.fromtimestamp(120, UTC), datetime.fromtimestamp(180, UTC))
    assert [row["count"] for row in records(refused_commands(step, later), ALL)] == [2]
    # The host that recorded the count has a clock that is behind that of the edge.
    recorded_at = F.timestamp_millis(F.lit(119_000).cast("long"))
    behind = replace(step, events=step.events.withColumn("recorded_at", recorded_at))
    assert [row["count"] for row in records(refused_commands(behind, later), ALL)] == [2]


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
    earlier = AuditPeriod(until=datetime(2023, 1, 1, tzinfo=UTC))
    assert records(queue_refusals(step, earlier), 1) == []


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
    for period in (AuditPeriod(since), AuditPeriod(None, since), AuditPeriod(since, since)):
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
@pytest.mark.parametrize("part", [1, 2])
def test_a_look_up_without_spark_shows_the_rows_that_spark_shows(
    spark: SparkSession, sample: SampleLog, part: int
) -> None:
    export = open_export(str(sample.export))
    until = export.last[0] // part
    step = events_until(spark, export, (until,))
    ids = {i for stored in sample.events for i in ids_in(stored.event)}
    [opened] = open_exports(str(sample.export)).parts
    with Lookup(opened, until) as lookup:
        for message_id in sorted(ids)[:: 1 + len(ids) // 12]:
            expected = records(message_life(step, message_id), ALL)
            assert message_records([lookup], message_id, until) == expected
        for did in (*IDENTITIES, *AGENTS):
            found = identity_records([lookup], did)
            assert found.history == records(identity_history(step, did), ALL)
            assert found.traffic == records(identity_traffic(step, did), ALL)
            assert found.refused == records(refused_commands(step, sender_did=did), ALL)


@pytest.fixture
def key(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    path.chmod(0o600)
    return str(path)


@pytest.mark.spark
def test_what_is_looked_up_and_what_spark_finds_is_printed_the_same(
    audit: Run, sample: SampleLog, key: str
) -> None:
    message_id = next(i for s in sample.of(e.MessagesRemoved) for i in ids_in(s.event))
    early = iso(round(START_MS + 60_000))
    for command in (["message", message_id], ["identity", IDENTITIES[0]]):
        for options in (["--json"], ["--json", "--pseudonymise", key], [], ["--as-of", early]):
            arguments = [*command, "--from", str(sample.export), *options]
            assert audit(*arguments, "--master", "local[1]") == audit(*arguments)


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
def test_tables_and_json_say_the_same(audit: Run, sample: SampleLog) -> None:
    handed_out = Counter(i for s in sample.of(e.MessagesDelivered) for i in ids_in(s.event))
    often, deliveries = handed_out.most_common(1)[0]
    arguments = ["message", often, "--from", str(sample.export), "--master", "local[1]"]
    as_json = json.loads(audit(*arguments, "--json").out)
    assert as_json["message"]["deliveries"] == deliveries
    assert [event["position"] for event in as_json["events"]] == [r[4] for r in life(sample, often)]
    as_text = audit(*arguments).out
    for event in as_json["events"]:
        assert event["recorded_at"] in as_text
        assert event["seal_digest"] in as_text
    # As the log stood when it was queued, it waits.
    arguments += ["--as-of", str(as_json["events"][0]["seal_position"]), "--json"]
    early = json.loads(audit(*arguments).out)
    assert (early["message"]["state"], len(early["events"])) == ("waits", 1)


@pytest.mark.spark
def test_a_message_that_spark_found_is_proven_to_who_has_the_public_key_alone(
    audit: Run, sample: SampleLog, key: str, tmp_path: Path
) -> None:
    message_id = next(i for s in sample.of(e.MessagesRemoved) for i in ids_in(s.event))
    file = tmp_path / "proof.json"
    arguments = ["message", message_id, "--from", str(sample.export), "--json"]
    arguments += ["--master", "local[1]"]
    for options in ([], ["--public-key", SIGNER.text]):
        shown = json.loads(audit(*arguments, "--proof", str(file), *options).out)
        proven = check_proof(file.read_bytes(), SIGNER)
        assert isinstance(proven, ProvenMessage)
        assert [event["event"] for event in shown["events"]] == [p.event for p in proven.events]
        assert [event["seal_digest"] for event in shown["events"]] == [
            p.seal_digest.hex() for p in proven.events
        ]
        assert (shown["signed_by"], shown["key_is_trusted"]) == (SIGNER.text, bool(options))
    refused = audit(*arguments, "--public-key", PublicKey(bytes(range(1, 33))).text)
    assert (refused.code, "signed by another key" in refused.err) == (4, True)
    assert "damaged" not in refused.err
    hidden = audit(*arguments, "--proof", str(file), "--pseudonymise", key)
    assert (hidden.code, "needs the real names" in hidden.err) == (2, True)
    nowhere = audit(*arguments, "--proof", str(tmp_path / "no" / "file"))
    assert (nowhere.code, "No such file" in nowhere.err) == (2, True)


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
    options += ["--master", "local[1]"]
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


@pytest.mark.spark
def test_what_is_not_in_the_log_is_said(audit: Run, sample: SampleLog) -> None:
    for command in (["message", "unknown"], ["identity", "did:example:unknown"]):
        done = audit(*command, "--from", str(sample.export), "--master", "local[1]")
        assert (done.code, done.out) == (1, ""), done.err
        assert f"no such {command[0]}" in done.err


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


def test_what_is_no_question_is_refused_by_the_program() -> None:
    for text in ("", "{}", '{"source": "x", "subject": {"type": "all"}, "rows_max": 1}'):
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
