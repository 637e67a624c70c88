"""The benchmark of the Decentrl protocol: what runs, in which order, how much of it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import msgspec

from http_edge.cli.output import ProgressBar
from http_edge.clients.decentrl import Account, MediatorClient, MessagesArrived, NoticeSocket
from http_edge.clients.decentrl.records import EventToSave
from http_edge.clients.load.agents import MESSAGE_BYTES
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from tests.bench.agents import PacedLoad, decentrl_agents, drained, unregistered
from tests.bench.load import Run, connected, run_apart
from tests.bench.memory import measure_scale
from tests.bench.report import Measurement, Report, measured, of_load, report
from tests.bench.server import EdgeAlone, MeasuredServer

_WARM_UP: Final = Run(connections=16, count=500, seconds_max=5.0)
_PUSH_SOCKETS: Final = 16
_PUSH_CONNECTIONS: Final = 64
_PUSHES_PER_S: Final = 500
_EVENTS_PER_COMMAND: Final = 500
_TAGS, _CONTACTS, _OWN = 100, 50, 9
_REPEATS: Final = 50
_PAGE_SIZE: Final = 10
_FIRST_S: Final = 1_600_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How much of everything: bounded in count and in time.

    Attributes:
        runs: The closed loops of messages.
        pushes: Messages at 500/s whose push is timed.
        saved_events: Length of the history that is queried; 0 leaves it out.
        identities: Registered identities of the measurement at scale; 0 leaves it out.
        queued: Messages that wait for them.
    """

    runs: tuple[Run, ...]
    pushes: int
    saved_events: int
    identities: int = 0
    queued: int = 0


def plan(*, quick: bool, saved_events: int | None, scale: bool) -> Plan:
    """The usual plan, or one of well under a minute that shows whether all of it works."""
    share, seconds_max = (20, 3.0) if quick else (1, 10.0)
    return Plan(
        runs=tuple(
            Run(connections, count // share, seconds_max)
            for connections, count in ((1, 5_000), (16, 40_000), (64, 80_000))
        ),
        pushes=5_000 // share,
        saved_events=100_000 // share if saved_events is None else saved_events,
        identities=100_000 // (share * share) if scale else 0,
        queued=1_000_000 // (share * share) if scale else 0,
    )


async def run(wanted: Plan, bar: ProgressBar) -> Report:
    """Measure a mediator that is started for this in a temporary directory.

    Raises:
        AssertionError, RuntimeError, ClientError: it did not start, or refused something.
    """
    lines: list[Measurement] = []
    with tempfile.TemporaryDirectory() as folder, MeasuredServer(Path(folder) / "data") as server:
        async with decentrl_agents(server) as agents:
            lines += [line async for line in _messages("stored", server, agents, wanted, bar)]
            name = f"live push at {_PUSHES_PER_S}/s, {_PUSH_SOCKETS} sockets"
            lines.append(await pushed(name, server, agents, wanted.pushes, bar))
        if wanted.saved_events:
            async with decentrl_agents(server, 1) as owners:
                lines += await _history(owners.pairs[0].recipient, wanted.saved_events, bar)
    with tempfile.TemporaryDirectory() as folder, EdgeAlone(Path(folder) / "data") as alone:
        async with MediatorClient(alone.url) as client:
            strangers = await unregistered(client)
            lines += [line async for line in _messages("edge alone", alone, strangers, wanted, bar)]
    if wanted.identities:
        with tempfile.TemporaryDirectory() as folder:
            lines += await measure_scale(Path(folder), wanted.identities, wanted.queued, bar)
    return report(wanted, lines)


async def _messages(
    name: str, server: MeasuredServer, agents: DecentrlAgents, wanted: Plan, bar: ProgressBar
) -> AsyncIterator[Measurement]:
    """All runs; what was stored is drained after each, and the last drain is reported."""
    emptied = None
    for run in (_WARM_UP, *wanted.runs):
        title = f"{name}, {run.connections} connections"
        bodies = list(agents.messages(run.count))
        with server.spending() as costs:
            result = await asyncio.to_thread(
                run_apart, agents, bodies, run, progress=bar(title, run.count)
            )
        if run is not _WARM_UP:
            yield of_load(title, result, costs)
        if not isinstance(server, EdgeAlone):
            progress = bar("drain", result.accepted)
            emptied = await drained(
                "drain", agents, server, expected=result.accepted, progress=progress
            )
    if emptied is not None:
        yield emptied


async def pushed(
    name: str, server: MeasuredServer, agents: DecentrlAgents, count: int, bar: ProgressBar
) -> Measurement:
    """From when a message is due until its recipient's WebSocket has the frame, at 500 a second.

    Raises:
        OSError, ClientError: the mediator is gone, or refuses.
    """
    load, pairs = PacedLoad(count, _PUSHES_PER_S, bar(name, count)), agents.pairs[:_PUSH_SOCKETS]
    bodies = [
        agents.message(pairs[number % len(pairs)], str(number).ljust(MESSAGE_BYTES, "."))
        for number in range(count)
    ]

    async def listen(socket: NoticeSocket) -> None:
        async for notice in socket:
            now_ns = time.perf_counter_ns()
            if isinstance(notice, MessagesArrived):
                for event in notice.events:
                    load.arrived(int(event.payload.rstrip(".")), now_ns)

    async with AsyncExitStack() as stack:
        sockets = [await stack.enter_async_context(pair.recipient.socket()) for pair in pairs]
        posts = await stack.enter_async_context(
            connected(agents.endpoint, agents.media_type, _PUSH_CONNECTIONS)
        )
        listeners = [asyncio.create_task(listen(socket)) for socket in sockets]
        with server.spending() as costs:
            started_s = time.monotonic()
            await load.send(posts, bodies)
            seconds = time.monotonic() - started_s
        for listener in listeners:
            listener.cancel()
        await asyncio.gather(*listeners, return_exceptions=True)
    return load.measurement(name, seconds, costs)


async def saved(owner: Account, events: int, bar: ProgressBar) -> Measurement:
    """Save so many events, 500 with each command.

    Raises:
        ClientError: the mediator refuses.
    """
    progress, latencies, started_s = bar("save events", events), array("Q"), time.monotonic()
    for first in range(0, events, _EVENTS_PER_COMMAND):
        numbers = range(first, min(events, first + _EVENTS_PER_COMMAND))
        some = [_event(owner.identity.did, number) for number in numbers]
        began_ns = time.perf_counter_ns()
        await owner.save_events(some)
        latencies.append(time.perf_counter_ns() - began_ns)
        progress(numbers.stop)
    seconds = time.monotonic() - started_s
    figures = {"events": events, "events_per_s": events / seconds}
    name = f"SAVE_EVENTS, {_EVENTS_PER_COMMAND} each"
    return measured(name, latencies, seconds, figures=figures)


async def _history(owner: Account, events: int, bar: ProgressBar) -> list[Measurement]:
    """Save a long history, then ask for pages of it by every filter, one query at a time."""
    lines = [await saved(owner, events, bar)]
    for name, where, page in _queries(events):
        latencies, total, started_s = array("Q"), 0, time.monotonic()
        for _ in range(_REPEATS):
            began_ns = time.perf_counter_ns()
            found = await owner.query_events(**where, page=page, page_size=_PAGE_SIZE)  # type: ignore[arg-type]
            latencies.append(time.perf_counter_ns() - began_ns)
            total = found.pagination.total
        seconds = time.monotonic() - started_s
        title = f"QUERY_EVENTS of {events:_}: {name}"
        lines.append(measured(title, latencies, seconds, figures={"matches": total}))
    return lines


def _queries(events: int) -> Iterator[tuple[str, dict[str, object], int]]:
    tag: dict[str, object] = {"encrypted_tags": [_tag(7)]}
    contact: dict[str, object] = {"participant_did": _contact(7)}
    waiting: dict[str, object] = {"unprocessed_only": True}
    early: dict[str, object] = {"before_s": _FIRST_S + events // 10}
    yield "all", {}, 0
    yield "all, page in the middle", {}, events // 2 // _PAGE_SIZE
    yield "first tenth of the time", early, 0
    yield "one tag", tag, 0
    yield "one participant", contact, 0
    yield "unprocessed", waiting, 0
    yield "tag and time", tag | early, 0
    yield "participant and unprocessed", contact | waiting, 0


def _event(owner_did: str, number: int) -> EventToSave:
    """One a second, 100 tags, 50 contacts, one in nine the owner's own."""
    contact, is_own = _contact(number % _CONTACTS), number % _OWN == 0
    return EventToSave(
        sender_did=owner_did if is_own else contact,
        recipient_did=contact if is_own else owner_did,
        timestamp_s=_FIRST_S + number,
        payload="x" * 256,
        encrypted_tags=[_tag(number % _TAGS)],
    )


def _contact(number: int) -> str:
    return f"did:web:contact-{number}.test"


def _tag(number: int) -> str:
    return f"{number:03}".ljust(86, "t")  # as long as a signature in base64
