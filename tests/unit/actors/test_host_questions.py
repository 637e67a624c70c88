"""Every question to a host comes back with the answer that its type names, also as Ray packs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from actors.core.commands import Page, Read
from actors.core.limits import HostLimits
from actors.core.placement_table import HostHoldings
from actors.host.identity_host import HostOptions
from actors.host.inspection import CachedIdentities, ListCachedIdentities
from actors.host.measures import HostStats
from actors.host.port import (
    AdoptPartitions,
    AnyQuestion,
    Expect,
    HandOut,
    HostQuestion,
    Inspect,
    IsKnown,
    ListDedicated,
    ListQueues,
    NoteSockets,
    Ping,
    QueryHoldings,
    QueryStats,
    ReadPages,
    ReleasePartitions,
    SetDraining,
    TakeIn,
)
from actors.ray.cluster import CONCURRENCY_GROUPS, Caller, RayHostPort, RayIdentityHost
from eventstore.log.event_log import PublicEventsFilter

DID, SHARD = "did:x:me", "shard-0"
NO_HANDOVER = msgspec.msgpack.encode({})
ANSWERS: list[tuple[HostQuestion[Any], type]] = [
    (AdoptPartitions([SHARD], None), dict),
    (Ping(), str),
    (NoteSockets("edge-0", 3, "first"), str),
    (QueryStats(), HostStats),
    (ReadPages([Read(DID, Page(0, 1), PublicEventsFilter())]), list),
    (IsKnown(DID), bool),
    (ListQueues(10), list),
    (Inspect(ListCachedIdentities()), CachedIdentities),
    (QueryHoldings(), HostHoldings),
    (ListDedicated(), list),
    (HandOut(DID, SHARD), bytes),
    (Expect(DID), type(None)),
    (TakeIn(DID, SHARD, NO_HANDOVER), bool),
    (SetDraining(draining=True), type(None)),
    (ReleasePartitions([SHARD]), bytes),
]


@pytest.fixture
def host(tmp_path: Path) -> Iterator[RayIdentityHost]:
    """The actor's class, as it is before Ray makes it one."""
    options = HostOptions("host", f"sqlite:{tmp_path / 'log.db'}", [], HostLimits(), is_placed=True)
    host = RayIdentityHost(options, lambda _name: None)
    yield host
    host.stop()


class Handle:
    """What Ray gives for an actor, as far as a port uses it."""

    def __init__(self, host: RayIdentityHost) -> None:
        self._host = host
        self.answer = self

    def options(self, *, concurrency_group: str) -> Handle:
        assert concurrency_group in CONCURRENCY_GROUPS
        return self

    def remote(self, question: bytes) -> asyncio.Future[bytes]:
        return asyncio.ensure_future(asyncio.to_thread(self._host.answer, question))


async def test_every_question_is_answered_by_what_its_type_names(host: RayIdentityHost) -> None:
    assert {type(question) for question, _ in ANSWERS} == set(get_args(AnyQuestion))
    port = RayHostPort(Caller("edge-0", 10, lambda _: None, lambda _: None), "host")
    port._handle = Handle(host)
    for question, kind in ANSWERS:
        answer = await port.ask(question)
        assert type(answer) is kind, question
    (holdings,) = [await port.ask(QueryHoldings())]
    assert (holdings.name, holdings.draining, holdings.shards) == ("host", True, {})
