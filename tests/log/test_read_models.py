"""Read models are what the rows of the log say, or are named and made anew."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from actors.core.commands import (
    AcknowledgeMessages,
    DedicateIdentity,
    DedicationReason,
    DeletePublicEvents,
    EraseIdentity,
    NameSpeaker,
    NewSavedEvent,
    Page,
    PublishPublicEvent,
    QueryMessages,
    QueueMessage,
    SaveContract,
    SaveEvents,
    TagUpdate,
    UnnameSpeaker,
    UpdateEventTags,
)
from actors.core.replies import MessagesPage
from actors.host.stored_states import wrong_snapshots
from eventstore.log.errors import LogFull, NotComparable, ReadModelsMissing
from eventstore.log.events import IdentityRegistered
from eventstore.log.session import Store
from eventstore.log.streams import identity_stream
from eventstore.read_models import queue_depths
from eventstore.read_models import remake as remaking
from eventstore.read_models.queue_depths import QueueFold
from eventstore.read_models.remake import Difference, remake
from eventstore.stores import sqlite_log
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.recorder_log import RecorderLog, rebuild_read_models, wrong_read_models
from eventstore.stores.sqlite_sizes import wal_bytes
from tests.log.raw_sql import run_sql
from tests.log.samples import COMMAND, OWNER, append, message
from tests.unit.actors.given import contract, host, registration, run, submission, unclaimed

ME, FRIEND, THIRD = "did:x:me", "did:x:friend", "did:x:third"
RELEASED, ERASED = "did:x:released", "did:x:erased"
WRITTEN_BYTES = 1_000_000


def fill(url: str) -> None:
    """Something in each read model, in all states that commands give them."""
    with closing(open_log(url)) as log:
        owner = host(log)
        saved = [NewSavedEvent(ME, to, None, n, "text", ["a", "b"]) for n, to in enumerate("xy")]
        run(
            owner,
            *[submission(did, registration(did)) for did in (ME, FRIEND, THIRD)],
            submission(ME, SaveContract(contract(FRIEND, ME))),
            submission(ME, SaveEvents(saved)),
            *[submission(ME, QueueMessage(FRIEND, b"hi"), sender=FRIEND) for _ in range(3)],
            *[
                submission(ME, PublishPublicEvent(channel, "text", ["a"], 1, "sig", True))
                for channel in ("news", "chess")
            ],
        )
        (page,) = run(owner, unclaimed(ME, QueryMessages(Page(0, 1))))
        assert isinstance(page, MessagesPage)
        run(
            owner,
            submission(ME, AcknowledgeMessages([page.messages[0].message_id])),
            submission(ME, UpdateEventTags([TagUpdate("host-0-5.0", ["c"])])),
            submission(ME, DeletePublicEvents(["host-0-9"])),
            submission(THIRD, DedicateIdentity(DedicationReason.OPERATOR)),
        )
        for did in (RELEASED, ERASED):
            run(owner, submission(did, NameSpeaker(ME)), submission(did, UnnameSpeaker(ME)))
        run(owner, *[submission(ERASED, EraseIdentity("operator", 9)) for _ in range(2)])
        run(owner, submission(ERASED, NameSpeaker(ME)), submission(ERASED, UnnameSpeaker(ME)))
        log.save_snapshots(owner.run_housekeeping())


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A log that is filled."""
    url = f"sqlite:{tmp_path}/log.db"
    fill(url)
    return url


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        yield store


TABLES = ("postings", "queue_depths", "dedicated")


def counts(url: str) -> dict[str, int]:
    """How many rows each table has."""
    return {table: run_sql(url, f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def test_what_appends_wrote_is_what_the_rows_say(url: str, store: Store) -> None:
    assert all(counts(url).values())
    assert wrong_read_models(store) == []


@pytest.mark.parametrize(
    ("change", "table"),
    [
        ("DELETE FROM postings", "postings"),
        ("DELETE FROM postings WHERE rowid_of = 1", "postings"),
        ("UPDATE postings SET own = 1 - own WHERE version = 4", "postings"),
        ("UPDATE queue_depths SET messages = messages + 1 WHERE messages > 0", "queue_depths"),
        ("DELETE FROM queue_depths", "queue_depths"),
        ("UPDATE queue_totals SET messages = messages + 1", "queue_totals"),
        ("UPDATE dedicated SET reason = x'61'", "dedicated"),
        ("DELETE FROM dedicated", "dedicated"),
    ],
)
def test_what_was_changed_is_named_and_made_anew(
    url: str, store: Store, change: str, table: str
) -> None:
    before = counts(url)
    run_sql(url, change.replace("rowid_of = 1", "list = (SELECT min(list) FROM postings)"))
    (wrong,) = wrong_read_models(store)
    assert wrong.table == table
    assert wrong.missing > 0
    rebuild_read_models(store)
    assert wrong_read_models(store) == []
    assert counts(url) == before


def test_a_row_too_many_is_named(url: str, store: Store) -> None:
    run_sql(url, "INSERT INTO dedicated VALUES (x'00', x'61', x'61')")
    assert wrong_read_models(store) == [Difference("dedicated", 0, 1)]


@pytest.mark.parametrize("table", TABLES)
def test_a_log_without_a_read_model_is_not_opened_until_it_is_made_anew(
    url: str, table: str
) -> None:
    before = counts(url)
    run_sql(url, f"DROP TABLE {table}")
    for _ in range(2):
        with pytest.raises(ReadModelsMissing, match="poste log rebuild-read-models"):
            open_log(url)
    with closing(open_store(url, makes_missing=True)) as store:
        assert [wrong.table for wrong in wrong_read_models(store)] == [table]
        rebuild_read_models(store)
    open_log(url).close()
    assert counts(url) == before


def test_a_disk_without_room_to_make_them_anew_is_named(url: str, store: Store) -> None:
    before = counts(url)
    with closing(open_log(url)) as log:
        owner = host(log)
        run(owner, *[submission(did, registration(did)) for did in map(str, range(200))])
    run_sql(url, "DELETE FROM queue_depths")
    run_sql(url, "VACUUM")
    with store.writing() as session:
        session.rows("PRAGMA max_page_count = 1")  # those that it has
    with pytest.raises(LogFull):
        rebuild_read_models(store)
    assert counts(url) == before | {"queue_depths": 0}


def test_a_check_changes_nothing(url: str, store: Store) -> None:
    run_sql(url, "DELETE FROM postings")
    wrong_read_models(store)
    assert counts(url)["postings"] == 0


def test_a_check_ends_before_the_wal_beside_it_grows_too_large(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite uses no room of the WAL again while the check reads its snapshot."""
    monkeypatch.setattr(remaking, "_ROWS", 1)
    monkeypatch.setattr(sqlite_log, "_WAL_BYTES_MAX", 2 * WRITTEN_BYTES)
    pages: list[int] = []
    with closing(open_log(url)) as log:

        def write_beside(done: int, _: int) -> None:
            pages.append(done)
            append(log, OWNER, message(bytes(WRITTEN_BYTES)))

        with pytest.raises(NotComparable, match="-wal has more than"):
            wrong_read_models(store, progress=write_beside)
        assert pages == [1, 2]
        ((is_in_the_way, *_),) = run_sql(url, "PRAGMA wal_checkpoint(TRUNCATE)")
        assert not is_in_the_way


def test_a_wal_that_is_large_from_before_keeps_no_check_from_being_made(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_log, "_WAL_BYTES_MAX", 2 * WRITTEN_BYTES)
    file = Path(url.removeprefix("sqlite:"))
    with closing(open_log(url)) as log:
        with closing(sqlite3.connect(file)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM stored_events").fetchall()
            for _ in range(3):
                append(log, OWNER, message(bytes(WRITTEN_BYTES)))
        assert wal_bytes(file) > 2 * WRITTEN_BYTES
        assert wrong_read_models(store) == []


def test_queues_that_do_not_fit_into_memory_are_folded_in_several_passes(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_depths, "ENTRIES_MAX", 1)
    with store.scratch() as (session, stored_in):
        remake(session)
        ((same,),) = session.rows(
            f"SELECT count(*) FROM (SELECT * FROM queue_depths"
            f" INTERSECT SELECT * FROM {stored_in}.queue_depths)"
        )
    assert same == counts(url)["queue_depths"]


def test_a_pass_over_the_queues_has_as_many_in_memory_as_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue_depths, "ENTRIES_MAX", 10)
    fold = QueueFold()
    for number in range(100):
        did = f"did:x:{number}"
        registered = IdentityRegistered(
            at_ms=1, command=COMMAND, did=did, expires_at_s=1, contract=b""
        )
        fold.take(number.to_bytes(16), registered)
    fold.take(bytes(16), message(message_id="first"))
    assert 5 <= len(list(fold.depths())) <= 10
    for number in range(99):
        fold.take(bytes(16), message(message_id=str(number)))
    (first,) = fold.depths()
    assert (first.did, first.messages) == ("did:x:0", 100)
    assert fold.rest == (1).to_bytes(16)


def test_a_snapshot_that_its_events_do_not_make_is_named(url: str, store: Store) -> None:
    log = RecorderLog(store)
    owner = host(log, name="host-1")
    run(owner, submission(ME, QueueMessage(FRIEND, b"hi"), sender=FRIEND))
    cached = owner.cache._cached[ME]
    cached.snapshot_version = -1_000
    snapshot = owner.cache.snapshot_if_due(cached, owner.ownership.owned)
    assert snapshot is not None
    log.save_snapshots([snapshot])
    assert list(wrong_snapshots(log)) == []
    cached.state.messages.popitem()
    cached.snapshot_version = -1_000
    wrong = owner.cache.snapshot_if_due(cached, owner.ownership.owned)
    assert wrong is not None
    log.save_snapshots([wrong])
    assert list(wrong_snapshots(log)) == [identity_stream(ME)]
