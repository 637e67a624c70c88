"""The rows that stayed in a log are compared with its archive, not only with a signed seam."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.archive.archive_check import check_archive
from actors.archive.departure import let_rows_leave
from eventstore.log.codec import decode, state_of
from eventstore.log.event_log import EventLog
from eventstore.log.faults import Fault
from eventstore.log.seam import SEAM, Sum, row_entry, seam_of, sign_seam, state_entry
from eventstore.log.streams import identity_stream, partition_stream
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.verify.findings import ExportFinding
from http_edge.settings.settings import Settings
from tests.export import acting as acts
from tests.export.acting import ME, Acting
from tests.export.leaving import (
    BOUNDS,
    KEYS,
    LATER_MS,
    faults_in,
    leave,
    log,
    opened_as_first,
    place,
    played,
    prune,
    settings_of,
)
from tests.export.samples import OWNER, SIGNED_BY, export_all, exported_log, whole_log
from tests.histories import LIMITS, PARTITIONS, START_MS, random_script
from tests.log.raw_sql import run_sql

__all__ = ["log", "place"]
_REMOVE = "DELETE FROM stored_events WHERE rowid = {position}"
_CHANGE = "UPDATE stored_events SET state = x'{other}' WHERE rowid = {position}"
_WITHOUT_ROWS = "DELETE FROM contents WHERE position NOT IN (SELECT rowid FROM stored_events)"
_ADD = (
    "INSERT INTO stored_events (rowid, originator_id, originator_version, topic, state)"
    " VALUES ({free}, '" + "0" * 32 + "', 1, '{topic}', x'{other}')"
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path / "data")


def _sign_again(settings: Settings, log: EventLog) -> None:
    """Sign the seam over what now stands before it, as the holder of the key can."""
    seam = seam_of(log, SIGNED_BY)
    assert seam is not None
    states = [(name, state) for name, state in log.archived_states() if state is not None]
    signed = replace(
        seam,
        stayed=Sum().plus(map(row_entry, whole_log(log))),
        states=Sum().plus(state_entry(*one) for one in states),
    )
    text = sign_seam(signed, KEYS.sign).encode().hex()
    where = f"name = x'{SEAM.encode().hex()}'"
    run_sql(settings.log_dsn, f"UPDATE settings SET value = x'{text}' WHERE {where}")


def _faults(log: EventLog, place: ExportPlace) -> set[object]:
    seam = seam_of(log, SIGNED_BY)
    assert seam is not None
    found = check_archive(log, place, seam, SIGNED_BY, marks=None)
    return {one.fault for one in found if isinstance(one, ExportFinding)}


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Mapping[bool, Path]:
    """Data directories whose logs' older rows left, by whether their archive was pruned."""
    found = {}
    for is_pruned in (False, True):
        settings = settings_of(tmp_path_factory.mktemp("stayed") / "data")
        place = open_place(settings.archive_place)
        with closing(opened_as_first(settings)) as log:
            played(log)
            leave(log, place)
            if is_pruned:
                assert prune(log, place)
        found[is_pruned] = settings.data_dir
    return found


@pytest.fixture
def copied(archived: Mapping[bool, Path], tmp_path: Path, *, is_pruned: bool) -> None:
    """Let a test begin with one of them."""
    shutil.copytree(archived[is_pruned], tmp_path / "data")


@pytest.mark.usefixtures("copied")
@pytest.mark.parametrize("is_pruned", [False, True])
@pytest.mark.parametrize(
    ("kind", "is_first", "change"),
    [
        ("identity-registered", True, _REMOVE),
        ("identity-registered", False, _REMOVE),
        ("contract-stored", False, _REMOVE),
        ("message-queued", False, _REMOVE),
        ("message-expiry-set", False, _REMOVE),
        ("batch-sealed", True, _REMOVE),
        ("contract-stored", False, _CHANGE),
        ("identity-registered", True, _ADD),
        ("message-expiry-set", False, _ADD),  # may be pruned, but begins no stream
    ],
)
def test_what_stayed_is_compared_with_the_archive_even_if_the_seam_was_signed_again(  # noqa: PLR0913 - fixtures
    settings: Settings,
    log: EventLog,
    place: ExportPlace,
    kind: str,
    change: str,
    *,
    is_first: bool,
    is_pruned: bool,
) -> None:
    bridged = {stream.bytes for stream, _ in log.archived_states()}
    bridged |= {partition_stream(name).bytes for name in PARTITIONS}
    kept = whole_log(log)
    archived = {one.position for one in exported_log(place)}
    row = next(
        row
        for row in kept
        if row.position in archived
        and row.topic.startswith(kind)
        and (row.version == 1) is is_first
        and row.stream in bridged
    )
    event = decode(row.topic, row.state)
    taken = {one.position for one in kept} | (archived if is_pruned else set())
    values = {
        "position": row.position,
        "topic": row.topic,
        "free": max({*range(1, kept[-1].position)} - taken),
        "other": state_of(replace(event, at_ms=event.at_ms + 1)).hex(),
    }
    _sign_again(settings, log)
    assert (faults_in(log), _faults(log, place)) == ([], set())
    run_sql(settings.log_dsn, change.format(**values))
    run_sql(settings.log_dsn, _WITHOUT_ROWS)
    _sign_again(settings, log)
    assert (faults_in(log), _faults(log, place)) == ([], {Fault.WRONG_REST})


def test_a_row_that_is_never_pruned_is_missed_where_the_archive_is_pruned(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    """A log from a backup still has what its archive lost, and nothing else at those positions."""
    played(log)
    leave(log, place)
    archived = exported_log(place)
    assert prune(log, place)
    pruned = {one.position for one in archived} - {one.position for one in exported_log(place)}
    bridged = {stream.bytes for stream, _ in log.archived_states()}
    gone = next(one for one in archived if one.position in pruned and one.stream in bridged)
    kept = next(one for one in archived if one.topic.startswith("identity-registered"))
    run_sql(
        settings.log_dsn,
        "INSERT INTO stored_events (rowid, originator_id, originator_version, topic, state)"
        f" VALUES ({gone.position}, '{gone.stream.hex()}', {gone.version},"
        f" '{kept.topic}', x'{kept.state.hex()}')",
    )
    _sign_again(settings, log)
    assert (faults_in(log), _faults(log, place)) == ([], {Fault.WRONG_REST})


@pytest.mark.parametrize("removed", [{3}, {5}, {6}, {3, 5}, {3, 5, 6}])
def test_a_registration_that_no_later_one_outlasts_is_missed(
    settings: Settings, log: EventLog, place: ExportPlace, removed: set[int]
) -> None:
    """Neither an earlier one that lasts longer stands for it, nor a later one that does not."""
    acting = Acting(log)
    for hours in (30, 60, 90, 80, 90, 70):
        acting.register(START_MS / 1000 + hours * 3_600)
    leave(log, place)
    assert _faults(log, place) == set()
    for version in removed:
        of_me = f"originator_id = '{identity_stream(ME).hex}'"
        run_sql(
            settings.log_dsn,
            f"DELETE FROM stored_events WHERE {of_me} AND originator_version = {version}",
        )
    _sign_again(settings, log)
    assert (faults_in(log), _faults(log, place)) == ([], {Fault.WRONG_REST})


def _with_records(log: EventLog, place: ExportPlace) -> None:
    """Let leave what was removed, where one of each kind was, and one was not."""
    acting = Acting(log)
    acts.register(acting)
    acting.connect(acts.AGENT)
    for number in (1, 2):
        acts.set_device(acting, number)
        acts.keep_contract(acting, number)
        acts.request_contract(acting, number)
        acts.publish(acting, number)
    acts.acknowledge(acting, 1)
    acts.withdraw(acting, 1)
    acts.expire(acting)
    acts.erase(acting)
    acts.register(acting)
    acting.register(acting.now_ms / 1000 + 3_600)
    for add in (acts.keep_contract, acts.request_contract, acts.publish):
        add(acting, 3)
    leave(log, place)
    assert _faults(log, place) == set()


@pytest.mark.parametrize(
    "kind",
    [
        *("contract-stored", "contract-requested", "public-event-published", "push-device-set"),
        *("contract-requests-acknowledged", "public-events-deleted", "identity-erasure-begun"),
    ],
)
def test_a_row_that_no_later_one_ended_is_missed(
    settings: Settings, log: EventLog, place: ExportPlace, kind: str
) -> None:
    """An erasure before a contract is no end of it."""
    _with_records(log, place)
    position = max(row.position for row in whole_log(log) if row.topic.startswith(kind))
    run_sql(settings.log_dsn, _REMOVE.format(position=position))
    run_sql(settings.log_dsn, _WITHOUT_ROWS)
    _sign_again(settings, log)
    assert (faults_in(log), _faults(log, place)) == ([], {Fault.WRONG_REST})


def test_the_end_of_a_contract_is_missed_if_the_contract_is_there(
    settings: Settings, log: EventLog, place: ExportPlace
) -> None:
    acting = Acting(log)
    acts.register(acting)
    acts.keep_contract(acting, 1)
    acting.now_ms += 10_000_000
    acts.expire(acting)
    acts.register(acting)
    leave(log, place)
    assert _faults(log, place) == set()
    stored, ended = (row for row in exported_log(place) if row.topic.startswith("contract-"))
    run_sql(settings.log_dsn, _REMOVE.format(position=ended.position))
    _sign_again(settings, log)
    assert _faults(log, place) == set()
    run_sql(
        settings.log_dsn,
        "INSERT INTO stored_events (rowid, originator_id, originator_version, topic, state)"
        f" VALUES ({stored.position}, '{stored.stream.hex()}', {stored.version},"
        f" '{stored.topic}', x'{stored.state.hex()}')",
    )
    _sign_again(settings, log)
    assert (faults_in(log), _faults(log, place)) == ([], {Fault.WRONG_REST})


@pytest.mark.parametrize(
    "change",
    [
        "state = 7",
        "originator_id = 'no stream'",
        "originator_id = '00'",
        "originator_id = x'00'",
        "originator_version = 'x'",
    ],
)
def test_a_row_that_is_no_row_is_reported_by_the_check_of_the_log_and_ends_none(
    settings: Settings, log: EventLog, place: ExportPlace, change: str
) -> None:
    played(log, acts=150)
    leave(log, place)
    position = whole_log(log)[2].position
    where = f"WHERE rowid = {position}"
    run_sql(settings.log_dsn, f"UPDATE stored_events SET {change} {where}")
    assert {"malformed-row", "wrong-rest"} <= set(faults_in(log))
    assert _faults(log, place) <= {Fault.WRONG_REST}


def test_a_departure_that_is_cut_off_leaves_no_difference(
    log: EventLog, place: ExportPlace
) -> None:
    """Also where messages have left, and the row that removed them is behind the seam."""
    history = played(log, acts=200)
    leave(log, place, until_ms=history.now_ms - 600_000)
    history.play(random_script(12, 80))
    export_all(log, place, BOUNDS)
    seams = set()
    for _ in range(1_000):
        with suppress(InterruptedError):
            _let_leave_one_step(log, place)
            break
        seams.add(log.settings()[SEAM])
        assert _faults(log, place) == set()
    assert len(seams) > 1


def _let_leave_one_step(log: EventLog, place: ExportPlace) -> None:
    def cut() -> None:
        raise InterruptedError

    let_rows_leave(
        log,
        place,
        KEYS,
        OWNER.mediator_did,
        until_ms=LATER_MS,
        window_ms=LIMITS.timestamp_window_ms,
        clock=lambda: LATER_MS,
        section_rows=150,
        rows_per_step_max=15,
        after_step=cut,
    )
