"""Names of who was erased leave the states of others, those of rows that have left the log too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import get_type_hints

import pyarrow as pa
import pytest
from msgspec import structs

from actors.core.account_commands import ReleaseKey
from actors.core.commands import (
    AcknowledgeMessages,
    Connect,
    DeletePublicEvents,
    EndAccount,
    EraseIdentity,
    GrantMediation,
    NameSpeaker,
    PublishPublicEvent,
    QueueEnvelopes,
    QueueMessage,
    RemoveMessages,
    RequestContract,
    RotateAccount,
    UnnameSpeaker,
    UpdateKeylist,
)
from actors.core.erasure import ELSEWHERE
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued, PublicEventAccepted, Refused
from eventstore.log.codec import decode, encode
from eventstore.log.event_declaration import NAME, RefusedCommands
from eventstore.log.event_log import ChangedRow, EventLog, LogRow
from eventstore.log.events import (
    TOPIC_BY_TYPE,
    ConnectionEstablished,
    ContractStored,
    EventSaved,
    EventTagsUpdated,
    KeyClaimed,
    KeylistUpdated,
    MessageQueued,
    PushDeviceSet,
    RefusalsCounted,
)
from eventstore.log.faults import Fault
from eventstore.log.name_erasure import ALWAYS, NameErasure
from eventstore.log.redaction import digest_of, renamed_state
from eventstore.log.seam import SEAM, Seam, sign_seam
from eventstore.log.streams import erased_name, identity_stream, stream_of
from eventstore.parquet.columns import to_table
from eventstore.parquet.errors import Damage
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.rows import read_table
from eventstore.parquet.schema import FILLING
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding, ExportSummary
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.parquet.write.commit import write_data
from eventstore.parquet.write.compaction import Rewriting, without_erased_of
from eventstore.parquet.write.erasing import (
    COLUMNS_OF_NAMES,
    GoneNames,
    names_erased,
    rows_naming,
    rows_of,
)
from eventstore.stores.open_log import open_log
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_name_erasure_contract import (
    message_ids,
    register,
    save_all,
    send,
    tables_naming,
    take_out_names,
)
from tests.contract.test_retention_contract import DAY_S, FRIEND, Mediator
from tests.export.leaving import assert_whole, leave
from tests.export.samples import (
    OWNER,
    SIGNED_BY,
    SIGNER,
    catalog_of,
    export_all,
    exported_log,
    exporter,
    findings,
    sign_again,
    whole_log,
)
from tests.export.test_names_in_export import GONE, STAYS, STEPS, places_of, take_out
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, COMMAND, message, saved
from tests.unit.actors.didcomm import KEY, claimed
from tests.unit.actors.given import connection, registration, run, submission, unclaimed


def pass_s(mediator: Mediator, seconds: float) -> None:
    """Let time pass, and what is over then leave."""
    mediator.pass_s(seconds)
    while mediator.expiry.step():
        pass


@pytest.mark.parametrize("reference", ["contract", "request", "key", "account"])
def test_no_state_of_another_keeps_the_name_of_who_was_erased(
    tmp_path: Path, reference: str
) -> None:
    dsn, place = f"sqlite:{tmp_path / 'log.db'}", open_place(str(tmp_path / "archive"))
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log)
        mediator.settle(STAYS)
        if reference == "contract":
            send(mediator, STAYS, GONE, b"message")
        elif reference == "request":
            request = RequestContract(GONE, "contract?", "key")
            run(mediator.host, submission(STAYS, request, sender=GONE))
        elif reference == "account":
            run(mediator.host, unclaimed(STAYS, NameSpeaker(GONE)))
        else:
            granted = GrantMediation(connection(label=STAYS), claimed(KEY))
            run(mediator.host, unclaimed(STAYS, granted))
            register(mediator, STAYS, GONE)
        save_all(log)
        run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
        assert leave(log, place).states > 0
        assert "archived_states" in tables_naming(dsn, GONE)
        assert "snapshots" not in tables_naming(dsn, GONE)
        settle(mediator, GONE)
        erase(mediator, GONE)
        if reference == "key":
            run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
            run(mediator.host, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, 1)))
        elif reference == "account":
            run(mediator.host, unclaimed(STAYS, UnnameSpeaker(GONE)))
        else:
            pass_s(mediator, 250)
        if reference == "contract":
            leave(log, place)  # what a request leaves with is no help to a contract
            pass_s(mediator, DAY_S + 400)
        for _ in range(2):
            leave(log, place)
            take_out(log, place)
        assert tables_naming(dsn, GONE) == []
        assert_whole(log, dsn)


@pytest.mark.parametrize("is_elsewhere", [False, True])
@pytest.mark.parametrize("left", ["before its end", "before the erasure", "after the erasure"])
def test_no_state_of_an_ended_account_keeps_the_name_of_an_erased_did_that_spoke_for_it(
    tmp_path: Path, left: str, *, is_elsewhere: bool
) -> None:
    """Whenever its rows leave first: after the erasure, too, they still have the name.

    A DID that ``is_elsewhere`` has its own rows in another database of the log.
    """
    dsn, place = f"sqlite:{tmp_path / 'log.db'}", open_place(str(tmp_path / "archive"))
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log)
        mediator.settle(STAYS)
        if not is_elsewhere:
            run(mediator.host, unclaimed(GONE, NameSpeaker(STAYS)))
        rotated = RotateAccount(STAYS, GONE, 1, connection())
        for command in (Connect(connection()), rotated):
            run(mediator.host, unclaimed(STAYS, command))
        run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
        if left == "before its end":
            assert leave(log, place).states > 0
        run(mediator.host, unclaimed(STAYS, EndAccount(GONE, 2)))
        if left != "after the erasure":
            assert leave(log, place).states > 0
            assert "archived_states" in tables_naming(dsn, GONE)
        if is_elsewhere:
            run(mediator.host, unclaimed(GONE, EraseIdentity(ELSEWHERE, 1)))
        else:
            run(mediator.host, unclaimed(GONE, UnnameSpeaker(STAYS)))
            erase(mediator, GONE)
        for _ in range(2):
            assert leave(log, place).states > 0
            take_out(log, place)
        assert tables_naming(dsn, GONE) == []
        assert_whole(log, dsn)
        (renewed,) = run(Mediator(log, name="again").host, submission(STAYS, registration(STAYS)))
        assert renewed == Refused(Refusal.UNAUTHORIZED_COMMAND), "another spoke for it"


def test_no_snapshot_of_an_ended_account_has_a_name_that_its_archived_state_has_lost(
    tmp_path: Path,
) -> None:
    """One made from the archived state, after the name left the rows and before it left that."""
    dsn, place = f"sqlite:{tmp_path / 'log.db'}", open_place(str(tmp_path / "archive"))
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log, snapshot_after_events=2)
        mediator.settle(STAYS)
        for body in (b"second", b"third"):
            run(mediator.host, submission(STAYS, QueueMessage(FRIEND, body), sender=FRIEND))
        run(mediator.host, unclaimed(GONE, NameSpeaker(STAYS)))
        rotated = RotateAccount(STAYS, GONE, 1, connection())
        for command in (Connect(connection()), rotated, EndAccount(GONE, 2)):
            run(mediator.host, unclaimed(STAYS, command))
        first, *later = message_ids(mediator, STAYS)
        run(mediator.host, submission(STAYS, AcknowledgeMessages([first])))
        leave(log, place)
        run(mediator.host, unclaimed(GONE, UnnameSpeaker(STAYS)))
        erase(mediator, GONE)
        take_out_names(log)
        assert tables_naming(dsn, GONE) == ["archived_states"]
        erased_ms = mediator.clock.now_ms
        mediator.pass_s(100)
        for one in later:
            run(mediator.host, submission(STAYS, AcknowledgeMessages([one])))
        log.save_snapshots(mediator.host.run_housekeeping())
        assert "snapshots" in tables_naming(dsn, GONE)
        leave(log, place, until_ms=erased_ms)
        assert tables_naming(dsn, GONE) == []
        assert_whole(log, dsn)


def test_a_row_that_has_left_the_log_loses_the_names_of_the_erased_alone(
    sqlite_log: EventLog,
) -> None:
    seam = Seam(mediator_did=OWNER.mediator_did, position=9, signed_by=SIGNER.signed_by)
    sqlite_log.setting(SEAM, sign_seam(seam, SIGNER.sign))
    stream, gone = identity_stream(STAYS), GoneNames({identity_stream(GONE).bytes: ALWAYS})
    stored = encode(stream, 1, saved("event", sender=GONE, recipient=STAYS))
    row = LogRow(5, stream.bytes, 1, stored.topic, stored.state)
    changed = names_erased(sqlite_log, [row], [0], gone, is_part=True)
    event = decode(row.topic, changed[5])
    assert isinstance(event, EventSaved)
    assert (event.sender_did, event.recipient_did) == (erased_name(GONE), STAYS)


def test_a_name_that_a_step_lost_since_it_was_verified_is_found(tmp_path: Path) -> None:
    place = open_place(str(tmp_path / "export"))
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)

    def faults() -> set[Damage | Fault]:
        found = verify_export(place, SIGNED_BY, marks=marks)
        return {one.fault for one in found if isinstance(one, ExportFinding)}

    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        send(mediator, STAYS, GONE, b"message")
        export_all(log, place)
        assert faults() == set()
        row = next(
            row
            for row in whole_log(log)
            if GONE.encode() in row.state and STAYS.encode() in row.state
        )
        state = renamed_state(ContractStored, row.state, digest_of)
        assert state is not None
        log.change_rows([ChangedRow(row.stream, row.position, row.state, state)])
        erase(mediator, GONE)
        export_all(log, place)
        assert take_out(log, place).names > 0
    assert faults() == {Fault.MISSING_NAME}


def test_an_export_is_sound_when_a_pass_over_its_names_ended_after_it_was_verified(
    tmp_path: Path,
) -> None:
    place = open_place(str(tmp_path / "export"))
    marks = VerifiedMarks(open_place(str(tmp_path / "marks")), SIGNER)

    def end(_at: int, _end: int) -> None:
        if place.data_sizes() != before:
            raise KeyboardInterrupt

    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        mediator = Mediator(log)
        settle(mediator, GONE)
        export_all(log, place, STEPS)
        erase(mediator, GONE)
        export_all(log, place, STEPS)
        assert [*verify_export(place, SIGNED_BY, marks=marks)][:-1] == []
        before = place.data_sizes()
        with closing(exporter(log, place, STEPS)) as export, pytest.raises(KeyboardInterrupt):
            export.take_out_erased(end)
        *found, summary = verify_export(place, SIGNED_BY, marks=marks)
        assert found == []
        assert isinstance(summary, ExportSummary)
        assert 0 < summary.rows < summary.position == summary.verified_before_up_to


def test_a_row_that_was_changed_in_the_log_is_not_put_into_its_export(tmp_path: Path) -> None:
    """The log has lost the names, and has another row of the same kind in its place."""
    dsn, place = f"sqlite:{tmp_path / 'log.db'}", open_place(str(tmp_path / "export"))
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        for content in (b"one", b"two"):
            send(mediator, STAYS, GONE, content)
        queued = [row for row in whole_log(log) if row.topic == TOPIC_BY_TYPE[MessageQueued]]
        first, second = [row for row in queued if GONE.encode() in row.state]
        export_all(log, place)
        erase(mediator, GONE)
        run(mediator.host, submission(STAYS, AcknowledgeMessages([*message_ids(mediator, STAYS)])))
        pass_s(mediator, DAY_S + 400)
        export_all(log, place)
        work = NameErasure(log)
        while work.step():
            pass
        other = next(row.state for row in whole_log(log) if row.position == second.position)
        changed = f"SET state = x'{other.hex()}' WHERE rowid = {first.position}"
        run_sql(dsn, f"UPDATE stored_events {changed}")
        assert take_out(log, place).names > 0
    states = {row.position: row.state for row in exported_log(place)}
    assert states[first.position] == first.state
    assert states[second.position] == other != second.state
    assert findings(place) == []


def test_rows_that_name_who_was_erased_are_found_by_every_column() -> None:
    stream = identity_stream("edge")
    one = RefusedCommands("decentrl", "QUEUE", "FULL", GONE, 1, AT_MS, AT_MS)
    other = structs.replace(one, sender_did=STAYS)
    counted = RefusalsCounted(
        at_ms=AT_MS, command=COMMAND, edge="edge", since_ms=1, until_ms=2, refusals=[other, one]
    )
    listed = KeylistUpdated(at_ms=AT_MS, command=COMMAND, added=["k", GONE], claims=[1], removed=[])
    events = [
        counted,
        structs.replace(counted, refusals=[other]),
        structs.replace(message(), sender_did=GONE),
        KeyClaimed(at_ms=AT_MS, command=COMMAND, key="key", owner_did=GONE),
        listed,
        structs.replace(listed, added=[], removed=[GONE]),
        structs.replace(message(), sender_did=STAYS),
    ]
    stored = [encode(stream, 1, event) for event in events]
    rows = [LogRow(n, stream.bytes, 1, row.topic, row.state) for n, row in enumerate(stored)]
    table = to_table(rows, dict.fromkeys)
    assert rows_naming(table, GoneNames({stream_of(GONE): ALWAYS})) == {0, 2, 3, 4, 5}


def test_the_rows_of_the_new_life_of_who_came_back_are_not_looked_for_in_the_log() -> None:
    own, key = identity_stream(GONE), identity_stream("key:its key")
    row = encode(own, 1, message())
    streams = [own.bytes, key.bytes, identity_stream(STAYS).bytes] * 2
    rows = [LogRow(n, stream, 1, row.topic, row.state) for n, stream in enumerate(streams)]
    table = to_table(rows, dict.fromkeys)
    for until, found in ((2, {0, 1, 4}), (ALWAYS, {0, 1, 3, 4})):
        gone = GoneNames({own.bytes: until}, frozenset({own.bytes, key.bytes}))
        assert rows_of(table, gone) == found


def test_names_of_others_are_looked_for_in_every_column_that_may_have_one() -> None:
    """But in words that an identity chose for itself, and in a stream's own key or invitation."""
    for kind, filling in FILLING.items():
        hints = get_type_hints(kind, include_extras=True)
        columns = {
            column
            for column, filled in filling.columns.items()
            if NAME in getattr(hints[filled.field], "__metadata__", ())
        }
        if kind not in (ConnectionEstablished, PushDeviceSet, EventTagsUpdated):
            assert columns - {"key", "invitation_id"} <= set(COLUMNS_OF_NAMES), kind.__name__


def test_a_name_that_was_a_key_or_a_channel_of_another_leaves_the_export_as_it_left_the_log(
    tmp_path: Path,
) -> None:
    dsn, place = f"sqlite:{tmp_path / 'log.db'}", open_place(str(tmp_path / "export"))
    with closing(open_log(dsn)) as log:
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        run(mediator.host, unclaimed(STAYS, GrantMediation(connection())))
        (key,) = register(mediator, STAYS, GONE)
        (queued,) = run(mediator.host, unclaimed(STAYS, QueueEnvelopes(GONE, [b"envelope"])))
        assert isinstance(queued, EnvelopeQueued)
        event = PublishPublicEvent(GONE, "text", [GONE], 1, "signature", signature_valid=True)
        (published,) = run(mediator.host, submission(STAYS, event))
        assert isinstance(published, PublicEventAccepted)
        run(
            mediator.host,
            unclaimed(STAYS, RemoveMessages([queued.message_id], "acknowledged")),
            unclaimed(STAYS, UpdateKeylist([], [GONE])),
            unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)),
            submission(STAYS, DeletePublicEvents([published.event_id], GONE)),
        )
        export_all(log, place)
        columns = {where.rpartition(": ")[2] for where in places_of(place, GONE)}
        assert columns >= {"recipient_key", "channel_id", "tags"}
        erase(mediator, GONE)
        export_all(log, place)
        assert take_out(log, place).names > 0
        assert [row.topic for row in whole_log(log) if GONE.encode() in row.state] == []
    assert places_of(place, GONE) == []
    assert findings(place) == []


def test_rows_that_lose_a_name_are_counted_once_in_files_that_interleave(
    sqlite_log: EventLog, place: ExportPlace
) -> None:
    """As those of two days around midnight, where hosts have different clocks."""
    mediator = Mediator(sqlite_log)
    for did in (GONE, STAYS):
        settle(mediator, did)
    erase(mediator, GONE)
    export_all(sqlite_log, place)
    catalog = catalog_of(place)
    work = NameErasure(sqlite_log, erased_by=catalog.last)
    while work.step():
        pass
    gone = GoneNames(work.erased, frozenset(work.nameless))
    rewriting = Rewriting(place, sqlite_log, SIGNER, catalog.next_version)
    counted = 0
    for statement in catalog.statements:
        [file] = statement.manifest.files
        rows = read_table(place, file)
        halves = [rows.take(pa.array(range(day, rows.num_rows, 2))) for day in (0, 1)]
        files = [write_data(place, file.day, half, catalog.next_version) for half in halves]
        names = without_erased_of(rewriting, statement, gone).taken.names
        forged = structs.replace(statement.manifest, files=files, signature="")
        interleaving = sign_again(place, forged)
        assert without_erased_of(rewriting, interleaving, gone).taken.names == names
        counted += names
    assert counted > 3
