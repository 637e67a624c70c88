"""Contracts, requests, public events leave once they were removed, what replaces once replaced."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest
from msgspec.structs import replace

from actors.archive import leaving_rows
from actors.archive.archive_check import check_archive
from actors.archive.leaving_kinds import TRAFFIC
from actors.core import commands as c
from actors.core.account_commands import RotateAccount
from actors.core.limits import IdentityLimits
from actors.core.replies import Refused
from actors.host.stored_states import read_identity
from eventstore.log.event_log import EventLog, LogRow
from eventstore.log.seam import seam_of
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.stores.open_log import open_log
from tests.export.acting import (
    AGENT,
    FRIEND,
    HOUR_S,
    ME,
    Act,
    Acting,
    acknowledge,
    connect_again,
    erase,
    expire,
    keep_contract,
    publish,
    register,
    request_contract,
    restart,
    set_device,
    set_rules,
    withdraw,
)
from tests.export.leaving import (
    BOUNDS,
    assert_whole,
    leave,
    leave_for,
    prune,
    states_of,
    streams_of,
)
from tests.export.samples import (
    SIGNED_BY,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.export.test_leaving import Dying, Killed
from tests.histories import MEDIATOR, contract

ACTS: Final[tuple[Act, ...]] = (
    *(keep_contract, request_contract, publish, set_device, set_rules, connect_again) * 3,
    *(acknowledge, withdraw, expire) * 2,
    *(register, register, erase, restart),
)


def topics_in(log: EventLog) -> list[str]:
    """The topics of the rows of ``ME``, without their versions."""
    stream = identity_stream(ME).bytes
    return [row.topic.partition(".")[0] for row in whole_log(log) if row.stream == stream]


def assert_sound(log: EventLog, log_url: str, place: ExportPlace) -> None:
    """Log, read models and archive agree."""
    seam = seam_of(log, SIGNED_BY)
    assert seam is not None
    checked = check_archive(log, place, seam, SIGNED_BY, marks=None)
    assert [one for one in checked if isinstance(one, ExportFinding)] == []
    assert_whole(log, log_url)


def test_a_contract_leaves_once_it_was_removed_and_not_when_it_is_over(
    log: EventLog, log_url: str, place: ExportPlace
) -> None:
    acting = Acting(log)
    register(acting)
    keep_contract(acting, 1)
    acting.now_ms += 4 * HOUR_S * 1000
    keep_contract(acting, 2)
    leave(log, place)
    assert topics_in(log) == ["identity-registered", "contract-stored", "contract-stored"]
    expire(acting)
    leave(log, place)
    assert topics_in(log) == ["identity-registered", "contract-stored", "contract-expired"]
    assert_sound(log, log_url, place)
    acting.now_ms += 4 * HOUR_S * 1000
    expire(acting)
    leave(log, place)
    assert topics_in(log) == ["identity-registered", "contract-expired"]
    assert_sound(log, log_url, place)


@pytest.mark.parametrize(
    ("add", "remove", "kinds"),
    [
        (request_contract, acknowledge, ["contract-requested", "contract-requests-acknowledged"]),
        (publish, withdraw, ["public-event-published", "public-events-deleted"]),
    ],
)
def test_a_request_or_a_public_event_leaves_once_it_was_removed(
    log: EventLog, log_url: str, place: ExportPlace, add: Act, remove: Act, kinds: list[str]
) -> None:
    acting = Acting(log)
    register(acting)
    for number in range(3):
        add(acting, number)
    remove(acting, 2)
    leave(log, place)
    assert topics_in(log) == ["identity-registered", *kinds]
    assert_sound(log, log_url, place)


@pytest.mark.parametrize(
    ("add", "kinds"),
    [
        (request_contract, ["contract-requested", "contract-requests-expired"]),
        (publish, ["public-event-published", "public-events-expired"]),
    ],
)
def test_a_request_or_a_public_event_leaves_once_it_was_removed_for_its_age(
    log: EventLog, log_url: str, place: ExportPlace, add: Act, kinds: list[str]
) -> None:
    age_s = 24 * HOUR_S
    limits = IdentityLimits(contract_requests_age_s_max=age_s, public_events_age_s_max=age_s)
    acting = Acting(log, limits)
    register(acting)
    add(acting, 1)
    acting.now_ms += 2 * age_s * 1000
    add(acting, 2)
    expire(acting)
    register(acting)
    leave(log, place)
    assert sorted(set(topics_in(log)) - {"identity-registered"}) == kinds
    assert topics_in(log).count(kinds[0]) == 1
    assert_sound(log, log_url, place)


def test_a_device_leaves_once_another_or_none_replaces_it(
    log: EventLog, log_url: str, place: ExportPlace
) -> None:
    acting = Acting(log)
    acting.connect(AGENT)
    for number in (1, 2, 3, 5):
        set_device(acting, number)
    acting.ask(AGENT, AGENT, c.UpdateKeylist([c.ClaimedKey("key", 1)], []))
    states = states_of(log, streams_of(log))
    leave(log, place)
    devices = [row for row in whole_log(log) if row.topic.startswith("push-device-set")]
    assert [row.version for row in devices] == [6]
    assert states_of(log, streams_of(log)) == states
    assert_sound(log, log_url, place)


@pytest.mark.parametrize(
    ("act", "kind", "stays"),
    [(set_rules, "queue-policy-set", [4]), (connect_again, "connection-established", [1, 4])],
)
def test_rules_of_a_queue_and_a_connection_leave_once_others_replace_them(
    log: EventLog, log_url: str, place: ExportPlace, act: Act, kind: str, stays: list[int]
) -> None:
    acting = Acting(log)
    connect_again(acting, 0)  # the first row of a stream stays
    for number in (1, 2, 3):
        act(acting, number)
    acting.ask(AGENT, AGENT, c.GrantMediation())
    states = states_of(log, streams_of(log))
    leave(log, place)
    found = [row for row in whole_log(log) if row.topic.startswith(kind)]
    assert [row.version for row in found] == stays
    assert states_of(log, streams_of(log)) == states
    assert_sound(log, log_url, place)


def test_an_agent_keeps_its_former_dids_whose_connections_have_left_and_an_erasure_takes_them(
    log: EventLog, log_url: str, place: ExportPlace
) -> None:
    acting, speaker = Acting(log), AGENT
    connect_again(acting, 0)
    for number in range(1, 4):
        stated = c.Connection(f"did:peer:2.{number}", "phone", "", [], "didexchange/1.1", "")
        following = f"did:key:carl{number}"
        rotated = RotateAccount(speaker, following, acting.now_ms / 1000, stated)
        assert not isinstance(acting.ask(speaker, AGENT, rotated), Refused)
        speaker = following
    acting.ask(speaker, AGENT, c.GrantMediation())
    states = states_of(log, streams_of(log))
    former = read_identity(log, identity_stream(AGENT))[0].prior_dids
    assert former == [f"did:peer:2.{number}" for number in range(3)]
    leave(log, place)
    assert [row.topic for row in whole_log(log) if b"did:peer:2.2" in row.state] == []
    acting.restart()
    assert states_of(log, streams_of(log)) == states
    assert_sound(log, log_url, place)
    for _ in range(3):
        acting.ask(MEDIATOR, AGENT, c.EraseIdentity("operator", 1_000))
    leave(log, place)
    with closing(exporter(log, place)) as export:
        export.take_out_erased()
    rows = [*exported_log(place), *whole_log(log)]
    assert [row.topic for row in rows if b"did:peer:2." in row.state] == []
    assert_sound(log, log_url, place)


def test_contracts_that_an_erasure_ended_leave(
    log: EventLog, log_url: str, place: ExportPlace
) -> None:
    acting = Acting(log)
    register(acting)
    keep_contract(acting, 1)
    erase(acting)
    register(acting)
    keep_contract(acting, 2)
    leave(log, place)
    ended = ["identity-erasure-begun", "identity-erased"]
    assert topics_in(log) == [
        *["identity-registered", *ended] * 1,
        *["identity-registered"],
        *["contract-stored"],
    ]
    assert_sound(log, log_url, place)


@pytest.mark.parametrize(("add", "remove"), [(request_contract, acknowledge), (publish, withdraw)])
def test_the_archive_gives_up_the_content_of_a_row_that_left(
    log: EventLog, place: ExportPlace, add: Act, remove: Act
) -> None:
    acting = Acting(log)
    register(acting)
    add(acting, 1)
    add(acting, 2)
    export_all(log, place)
    remove(acting, 1)
    assert leave(log, place).left > 0
    erased, living = [row.position for row in exported_log(place) if row.content is not None]
    with closing(exporter(log, place)) as export:
        assert export.take_out_erased().contents == 1
    there = {row.position for row in exported_log(place) if row.content is not None}
    assert there == {living}
    assert erased not in {row.position for row in whole_log(log)}


def test_a_contract_that_left_loses_the_name_of_a_party_that_is_erased(
    log: EventLog, log_url: str, place: ExportPlace
) -> None:
    acting = Acting(log)
    register(acting)
    acting.ask(FRIEND, FRIEND, c.Register(contract(FRIEND, MEDIATOR, acting.now_ms / 1000 + 9_000)))
    kept = contract(ME, FRIEND, acting.now_ms / 1000 + 2 * HOUR_S)
    acting.ask(ME, ME, c.SaveContract(kept))
    acting.now_ms += 2 * HOUR_S * 1000
    expire(acting)
    register(acting)
    leave(log, place)
    assert topics_in(log) == ["identity-registered", "identity-registered"]
    for _ in range(3):
        acting.ask(MEDIATOR, FRIEND, c.EraseIdentity("operator", 1_000))
    export_all(log, place)
    with closing(exporter(log, place)) as export:
        export.take_out_erased()
    rows = [*exported_log(place), *whole_log(log)]
    assert [row.topic for row in rows if FRIEND.encode() in row.state] == []
    assert_sound(log, log_url, place)


def test_what_an_earlier_build_kept_leaves_with_the_next_removal(
    log: EventLog, log_url: str, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    acting = Acting(log)
    register(acting)
    with monkeypatch.context() as earlier:
        earlier.setattr(leaving_rows, "_WITH_RECORDS", TRAFFIC)
        for number in (1, 2):
            keep_contract(acting, number)
            acting.now_ms += 2 * HOUR_S * 1000
            expire(acting)
        leave(log, place)
        assert topics_in(log).count("contract-stored") == 2
    assert_sound(log, log_url, place)
    request_contract(acting, 1)
    acknowledge(acting, 1)
    leave(log, place)
    assert topics_in(log) == ["identity-registered", "contract-requests-acknowledged"]
    assert_sound(log, log_url, place)


def test_a_section_of_ends_does_not_take_the_texts_of_all_its_contracts_into_memory(
    log: EventLog, place: ExportPlace
) -> None:
    acting, text_bytes = Acting(log), 256 * 1024
    for number in range(20):
        owner = f"{ME}/{number}"
        acting.ask(owner, owner, c.Register(contract(owner, MEDIATOR, acting.now_ms / 1000 + 9e6)))
        kept = contract(owner, FRIEND, acting.now_ms / 1000 + 2 * HOUR_S)
        acting.ask(owner, owner, c.SaveContract(replace(kept, signed=bytes(text_bytes))))
    leave(log, place)
    acting.now_ms += 4 * HOUR_S * 1000
    for number in range(20):
        acting.ask(MEDIATOR, f"{ME}/{number}", c.ExpireRecords(100))
        acting.ask(
            f"{ME}/{number}", f"{ME}/{number}", c.PublishPublicEvent("", "", [], 1, "", True)
        )
    export_all(log, place, BOUNDS)
    tracemalloc.start()
    try:
        assert leave_for(log, place, section_rows=10_000, is_checked=False).left >= 20
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 * text_bytes


@pytest.mark.parametrize(("seed", "is_pruned"), [(1, False), (2, True)])
def test_a_log_whose_rows_leave_goes_on_as_one_whose_rows_stay(
    log: EventLog, log_url: str, place: ExportPlace, tmp_path: Path, seed: int, *, is_pruned: bool
) -> None:
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    with closing(open_log(f"sqlite:{tmp_path / 'whole.db'}")) as whole:
        both = (Acting(log), Acting(whole))
        for acting in both:
            register(acting)
            acting.connect(AGENT)
        for _ in range(3):
            for _act in range(40):
                act, number = chance.choice(ACTS), chance.randint(0, 5)
                for acting in both:
                    act(acting, number)
            with suppress(Killed):
                dying = Dying(log, chance.randint(1, 5), is_stored=chance.random() < 0.5)
                leave(dying, place, section_rows=40, rows_max=5)
            assert_sound(log, log_url, place)
            leave(log, place, section_rows=40, rows_max=5)
            streams = streams_of(whole)
            assert states_of(log, streams) == states_of(whole, streams)
            if is_pruned:
                prune(log, place)
            assert_sound(log, log_url, place)
        assert findings(place) == []
        assert len(whole_log(log)) < len(whole_log(whole)) / 2
        every, archived = _facts(whole_log(whole)), _facts(exported_log(place))
        assert _facts(whole_log(log)) <= every
        assert archived < every if is_pruned else archived == every


def _facts(rows: Sequence[LogRow]) -> set[tuple[int, bytes, int, str, bytes]]:
    return {(row.position, row.stream, row.version, row.topic, row.state) for row in rows}
