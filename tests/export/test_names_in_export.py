"""Names of who was erased leave an export and an archive; every seal and every look-up holds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors.archive.departure import Archived
from actors.core.account_commands import ReleaseKey
from actors.core.commands import (
    AcknowledgeMessages,
    EraseIdentity,
    QueueMessage,
    SaveContract,
    UpdateKeylist,
)
from eventstore.log import seal
from eventstore.log.codec import decode
from eventstore.log.event_log import ChangedRow, EventLog
from eventstore.log.faults import Fault
from eventstore.log.name_erasure import NameErasure
from eventstore.log.redaction import digest_of, renamed_state
from eventstore.log.seam import SEAM, Sum, read_seam, row_entry
from eventstore.log.streams import erased_name, identity_stream
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.manifest import DataFile
from eventstore.parquet.rows import read_table
from eventstore.parquet.schema import SCHEMA
from eventstore.parquet.verify.export import verify_export
from eventstore.parquet.verify.findings import ExportFinding
from eventstore.parquet.verify.mark import VerifiedMarks
from eventstore.parquet.write import compaction
from eventstore.parquet.write.compaction import TakenOut
from eventstore.parquet.write.erasing import COLUMNS_OF_NAMES
from eventstore.parquet.write.step import Bounds
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.server.archive_round import archive_once
from http_edge.settings.sections import Export
from tests.contract.test_erasure_contract import erase, settle
from tests.contract.test_name_erasure_contract import (
    message_ids,
    naming,
    register,
    take_out_names,
)
from tests.contract.test_retention_contract import DAY_S, Mediator
from tests.export.leaving import (
    BOUNDS,
    KEYS,
    assert_whole,
    faults_in,
    leave,
    settings_of,
    states_of,
    streams_of,
)
from tests.export.samples import (
    SIGNED_BY,
    SIGNER,
    catalog_of,
    contents,
    export_all,
    exported_log,
    exporter,
    findings,
    whole_log,
)
from tests.histories import CROWD, History, random_script
from tests.log.raw_sql import run_sql
from tests.log.samples import AT_MS, earlier_seal
from tests.log.stored import faults
from tests.unit.actors.given import NOW_S, contract, run, submission, unclaimed

GONE: Final = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
STAYS: Final = "did:x:stays"
STEPS: Final = Bounds(rows_max=30, bytes_max=1_000_000)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[EventLog]:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as opened:
        yield opened


@pytest.fixture
def mediator(log: EventLog, place: ExportPlace) -> Mediator:
    """Two identities that have written to each other, and all of it is exported."""
    made = Mediator(log)
    for did in (GONE, STAYS):
        settle(made, did)
    for to, sender in ((STAYS, GONE), (GONE, STAYS)):
        for number in range(10):
            signed = SaveContract(contract(to, sender, NOW_S + DAY_S))
            message = QueueMessage(sender, b"%d" % number)
            run(made.host, submission(to, signed), submission(to, message, sender=sender))
    export_all(log, place, STEPS)
    return made


def take_out(log: EventLog, place: ExportPlace) -> TakenOut:
    with closing(exporter(log, place, STEPS)) as export:
        taken = export.take_out_erased()
        export.sweep()
    return taken


def acknowledge(mediator: Mediator, did: str) -> None:
    run(mediator.host, submission(did, AcknowledgeMessages([*message_ids(mediator, did)])))


def end_contracts(mediator: Mediator) -> None:
    mediator.pass_s(DAY_S + 400)
    while mediator.expiry.step():
        pass


def places_of(place: ExportPlace, name: str) -> list[str]:
    """Where a name stands: columns and bounds of data files, and every other file."""
    found: list[str] = []
    for path, data in contents(place).items():
        if not path.endswith(".parquet"):
            found += [path] * (name.encode() in data)
            continue
        file = pq.ParquetFile(pa.BufferReader(data))
        for column in file.schema_arrow.names:
            values = repr(file.read(columns=[column]).to_pylist())
            found += [f"{path}: {column}"] * (name in values)
        found += [f"{path}: footer"] * (name in repr(file.metadata.to_dict()))
    return found


def test_who_was_erased_stands_in_no_file_of_an_export(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    assert places_of(place, GONE)
    erase(mediator, GONE)
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    tree = catalog_of(place).statements[-1].manifest.tree
    positions = [row.position for row in exported_log(place)]
    # Not before an auditor of the export can see that it was erased.
    assert take_out(log, place).names == 0
    export_all(log, place, STEPS)
    assert take_out(log, place).names > 20
    assert places_of(place, GONE) == []
    assert places_of(place, STAYS)
    assert places_of(place, erased_name(GONE))
    assert findings(place) == []
    assert [row.state for row in exported_log(place)] == [row.state for row in whole_log(log)]
    assert [row.position for row in exported_log(place)][: len(positions)] == positions
    assert [s.manifest.tree for s in catalog_of(place).statements if s.manifest.tree == tree]
    assert faults(log) == []
    assert take_out(log, place) == TakenOut()


def test_a_mark_of_what_was_verified_has_no_names(
    mediator: Mediator, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    folder = tmp_path / "verified"
    marks = VerifiedMarks(open_place(str(folder)), SIGNER)
    for _ in range(2):
        assert [
            out
            for out in verify_export(place, SIGNED_BY, marks=marks)
            if isinstance(out, ExportFinding)
        ] == []
        written = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
        assert len(written) > 1
        assert not any(did.encode() in content for did in (GONE, STAYS) for content in written)
        acknowledge(mediator, STAYS)
        export_all(log, place, STEPS)


def test_a_name_leaves_verified_rows_after_its_erasure_was_verified(
    mediator: Mediator, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    marks = VerifiedMarks(open_place(str(tmp_path / "verified")), SIGNER)
    erase(mediator, GONE)
    for _ in range(2):
        export_all(log, place, STEPS)
        assert take_out(log, place).names > 0
        assert len([*verify_export(place, SIGNED_BY, marks=marks)]) == 1
        acknowledge(mediator, STAYS)


def test_a_name_that_something_living_refers_to_stays_in_the_export_too(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    take_out(log, place)
    waiting = message_ids(mediator, STAYS)
    named = [row for row in exported_log(place) if GONE.encode() in row.state]
    assert len([row for row in named if row.topic == "message-queued.2"]) == len(
        [sender for sender in waiting.values() if sender == GONE]
    )
    assert findings(place) == []
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    export_all(log, place, STEPS)
    take_out(log, place)
    assert places_of(place, GONE) == []
    assert findings(place) == []


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_key_called_by_the_name_of_who_was_erased_has_it_as_long_as_it_is_registered(
    mediator: Mediator, log: EventLog, place: ExportPlace, *, is_given_up: bool
) -> None:
    (key,) = register(mediator, STAYS, GONE)
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    export_all(log, place, STEPS)
    erase(mediator, GONE)
    if is_given_up:
        run(mediator.host, unclaimed(STAYS, UpdateKeylist([], [GONE])))
        run(mediator.host, unclaimed(f"key:{GONE}", ReleaseKey(STAYS, key.claim)))
    export_all(log, place, STEPS)
    take_out(log, place)
    # What is least or greatest in a file stands in its footer, too.
    found = {found.rpartition(": ")[2] for found in places_of(place, GONE)} - {"footer"}
    assert found == (set() if is_given_up else {"identity", "state", "key", "keys_added"})
    assert findings(place) == []


def test_an_export_that_lacks_a_name_of_who_was_not_erased_is_found(
    mediator: Mediator, log: EventLog, tmp_path: Path
) -> None:
    row = next(row for row in whole_log(log) if row.topic == "identity-registered.1")
    state = renamed_state(type(decode(row.topic, row.state)), row.state, digest_of)
    assert state is not None
    log.change_rows([ChangedRow(row.stream, row.position, row.state, state)])
    other = open_place(str(tmp_path / "other"))
    export_all(log, other, STEPS)
    assert {found.fault for found in findings(other)} == {Fault.MISSING_NAME}


def names_of(place: ExportPlace, stream: bytes) -> dict[int, str]:
    """The name that each exported row of a stream has, by version."""
    table = pa.concat_tables(
        pq.read_table(pa.BufferReader(data))
        for path, data in contents(place).items()
        if path.startswith("events/") and path.endswith(".parquet")
    )
    columns = (table[name].to_pylist() for name in ("stream", "version", "identity"))
    return {version: name for one, version, name in zip(*columns, strict=True) if one == stream}


def test_rows_of_who_came_back_are_found_under_its_name(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    take_out(log, place)
    mediator.settle(GONE)
    export_all(log, place, STEPS)
    assert findings(place) == []
    names = names_of(place, identity_stream(GONE).bytes)
    assert set(names.values()) == {GONE, erased_name(GONE)}
    assert names[max(names)] == GONE


def test_names_leave_an_archive_of_rows_that_have_left_the_log(
    mediator: Mediator, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    for did in (STAYS, GONE):
        acknowledge(mediator, did)
    end_contracts(mediator)
    seam = leave(log, place)
    assert seam.left > 20
    before = exported_log(place)
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    assert take_out_names(log) > 10
    assert naming(log, GONE.encode()) == []
    # A row is the same in log and archive, with its name or without.
    assert leave(log, place).seam > seam.seam
    assert take_out(log, place).names > 20
    assert places_of(place, GONE) == []
    assert findings(place) == []
    assert_whole(log, f"sqlite:{tmp_path / 'log.db'}")
    after = exported_log(place)[: len(before)]
    assert [row.position for row in after] == [row.position for row in before]
    lost = [row for row, old in zip(after, before, strict=True) if row.state != old.state]
    there = {row.position for row in whole_log(log)}
    assert [row.topic for row in lost if row.position not in there].count("message-queued.2") > 10


def test_a_pass_that_is_killed_anywhere_leaves_log_and_export_that_verify(
    mediator: Mediator, log: EventLog, place: ExportPlace
) -> None:
    erase(mediator, GONE)
    acknowledge(mediator, STAYS)
    end_contracts(mediator)
    export_all(log, place, STEPS)
    steps = len(catalog_of(place).statements)
    assert steps > 3
    for number in range(steps):

        def die(_position: int, _end: int, left: list[int] = [number]) -> None:  # noqa: B006
            if not left[0]:
                raise KilledError
            left[0] -= 1

        with pytest.raises(KilledError), closing(exporter(log, place, STEPS)) as export:
            export.take_out_erased(die)
        assert findings(place) == []
        assert faults(log) == []
    take_out(log, place)
    assert places_of(place, GONE) == []
    assert findings(place) == []


class KilledError(Exception):
    """Where a pass ends."""


def test_rows_that_an_earlier_release_sealed_keep_their_names_behind_a_seam_too(
    log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(seal, "seal", earlier_seal)
        mediator = Mediator(log)
        settle(mediator, GONE)
        settle(mediator, STAYS)
        acknowledge(mediator, GONE)
        assert leave(log, place).left > 0
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    before = [row.state for row in exported_log(place)]
    take_out(log, place)
    assert [row.state for row in exported_log(place)] == before
    assert findings(place) == []
    assert faults_in(log) == []


def test_a_seam_of_an_earlier_release_goes_on_over_rows_as_they_stand(
    mediator: Mediator, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    acknowledge(mediator, STAYS)
    before = leave(log, place)
    seam = read_seam(log.settings()[SEAM])
    stayed = [row for row in whole_log(log) if row.position <= seam.position]
    said = msgspec.to_builtins(
        msgspec.structs.replace(
            seam, format=1, stayed=Sum().plus(row_entry(row, seam.position) for row in stayed)
        )
    )
    del said["whole_to"]
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    signature = signatures.sign(KEYS.signing_seed, b"poste seam of a log\n" + text.encode())
    value = f"{text}\n{signature.hex()}".encode().hex()
    url = f"sqlite:{tmp_path / 'log.db'}"
    run_sql(url, f"UPDATE settings SET value = x'{value}' WHERE name = x'{SEAM.encode().hex()}'")
    assert read_seam(log.settings()[SEAM]).whole_to == before.seam
    assert_whole(log, url)
    erase(mediator, GONE)
    end_contracts(mediator)
    export_all(log, place, STEPS)
    take_out(log, place)
    assert_whole(log, url)
    assert findings(place) == []
    whole = {row.position: row.state for row in stayed}
    assert [whole.get(row.position, row.state) for row in whole_log(log)] == [
        row.state for row in whole_log(log)
    ]
    after = leave(log, place)
    assert after.seam > before.seam
    assert read_seam(log.settings()[SEAM]).whole_to == before.seam
    assert_whole(log, url)


def test_a_round_of_archiving_takes_names_out_though_nothing_is_old(tmp_path: Path) -> None:
    settings = settings_of(tmp_path / "data", export=Export(replaced_kept_s=0))
    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", str(settings.shards))
        mediator = Mediator(log)
        for did in (GONE, STAYS):
            settle(mediator, did)
        archive = open_place(settings.archive_place)

        def one_round() -> Archived | None:
            return archive_once(
                settings,
                is_checked=False,
                takes_out_erased=True,
                prunes=False,
                clock=lambda: AT_MS,
            )

        assert one_round() is None
        erase(mediator, GONE)
        assert naming(log, GONE.encode())
        assert one_round() is not None
        assert naming(log, GONE.encode()) == []
        assert one_round() is not None  # what was replaced goes with the next one
        assert places_of(archive, GONE) == []
        assert findings(archive) == []
        assert faults(log) == []


def test_the_archived_state_of_who_is_erased_loses_its_name_though_no_row_leaves(
    mediator: Mediator, log: EventLog, place: ExportPlace, tmp_path: Path
) -> None:
    for did in (STAYS, GONE):
        acknowledge(mediator, did)
    end_contracts(mediator)
    stream = identity_stream(GONE)
    leave(log, place)
    before = log.load_archived_state(stream)
    assert before is not None
    assert GONE.encode() in before.state
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    take_out(log, place)
    assert leave(log, place).states > 0
    after = log.load_archived_state(stream)
    assert after is not None
    assert after.version > before.version
    assert GONE.encode() not in after.state
    assert leave(log, place).left == 0
    assert log.load_archived_state(stream) == after
    assert_whole(log, f"sqlite:{tmp_path / 'log.db'}")


def test_files_are_read_for_names_once_unless_some_stay(
    mediator: Mediator, log: EventLog, place: ExportPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def reading(place: ExportPlace, file: DataFile, columns: Sequence[str] = SCHEMA.names) -> Any:
        read.extend([file.path] * (columns is COLUMNS_OF_NAMES))
        return read_table(place, file, columns)

    monkeypatch.setattr(compaction, "read_table", reading)
    erase(mediator, GONE)
    export_all(log, place, STEPS)
    with closing(exporter(log, place, STEPS)) as export:
        assert export.take_out_erased().names > 0
        every = set(read)
        read.clear()
        assert export.take_out_erased() == TakenOut()
        again = set(read)
        assert again
        assert len(again) < len(every)
        acknowledge(mediator, STAYS)
        end_contracts(mediator)
        while export.step():
            pass
        assert export.take_out_erased().names > 0
        read.clear()
        assert export.take_out_erased() == TakenOut()
        assert read == []
        paths = {statement.manifest.path for statement in export._catalog.statements}
        assert set(export._nameless) == paths  # of replaced files nothing is remembered
    assert findings(place) == []
    assert naming(log, GONE.encode()) == []


@pytest.mark.parametrize("seed", range(5))
def test_states_read_models_and_checks_are_the_same_whatever_names_left(
    log: EventLog, place: ExportPlace, tmp_path: Path, seed: int
) -> None:
    history = History(log)
    changed = 0
    for number in range(4):
        history.play(random_script(10 * seed + number, 120))
        _erase_one(history, CROWD.identities[number % len(CROWD.identities)])
        export_all(log, place, BOUNDS)
        states = states_of(log, streams_of(log))
        changed += take_out(log, place).names
        again = NameErasure(log)
        while again.step():
            pass
        assert again.changed == 0
        kept = [stream for stream in states if stream.bytes not in again.nameless]
        assert states_of(log, kept) == {stream: states[stream] for stream in kept}
        assert_whole(log, f"sqlite:{tmp_path / 'log.db'}")
        assert findings(place) == []
        assert [row.state for row in exported_log(place)] == [r.state for r in whole_log(log)]
    assert changed > 0


def _erase_one(history: History, did: str) -> None:
    for _ in range(60):
        history._ask(did, did, EraseIdentity("operator", 8))
    history.commit()
