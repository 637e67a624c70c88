"""A mediator restored from its export, or moved to another store, goes on as if nothing was."""

from __future__ import annotations

import json
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import base58
import pytest

from actors.core import commands as c
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Submission
from actors.host.clock import system_clock
from actors.host.host import Host
from eventstore.log.codec import decode
from eventstore.log.errors import LogUnfinished
from eventstore.log.event_log import EventLog, PageBounds, PublicEventsFilter, SavedEventsFilter
from eventstore.log.events import SEAL_TOPIC, BatchSealed
from eventstore.log.log_format import record_format
from eventstore.log.name_erasure import is_pass_due, note_pass
from eventstore.log.seal import command_key, unpack_nonces
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import open_place
from eventstore.parquet.tree import CHECKPOINT
from eventstore.stores.open_log import open_log
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.data_dir import locked
from http_edge.server.exits import Exit
from http_edge.server.exporting import ContinuousExport, exporter_of
from http_edge.server.log_head import renewed_head
from http_edge.server.status_files import ExportReporter
from http_edge.settings.settings import Export, Settings
from tests.export.killed_restore import exit_code
from tests.export.samples import whole_log
from tests.histories import (
    AGENTS,
    IDENTITIES,
    KEYS,
    LIMITS,
    MEDIATOR,
    PARTITIONS,
    PLACEMENT,
    History,
    random_script,
)
from tests.log.stored import tables_of
from tests.unit.cli.conftest import Ran, Run, run

__all__ = ["run"]

PAGE = c.Page(0, 1_000)
QUESTIONS = (
    c.CheckRegistered(),
    c.QueryContractRequests(PAGE),
    c.QueryContracts(PAGE),
    c.QueryMessages(PAGE),
    c.QueueMessage(IDENTITIES[0], b"new"),
    c.QueueMessage(IDENTITIES[1], b"new"),
    c.UpdateEventTags([c.TagUpdate("id-1", ["blue"])]),
)
AGENTS_QUESTIONS = (
    c.QueryConnection(),
    c.QueryKeylist(0, 1_000),
    c.QueryQueue(),
    c.DeliverMessages("phone", "pickup/2.0", 100, 1_000_000, 1_000),
    c.QueueEnvelopes(KEYS[0], [b"new"]),
)


class Original:
    """A mediator with a random history, its export, and the backup of its keys."""

    def __init__(self, folder: Path, seed: int = 11, acts: int = 700) -> None:
        self.folder = folder
        self.data_dir = folder / "original"
        self.place = folder / "export"
        self.keys = folder / "backup.json"
        self.data_dir.mkdir()
        keys_path = self.data_dir / "mediator-keys.json"
        keys = load_or_create(keys_path)
        self.key = base58.b58encode(keys.signing_public).decode()
        self.keys.write_bytes(keys_path.read_bytes())
        self.keys.chmod(0o600)
        with closing(open_log(self.dsn)) as log:
            log.setting("mediator_did", MEDIATOR)
            log.setting("mediator_key", self.key)
            log.setting("shards", str(PLACEMENT.shards))
            record_format(log)
            history = History(log)
            history.play(random_script(seed, acts))
            self.now_ms = history.now_ms
            self.end = log.position()
        export(self.data_dir, self.dsn, self.place)

    @property
    def dsn(self) -> str:
        return f"sqlite:{self.data_dir / 'log.db'}"


def export(data_dir: Path, dsn: str, place: Path) -> int:
    """Export a log to a place; how many rows were written."""
    settings = Settings(
        data_dir=data_dir, did=MEDIATOR, export=Export(to=str(place), rows_per_file_max=1_000)
    )
    with (
        closing(open_log(dsn)) as log,
        exporter_of(settings, log, open_place(str(place))) as exporter,
    ):
        rows = 0
        while step := exporter.step():
            rows += step.rows
        return rows


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original(tmp_path_factory.mktemp("restore"))


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """What to name with --to, and the URL of the log that comes of it."""
    if request.param == "sqlite":
        return str(tmp_path / "new"), f"sqlite:{tmp_path / 'new' / 'log.db'}"
    url: str = request.getfixturevalue("postgres_url")
    return url, url


@pytest.fixture
def restored(run: Run, tmp_path: Path, original: Original, target: tuple[str, str]) -> Path:
    """The data directory of the mediator that was restored from the export."""
    ran = restore(run, original.place, target[0], original.keys)
    assert (ran.code, ran.err) == (Exit.OK, "")
    said = json.loads(ran.out)
    assert (said["position"], said["mediator_did"]) == (original.end, MEDIATOR)
    return tmp_path / "new"


def restore(run: Run, source: object, target: str, keys: Path | None, *more: str) -> Ran:
    backup = () if keys is None else ("--keys", str(keys))
    return run(
        *("restore", "--from", str(source), "--to", target, "--data-dir", "new"),
        *("--json", *backup, *more),
    )


def test_every_table_is_restored(
    restored: Path, original: Original, target: tuple[str, str]
) -> None:
    assert tables_of(target[1]) == tables_of(original.dsn)
    keys = restored / "mediator-keys.json"
    assert keys.read_bytes() == original.keys.read_bytes()
    assert keys.stat().st_mode & 0o777 == 0o600
    assert restored.stat().st_mode & 0o777 == 0o700


def test_hosts_on_the_restored_log_answer_as_on_the_original(
    restored: Path, original: Original, target: tuple[str, str], tmp_path: Path
) -> None:
    now_ms = original.now_ms
    shutil.copytree(original.data_dir, tmp_path / "copy")
    with (
        closing(open_log(f"sqlite:{tmp_path}/copy/log.db")) as one,
        closing(open_log(target[1])) as other,
    ):
        replies = [answers(log, now_ms) for log in (one, other)]
        assert replies[0] == replies[1]
        pages = [list(read_models(log)) for log in (one, other)]
        assert pages[0] == pages[1]
        assert one.figures() == other.figures()
        assert one.waiting_queues(limit=99) == other.waiting_queues(limit=99)
        for log in (one, other):
            assert replays(log, now_ms) == {Refused(Refusal.DUPLICATE_NONCE)}


def test_the_export_goes_on_after_the_restore(
    restored: Path, original: Original, target: tuple[str, str], tmp_path: Path
) -> None:
    place = tmp_path / "export"
    shutil.copytree(original.place, place)
    assert export(restored, target[1], place) == 0
    with closing(open_log(target[1])) as log:
        before = log.position()
        answers(log, original.now_ms)
        added = len(log.read_rows(after=before, rows_max=10_000, bytes_max=2**30))
        assert added > 0
    assert export(restored, target[1], place) == added


@pytest.mark.postgres
def test_a_log_moves_from_sqlite_to_postgresql_and_back(
    run: Run, original: Original, postgres_url: str, tmp_path: Path
) -> None:
    assert restore(run, original.dsn, postgres_url, original.keys).code == Exit.OK
    assert restore(run, postgres_url, str(tmp_path / "back"), original.keys).code == Exit.OK
    tables = tables_of(original.dsn)
    assert tables_of(postgres_url) == tables
    assert tables_of(f"sqlite:{tmp_path}/back/log.db") == tables


@pytest.mark.crash
@pytest.mark.parametrize("fatal", [0, 1, -1])
def test_a_restore_that_was_killed_is_not_opened_and_begins_anew(
    run: Run, original: Original, target: tuple[str, str], tmp_path: Path, fatal: int
) -> None:
    ended = exit_code(original.place, target[0], tmp_path / "new", original.keys, fatal)
    assert ended == -signal.SIGKILL
    with pytest.raises(LogUnfinished):
        open_log(target[1])
    named = ("--data-dir", "new", "--log", target[1])
    for command in (("log", "verify"), ("export", "--to", "x"), ("serve", "--listen", "[::1]:0")):
        refused = run(*command, *named)
        assert refused.code == Exit.UNSAFE
        assert "poste restore again" in refused.err
    assert restore(run, original.place, target[0], original.keys).code == Exit.OK
    assert tables_of(target[1]) == tables_of(original.dsn)


@pytest.mark.parametrize("what", ["changed", "missing", "manifest"])
def test_a_damaged_export_is_refused(
    run: Run, original: Original, tmp_path: Path, what: str
) -> None:
    place = tmp_path / "export"
    shutil.copytree(original.place, place)
    victim = sorted(place.rglob("*.parquet"))[1]
    if what == "missing":
        victim.unlink()
    elif what == "changed":
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
    else:
        victim = sorted(place.glob("manifests/*"))[1]
        victim.write_bytes(victim.read_bytes().replace(b'"rows":', b'"rows":1', 1))
    ran = restore(run, place, str(tmp_path / "new"), original.keys)
    assert ran.code == Exit.UNSAFE
    assert victim.name in ran.err
    assert run("log", "verify", "--data-dir", "new").code != Exit.OK


def test_only_the_keys_of_the_mediator_restore_its_export_or_its_log(
    run: Run, original: Original, tmp_path: Path
) -> None:
    load_or_create(tmp_path / "others.json")
    target = str(tmp_path / "new")
    for source in (original.place, original.dsn):
        wrong = restore(run, source, target, tmp_path / "others.json")
        assert wrong.code == Exit.UNSAFE
        assert f"Name the backup of the keys of {MEDIATOR}" in wrong.err
    missing = restore(run, original.place, target, tmp_path / "nowhere.json")
    assert (missing.code, "nowhere.json" in missing.err) == (Exit.USAGE, True)
    assert "there is no key file at" in missing.err
    none = restore(run, original.place, target, None)
    assert none.code == Exit.USAGE
    assert "there are no keys of the mediator" in none.err
    assert not (tmp_path / "new").exists()
    (tmp_path / "new").mkdir()
    load_or_create(tmp_path / "new" / "mediator-keys.json")
    assert "differ from those in" in restore(run, original.place, target, original.keys).err


def test_a_restored_log_is_served_with_no_other_keys(
    run: Run, original: Original, target: tuple[str, str], restored: Path
) -> None:
    """Not with new ones either, where the file of those that it was restored with is gone."""
    keys_path = restored / "mediator-keys.json"
    here = ("--listen", "127.0.0.1:0", "--set", f"shards={PLACEMENT.shards}")
    named = ("--log", target[1], "--did", MEDIATOR, *here)
    keys_path.unlink()
    missing = run("serve", "--data-dir", str(restored), *named)
    assert (missing.code, keys_path.exists()) == (Exit.UNSAFE, False), missing.err
    assert f"is missing, but the log belongs to the key {original.key}" in missing.err
    load_or_create(keys_path)
    others = run("serve", "--data-dir", str(restored), *named)
    assert others.code == Exit.UNSAFE
    assert f"The log belongs to the mediator with the key {original.key}" in others.err


def test_the_command_that_a_restore_names_starts_nothing_before_its_url_is_filled_in(
    run: Run, original: Original, tmp_path: Path
) -> None:
    ran = restore(run, original.place, str(tmp_path / "new"), original.keys)
    poste, *command = shlex.split(json.loads(ran.out)["next"])
    assert (poste, command[:3]) == ("poste", ["serve", "--data-dir", str(tmp_path / "new")])
    started = run(*command)
    assert (started.code, "public_url from command line" in started.err) == (Exit.USAGE, True)


def test_a_target_that_holds_a_log_is_refused(run: Run, original: Original) -> None:
    before = tables_of(original.dsn)
    ran = restore(run, original.place, str(original.data_dir), None)
    assert ran.code == Exit.USAGE
    assert f"it holds the log of {MEDIATOR}" in ran.err
    assert tables_of(original.dsn) == before


def test_a_restore_that_was_interrupted_at_its_end_is_said_to_be_perhaps_whole(
    run: Run, original: Original, tmp_path: Path
) -> None:
    target = str(tmp_path / "new")
    assert restore(run, original.place, target, original.keys).code == Exit.OK
    again = restore(run, original.place, target, original.keys)
    assert (again.code, again.out) == (Exit.USAGE, "")
    assert "interrupted at its end, that log is whole: check it with poste log verify" in again.err
    assert run("log", "verify", "--data-dir", target).code == Exit.OK


def test_nothing_is_restored_into_an_export_which_would_get_the_keys(
    run: Run, original: Original
) -> None:
    ran = restore(run, original.place, str(original.place), original.keys)
    assert ran.code == Exit.USAGE, ran.err
    assert "is an export" in ran.err
    assert not (original.place / "mediator-keys.json").exists()


def test_a_restore_as_of_a_position_ends_with_its_last_whole_transaction(
    run: Run, original: Original, tmp_path: Path
) -> None:
    until = original.end // 2
    ran = restore(run, original.place, str(tmp_path / "new"), original.keys, "--as-of", str(until))
    with closing(open_log(original.dsn)) as log:
        rows = [row for row in whole_log(log) if row.position <= until]
    while not rows[-1].topic.startswith("batch-sealed"):
        rows.pop()
    assert json.loads(ran.out)["position"] == rows[-1].position
    assert "missing by design" in ran.err
    assert tables_of(f"sqlite:{tmp_path}/new/log.db")["stored_events"] == rows
    for at, said in (("999999", f"ends at position {original.end}"), ("0", "no transaction ends")):
        other = (str(tmp_path / "other"), original.keys, "--as-of", at)
        refused = restore(run, original.place, *other)
        assert (refused.code, said in refused.err) == (Exit.USAGE, True)


def test_strangers_get_no_head_of_what_a_log_lost_when_it_was_restored(
    run: Run, original: Original, tmp_path: Path
) -> None:
    shutil.copytree(original.data_dir, tmp_path / "copy")
    with closing(open_log(f"sqlite:{tmp_path}/copy/log.db")) as log:
        lost = (original.place / CHECKPOINT).read_bytes()
        renewed_head(log, lost, 3_600, system_clock())
        note_pass(log, system_clock())
    until = ("--as-of", str(original.end // 2))
    source = f"sqlite:{tmp_path}/copy/log.db"
    assert restore(run, source, str(tmp_path / "new"), original.keys, *until).code == Exit.OK
    with closing(open_log(f"sqlite:{tmp_path}/new/log.db")) as log:
        assert is_pass_due(log, 86_400, system_clock())
    stopping, heads = threading.Event(), set[bytes]()

    class Once(ExportReporter):
        def on_caught_up(self, position: int, complete_until_ms: int | None = None) -> None:
            stopping.set()

    elsewhere = Export(to=str(tmp_path / "elsewhere"))
    settings = Settings(data_dir=tmp_path / "new", did=MEDIATOR, export=elsewhere)
    ContinuousExport(settings, Once(None, system_clock), on_head=heads.add).run(stopping)
    assert heads == {(tmp_path / "elsewhere" / CHECKPOINT).read_bytes()}


@pytest.mark.parametrize("before_us", [0, 400])
@pytest.mark.parametrize("origin", ["place", "dsn"])
def test_a_restore_as_of_a_time_ends_with_the_last_transaction_made_until_then(
    run: Run, original: Original, tmp_path: Path, origin: str, before_us: int
) -> None:
    source = getattr(original, origin)
    with closing(open_log(original.dsn)) as log:
        rows = list(whole_log(log))
    made_ms = {
        row.position: decode(row.topic, row.state).at_ms for row in rows if row.topic == SEAL_TOPIC
    }
    middle_ms = sorted(made_ms.values())[len(made_ms) // 2]
    at = datetime.fromtimestamp(middle_ms / 1000, UTC) - timedelta(microseconds=before_us)
    ran = restore(run, source, str(tmp_path / "new"), original.keys, "--as-of", at.isoformat())
    last = max(position for position, ms in made_ms.items() if ms <= middle_ms - before_us / 1000)
    assert (ran.code, json.loads(ran.out)["position"]) == (Exit.OK, last)
    wanted = [row for row in rows if row.position <= last]
    assert tables_of(f"sqlite:{tmp_path}/new/log.db")["stored_events"] == wanted
    for when, said in (
        ("1999-01-01", "begins after"),
        ("soon", "neither a position nor a time"),
        ("0001-01-01T00:00:00+23:00", "neither a position nor a time"),
    ):
        refused = restore(run, source, str(tmp_path / "no"), original.keys, "--as-of", when)
        assert refused.code == Exit.USAGE
        assert said in refused.err


def test_an_export_is_not_restored_as_of_a_time_that_it_may_not_have_all_of(
    run: Run, original: Original, tmp_path: Path
) -> None:
    late = restore(
        run, original.place, str(tmp_path / "new"), original.keys, "--as-of", "2999-01-01"
    )
    assert late.code == Exit.USAGE
    assert "complete until" in late.err
    assert not (tmp_path / "new").exists()


def test_a_log_that_is_served_is_not_moved(run: Run, original: Original, tmp_path: Path) -> None:
    with locked(original.data_dir):
        ran = restore(run, original.dsn, str(tmp_path / "new"), original.keys)
    assert ran.code == Exit.BUSY
    assert "Another mediator is running" in ran.err
    assert "--from" in ran.err
    assert restore(run, original.dsn, str(tmp_path / "new"), original.keys).code == Exit.OK


def test_a_restore_writes_nothing_in_the_directory_that_it_reads(
    run: Run, original: Original, tmp_path: Path
) -> None:
    lock = original.data_dir / "lock"
    lock.write_text("of a mediator that was killed")
    before = {path.name: path.read_bytes() for path in original.data_dir.iterdir()}
    assert restore(run, original.dsn, str(tmp_path / "new"), original.keys).code == Exit.OK
    assert {path.name: path.read_bytes() for path in original.data_dir.iterdir()} == before


def test_a_log_is_not_restored_into_a_folder_that_is_called_as_a_uri(
    run: Run, original: Original
) -> None:
    ran = restore(run, original.dsn, "s3://key:secret@bucket/folder", original.keys)
    assert (ran.code, "cannot be restored to s3://…" in ran.err) == (Exit.USAGE, True)
    assert not Path("s3:").exists()


def test_what_is_no_source_is_named(run: Run, original: Original, tmp_path: Path) -> None:
    target = str(tmp_path / "new")
    nowhere = restore(run, "nowhere", target, original.keys)
    assert (nowhere.code, "there is no export at" in nowhere.err) == (Exit.UNREACHABLE, True)
    assert "there is no log at" in restore(run, "sqlite:nowhere", target, original.keys).err
    with closing(open_log("sqlite:empty.db")):
        pass
    found = restore(run, "empty.db", target, original.keys)
    assert "is not the log of a mediator" in found.err
    assert not (tmp_path / "new").exists()


def answers(log: EventLog, now_ms: int) -> list[Any]:
    """The answers to every question of every identity, and to what changes things."""
    ids = (f"new-{number}" for number in range(10_000))
    host = Host(
        "host-0", log, LIMITS, secret=b"secret", clock=lambda: now_ms, new_id=lambda: next(ids)
    )
    host.ownership.assign(PARTITIONS)
    questions: list[tuple[str, c.Command]] = [
        (did, question) for did in IDENTITIES for question in QUESTIONS
    ]
    questions += [(did, question) for did in AGENTS for question in AGENTS_QUESTIONS]
    questions += [(f"key:{key}", c.FindKeyOwner()) for key in KEYS]
    questions += [(f"invitation:once-{n}", c.UseInvitation(AGENTS[0])) for n in range(6)]
    replies: list[Any] = []
    for number, (did, command) in enumerate(questions):
        claim = NonceClaim(
            PLACEMENT.partition_of(did), command_key(did, f"question-{number}"), now_ms
        )
        found, _ = host.execute(
            [("edge-0", Submission(PLACEMENT.partition_of(did), did, claim.key, claim, None,
                                     command))]
        )  # fmt: skip
        replies += found
    return replies


def replays(log: EventLog, now_ms: int) -> set[Any]:
    """What the nonces are answered that are in force."""
    host = Host("host-0", log, LIMITS, secret=b"secret", clock=lambda: now_ms, new_id=lambda: "id")
    host.ownership.assign(PARTITIONS)
    claims = [
        NonceClaim(event.partition, key, now_ms)
        for row in whole_log(log)
        if isinstance(event := decode(row.topic, row.state), BatchSealed)
        for key, expires_ms in unpack_nonces(event.nonces)
        if expires_ms > now_ms
    ]
    assert len(claims) > len(PARTITIONS)
    submissions = [Submission(claim.partition, MEDIATOR, claim.key, claim) for claim in claims]
    return set(host.execute([("edge-0", submission) for submission in submissions])[0])


def read_models(log: EventLog) -> Iterator[Any]:
    """Pages of both read models of every identity."""
    for did in IDENTITIES:
        owner = identity_stream(did)
        for tags in ([], ["red"], ["blue", "red"]):
            for unprocessed in (False, True):
                saved = SavedEventsFilter(encrypted_tags=tags, unprocessed_only=unprocessed)
                yield log.query_saved_events(owner, saved, PageBounds(0, 1_000))
            public = PublicEventsFilter(tags=tags)
            yield log.query_public_events(owner, public, PageBounds(0, 1_000))
