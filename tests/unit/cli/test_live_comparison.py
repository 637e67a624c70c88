"""How the memory of a mediator is collected when its hosts come and go."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.host.inspection import (
    CachedIdentities,
    DescribedState,
    DescribeNonces,
    DescribeStates,
    InspectionAnswer,
    InspectionQuestion,
    ListCachedIdentities,
    NoncesHeld,
    NotOwned,
    StatesDescribed,
    describe,
)
from eventstore.log.events import IdentityRegistered
from http_edge.admin.memory import STATE_BYTES_MAX, TARGETS_MAX
from http_edge.cli import live_comparison, verify
from http_edge.cli.live_comparison import Collector, NotNow, NotServed
from http_edge.cli.live_dump import Dumped, DumpWriter, OtherBuild
from http_edge.server.exits import Exit, stop_after

SHARDS = 2
CACHED = "did:example:cached"
AT_MS, BUCKET_MS = 1_000_000, 32_000


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_comparison, "_PAUSES_S", (0.0, 0.0))


def registered(did: str) -> Identity:
    state = Identity()
    evolve(state, IdentityRegistered(at_ms=1, command=b"", did=did, expires_at_s=9, contract=b""))
    return state


def answer(question: InspectionQuestion) -> InspectionAnswer:
    """A mediator where every identity is registered."""
    match question:
        case DescribeStates():
            assert len(question.targets) <= TARGETS_MAX
            found = [describe(did, registered(did), question.bytes_max) for did in question.targets]
            return StatesDescribed(found)
        case ListCachedIdentities():
            return CachedIdentities([CACHED])
        case DescribeNonces():
            now = AT_MS // BUCKET_MS
            packed = {now: b"o" * 16, now + 1: b"a" * 16 + b"b" * 16}
            head = question.partition, 3, 1, bytes(32)
            return NoncesHeld(*head, AT_MS, 300_000, BUCKET_MS, packed)


def collected(
    folder: Path,
    targets: list[str],
    reply: Callable[[InspectionQuestion], InspectionAnswer] = answer,
) -> Dumped:
    def ask(question: bytes) -> bytes:
        return msgspec.msgpack.encode(
            reply(msgspec.msgpack.decode(question, type=InspectionQuestion))
        )

    with DumpWriter(folder) as writer:
        Collector(ask, writer).collect(targets, SHARDS, lambda _done, _all: None)
    return writer.finish(after=[1], before=[2])


def test_each_identity_is_requested_once_in_bounded_parts(tmp_path: Path) -> None:
    targets = [f"did:example:{number}" for number in range(2 * TARGETS_MAX)] * 2
    dumped = collected(tmp_path, targets)
    assert dumped.identities == 2 * TARGETS_MAX + 1
    assert json.loads((tmp_path / "dump.json").read_bytes())["before"] == [2]
    watermarks = pq.read_table(tmp_path / "watermarks.parquet")
    assert set(watermarks["identity"].to_pylist()) == {*targets, CACHED}
    assert set(watermarks["version"].to_pylist()) == {1}


def test_nonces_that_may_have_expired_are_left_out(tmp_path: Path) -> None:
    assert collected(tmp_path, []).rows["nonces"] == 2 * SHARDS
    nonces = pq.read_table(tmp_path / "nonces.parquet").to_pylist()
    assert {row["key"] for row in nonces} == {b"a" * 16, b"b" * 16}


def test_a_state_that_is_too_large_for_others_is_requested_alone(tmp_path: Path) -> None:
    def reply(question: InspectionQuestion) -> InspectionAnswer:
        if isinstance(question, DescribeStates) and question.bytes_max == STATE_BYTES_MAX:
            return StatesDescribed([DescribedState(did, 1, b"") for did in question.targets])
        return answer(question)

    assert collected(tmp_path, ["did:example:large"], reply).rows["registrations"] == 2


def test_unserved_and_unknown_identities_are_kept_apart(tmp_path: Path) -> None:
    def reply(question: InspectionQuestion) -> InspectionAnswer:
        if not isinstance(question, DescribeStates):
            return answer(question)
        states = [
            DescribedState("did:example:broken", 0, b"", "CorruptRow"),
            DescribedState("did:example:unknown", 0, b""),
            describe(CACHED, registered(CACHED), STATE_BYTES_MAX),
        ]
        return StatesDescribed(states)

    targets = [f"did:example:{who}" for who in ("broken", "unknown")]
    dumped = collected(tmp_path, targets, reply)
    assert (dumped.identities, dumped.not_in_memory) == (1, 0)
    (fault,) = pq.read_table(tmp_path / "unserved.parquet").to_pylist()
    assert (fault["identity"], fault["fault"]) == ("did:example:broken", "CorruptRow")


def test_a_host_that_comes_back_gets_the_request_again(tmp_path: Path) -> None:
    refused: list[InspectionQuestion] = []

    def reply(question: InspectionQuestion) -> InspectionAnswer:
        if question in refused:
            return answer(question)
        refused.append(question)
        match question:
            case ListCachedIdentities():
                raise NotNow("503")
            case DescribeStates():
                return StatesDescribed([])
            case DescribeNonces():
                return NotOwned()

    assert collected(tmp_path, ["did:example:a"], reply).identities == 2


def test_a_host_that_stays_away_ends_it(tmp_path: Path) -> None:
    def reply(question: InspectionQuestion) -> InspectionAnswer:
        return StatesDescribed([]) if isinstance(question, DescribeStates) else answer(question)

    with pytest.raises(NotServed, match="no host owns did:example:a"):
        collected(tmp_path, ["did:example:a"], reply)


def test_a_mediator_of_another_build_is_named_as_such(tmp_path: Path) -> None:
    def reply(question: InspectionQuestion) -> InspectionAnswer:
        if isinstance(question, DescribeStates):
            return StatesDescribed([DescribedState(CACHED, 1, b"of another build")])
        return answer(question)

    with pytest.raises(OtherBuild, match="the state of did:example:cached cannot be read") as found:
        collected(tmp_path, [], reply)
    stop = stop_after(found.value, verify._ENDINGS)
    assert stop is not None
    assert stop.exit_code == Exit.UNREACHABLE
    with DumpWriter(tmp_path) as writer, pytest.raises(OtherBuild, match="an answer cannot be"):
        Collector(lambda _: msgspec.msgpack.encode(["Other"]), writer).collect([], 1, print)
