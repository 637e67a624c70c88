"""What operators may see of the memory of hosts: with the keys alone, and bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from actors.core.evolve import from_snapshot
from actors.core.identity import Identity as IdentityState
from actors.host.inspection import (
    CachedIdentities,
    DescribedState,
    DescribeNonces,
    DescribeStates,
    InspectionAnswer,
    InspectionQuestion,
    ListCachedIdentities,
    NoncesHeld,
    StatesDescribed,
)
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_log
from http_edge.admin.memory import STATE_BYTES_MAX, TARGETS_MAX
from tests.cluster.memory import Memory
from tests.edge.identities import Identity
from tests.edge.mediator import LAYOUTS, Mediator
from tests.log.raw_sql import run_sql

UNKNOWN = "did:example:unknown"


async def post(mediator: Mediator, question: InspectionQuestion | bytes, **headers: str) -> Any:
    body = question if isinstance(question, bytes) else msgspec.msgpack.encode(question)
    return await mediator.operate("/memory", "POST", data=body, headers=headers)


async def ask(mediator: Mediator, question: InspectionQuestion) -> InspectionAnswer:
    answer = await post(mediator, question)
    assert answer.status == 200, answer.body
    return msgspec.msgpack.decode(answer.body, type=InspectionAnswer)


async def states(mediator: Mediator, *targets: str) -> dict[str, DescribedState]:
    answer = await ask(mediator, DescribeStates(list(targets), STATE_BYTES_MAX))
    assert isinstance(answer, StatesDescribed)
    return {state.target: state for state in answer.states}


def state_in(described: DescribedState) -> IdentityState:
    state = from_snapshot(described.state)
    assert state is not None
    assert state.version == described.version
    return state


def rows(mediator: Mediator) -> int:
    log = open_log(mediator.settings.log_dsn)
    try:
        return log.position()
    finally:
        log.close()


async def _with_a_message(mediator: Mediator) -> tuple[Identity, Identity]:
    alice, bob = Identity("alice"), Identity("bob")
    await mediator.register(alice, bob)
    await mediator.befriend(bob, alice)
    await mediator.delivered(alice, bob, "hello")
    return alice, bob


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_an_identity_is_reported_as_it_is_in_memory_and_out_of_it(mediator: Mediator) -> None:
    alice, bob = await _with_a_message(mediator)
    reported = await states(mediator, alice.did, bob.did, UNKNOWN)
    assert [
        (m.sender_did, m.size_bytes) for m in state_in(reported[bob.did]).messages.values()
    ] == [(alice.did, 5)]
    assert reported[UNKNOWN].version == 0
    await mediator.restart()
    assert await states(mediator, alice.did, bob.did, UNKNOWN) == reported


async def test_looking_keeps_no_identity_in_memory_and_stores_nothing(mediator: Mediator) -> None:
    alice, bob = await _with_a_message(mediator)
    answer = await ask(mediator, ListCachedIdentities())
    assert isinstance(answer, CachedIdentities)
    assert set(answer.targets) == {alice.did, bob.did}
    await mediator.restart()
    await states(mediator, alice.did, bob.did)
    before = rows(mediator)
    await states(mediator, alice.did, bob.did)
    assert rows(mediator) == before
    assert await ask(mediator, ListCachedIdentities()) == CachedIdentities([])


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_partition_is_reported_with_its_head_and_its_nonces(mediator: Mediator) -> None:
    alice, _ = await _with_a_message(mediator)
    partition = mediator.edges[0]._gateway.routes.placement.partition_of(alice.did)
    held = await ask(mediator, DescribeNonces(partition))
    assert isinstance(held, NoncesHeld)
    assert (held.partition, held.version > 0, len(held.digest)) == (partition, True, 32)
    assert sum(map(len, held.packed.values())) >= 2 * 16


async def test_a_large_state_comes_alone(mediator: Mediator) -> None:
    _, bob = await _with_a_message(mediator)
    small = await ask(mediator, DescribeStates([bob.did, UNKNOWN], 1))
    assert isinstance(small, StatesDescribed)
    assert {(state.target, bool(state.version), state.state) for state in small.states} == {
        (bob.did, True, b""),
        (UNKNOWN, False, b""),
    }
    alone = await ask(mediator, DescribeStates([bob.did], 1 << 40))
    assert isinstance(alone, StatesDescribed)
    assert len(state_in(alone.states[0]).messages) == 1


async def test_those_who_compare_memories_see_large_states_too(
    mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = await _with_a_message(mediator)
    url = f"http://127.0.0.1:{mediator.edges[0].operators_port}"
    memory, dids = Memory(url, mediator.token), [alice.did, bob.did]
    whole = await asyncio.to_thread(memory.states, dids)
    assert list(whole) == dids
    monkeypatch.setattr("tests.cluster.memory.STATE_BYTES_MAX", 1)
    assert await asyncio.to_thread(memory.states, dids) == whole


async def test_what_has_no_bound_or_no_sense_is_refused(mediator: Mediator) -> None:
    two = DescribeStates([UNKNOWN, "did:example:other"], STATE_BYTES_MAX + 1)
    many = DescribeStates([UNKNOWN] * (TARGETS_MAX + 1), 1)
    for question in (two, many, b"", b"\xc1", b"[]", DescribeNonces("did:example:x")):
        assert (await post(mediator, question)).status == 400


async def test_memory_is_seen_with_the_token_alone(mediator: Mediator) -> None:
    for authorization in ("", "Bearer x"):
        answer = await post(mediator, ListCachedIdentities(), Authorization=authorization)
        assert answer.refusal == (401, "UNAUTHORIZED")
    answer = await post(mediator, ListCachedIdentities(), **{"X-Forwarded-For": "203.0.113.9"})
    assert answer.status == 404
    assert (await mediator.operate("/memory")).status == 405


async def test_a_host_that_does_not_answer_is_unavailable(mediator: Mediator) -> None:
    mediator.hosts.cut("host-0")
    assert (await post(mediator, ListCachedIdentities())).status == 503


async def test_an_identity_that_cannot_be_served_says_why(mediator: Mediator) -> None:
    _, bob = await _with_a_message(mediator)
    await mediator.restart()
    stream = identity_stream(bob.did).hex
    where = f"replace(originator_id, '-', '') = '{stream}' AND originator_version = 1"
    run_sql(mediator.settings.log_dsn, f"DELETE FROM stored_events WHERE {where}")
    reported = (await states(mediator, bob.did))[bob.did]
    assert (reported.version, "version 1 is missing" in reported.fault) == (0, True)
