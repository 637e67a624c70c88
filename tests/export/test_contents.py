"""An export has the contents that lived when it was made; what it restores has no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from actors.core.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    Page,
    QueryContractRequests,
    QueryMessages,
    QueueMessage,
    RequestContract,
    SaveContract,
)
from actors.core.refusals import Refusal
from actors.core.replies import ContractRequestsPage, MessageAccepted, MessagesPage, Refused
from actors.host.host import Host
from eventstore.log.codec import decode
from eventstore.log.content import SALT_BYTES, without_content
from eventstore.log.errors import NotAsSealed
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.events import MessagesRemoved
from eventstore.log.faults import Fault
from eventstore.log.session import Store
from eventstore.log.streams import identity_stream
from eventstore.parquet.catalog import Catalog
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.rows import exported_sections
from eventstore.stores.log_import import LogImport
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.restore import LogSection, log_sections, restore
from tests.export.samples import catalog_of, export_all, exported_rows, findings
from tests.log.raw_sql import run_sql
from tests.log.stored import faults
from tests.unit.actors.given import contract, host, registration, run, submission

ME, FRIEND = "did:example:me", "did:example:friend"
CONSTANTS = {"mediator_did": "did:web:mediator.test", "shards": "2"}


class Mediator:
    """A host on a log, and two identities that know each other."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.log = open_log(dsn)
        self.host: Host = host(self.log)
        run(self.host, submission(ME, registration(ME)))
        run(self.host, submission(ME, SaveContract(contract(FRIEND, ME))))

    def send(self, *texts: str) -> list[str]:
        replies = [
            run(self.host, submission(ME, QueueMessage(FRIEND, text.encode()), sender=FRIEND))
            for text in texts
        ]
        return [one.message_id for (one,) in replies if isinstance(one, MessageAccepted)]

    def acknowledge(self, *ids: str) -> None:
        run(self.host, submission(ME, AcknowledgeMessages([*ids])))


@pytest.fixture
def mediator(tmp_path: Path) -> Iterator[Mediator]:
    made = Mediator(f"sqlite:{tmp_path / 'log.db'}")
    yield made
    made.log.close()


def exported(place: ExportPlace) -> list[bytes]:
    """The contents in an export."""
    parts = [without_content(row["state"]) for row in exported_rows(place)]
    return [content[SALT_BYTES:] for _, content in parts if content is not None]


def restored(tmp_path: Path, sections: Sequence[LogSection]) -> EventLog:
    dsn = f"sqlite:{tmp_path / 'restored.db'}"
    with closing(open_store(dsn)) as store:
        importing = LogImport(store, CONSTANTS["mediator_did"], "token")
        importing.begin()
        restore(sections, importing, CONSTANTS)
    return open_log(dsn)


def from_export(place: ExportPlace) -> list[LogSection]:
    catalog: Catalog = catalog_of(place)
    return list(exported_sections(place, catalog))


def texts(log: EventLog, name: str = "host-1") -> list[str]:
    """What waits for the identity, by a host that starts on this log."""
    (page,) = run(host(log, name=name), submission(ME, QueryMessages(Page(0, 9))))
    assert isinstance(page, MessagesPage), page
    return [message.payload.decode() for message in page.messages]


def test_contents_are_exported_as_long_as_they_live(mediator: Mediator, place: ExportPlace) -> None:
    first, _ = mediator.send("one", "two")
    mediator.acknowledge(first)
    mediator.send("three")
    export_all(mediator.log, place)
    assert exported(place) == [b"two", b"three"]
    assert findings(place) == []


def test_what_was_erased_after_its_export_is_not_restored(
    mediator: Mediator, place: ExportPlace, tmp_path: Path
) -> None:
    first, _ = mediator.send("one", "two")
    export_all(mediator.log, place)
    mediator.acknowledge(first)
    export_all(mediator.log, place)
    assert exported(place) == [b"one", b"two"]
    with closing(restored(tmp_path, from_export(place))) as log:
        assert [one[SALT_BYTES:] for one in log.read_contents(after=0, until=99).values()] == [
            b"two"
        ]
        assert faults(log) == []
        assert texts(log) == ["two"]


def test_a_log_is_copied_with_the_contents_that_live(mediator: Mediator, tmp_path: Path) -> None:
    first, _ = mediator.send("one", "two")
    mediator.acknowledge(first)
    with closing(restored(tmp_path, list(log_sections(mediator.log)))) as log:
        assert faults(log) == []
        assert texts(log) == ["two"]


def cut_off(mediator: Mediator, place: ExportPlace) -> list[LogSection]:
    """An export that ends after two messages came, of which one was acknowledged meanwhile."""
    first, _ = mediator.send("one", "two")
    end = mediator.log.position()
    mediator.acknowledge(first)
    export_all(mediator.log, place)
    rows = [row for section in from_export(place) for row in section.rows if row.position <= end]
    return [LogSection(rows)]


def test_a_message_without_its_content_is_recorded_as_lost_and_the_others_are_served(
    mediator: Mediator, place: ExportPlace, tmp_path: Path
) -> None:
    with closing(restored(tmp_path, cut_off(mediator, place))) as log:
        assert faults(log) == [Fault.MISSING_CONTENT]
        owner = host(log, name="host-1")
        ask = QueryMessages(Page(0, 9))
        assert run(owner, submission(ME, ask)) == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)]
        (page,) = run(owner, submission(ME, ask))
        assert isinstance(page, MessagesPage)
        assert [message.payload for message in page.messages] == [b"two"]
        *_, last = log.read_stream(identity_stream(ME))
        event = decode(last.topic, last.state)
        assert isinstance(event, MessagesRemoved)
        assert (event.reason, len(event.message_ids)) == ("lost", 1)
        assert faults(log) == []


def test_so_is_a_contract_request(mediator: Mediator, place: ExportPlace, tmp_path: Path) -> None:
    run(mediator.host, submission(ME, RequestContract(FRIEND, "sealed", "key"), sender=FRIEND))
    end = mediator.log.position()
    ask = QueryContractRequests(Page(0, 9))
    (page,) = run(mediator.host, submission(ME, ask))
    assert isinstance(page, ContractRequestsPage)
    gone = AcknowledgeContractRequests([page.requests[0].request_id])
    run(mediator.host, submission(ME, gone))
    export_all(mediator.log, place)
    rows = [row for part in from_export(place) for row in part.rows if row.position <= end]
    with closing(restored(tmp_path, [LogSection(rows)])) as log:
        owner = host(log, name="host-1")
        assert run(owner, submission(ME, ask)) == [Refused(Refusal.TEMPORARILY_UNAVAILABLE)]
        assert run(owner, submission(ME, ask)) == [ContractRequestsPage([], 0)]
        assert faults(log) == []


def test_a_content_that_was_changed_is_neither_exported_nor_restored(
    mediator: Mediator, place: ExportPlace, tmp_path: Path
) -> None:
    mediator.send("one")
    sections = list(log_sections(mediator.log))
    run_sql(mediator.dsn, "UPDATE contents SET content = substr(content, 2)")
    said = r"position \d+ of the log: message-queued\.2: its content does not match its digest"
    with pytest.raises(NotAsSealed, match=said):
        export_all(mediator.log, place)
    with pytest.raises(NotAsSealed, match=said):
        restored(tmp_path, [LogSection([*map(_changed, sections[0].rows)])])


def _changed(row: LogRow) -> LogRow:
    content = row.content and bytes(1) + row.content[1:]
    return LogRow(row.position, row.stream, row.version, row.topic, row.state, content)


def test_a_store_that_is_cleared_for_a_restore_keeps_no_contents(
    mediator: Mediator, tmp_path: Path
) -> None:
    mediator.send("one")
    dsn = f"sqlite:{tmp_path / 'other.db'}"
    store: Store
    with closing(open_store(dsn)) as store:
        importing = LogImport(store, CONSTANTS["mediator_did"], "first")
        importing.begin()
        importing.write(next(iter(log_sections(mediator.log))).rows, [])
        again = LogImport(store, CONSTANTS["mediator_did"], "second")
        again.begin()
        with store.reading() as session:
            assert session.contents(0, 99) == {}
