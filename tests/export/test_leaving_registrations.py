"""Registrations leave for the archive, but not the one that lasts longest, nor a later one."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from typing_extensions import override

from actors.core.account_commands import NameSpeaker
from actors.core.commands import QueueMessage, Register, SaveContract
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.events import SEAL_TOPIC
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import ExportPlace
from http_edge.settings.settings import Settings
from tests.export.acting import AGENT, FRIEND, ME, Acting
from tests.export.leaving import assert_whole, leave, log, place, settings_of, states_of, streams_of
from tests.export.samples import whole_log
from tests.histories import MEDIATOR, START_MS, contract
from tests.log.faulty_log import FaultyLog

__all__ = ["log", "place"]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data")


def test_a_registration_leaves_once_a_later_one_lasts_longer(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    acting, begun_s = Acting(log), START_MS / 1000
    for hours in (30, 60, 90, 80, 90, 70):
        acting.register(begun_s + hours * 3_600)
    streams = streams_of(log)
    states = states_of(log, streams)
    leave(log, place)
    registered = [row.version for row in whole_log(log) if row.topic != SEAL_TOPIC]
    assert registered == [1, 3, 5, 6]
    assert states_of(log, streams) == states
    assert_whole(log, settings.log_dsn)
    acting.register(begun_s + 100 * 3_600)
    leave(log, place)
    registered = [row.version for row in whole_log(log) if row.topic != SEAL_TOPIC]
    assert registered == [1, 7]
    assert_whole(log, settings.log_dsn)


def test_what_an_identity_holds_is_counted_when_its_first_registration_has_left(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    acting, until_s = Acting(log), START_MS / 1000 + 90_000
    acting.connect(AGENT)
    acting.ask(AGENT, ME, NameSpeaker(AGENT))  # the first row of its stream, which stays
    acting.register(until_s)
    acting.ask(ME, ME, SaveContract(contract(ME, FRIEND, until_s)))
    acting.ask(FRIEND, ME, QueueMessage(FRIEND, b"hello"))
    acting.register(until_s + 3_600)
    leave(log, place)
    mine = [row.topic for row in whole_log(log) if row.stream == identity_stream(ME).bytes]
    assert [topic.partition(".")[0] for topic in mine] == [
        *("speaker-named", "contract-stored", "message-queued", "identity-registered")
    ]
    assert_whole(log, settings.log_dsn)


def test_an_identity_that_has_only_registered_is_not_folded_for_rows_that_leave(
    log: EventLog, place: ExportPlace
) -> None:
    folded = list[UUID]()

    class Watched(FaultyLog):
        @override
        def load_archived_state(self, stream: UUID) -> Snapshot | None:
            folded.append(stream)
            return super().load_archived_state(stream)

    acting, until_s = Acting(log), START_MS / 1000 + 90_000
    for number in range(3):
        did = f"did:example:{number}"
        acting.ask(did, did, Register(contract(did, MEDIATOR, until_s)))
    acting.register(until_s)
    acting.register(until_s)
    leave(Watched(log), place)
    assert set(folded) == {identity_stream(ME)}
