"""How the memory of a mediator is asked for when its hosts come and go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from actors.evolution import evolve
from actors.identity import Identity
from actors.inspection import (
    Answer,
    DescribedState,
    DescribeNonces,
    DescribeStates,
    ListResidents,
    NoncesHeld,
    NotOwned,
    Question,
    Residents,
    StatesDescribed,
    describe,
)
from eventstore.events import IdentityRegistered
from http_edge.live import collect
from http_edge.live.collect import Collector, NotNow, NotServed
from http_edge.live.dump import Dumped, DumpWriter
from http_edge.memory import STATE_BYTES_MAX, TARGETS_MAX

SHARDS = 2
RESIDENT = "did:example:resident"
AT_MS, BUCKET_MS = 1_000_000, 32_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_PAUSES_S", (0.0, 0.0))


def registered(did: str) -> Identity:
    state = Identity()
    evolve(state, IdentityRegistered(at_ms=1, command=b"", did=did, expires_at_s=9, contract=b""))
    return state


def answer(asked: Question) -> Answer:
    """A mediator where everybody is registered."""
    match asked:
        case DescribeStates():
            assert len(asked.targets) <= TARGETS_MAX
            found = [describe(did, registered(did), asked.bytes_max) for did in asked.targets]
            return StatesDescribed(found)
        case ListResidents():
            return Residents([RESIDENT])
        case DescribeNonces():
            now = AT_MS // BUCKET_MS
            packed = {now: b"o" * 16, now + 1: b"a" * 16 + b"b" * 16}
            head = asked.partition, 3, 1, bytes(32)
            return NoncesHeld(*head, AT_MS, 300_000, BUCKET_MS, packed)


def collected(
    folder: Path, targets: list[str], said: Callable[[Question], Answer] = answer
) -> Dumped:
    def ask(question: bytes) -> bytes:
        return msgspec.msgpack.encode(said(msgspec.msgpack.decode(question, type=Question)))

    with DumpWriter(folder) as writer:
        Collector(ask, writer).collect(targets, SHARDS, lambda _done, _all: None)
    return writer.finish(after=[1], before=[2])


def test_everybody_is_asked_once_in_bounded_parts(tmp_path: Path) -> None:
    targets = [f"did:example:{number}" for number in range(2 * TARGETS_MAX)] * 2
    dumped = collected(tmp_path, targets)
    assert dumped.identities == 2 * TARGETS_MAX + 1
    assert json.loads((tmp_path / "dump.json").read_bytes())["before"] == [2]
    watermarks = pq.read_table(tmp_path / "watermarks.parquet")
    assert set(watermarks["identity"].to_pylist()) == {*targets, RESIDENT}
    assert set(watermarks["version"].to_pylist()) == {1}


def test_nonces_that_may_have_expired_are_left_out(tmp_path: Path) -> None:
    assert collected(tmp_path, []).rows["nonces"] == 2 * SHARDS
    nonces = pq.read_table(tmp_path / "nonces.parquet").to_pylist()
    assert {row["key"] for row in nonces} == {b"a" * 16, b"b" * 16}


def test_a_state_that_is_too_large_for_others_is_asked_alone(tmp_path: Path) -> None:
    def said(asked: Question) -> Answer:
        if isinstance(asked, DescribeStates) and asked.bytes_max == STATE_BYTES_MAX:
            return StatesDescribed([DescribedState(did, 1, b"") for did in asked.targets])
        return answer(asked)

    assert collected(tmp_path, ["did:example:large"], said).rows["registrations"] == 2


def test_who_sleeps_who_cannot_be_served_and_who_is_nobody_is_told_apart(tmp_path: Path) -> None:
    def said(asked: Question) -> Answer:
        if not isinstance(asked, DescribeStates):
            return answer(asked)
        states = [
            DescribedState("did:example:broken", 0, b"", "CorruptRow"),
            DescribedState("did:example:nobody", 0, b""),
            describe(RESIDENT, registered(RESIDENT), STATE_BYTES_MAX),
        ]
        return StatesDescribed(states, ["did:example:sleeper"])

    targets = [f"did:example:{who}" for who in ("broken", "nobody", "sleeper")]
    dumped = collected(tmp_path, targets, said)
    assert (dumped.identities, dumped.asleep) == (1, 1)
    (fault,) = pq.read_table(tmp_path / "unserved.parquet").to_pylist()
    assert (fault["identity"], fault["fault"]) == ("did:example:broken", "CorruptRow")


def test_a_host_that_comes_back_is_asked_again(tmp_path: Path) -> None:
    refused: list[Question] = []

    def said(asked: Question) -> Answer:
        if asked in refused:
            return answer(asked)
        refused.append(asked)
        match asked:
            case ListResidents():
                raise NotNow("503")
            case DescribeStates():
                return StatesDescribed([])
            case DescribeNonces():
                return NotOwned()

    assert collected(tmp_path, ["did:example:a"], said).identities == 2


def test_a_host_that_stays_away_ends_it(tmp_path: Path) -> None:
    def said(asked: Question) -> Answer:
        return StatesDescribed([]) if isinstance(asked, DescribeStates) else answer(asked)

    with pytest.raises(NotServed, match="no host owns did:example:a"):
        collected(tmp_path, ["did:example:a"], said)
