"""Proofs that are made from the files of an export, and checked without them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from actors.host.clock import system_clock
from eventstore.log.codec import decode
from eventstore.log.databases import folder_of_database
from eventstore.log.events import (
    SEAL_TOPIC,
    MessageQueued,
    MessagesDelivered,
    MessagesRemoved,
)
from eventstore.log.faults import Fault
from eventstore.log.merkle import HASH_BYTES
from eventstore.log.proof import (
    ProofRefused,
    ProvenConsistency,
    ProvenMessage,
    check_proof,
    proof_bytes,
)
from eventstore.log.public_key import PublicKey
from eventstore.log.signed_note import NoteRefused
from eventstore.log.streams import identity_stream
from eventstore.log.tree_head import TreeHead, read_head, sign_head
from eventstore.parquet.errors import Damage, ExportDamaged, ExportUnavailable
from eventstore.parquet.files import open_place
from eventstore.parquet.proofs import NotConsistent, consistency_in, message_proof
from eventstore.parquet.tree import CHECKPOINT, TREE, proven_consistency
from eventstore.parquet.write.exporter import Exporter
from eventstore.stores.open_log import open_log
from http_edge.crypto import signatures
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from tests.export.forging import TRUSTED, SampleExport
from tests.export.samples import (
    OWNER,
    SIGNED_BY,
    SIGNER,
    SMALL,
    Growing,
    catalog_of,
    whole_log,
)
from tests.export.test_cli import _mediator
from tests.histories import AGENTS, IDENTITIES, MEDIATOR
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]
OTHER = PublicKey(bytes(range(1, 33)))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleExport:
    return SampleExport(tmp_path_factory.mktemp("proofs"))


def lives_in(sample: SampleExport) -> dict[str, tuple[bytes, list[str], list[int]]]:
    """Stream, events and seals of each message in the log."""
    found: dict[str, tuple[bytes, list[str], list[int]]] = {}
    waiting: list[tuple[str, str]] = []
    with closing(open_log(sample.log_url)) as log:
        for row in whole_log(log):
            if row.topic == SEAL_TOPIC:
                for message_id, what in waiting:
                    found[message_id][1].append(what)
                    found[message_id][2].append(row.position)
                waiting = []
                continue
            match decode(row.topic, row.state):
                case MessageQueued(message_id=message_id):
                    found[message_id] = (row.stream, [], [])
                    waiting.append((message_id, "queued"))
                case MessagesDelivered(message_ids=ids):
                    waiting += [(one, "delivered") for one in ids]
                case MessagesRemoved(message_ids=ids):
                    waiting += [(one, "removed") for one in ids]
                case _:
                    pass
    return found


def seals_in(sample: SampleExport) -> list[int]:
    """The positions of all seals in the log."""
    with closing(open_log(sample.log_url)) as log:
        return [row.position for row in whole_log(log) if row.topic == SEAL_TOPIC]


STREAMS = {identity_stream(did).bytes: did for did in (*IDENTITIES, *AGENTS)}


def test_the_life_of_every_message_is_proven(sample: SampleExport) -> None:
    catalog = catalog_of(sample.place)
    lives = lives_in(sample)
    assert {what for _, events, _ in lives.values() for what in events} == {
        *("queued", "delivered", "removed")
    }
    for message_id, (stream, events, seals) in lives.items():
        proof = message_proof(sample.place, catalog, TRUSTED, message_id, STREAMS[stream], seals)
        proven = check_proof(proof_bytes(proof), TRUSTED)
        assert isinstance(proven, ProvenMessage)
        assert [event.event for event in proven.events] == events
        assert [event.position for event in proven.events] == seals
        assert proven.head == sample.head_of(sample.manifests[-1])


def test_what_was_damaged_is_not_handed_out(sample: SampleExport) -> None:
    catalog = catalog_of(sample.place)
    message_id, (stream, _, seals) = next(iter(lives_in(sample).items()))
    made = (message_id, STREAMS[stream], seals)
    prove = partial(message_proof, sample.place, catalog)
    with pytest.raises(ExportDamaged, match="not signed by"):
        prove(OTHER, *made)
    with pytest.raises(ExportDamaged, match="no seal is at position") as refused:
        prove(TRUSTED, message_id, STREAMS[stream], [seals[0] - 1])
    assert refused.value.damage is Damage.CHANGED
    with pytest.raises(ExportDamaged, match="cannot prove anything"):
        prove(TRUSTED, "another", STREAMS[stream], seals)
    tiles = [path for path in sample.paths if path.startswith(f"{TREE}/tile/0/000")]
    with sample.tampered():
        for path in tiles:
            sample.put(path, bytes(len(sample.contents[path])))
        with pytest.raises(ExportDamaged, match="is not leaf"):
            prove(TRUSTED, *made)
    with sample.tampered():
        for path in tiles:
            sample.remove(path)
        with pytest.raises(ExportDamaged, match="missing"):
            prove(TRUSTED, *made)
    with sample.tampered():
        sample.put_back_head(sample.manifests[0])
        for behind in seals_in(sample)[sample.head_of(sample.manifests[0]).size :]:
            with pytest.raises(ExportUnavailable, match=rf"^{CHECKPOINT}: .* try again soon"):
                prove(TRUSTED, message_id, STREAMS[stream], [behind])
        sample.remove(CHECKPOINT)
        with pytest.raises(ExportUnavailable, match="no signed head yet"):
            prove(TRUSTED, *made)


def test_every_head_is_shown_to_be_the_beginning_of_every_later_one(
    sample: SampleExport,
) -> None:
    target = sample.place.root
    notes = [sample.note_of(sample.head_of(manifest)) for manifest in sample.manifests]
    for number, old in enumerate(notes):
        for new in notes[number:]:
            proof = consistency_in(target, old, new, None)
            proven = check_proof(proof_bytes(proof), TRUSTED)
            assert isinstance(proven, ProvenConsistency)
            assert proven.old == read_head(old)
    with pytest.raises(NotConsistent, match="are not the first"):
        consistency_in(target, notes[-1], notes[0], TRUSTED)
    last = sample.head_of(sample.manifests[-1])
    forked = sample.note_of(last._replace(size=last.size - 1))
    with pytest.raises(NotConsistent, match="are not the first"):
        consistency_in(target, forked, notes[-1], TRUSTED)
    later = sample.note_of(last._replace(size=last.size + 1))
    with pytest.raises(NotConsistent, match="the export ends with"):
        consistency_in(target, notes[0], later, TRUSTED)
    first = sample.note_of(last._replace(size=1))
    with sample.tampered():
        sample.remove(CHECKPOINT)
        with pytest.raises(NotConsistent, match="ends with 0 seals"):
            consistency_in(target, first, first, TRUSTED)
    with pytest.raises(NoteRefused):
        consistency_in(target, notes[0], notes[-1], OTHER)
    with pytest.raises(ExportUnavailable, match="there is no export here"):
        consistency_in(f"{target}/nowhere", notes[0], notes[-1], None)


@pytest.mark.parametrize(
    ("old", "new", "outcomes"),
    [(0, -1, {"not needed", Damage.CHANGED.value}), (1, -2, {Damage.CHANGED.value})],
)
def test_a_damaged_tile_is_damage_and_accuses_no_head(
    sample: SampleExport, old: int, new: int, outcomes: set[str]
) -> None:
    notes = [sample.note_of(sample.head_of(manifest)) for manifest in sample.manifests]
    found = Counter[str]()
    for path in (path for path in sample.paths if path.startswith(f"{TREE}/tile/")):
        for start in range(0, len(sample.contents[path]), 4 * HASH_BYTES):
            with sample.tampered():
                changed = bytearray(sample.contents[path])
                changed[start] ^= 1
                sample.put(path, bytes(changed))
                try:
                    proof = consistency_in(sample.place.root, notes[old], notes[new], TRUSTED)
                    check_proof(proof_bytes(proof), TRUSTED)
                    found["not needed"] += 1
                except ExportDamaged as error:
                    found[error.damage.value] += 1
    assert found.keys() == outcomes


def test_what_checks_a_head_by_tiles_that_were_changed_names_them(sample: SampleExport) -> None:
    """As do a check that continues an earlier one, and an exporter before it signs."""
    heads = [sample.head_of(manifest) for manifest in sample.manifests]
    named = 0
    for path in (path for path in sample.paths if path.startswith(f"{TREE}/tile/")):
        with sample.tampered():
            sample.put(path, bytes(len(sample.contents[path])))
            for old in heads[:-1]:
                try:
                    assert proven_consistency(sample.place, old, heads[-1]) is not None
                except ExportDamaged as error:
                    named += error.damage is Damage.CHANGED
    assert named


def test_every_head_that_was_ever_signed_is_continued_and_no_other_one_is(
    sample: SampleExport,
) -> None:
    for key in (TRUSTED, None):
        held = {m.path: sample.note_of(sample.head_of(m)) for m in sample.manifests}
        assert sample.check(key, witnessed=held)[0] == []
    last = sample.head_of(sample.manifests[-1])
    wrong = {
        "forked": (last._replace(root=bytes(32)), Fault.WRONG_TREE),
        "forked earlier": (last._replace(size=last.size - 1), Fault.WRONG_TREE),
        "later": (last._replace(size=last.size + 1), Fault.MISSING_HEAD),
        "of another": (last._replace(origin="did:web:other.test"), Damage.MISPLACED),
        "of no database": (last._replace(origin=f"{MEDIATOR}/db-x"), Damage.MISPLACED),
    }
    notes = {name: sample.note_of(head) for name, (head, _) in wrong.items()}
    notes["changed"] = sample.note_of(last).replace(b"\n", b"\n1", 1)
    notes["no note"] = b""
    findings, summary = sample.check(witnessed=notes)
    expected = {name: fault for name, (_, fault) in wrong.items()}
    unsigned = dict.fromkeys(("changed", "no note"), Damage.BAD_SIGNATURE)
    assert {f.path: f.fault for f in findings} == expected | unsigned
    assert summary.tree == sample.manifests[-1].tree


def test_consistency_on_the_command_line(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data") as (_, growing):
        run("export", "--data-dir", "data", "--to", "out")
        shutil.copy("out/tree/checkpoint", "old")
        growing.grow(5)
        run("export", "--data-dir", "data", "--to", "out")
        shutil.copy("out/tree/checkpoint", "new")
        key = json.loads(run("keys", "--data-dir", "data", "--json").out)["signing_key"]
        shown = ("proof", "consistency", "old", "new", "--from", "out", "--public-key", key)
        ran = run(*shown, "--proof", "proof.json", "--json")
        said = json.loads(ran.out)
        assert (ran.code, said["old"]["size"], said["new"]["size"]) == (Exit.OK, 20, 30)
        assert "newer head continues the older one" in run(*shown).out
        unwritten = run(*shown, "--proof", "none/p")
        assert (unwritten.code, "none/p cannot be written" in unwritten.err) == (Exit.USAGE, True)
        assert "--proof" in unwritten.err
        shutil.rmtree("out")
        checked = run("proof", "check", "proof.json", "--public-key", key, "--json")
        assert (checked.code, json.loads(checked.out)) == (Exit.OK, said)


def test_two_logs_that_were_signed_are_a_finding(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        keys = load_or_create(tmp_path / "data" / "mediator-keys.json")
        head = TreeHead("did:web:mediator.test", 7, bytes(32))
        forked = sign_head(
            head, PublicKey(keys.signing_public), partial(signatures.sign, keys.signing_seed)
        )
        Path("forked").write_bytes(forked)
        new = "out/tree/checkpoint"
        for options in ((), ("--json",)):
            ran = run("proof", "consistency", "forked", new, "--from", "out", *options)
            assert (ran.code, "not-consistent" in ran.out) == (Exit.FINDING, True)
        other = run("proof", "consistency", new, new, "--from", "out", "--public-key", OTHER.text)
        assert (other.code, "bad-head" in other.out) == (Exit.FINDING, True)
        no_note = "data/mediator-keys.json"
        for old, newer, which in ((no_note, new, "older"), (new, no_note, "newer")):
            ran = run("proof", "consistency", old, newer, "--from", "out")
            assert (ran.code, "bad-head" in ran.out) == (Exit.FINDING, True)
            assert f"the {which} head: not a text" in ran.out
        assert run("proof", "consistency", new, new).code == Exit.USAGE
        lost = run("proof", "consistency", new, new, "--from", "nowhere")
        assert lost.code == Exit.UNREACHABLE
        shutil.rmtree("out/tree/tile")
        same = run("proof", "consistency", new, new, "--from", "out")
        assert same.code == Exit.OK
    with pytest.raises(ProofRefused):
        check_proof(forked, None)
    assert open_place("out").exists()


def test_heads_of_a_database_are_compared_in_the_export_of_that_database(tmp_path: Path) -> None:
    target = str(tmp_path / "exports")
    for number in range(2):
        notes: list[bytes] = []
        folder = folder_of_database(target, number)
        place, owner = open_place(folder), OWNER._replace(database=number)
        with (
            closing(open_log(f"sqlite:{tmp_path / str(number)}.db")) as log,
            closing(Exporter(log, place, owner, SIGNER, SMALL, clock=system_clock)) as export,
        ):
            growing = Growing(log)
            for transactions in (1 + number, 2):
                growing.grow(transactions)
                while export.step():
                    pass
                assert export.head_note is not None
                notes.append(export.head_note)
        # By the place of all databases, and by that of this one alone.
        for source in (target, folder):
            proven = check_proof(
                proof_bytes(consistency_in(source, notes[0], notes[1], SIGNED_BY)), SIGNED_BY
            )
            assert isinstance(proven, ProvenConsistency)
            assert (proven.old.size, proven.new.size) == (2 + 2 * number, 6 + 2 * number)
