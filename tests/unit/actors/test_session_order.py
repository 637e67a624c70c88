"""The end of a session, though unanswered, comes before the next session of the same identity."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, cast

import pytest

from actors.core.commands import Connect, Register, RotateAccount, StartLive
from actors.core.partitioning import Placement
from actors.core.replies import DeliveredMessage, Done, EnvelopeDelivered
from eventstore.log.event_log import EventLog
from http_edge.decentrl.sockets import SocketEndpoint, _Session
from http_edge.didcomm.delivery.waiting import Waiting, Wake
from http_edge.didcomm.identities import Identities, speak_as
from http_edge.dispatch.hub import Hub
from http_edge.dispatch.routes import Routes
from http_edge.settings.settings import Settings
from tests.unit.actors.didcomm import ME, NEW_DID, claimed
from tests.unit.actors.given import (
    EDGE,
    NOW_S,
    SHARDS,
    connection,
    host,
    registration,
    run,
    unclaimed,
)
from tests.unit.actors.test_writer import Running, result
from tests.unit.dispatch.test_gateway import Setting

WORK_MAX: Final = 2
GONE: Final = [f"phone {number}" for number in range(WORK_MAX + 1)]
"""Sessions whose leases end before: more than one transaction takes."""
_UNUSED: Final = cast("Any", None)


async def listen(setting: Setting, hub: Hub) -> None:
    """As a long poll and implicit pickup do."""
    waiting = Waiting(hub, Identities(setting.gateway), waiters_max=9, per_identity_max=9)
    speak_as(ME)
    await waiting.open_session(ME)


async def listen_as_successor(setting: Setting, hub: Hub) -> None:
    """The same for an account whose DID was rotated: another DID speaks for it."""
    waiting = Waiting(hub, Identities(setting.gateway), waiters_max=9, per_identity_max=9)
    speak_as(NEW_DID)
    await waiting.open_session(ME)


async def start_live(setting: Setting, hub: Hub) -> None:
    """Live mode; the host that only records answers ``Done``."""
    await hub.session_ended(ME)
    speak_as(ME)
    start = StartLive(EDGE, "phone")
    await Identities(setting.gateway).ask(ME, start, b"k" * 16, Done, by_owner=True)


async def authenticate(setting: Setting, hub: Hub) -> None:
    """A socket of Decentrl."""
    parts = Settings(), _UNUSED, setting.gateway, hub
    sockets = SocketEndpoint(*parts, clock=_UNUSED, refusals=_UNUSED)
    await hub.session_ended(ME)
    await sockets._open(_Session(ME, _UNUSED, 0))


@pytest.mark.parametrize("begin", [listen, listen_as_successor, start_live, authenticate])
async def test_an_end_that_still_waits_at_the_host_does_not_end_the_next_session(
    log: EventLog, begin: Callable[[Setting, Hub], Awaitable[None]]
) -> None:
    owner = host(log)
    known: list[Connect | Register | RotateAccount] = [Connect(connection()), registration(ME)]
    if begin is listen_as_successor:
        known.append(RotateAccount(ME, NEW_DID, NOW_S, own=claimed(NEW_DID)))
    for command in known:
        run(owner, unclaimed(ME, command))
    setting = Setting(1, Routes.fixed(Placement(shards=SHARDS, hosts=1)))
    hub = Hub(EDGE, setting.gateway)
    setting.host.hold()
    wake = Wake()
    hub.add(ME, wake)
    for session in GONE:
        hub.push(ME, EnvelopeDelivered(session, DeliveredMessage("id", "key", b"sealed", 1)))
    hub.remove(ME, wake)
    ending = hub.session_ended(ME)
    await setting.host.called.wait()
    setting.gateway.give_up("host-0")  # the host has the call, and no answer comes
    await ending
    await begin(setting, hub)
    running = Running(owner, log, work_max=WORK_MAX)
    answers = [running.submit(*batch, edge=EDGE) for batch in setting.host.batches]
    running.writer.start()
    replies = [reply for answered in answers for reply in result(answered).replies]
    running.writer.stop()
    assert len(replies) == len(GONE) + 2
    assert owner.registry.sessions.knows(ME)
