"""Proofs that are handed over: what holds is shown, and nothing else."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from eventstore.log.event_log import EventLog
from eventstore.log.events import MessagesDelivered
from eventstore.log.merkle import consistency_proof
from eventstore.log.proof import (
    ConsistencyProof,
    MessageProof,
    ProofFault,
    ProofRefused,
    ProvenConsistency,
    ProvenMessage,
    ProvenRow,
    base64_of,
    check_proof,
    proof_bytes,
    read_proof,
)
from eventstore.log.public_key import PublicKey
from eventstore.log.redaction import redacted_state
from eventstore.log.streams import erased_name
from eventstore.log.tree_head import TreeHead, read_head, sign_head
from eventstore.stores.open_log import open_log
from tests.log.proofs import KEY, MESSAGE_ID, ORIGIN, SIGN, Sealed, filled
from tests.log.samples import (
    AT_MS,
    OTHER_DID,
    OWNER,
    OWNER_DID,
    SealedWriter,
    message,
    removed,
)

OTHER_KEY = PublicKey(bytes(range(1, 33)))
GOLDEN = Path(__file__).parents[1] / "golden" / "proofs"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sealed]:
    folder = tmp_path_factory.mktemp("proofs")
    log: EventLog
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        yield filled(log)


def fault_of(proof: MessageProof | ConsistencyProof | bytes) -> ProofFault:
    content = proof if isinstance(proof, bytes) else proof_bytes(proof)
    with pytest.raises(ProofRefused) as refused:
        check_proof(content, KEY)
    return refused.value.fault


def test_the_life_of_a_message_is_shown_with_its_seals(sealed: Sealed) -> None:
    proven = check_proof(proof_bytes(sealed.message_proof()), KEY)
    assert isinstance(proven, ProvenMessage)
    assert [(e.event, e.by, e.at_ms - AT_MS, e.sender_did, e.partition) for e in proven.events] == [
        ("queued", "decentrl", 0, OTHER_DID, "shard-0"),
        ("delivered", "pickup/2.0", 1, "", "shard-0"),
        ("removed", "acknowledged", 2, "", "shard-0"),
    ]
    assert (proven.message_id, proven.identity, proven.key) == (MESSAGE_ID, OWNER_DID, KEY)
    assert proven.head == read_head(sealed.note(sealed.size).encode())
    assert proven.rows == 2 + 1 + 1


def test_a_head_is_shown_to_be_of_a_later_tree(sealed: Sealed) -> None:
    for old in range(sealed.size + 1):
        proven = check_proof(proof_bytes(sealed.consistency_proof(old)), KEY)
        assert isinstance(proven, ProvenConsistency)
        assert (proven.old.size, proven.new.size) == (old, sealed.size)


_KINDS = ["message-proof", "consistency-proof"]


@pytest.mark.parametrize("rows", ["", ".apart"], ids=["with-contents", "sealed-as-they-stand"])
@pytest.mark.parametrize("kind", _KINDS)
def test_proofs_over_rows_of_earlier_releases_are_read_as_ever(kind: str, rows: str) -> None:
    check_proof((GOLDEN / f"{kind}.1{rows}.json").read_bytes(), KEY)


@pytest.mark.parametrize("name", [f"{kind}.1.redacted.json" for kind in _KINDS])
def test_proofs_are_written_and_read_as_ever(sealed: Sealed, name: str) -> None:
    golden = (GOLDEN / name).read_bytes()
    check_proof(golden, KEY)
    made = sealed.message_proof() if "message" in name else sealed.consistency_proof(5)
    assert proof_bytes(made) == golden


@pytest.mark.parametrize("name", ["message-proof.1.json", "consistency-proof.1.json"])
@pytest.mark.parametrize("bit", range(8))
def test_no_bit_of_a_proof_can_be_changed(name: str, bit: int) -> None:
    golden = (GOLDEN / name).read_bytes()
    for place in range(len(golden)):
        changed = bytearray(golden)
        changed[place] ^= 1 << bit
        with pytest.raises(ProofRefused):
            check_proof(bytes(changed), None)


@given(st.data())
def test_no_byte_of_a_proof_can_be_changed_removed_or_added(data: st.DataObject) -> None:
    golden = (GOLDEN / "message-proof.1.json").read_bytes()
    place = data.draw(st.integers(0, len(golden)))
    length = data.draw(st.integers(0, min(40, len(golden) - place)))
    new = data.draw(st.binary(max_size=40).filter(lambda b: b != golden[place : place + length]))
    with pytest.raises(ProofRefused):
        check_proof(golden[:place] + new + golden[place + length :], None)


@given(st.binary(max_size=100) | st.text(max_size=100).map(lambda text: text.encode()))
@example(b"[]")
@example(b'{"format":[]}')
@example(b'{"format":"poste-message-proof/1"}')
@example(b'{"format":"poste-message-proof/2"}')
@example(b"[" * 100_000)
@example(b'{"a":"\\ud800"}')
def test_whatever_else_is_refused(content: bytes) -> None:
    assert fault_of(content) in {ProofFault.MALFORMED, ProofFault.UNKNOWN_FORMAT}


@pytest.mark.parametrize("change", ["ff", "00", "cut", "none"])
def test_a_stream_of_another_length_is_refused(sealed: Sealed, change: str) -> None:
    proof = sealed.message_proof()
    for number, one in enumerate(proof.seals):
        for place, row in enumerate(one.rows):
            stream = {"cut": row.stream[:-2], "none": ""}.get(change, row.stream + change)
            rows = [*one.rows[:place], replace(row, stream=stream), *one.rows[place + 1 :]]
            seals = [*proof.seals[:number], replace(one, rows=rows), *proof.seals[number + 1 :]]
            assert fault_of(replace(proof, seals=seals)) is ProofFault.MALFORMED


def test_a_proof_by_another_key_is_not_that_of_the_key_that_was_named(sealed: Sealed) -> None:
    content = proof_bytes(sealed.message_proof())
    with pytest.raises(ProofRefused, match=f"made with the key {KEY.text}"):
        check_proof(content, OTHER_KEY)
    assert check_proof(content, None) == check_proof(content, KEY)
    named = replace(sealed.message_proof(), public_key=OTHER_KEY.verifier_key(ORIGIN))
    assert fault_of(proof_bytes(named)) is ProofFault.OTHER_KEY
    with pytest.raises(ProofRefused, match="bad-head"):
        check_proof(proof_bytes(named), None)
    other_name = replace(named, public_key=KEY.verifier_key("did:web:other.test"))
    assert fault_of(other_name) is ProofFault.MALFORMED
    assert fault_of(replace(named, public_key="none")) is ProofFault.MALFORMED


def test_a_head_that_was_not_signed_proves_nothing(sealed: Sealed) -> None:
    proof = sealed.message_proof()
    text, _, signature = proof.head.rpartition("\n\n")
    origin, size, root = text.split("\n")
    forged = f"{origin}\n{int(size) + 1}\n{root}\n\n{signature}"
    for head in (forged, "", "\ud7ff", proof.head[:-1]):
        assert fault_of(replace(proof, head=head)) is ProofFault.BAD_HEAD


def test_rows_that_were_not_sealed_so_prove_nothing(sealed: Sealed) -> None:
    proof = sealed.message_proof()
    first = proof.seals[0]
    row = first.rows[0]
    other = replace(row, state=base64_of(base64.b64decode(row.state) + b"\x00"))
    for rows in (
        [],
        [row],
        [*first.rows, row],
        first.rows[::-1],
        [other, *first.rows[1:]],
        [replace(row, version=row.version + 1), *first.rows[1:]],
        [replace(row, version=2**40), *first.rows[1:]],
        [replace(row, topic="message-queued.1"), *first.rows[1:]],
        [replace(row, stream="ff" * 16), *first.rows[1:]],
    ):
        changed = replace(proof, seals=[replace(first, rows=rows), *proof.seals[1:]])
        assert fault_of(changed) is ProofFault.BROKEN_SEAL
    for state in (
        "",
        base64_of(b"\xc1"),
        row.state,
        base64_of(base64.b64decode(first.state) + b"0"),
    ):
        changed = replace(proof, seals=[replace(first, state=state), *proof.seals[1:]])
        assert fault_of(changed) is ProofFault.BROKEN_SEAL


def test_a_seal_that_is_not_in_the_tree_proves_nothing(sealed: Sealed) -> None:
    proof = sealed.message_proof()
    first, *others = proof.seals
    for change in (
        {"position": first.position - 1},
        {"version": first.version + 1},
        {"version": -1},
        {"index": first.index + 1},
        {"index": -1},
        {"index": sealed.size},
        {"inclusion": first.inclusion[:-1]},
        {"inclusion": [*first.inclusion, first.inclusion[0]]},
        {"inclusion": [base64_of(bytes(32)), *first.inclusion[1:]]},
    ):
        changed: Any = replace(first, **change)
        assert fault_of(replace(proof, seals=[changed, *others])) is ProofFault.NOT_IN_TREE
    later = replace(proof, head=sealed.note(first.index))
    assert fault_of(later) is ProofFault.NOT_IN_TREE


def test_a_life_that_ends_before_it_begins_is_none(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        writer = SealedWriter(log)
        writer.commit({"shard-0": [(OWNER, removed([2], MESSAGE_ID))]})
        writer.commit({"shard-0": [(OWNER, message(b"later", MESSAGE_ID))]})
        assert fault_of(Sealed(log).message_proof()) is ProofFault.OTHER_MESSAGE


def test_what_happened_to_another_message_of_the_queue_is_not_its_life(tmp_path: Path) -> None:
    ids = ["another"]
    delivered = MessagesDelivered(at_ms=AT_MS, command=b"", message_ids=ids, channel="pickup/2.0")
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        writer = SealedWriter(log)
        for event in (message(b"one", MESSAGE_ID), delivered, removed([2], *ids)):
            writer.commit({"shard-0": [(OWNER, event)]})
        sealed = Sealed(log)
    proof, others = sealed.message_proof(), sealed.message_proof("another").seals
    assert len(others) == 2
    for other in others:
        changed = replace(proof, seals=[*proof.seals, other])
        assert fault_of(changed) is ProofFault.OTHER_MESSAGE


def test_rows_of_another_message_or_identity_are_not_its_life(sealed: Sealed) -> None:
    proof = sealed.message_proof()
    for changed in (
        replace(proof, message_id="message-4"),
        replace(proof, identity=OTHER_DID),
        replace(proof, seals=[]),
        replace(proof, seals=proof.seals[1:]),
        replace(proof, seals=[*proof.seals[:2], *sealed.message_proof("later").seals]),
    ):
        assert fault_of(changed) is ProofFault.OTHER_MESSAGE
    assert fault_of(replace(proof, seals=proof.seals[::-1])) is ProofFault.MALFORMED
    assert fault_of(replace(proof, seals=proof.seals[:1] * 2)) is ProofFault.MALFORMED
    # What happened later can be left out: a proof shows what was, not that nothing else was.
    assert isinstance(
        check_proof(proof_bytes(replace(proof, seals=proof.seals[:1])), KEY), ProvenMessage
    )


def test_a_tree_that_forked_is_no_later_tree(sealed: Sealed) -> None:
    proof = sealed.consistency_proof(5)
    forked = sign_head(TreeHead(ORIGIN, 5, bytes(32)), KEY, SIGN).decode()
    elsewhere = sealed.note(5, origin=f"{ORIGIN}/db-1")
    for changed in (
        replace(proof, old=forked),
        replace(proof, consistency=proof.consistency[:-1]),
        replace(proof, consistency=[]),
        replace(proof, old=proof.new, new=proof.old),
        replace(proof, old=sealed.note(4)),
    ):
        assert fault_of(changed) is ProofFault.NOT_CONSISTENT
    assert fault_of(replace(proof, old=elsewhere)) is ProofFault.MALFORMED
    assert fault_of(replace(proof, old="")) is ProofFault.BAD_HEAD
    hashes = consistency_proof(5, sealed.size, sealed.subtrees(sealed.size))
    assert [*map(base64_of, hashes)] == proof.consistency


def test_a_proof_can_be_reduced_and_shows_nothing_else(sealed: Sealed) -> None:
    proof = sealed.message_proof()
    shown = check_proof(proof_bytes(proof), KEY)
    assert isinstance(shown, ProvenMessage)
    witness = f"\u2014 witness.example {base64_of(bytes(68))}\n"
    assert check_proof(proof_bytes(replace(proof, head=proof.head + witness)), KEY) == shown
    fewer = check_proof(proof_bytes(replace(proof, seals=proof.seals[:1])), KEY)
    assert isinstance(fewer, ProvenMessage)
    assert fewer.events == shown.events[: len(fewer.events)]
    nameless = [replace(one, rows=[*map(_without_names, one.rows)]) for one in proof.seals]
    assert nameless != proof.seals
    found = check_proof(proof_bytes(replace(proof, seals=nameless)), KEY)
    assert isinstance(found, ProvenMessage)
    senders = {erased_name(one.sender_did) if one.sender_did else "" for one in shown.events}
    assert {one.sender_did for one in found.events} == senders
    erased = erased_name(proof.identity)
    found_erased = check_proof(proof_bytes(replace(proof, identity=erased)), KEY)
    assert found_erased == shown._replace(identity=erased)
    for other in (f"key:{erased}", erased.upper(), erased_name("did:x:other")):
        assert fault_of(replace(proof, identity=other)) is ProofFault.OTHER_MESSAGE
    assert [one._replace(sender_did="") for one in found.events] == [
        one._replace(sender_did="") for one in shown.events
    ]


def _without_names(row: ProvenRow) -> ProvenRow:
    state = redacted_state(row.topic, base64.b64decode(row.state))
    assert state is not None
    return replace(row, state=base64_of(state))


def test_there_is_one_spelling_of_a_proof(sealed: Sealed) -> None:
    proof = sealed.message_proof()
    content = proof_bytes(proof)
    members = msgspec.to_builtins(proof)
    first = proof.seals[0]
    spelled = [
        msgspec.json.encode(members) + b"\n",
        content[:-1],
        content + b"\n",
        b" " + content,
        rfc8785.dumps(members | {"more": 1}) + b"\n",
        proof_bytes(
            replace(proof, seals=[replace(first, state=first.state + "A==="), *proof.seals[1:]])
        ),
    ]
    row = replace(first.rows[0], stream=first.rows[0].stream.upper())
    others = (
        replace(first, rows=[row, *first.rows[1:]]),
        replace(first, rows=[replace(row, stream="zz"), *first.rows[1:]]),
        replace(first, inclusion=["*", *first.inclusion[1:]]),
        replace(first, inclusion=[f"{first.inclusion[0][:-2]}F=", *first.inclusion[1:]]),
    )
    spelled += [proof_bytes(replace(proof, seals=[one, *proof.seals[1:]])) for one in others]
    for other in spelled:
        assert fault_of(other) is ProofFault.MALFORMED
    assert read_proof(content) == proof
