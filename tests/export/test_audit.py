"""A look-up shows what the log has, proven; what was tampered with is never an answer."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from eventstore.log.events import SEAL_TYPE, QueuePolicySet
from eventstore.log.proof import ProvenMessage, check_proof
from eventstore.log.public_key import PublicKey
from eventstore.log.streams import identity_stream
from eventstore.parquet.audit import sealed
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import (
    FROM_QUEUED,
    IdentityRecords,
    Record,
    identity_records,
    message_records,
    message_summary,
    time_text,
)
from eventstore.parquet.errors import Damage, ExportDamaged, SignedByAnother
from eventstore.parquet.files import END, TABLE_LOG, open_place
from eventstore.parquet.manifest import Signer
from eventstore.parquet.opening import open_exports
from eventstore.parquet.schema import PARQUET_OPTIONS
from eventstore.parquet.tree import TREE
from eventstore.parquet.write.exporter import Exporter, ExportOwner
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.server.exits import Exit
from tests.export.forging import TRUSTED, SampleExport, exporter_of_sample, with_value
from tests.export.samples import SIGNED_BY, Growing, export_all, registered, without_table
from tests.export.test_earlier_release import EXPORTS, golden
from tests.export.test_proofs import lives_in
from tests.histories import AGENTS, IDENTITIES, MEDIATOR
from tests.log.samples import AT_MS, COMMAND, SealedWriter, message
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]
WHO = (*IDENTITIES, *AGENTS)
OTHER = PublicKey(bytes(range(1, 33)))
LATER = datetime.fromtimestamp(AT_MS / 1000 + 1, UTC)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("audit"))


@contextmanager
def lookups(place: str, until: int | None = None) -> Iterator[list[Lookup]]:
    exports = open_exports(place, TRUSTED)
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Lookup(one, until or one.catalog.last, number if len(exports.parts) > 1 else None)
            )
            for number, one in enumerate(exports.parts)
        ]


def life_of(place: str, message_id: str) -> list[Record]:
    with lookups(place) as found:
        return message_records(found, message_id)


def records_of(place: str, did: str) -> IdentityRecords:
    with lookups(place) as found:
        return identity_records(found, did)


def test_every_message_is_shown_as_the_log_has_it(sample: SampleExport) -> None:
    for message_id, (_, events, seals) in lives_in(sample).items():
        found = life_of(sample.place.root, message_id)
        assert [event["event"] for event in found] == events
        assert [event["seal_position"] for event in found] == seals
        with lookups(sample.place.root, seals[0]) as until_then:
            early = message_records(until_then, message_id)
        assert early == [event for event in found if event["position"] <= seals[0]]
    assert life_of(sample.place.root, "unknown") == []


def test_a_transaction_in_several_groups_of_rows_is_found_as_one(
    sample: SampleExport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {**PARQUET_OPTIONS, "row_group_size": 2}
    monkeypatch.setattr("eventstore.parquet.write.commit.PARQUET_OPTIONS", small)
    target = str(tmp_path / "grouped")
    with closing(open_log(sample.log_url)) as log:
        grouped = exporter_of_sample(log, open_place(target), rows_max=40)
        with closing(grouped):
            while grouped.step():
                pass
    for message_id in lives_in(sample):
        assert life_of(target, message_id) == life_of(sample.place.root, message_id)


@pytest.mark.parametrize("last", ["removed", "delivered"])
def test_no_message_waited_for_less_than_no_time_after_a_clock_stepped_back(last: str) -> None:
    queued = dict.fromkeys(FROM_QUEUED) | {"event": "queued", "recorded_at": time_text(LATER)}
    then = {"event": last, "by": "expired", "recorded_at": time_text(LATER - timedelta(seconds=1))}
    assert message_summary([queued, then], at_ms=AT_MS)["waited_s"] == 0


def test_a_number_beyond_64_bits_is_shown_as_the_export_has_it(tmp_path: Path) -> None:
    bounds = {"age_s_max": 2**63, "messages_max": 1, "message_bytes_max": 2, "bytes_max": 2**64 - 1}
    policy = QueuePolicySet(at_ms=AT_MS, command=COMMAND, will_queue=True, **bounds)
    with closing(open_log(f"sqlite:{tmp_path}/log.db")) as log:
        stream = identity_stream("did:example:1")
        SealedWriter(log).commit({"shard-0": [registered(1), (stream, policy)]})
        export_all(log, open_place(str(tmp_path / "export")))
    newest = records_of(str(tmp_path / "export"), "did:example:1").history[0]
    assert (newest["details"]["age_s_max"], newest["details"]["messages_max"]) == (2**63 - 1, 1)
    assert newest["details"]["bytes_max"] == 2**63 - 1


@pytest.mark.parametrize("archived", EXPORTS)
def test_what_an_earlier_release_exported_is_looked_up_as_it_is(
    archived: str, tmp_path: Path
) -> None:
    old = golden(tmp_path / "old", archived)
    [export] = open_exports(old.root).parts
    assert export.catalog.index is None
    with Lookup(export, export.catalog.last) as found:
        [event] = message_records([found], "message-3")
        assert (event["event"], event["identity"]) == ("queued", "did:example:3")
        assert identity_records([found], "did:example:3").history


def test_without_an_index_the_same_is_found_in_all_files(
    sample: SampleExport, tmp_path: Path
) -> None:
    old = shutil.copytree(sample.place.root, tmp_path / "old")
    without_table(open_place(str(old)))
    shutil.copytree(Path(sample.place.root) / TREE, old / TREE, dirs_exist_ok=True)
    message_id = next(iter(lives_in(sample)))
    assert life_of(str(old), message_id) == life_of(sample.place.root, message_id)
    for did in WHO:
        shown = records_of(sample.place.root, did)
        assert records_of(str(old), did) == shown
        assert shown.history
        assert shown.traffic
    path = min(sample.files)
    content = bytearray((old / path).read_bytes())
    content[len(content) // 2] ^= 1
    (old / path).write_bytes(bytes(content))
    with pytest.raises(ExportDamaged, match="SHA-256"):
        life_of(str(old), message_id)


def test_the_contents_of_an_identity_are_in_memory_a_page_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_log(f"sqlite:{tmp_path}/log.db")) as log:
        writer = SealedWriter(log)
        writer.commit({"shard-0": [registered(1)]})
        stream, content = identity_stream("did:example:1"), bytes(64 * 1024)
        for number in range(40):
            ids = [f"m-{number}-{i}" for i in range(5)]
            writer.commit({"shard-0": [(stream, message(content, one)) for one in ids]})
        export_all(log, open_place(str(tmp_path / "export")), Bounds())
    [export] = open_exports(str(tmp_path / "export"), SIGNED_BY).parts
    monkeypatch.setattr("eventstore.parquet.audit.lookup._PAGE_BYTES", 1024 * 1024, raising=False)
    with Lookup(export, export.catalog.last) as found:
        tracemalloc.start()
        try:
            records = identity_records([found], "did:example:1")
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert [day["count"] for day in records.traffic] == [200]
    assert peak_bytes < 200 * len(content) / 3


def test_no_more_than_two_groups_of_rows_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {**PARQUET_OPTIONS, "row_group_size": 10}
    monkeypatch.setattr("eventstore.parquet.write.commit.PARQUET_OPTIONS", small)
    with closing(open_log(f"sqlite:{tmp_path}/log.db")) as log:
        Growing(log).grow(20)
        export_all(log, open_place(str(tmp_path / "export")), Bounds())
    [export] = open_exports(str(tmp_path / "export"), SIGNED_BY).parts
    tables: list[weakref.ref[pa.Table]] = []
    others: list[int] = []
    chunk_of, read_group = sealed._chunk_of, pq.ParquetFile.read_row_group

    def counted(table: pa.Table) -> sealed._Chunk:
        tables.append(weakref.ref(table))
        return chunk_of(table)

    def noted(*arguments: Any, **options: Any) -> pa.Table:
        others.append(sum(table() is not None for table in tables))
        return read_group(*arguments, **options)

    monkeypatch.setattr(sealed, "_chunk_of", counted)
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", noted)
    with sealed.SealedRows(export.place, export.catalog) as rows:
        for position in range(1, export.catalog.last + 1):
            rows.at(position)
    assert others == [0] + [1] * 9


def test_a_flipped_bit_in_a_data_file_is_no_other_answer(sample: SampleExport) -> None:
    chance = random.Random(7)  # noqa: S311 - not for secrets
    answers = {did: records_of(sample.place.root, did) for did in WHO}
    refused = 0
    for path in sorted(sample.files):
        for _ in range(6):
            content = bytearray(sample.contents[path])
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
            with sample.tampered():
                sample.put(path, bytes(content))
                with lookups(sample.place.root) as found:
                    for did, answer in answers.items():
                        try:
                            assert identity_records(found, did) == answer
                        except ExportDamaged:
                            refused += 1
    assert refused > 10


def rewritten(sample: SampleExport, change: Callable[[pa.Table, int], pa.Table]) -> tuple[str, str]:
    """Change the row of a message in its data file; the message and the file."""
    for message_id in lives_in(sample):
        for path, table in sample.tables.items():
            ids = table["message_id"].to_pylist()
            if message_id in ids and table["sender_did"][ids.index(message_id)].as_py():
                sink = pa.BufferOutputStream()
                pq.write_table(change(table, ids.index(message_id)), sink, **PARQUET_OPTIONS)
                sample.put(path, sink.getvalue().to_pybytes())
                return message_id, path
    raise AssertionError


@pytest.mark.parametrize(
    ("column", "value"), [("sender_did", "did:example:mallory"), ("identity", None)]
)
def test_an_edited_column_is_not_believed(
    sample: SampleExport, column: str, value: str | None
) -> None:
    with sample.tampered(), size_unseen():
        edit = partial(_with, column=column, value=value)
        message_id, _ = rewritten(sample, edit)
        edited = life_of(sample.place.root, message_id)
    assert edited == life_of(sample.place.root, message_id)


@contextmanager
def size_unseen() -> Iterator[None]:
    """The size of a file is not what gives a change away: an attacker can keep it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eventstore.parquet.catalog.LISTED_FILES_MAX", 0)
        yield


def _with(table: pa.Table, row: int, *, column: str, value: object) -> pa.Table:
    return with_value(table, row, column, value)


@pytest.mark.parametrize("column", ["state", "identity", "stream", "position"])
def test_an_edited_row_is_a_finding(sample: SampleExport, column: str) -> None:
    value = {"state": b"\x80", "identity": "did:example:mallory", "stream": bytes(16)}
    with sample.tampered(), size_unseen():
        edited = partial(_with, column=column, value=value.get(column, 100_000))
        message_id, path = rewritten(sample, edited)
        with pytest.raises(ExportDamaged) as raised:
            life_of(sample.place.root, message_id)
        assert raised.value.path == path


def test_a_forged_index_is_a_finding(sample: SampleExport) -> None:
    index = open_exports(sample.place.root).parts[0].catalog.index
    assert index is not None
    counting = {file.path for file in index.files}
    with sample.tampered():
        for path in counting:
            sample.put(path, bytes(len(sample.contents[path])))
        with pytest.raises(ExportDamaged) as raised:
            life_of(sample.place.root, "any")
        assert raised.value.path in counting
        for did in WHO:
            with pytest.raises(ExportDamaged) as raised:
                records_of(sample.place.root, did)
            assert raised.value.path in counting


def test_a_statement_that_was_edited_or_put_back_is_a_finding(sample: SampleExport) -> None:
    message_id = next(iter(lives_in(sample)))
    commits = [path for path in sample.paths if path.startswith(TABLE_LOG) and "." in path]
    newest = max(path for path in commits if path.endswith(".json"))
    with sample.tampered():
        content = sample.contents[newest].replace(b'\\"entries\\":', b'\\"entries\\":1')
        assert content != sample.contents[newest]
        sample.put(newest, content)
        with pytest.raises(ExportDamaged, match="not signed by"):
            life_of(sample.place.root, message_id)
    with sample.tampered():
        sample.remove(newest)
        with pytest.raises(ExportDamaged, match=r"end\.json names version") as raised:
            life_of(sample.place.root, message_id)
        assert raised.value.damage is Damage.ROLLED_BACK
        sample.remove(END)  # with the mark the signed head of the tree still says it
        with pytest.raises(ExportDamaged, match="a head of") as raised:
            life_of(sample.place.root, message_id)
        assert raised.value.damage is Damage.ROLLED_BACK


def test_an_export_of_another_key_is_refused(sample: SampleExport, tmp_path: Path) -> None:
    with closing(open_log(sample.log_url)) as log:
        seed = bytes(range(1, 33))
        key = signatures.public_key(seed)
        export = Exporter(
            log,
            open_place(str(tmp_path / "resigned")),
            ExportOwner(MEDIATOR, 3),
            Signer(PublicKey(key).text, partial(signatures.sign, seed)),
            Bounds(),
            clock=lambda: 1,
        )
        while export.step():
            pass
    with pytest.raises(SignedByAnother, match=f"by another key, {PublicKey(key).text}"):
        open_exports(str(tmp_path / "resigned"), TRUSTED)
    assert (
        open_exports(str(tmp_path / "resigned")).parts[0].catalog.last == sample.manifests[-1].last
    )


def test_the_program_shows_it_and_ends_as_it_is_documented(
    run: Run, sample: SampleExport, tmp_path: Path
) -> None:
    message_id, (_, events, _) = next(iter(lives_in(sample).items()))
    where = ("--from", sample.place.root)
    shown = run("audit", "message", message_id, *where, "--public-key", TRUSTED.text, "--json")
    assert (shown.code, shown.err) == (Exit.OK, "")
    said = json.loads(shown.out)
    assert [event["event"] for event in said["events"]] == events
    assert (said["signed_by"], said["key_is_trusted"]) == (TRUSTED.text, True)
    unnamed = json.loads(run("audit", "identity", WHO[0], *where, "--json").out)
    assert (unnamed["signed_by"], unnamed["key_is_trusted"]) == (TRUSTED.text, False)
    text = run("audit", "message", message_id, *where, "--proof", "proof")
    assert f" {TRUSTED.text}\n" in text.out
    assert " not known: no key was named" in text.out
    assert (text.code, json.loads(shown.out)["events"][0]["seal_digest"] in text.out) == (0, True)
    proven = check_proof((tmp_path / "proof").read_bytes(), TRUSTED)
    assert isinstance(proven, ProvenMessage)
    listed = run("audit", "identity", WHO[0], *where, "--limit", "1")
    assert (listed.code, "only 1 are shown" in listed.out) == (Exit.OK, True)
    for command in (("message", "unknown"), ("identity", "did:example:unknown")):
        unknown = run("audit", *command, *where)
        assert (unknown.code, f"no such {command[0]}" in unknown.err) == (Exit.FINDING, True)
        assert ("which this names: poste queue show DID" in unknown.err) is ("did:" in command[1])
    nowhere = run("audit", "message", message_id, "--from", "nowhere")
    assert (nowhere.code, "no such folder" in nowhere.err) == (Exit.UNREACHABLE, True)
    beyond = run("audit", "message", message_id, *where, "--as-of", "1000000")
    assert (beyond.code, "the export ends at" in beyond.err) == (Exit.USAGE, True)
    other = run("audit", "message", message_id, *where, "--public-key", OTHER.text)
    assert (other.code, "damaged" in other.err) == (Exit.UNSAFE, False)
    assert f"signed by another key, {TRUSTED.text}, and not by {OTHER.text}" in other.err
    with sample.tampered():
        for path in sample.files:
            sample.put(path, bytes(len(sample.contents[path])))
        damaged = run("audit", "message", message_id, *where)
        assert (damaged.code, damaged.out) == (Exit.UNSAFE, "")
        assert "is damaged and cannot be read" in damaged.err


def test_a_message_is_proven_as_of_a_position_before_the_seal_that_proves_it(
    run: Run, sample: SampleExport, tmp_path: Path
) -> None:
    where = ("--from", sample.place.root, "--json")
    for message_id, (_, _, seals) in lives_in(sample).items():
        first = json.loads(run("audit", "message", message_id, *where).out)["events"][0]
        assert first["position"] < first["seal_position"] == seals[0]
        early = ("--as-of", str(first["position"]), "--proof", "proof")
        ran = run("audit", "message", message_id, *where, *early)
        assert (ran.code, ran.err) == (Exit.OK, "")
        assert json.loads(ran.out)["events"] == [first]
        proven = check_proof((tmp_path / "proof").read_bytes(), TRUSTED)
        assert isinstance(proven, ProvenMessage)
        assert proven.events[0].position == seals[0]


def test_as_of_a_position_or_a_time_there_is_every_row_until_then_and_none_later(
    sample: SampleExport,
) -> None:
    (part,) = open_exports(sample.place.root, TRUSTED).parts
    rows = [row for path in sample.files for row in _recorded(sample, path)]
    seals = [(position, at) for position, at, kind in rows if kind == SEAL_TYPE]
    assert part.recorded_ms(0) == 0
    for file in part.catalog.files:
        own = [(position, at) for position, at, _ in _recorded(sample, file.path)]
        assert (own[0][0], own[-1][0]) == (file.first, file.last)
        for number, after, until in ((0, 0, file.first), (-1, file.last - 1, file.last + 1)):
            assert file in part.files(after, until)
            position, at = own[number]
            latest = max(at for earlier, at in own if earlier <= position)
            assert part.recorded_ms(position) == round(latest.timestamp() * 1_000)
            for as_of in (at, at - timedelta(milliseconds=1), at + timedelta(milliseconds=1)):
                reached = max((seal for seal, sealed in seals if sealed <= as_of), default=0)
                assert part.position_at(as_of) == reached
        assert file not in part.files(file.last, file.last + 1)
        assert file not in part.files(0, file.first - 1)
        assert not part.is_whole(file.first, part.catalog.last)
        assert not part.is_whole(0, file.last - 1)
    assert part.is_whole(0, part.catalog.last)


def _recorded(sample: SampleExport, path: str) -> list[tuple[int, datetime, str]]:
    """The position of each row of a file, when it was recorded, and its type."""
    rows = sample.tables[path].select(["position", "recorded_at", "type"]).to_pylist()
    return [(row["position"], row["recorded_at"], row["type"]) for row in rows]


def test_pseudonyms_hide_every_name_and_find_the_same(
    run: Run, sample: SampleExport, tmp_path: Path
) -> None:
    (tmp_path / "key").write_bytes(bytes(range(40)))
    (tmp_path / "key").chmod(0o600)
    options = ("--from", sample.place.root, "--pseudonymise", "key", "--json")
    for did in WHO:
        hidden = run("audit", "identity", did, *options)
        assert (hidden.code, "did:" in hidden.out) == (Exit.OK, False)
        name = json.loads(hidden.out)["identity"]
        assert run("audit", "identity", name, *options) == hidden
    for message_id in lives_in(sample):
        assert "did:" not in run("audit", "message", message_id, *options).out
    without = run("audit", "identity", "p:00", "--from", sample.place.root)
    assert (without.code, "--pseudonymise" in without.err) == (Exit.USAGE, True)


def test_a_look_up_needs_no_spark(sample: SampleExport) -> None:
    program = (
        "import sys; sys.modules['pyspark'] = sys.modules['py4j'] = None\n"
        "from http_edge.cli.main import main; main()"
    )
    arguments = ["audit", "identity", WHO[0], "--from", sample.place.root, "--json"]
    ran = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout)["history"] == records_of(sample.place.root, WHO[0]).history[:100]


def test_what_is_shown_of_a_message_fits_a_terminal_of_80_columns(
    run: Run, sample: SampleExport, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for message_id in lives_in(sample):
        shown = run("audit", "message", message_id, "--from", sample.place.root)
        assert shown.code == 0
        # What is longer than a line stands alone on one of its own, where it can be copied.
        assert all(len(line) <= 80 or " " not in line.strip() for line in shown.out.splitlines())
