"""What an audit shows is what the log says, event by event."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from actors.core import commands as c
from eventstore.log import events as e
from eventstore.log.proof import ProvenMessage, check_proof
from eventstore.log.pseudonyms import pseudonym_of
from eventstore.log.public_key import PublicKey
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import identity_records, message_records
from eventstore.parquet.opening import open_exports
from eventstore.stores.open_log import open_log
from http_edge.cli.main import poste
from http_edge.server.exits import Stop
from projections.__main__ import projections
from projections.audit.identity import identity_history, identity_traffic
from projections.audit.listing import Listing, listed, print_listing
from projections.audit.messages import (
    REPLAYS,
    AuditPeriod,
    events_until,
    message_life,
    queue_refusals,
    refused_commands,
    stuck_messages,
)
from projections.spark.export import open_export
from projections.tables.projection import Step
from tests.histories import AGENTS, IDENTITIES, START_MS, History, random_script
from tests.projections.exports import SIGNER, export_log
from tests.projections.folding import Stored, fold, stored_events

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
def runner(spark: SparkSession, sample: SampleLog, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    """The program, with the one session of all tests."""

    @contextmanager
    def opened(_master: str | None, *, memory_mib: int) -> Iterator[SparkSession]:
        yield spark

    monkeypatch.setattr("projections.audit.program.open_session", opened)
    return CliRunner()


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
    rows = listed(message_life(step, message_id), ALL).records
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
    history = listed(identity_history(step, did), ALL).records
    assert [row["position"] for row in history] == history_of(sample, did)
    assert all(row["details"] or row["type"] == "mediation-granted" for row in history)
    rows = listed(identity_traffic(step, did), ALL).records
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
    rows = listed(refused_commands(step), ALL).records
    assert {(r["command"], r["reason"], r["sender_did"]): r["count"] for r in rows} == expected
    [hers] = listed(refused_commands(step, sender_did=IDENTITIES[0]), ALL).records
    assert (hers["count"], hers["edges"]) == (5, 2)
    assert (hers["first_at"], hers["last_at"]) == (iso(60_000), iso(140_000))
    replays = listed(refused_commands(step, reasons=REPLAYS), ALL).records
    assert {row["reason"] for row in replays} == set(REPLAYS)
    later = AuditPeriod(datetime.fromtimestamp(120, UTC), datetime.fromtimestamp(180, UTC))
    assert [row["count"] for row in listed(refused_commands(step, later), ALL).records] == [2]


@pytest.mark.spark
def test_queues_that_began_to_refuse_are_counted(step: Step, sample: SampleLog) -> None:
    expected = Counter(
        (s.identity, s.event.recipient_key, s.event.reason)
        for s in sample.of(e.QueueRefused)
        if isinstance(s.event, e.QueueRefused)
    )
    rows = listed(queue_refusals(step), ALL).records
    assert expected
    assert {
        (row["identity"], row["recipient_key"], row["reason"]): row["count"] for row in rows
    } == expected
    assert listed(queue_refusals(step, AuditPeriod(until=datetime(2023, 1, 1, tzinfo=UTC))), 1) == (
        [],
        False,
    )


@pytest.mark.spark
def test_messages_that_are_stuck_are_listed_worst_first(step: Step, sample: SampleLog) -> None:
    at_ms = round(sample.last.timestamp() * 1000)
    rows = listed(
        stuck_messages(step, at_ms, older_than_s=PATIENT_S, deliveries_min=OFTEN), ALL
    ).records
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
        assert listed(found, ALL).records == expected_rows


@pytest.mark.spark
@pytest.mark.parametrize("part", [1, 2])
def test_a_look_up_without_spark_shows_the_rows_that_spark_shows(
    spark: SparkSession, sample: SampleLog, part: int
) -> None:
    export = open_export(str(sample.export))
    until = export.last[0] // part
    step = events_until(spark, export, (until,))
    ids = {i for stored in sample.events for i in ids_in(stored.event)}
    [opened] = open_exports(str(sample.export))
    with Lookup(opened, until) as lookup:
        for message_id in sorted(ids)[:: 1 + len(ids) // 12]:
            expected = listed(message_life(step, message_id), ALL).records
            assert message_records([lookup], message_id, until) == expected
        for did in (*IDENTITIES, *AGENTS):
            found = identity_records([lookup], did)
            assert found.history == listed(identity_history(step, did), ALL).records
            assert found.traffic == listed(identity_traffic(step, did), ALL).records
            assert found.refused == listed(refused_commands(step, sender_did=did), ALL).records


@pytest.mark.spark
def test_both_programs_print_the_same_document(
    runner: CliRunner, sample: SampleLog, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    message_id = next(i for s in sample.of(e.MessagesRemoved) for i in ids_in(s.event))
    for command in (["message", message_id], ["identity", IDENTITIES[0]]):
        for options in (
            [],
            ["--pseudonymise", str(key)],
            ["--as-of", iso(round(START_MS + 60_000))],
        ):
            arguments = ["audit", *command, "--from", str(sample.export), "--json", *options]
            by_spark = runner.invoke(projections, arguments)
            looked_up = CliRunner().invoke(poste, arguments, standalone_mode=False)
            if by_spark.exit_code:
                assert isinstance(looked_up.exception, Stop)
                assert looked_up.exception.exit_code == by_spark.exit_code
            else:
                assert json.loads(looked_up.stdout) == json.loads(by_spark.stdout)


@pytest.mark.spark
def test_what_much_is_read_of_is_compared_with_what_was_signed(
    runner: CliRunner, sample: SampleLog, tmp_path: Path
) -> None:
    copy = shutil.copytree(sample.export, tmp_path / "copy")
    file = next(copy.glob("events/*/*.parquet"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # the mark of the format alone: Spark reads what stands before it
    file.write_bytes(bytes(content))
    refused = runner.invoke(projections, ["audit", "refused", "--from", str(copy)])
    assert (refused.exit_code, "SHA-256 is not that of the manifest" in refused.stderr) == (4, True)
    skipped = runner.invoke(projections, ["audit", "refused", "--from", str(copy), "--skip-hashes"])
    assert "not compared with what was signed" in skipped.stderr
    assert "SHA-256" not in skipped.stderr


@pytest.mark.spark
def test_tables_and_json_of_the_program_say_the_same(runner: CliRunner, sample: SampleLog) -> None:
    handed_out = Counter(i for s in sample.of(e.MessagesDelivered) for i in ids_in(s.event))
    often, deliveries = handed_out.most_common(1)[0]
    arguments = ["audit", "message", often, "--from", str(sample.export)]
    as_json = json.loads(runner.invoke(projections, [*arguments, "--json"]).stdout)
    assert as_json["message"]["deliveries"] == deliveries
    assert [event["position"] for event in as_json["events"]] == [r[4] for r in life(sample, often)]
    as_text = runner.invoke(projections, arguments).stdout
    for event in as_json["events"]:
        assert event["recorded_at"] in as_text
        assert event["seal_digest"] in as_text
    # As the log stood when it was queued, it waits.
    arguments += ["--as-of", str(as_json["events"][0]["seal_position"]), "--json"]
    early = json.loads(runner.invoke(projections, arguments).stdout)
    assert (early["message"]["state"], len(early["events"])) == ("waits", 1)


@pytest.mark.spark
def test_a_message_is_proven_to_who_has_the_public_key_alone(
    runner: CliRunner, sample: SampleLog, tmp_path: Path
) -> None:
    removed = Counter(i for s in sample.of(e.MessagesRemoved) for i in ids_in(s.event))
    message_id = next(iter(removed))
    file = tmp_path / "proof.json"
    arguments = ["audit", "message", message_id, "--from", str(sample.export), "--json"]
    for options in ([], ["--public-key", SIGNER.text]):
        done = runner.invoke(projections, [*arguments, "--proof", str(file), *options])
        shown = json.loads(done.stdout)
        proven = check_proof(file.read_bytes(), SIGNER)
        assert isinstance(proven, ProvenMessage)
        assert [event["event"] for event in shown["events"]] == [p.event for p in proven.events]
        assert [event["seal_digest"] for event in shown["events"]] == [
            p.seal_digest.hex() for p in proven.events
        ]
        assert ("is not known" in shown["message"]["signed_by"]) == (not options)
    other = PublicKey(bytes(range(1, 33))).text
    refused = runner.invoke(projections, [*arguments, "--public-key", other])
    assert (refused.exit_code, "bad signature" in refused.stderr) == (4, True)
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
    hidden = runner.invoke(
        projections, [*arguments, "--proof", str(file), "--pseudonymise", str(key)]
    )
    assert (hidden.exit_code, "names as they are" in hidden.stderr) == (2, True)
    nowhere = runner.invoke(projections, [*arguments, "--proof", str(tmp_path / "no" / "file")])
    assert (nowhere.exit_code, "No such file" in nowhere.stderr) == (3, True)


@pytest.mark.spark
def test_no_command_shows_a_payload_and_with_a_key_none_shows_a_name(
    runner: CliRunner, sample: SampleLog, tmp_path: Path
) -> None:
    key = tmp_path / "key"
    key.write_bytes(KEY)
    key.chmod(0o600)
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
    found, options = [], ["--from", str(sample.export), "--pseudonymise", str(key)]
    for command in arguments:
        done = runner.invoke(projections, ["audit", *command, *options])
        assert (done.exit_code, done.stderr) == (0, "")
        found.append(done.stdout)
        assert SECRET.decode() not in done.stdout
        assert SECRET.hex() not in done.stdout
        assert "did:" not in done.stdout
    assert pseudonym_of(IDENTITIES[0], KEY) in found[0]
    by_pseudonym = ["audit", "identity", pseudonym_of(IDENTITIES[1], KEY), *options]
    assert runner.invoke(projections, by_pseudonym).stdout == found[1]


@pytest.mark.spark
def test_what_is_not_in_the_log_is_said(runner: CliRunner, sample: SampleLog) -> None:
    for command in (["message", "unknown"], ["identity", "did:example:unknown"]):
        done = runner.invoke(projections, ["audit", *command, "--from", str(sample.export)])
        assert (done.exit_code, done.stdout) == (1, "")
        assert f"no such {command[0]}" in done.stderr


def test_a_pseudonym_without_its_key_and_a_position_as_a_time_are_refused(
    sample: SampleLog,
) -> None:
    for command, why in (
        (["identity", "p:00"], "--pseudonymise"),
        (["replays", "--since", "12"], "no time"),
    ):
        done = CliRunner().invoke(projections, ["audit", *command, "--from", str(sample.export)])
        assert (done.exit_code, why in done.stderr) == (2, True)


def test_text_of_strangers_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    label = {"label": "a\x1b[2Jb\r\nc", "keys_added": ["d\u2028e"], "endpoint": ""}
    print_listing("History", Listing([{"details": label, "n": 1_000}], has_more=False))
    shown = capsys.readouterr().out
    assert "label a\\x1b[2Jb\\r\\nc  keys_added d\\u2028e  endpoint -  1,000\n" in shown


@pytest.mark.spark
def test_a_list_that_was_cut_says_so(runner: CliRunner, sample: SampleLog) -> None:
    arguments = ["audit", "replays", "--limit", "1", "--from", str(sample.export)]
    assert "only 1 are shown (--limit)" in runner.invoke(projections, arguments).stdout
