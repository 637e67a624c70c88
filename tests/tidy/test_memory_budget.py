"""What clients can make a node hold: the table of THREAT_MODEL.md, and the containers' limits."""

from __future__ import annotations

import asyncio
import gc
import itertools
import math
import re
import tracemalloc
from pathlib import Path
from typing import Any, Final, cast

import pytest
import yaml
from msgspec.structs import replace
from typing_extensions import override

from actors.core.decision import Leasing
from actors.core.leases import SLOTS_MAX, Lease
from actors.core.nonces import SENDERS_MAX
from actors.core.sessions import REMEMBERED_MAX, LiveMode, Sessions
from actors.host.clock import new_id
from actors.host.question_threads import HISTORY, THREADS
from actors.host.session_registry import SessionRegistry
from actors.host.state_cache import LOADS_PER_CACHE
from actors.host.unknown_outcomes import NOTICES_BYTES_MAX
from actors.host.writer import UNANSWERED_BYTES_MAX
from http_edge.didcomm.envelopes.agent_documents import resolve_document
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import ID_CHARS_MAX, AgentAccount, Json
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX, encode_peer2
from http_edge.didcomm.envelopes.peer_documents import ROUTING_KEYS_MAX
from http_edge.didcomm.envelopes.v2.version import agent_account
from http_edge.didcomm.inbound import ReceivedMessage
from http_edge.didcomm.inbound_sockets import _PEERS_MAX, InboundSocket, SocketDependencies
from http_edge.didcomm.protocols.protocol import Outcome
from http_edge.didcomm.unconfirmed import SHARED_BYTES, Shared
from http_edge.dispatch.hub import Hub
from http_edge.settings.settings import Settings
from tests.tidy.modules import ROOT
from tests.unit.actors.given import NOW_MS, delivery, unclaimed
from tests.unit.didcomm.requests import message, request_of
from tests.unit.didcomm.test_pump import Frames

KIB: Final = 1_024
MIB: Final = KIB * KIB
GIB: Final = KIB * MIB
CONNECTION_BYTES: Final = 44 * KIB
"""Measured: one WebSocket, 40 KiB; and what it may hold of a head or a message uncounted."""
SOCKET_BYTES: Final = 40 * KIB
"""Of a socket besides its first agent: further agents, with DIDs as long as may be, the pushes to
them, the return routes of strangers, and what was handed over and is not known to be read."""
PUSHES_BYTES: Final = 5 * KIB
"""Measured: the pushes to one agent whose queue is empty."""
COPIES: Final = 3
"""A body or an answer on its way through a process: as received, as read, as sent on."""
FORWARDS: Final = (4 / 3) ** (ROUTING_KEYS_MAX + 1)
"""The size of a message in forwards for the mediators of its agent, of which one may be a DID."""
SHARDS: Final = 64
"""Of the clusters in deploy/: one node may own them all while the other is away."""
NONCE_BYTES: Final = 100
COUNTED_SENDER_BYTES: Final = 300
"""Of a sender for whom nonces are counted, ``SENDERS_MAX`` in each shard that is crowded."""
REMEMBERED_BYTES: Final = 330
"""Of a message that a live mode remembers: its id, and its part of a set that is nearly sparse."""
LEASE_SLOT_BYTES: Final = 320
"""Of a lease of its own session, with its part of a table that is nearly sparse; three such slots
are for what its identity takes, and each DID of 128 characters takes one more."""
WORK_BYTES: Final = 10 * KIB
"""At most of one unit of work (``actors.core.cost``)."""
UNPROVEN_NONCE_BYTES: Final = 150
EXPORT_BYTES: Final = 100 * MIB
STEP_COPIES: Final = 8
"""Of the events of a step: 0.6 GiB with the default were measured (guides/growth.md)."""

Row = tuple[str, str, int, int]


def rows(settings: Settings) -> list[Row]:
    """What is held, its settings, the bytes that one address and that all together can cause."""
    export = EXPORT_BYTES + STEP_COPIES * settings.export.bytes_per_step_max
    return [
        *of_edge(settings),
        *of_host(settings),
        ("export, or a round of archiving", "`export.bytes_per_step_max`", 0, export),
        ("Ray's processes and object store", "", 0, 400 * MIB),
    ]


def of_edge(settings: Settings) -> list[Row]:
    limits, rates, didcomm = settings.limits, settings.rates, settings.didcomm
    connection = CONNECTION_BYTES + limits.head_bytes_max
    page = limits.page_bytes_max * 2
    queue_page = limits.queue_bytes_max + limits.pages_bytes_max
    small = 4 * rates.keys_max * 200 + didcomm.owners_remembered_max * 300
    delivery = math.ceil((2 + FORWARDS) * didcomm.message_bytes_max)
    outbound = settings.outbound.in_flight_max * delivery
    return [
        ("edge: itself", "", 0, 160 * MIB),
        (
            "edge: connections, sockets, heads of requests",
            "`connections_max`, `sockets_max`, those `_per_address`, `head_bytes_max`",
            limits.connections_per_address_max * connection
            + limits.sockets_per_address_max * SOCKET_BYTES
            + SHARED_BYTES,
            limits.connections_max * connection + limits.sockets_max * SOCKET_BYTES + SHARED_BYTES,
        ),
        (
            "edge: bodies and messages of sockets, arriving and worked on",
            "`bodies_bytes_max`, `bodies_bytes_per_address_max`",
            COPIES * limits.bodies_bytes_per_address_max,
            COPIES * limits.bodies_bytes_max,
        ),
        (
            "edge: answers and frames that are not read",
            "`answers_bytes_max`, `answers_bytes_per_address_max`",
            limits.answers_bytes_per_address_max,
            limits.answers_bytes_max,
        ),
        (
            "edge: pages of events",
            "`page_bytes_max`, `reads_in_flight_max`",
            limits.reads_in_flight_max * page,
            limits.reads_in_flight_max * page,
        ),
        (
            "edge: pages of messages of one transaction",
            "`queue_bytes_max`, `pages_bytes_max`",
            COPIES * queue_page,
            COPIES * queue_page,
        ),
        (
            "edge: rates, owners of keys",
            "`rates.keys_max`, `didcomm.owners_remembered_max`",
            0,
            small,
        ),
        ("edge: deliveries", "`outbound.in_flight_max`, `didcomm.message_bytes_max`", 0, outbound),
    ]


def of_host(settings: Settings) -> list[Row]:
    limits = settings.limits
    active, page = limits.active_bytes_max, limits.page_bytes_max * 2
    # What a transaction loads, and the snapshots and the last identity that come on top of it.
    loads = 3 * active // LOADS_PER_CACHE
    queue_page = limits.queue_bytes_max + limits.pages_bytes_max
    of_shard = limits.nonces_per_shard_max * NONCE_BYTES + SENDERS_MAX * COUNTED_SENDER_BYTES
    nonces = SHARDS * of_shard
    transaction = limits.transaction_work_max * WORK_BYTES
    junk = limits.unproven_nonces_max * UNPROVEN_NONCE_BYTES
    remembered = REMEMBERED_MAX * REMEMBERED_BYTES
    leases = SLOTS_MAX * LEASE_SLOT_BYTES
    readers = THREADS["read"] + THREADS[HISTORY]
    return [
        ("host: itself", "", 0, 160 * MIB),
        ("host: identities", "`active_bytes_max`", active + loads, active + loads),
        ("host: nonces of 64 shards", "`nonces_per_shard_max`", nonces, nonces),
        ("host: nonces without effect", "`unproven_nonces_max`", junk, junk),
        ("host: messages fetched beside live mode", "", remembered, remembered),
        ("host: leases", "", leases, leases),
        (
            "host: a transaction and its pages",
            "`transaction_work_max`, `queue_bytes_max`, `pages_bytes_max`",
            COPIES * transaction + 2 * queue_page,
            COPIES * transaction + 2 * queue_page,
        ),
        ("host: pages of events", "`page_bytes_max`", readers * page, readers * page),
        (
            "host: commands of an edge while an append hangs",
            "",
            UNANSWERED_BYTES_MAX,
            UNANSWERED_BYTES_MAX,
        ),
        ("host: notices of failed appends", "", NOTICES_BYTES_MAX, NOTICES_BYTES_MAX),
    ]


def mib(size_bytes: int) -> str:
    return f"{-(-size_bytes // MIB):,}" if size_bytes else ""


def table(settings: Settings) -> str:
    """The rows as they stand in THREAT_MODEL.md."""
    found = rows(settings)
    lines = [
        f"| {what} | {names} | {mib(one)} | {mib(every)} |" for what, names, one, every in found
    ]
    lines.append(f"| **sum** | | | **{mib(sum(row[3] for row in found))}** |")
    return "\n".join(lines)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path)


def test_the_table_in_the_threat_model_is_that_of_the_defaults(settings: Settings) -> None:
    assert table(settings) in (ROOT / "THREAT_MODEL.md").read_text()


def longest_address() -> bytes:
    """The address of a DIDComm v2 agent whose DID is as long as a DID may be."""
    keys = KeyPair.from_seed(bytes(32))

    def did_with(uri: str) -> str:
        service: Json = {"type": "DIDCommMessaging", "serviceEndpoint": {"uri": uri}}
        return encode_peer2([keys.public], [service], agreement_keys=[keys.curve_public])

    uri = "https://agent.example.com/"
    did = did_with(uri + "x" * ((DID_CHARS_MAX - len(did_with(uri))) * 3 // 4))
    document = resolve_document(did)
    own = OwnDids(keys, own_services("https://mediator.example.com"))
    account = document and agent_account(f"{did}#key-2", document, own.peer4)
    assert account
    assert DID_CHARS_MAX - 4 < len(did) <= DID_CHARS_MAX
    return account.address


class Unread(Frames):
    """The frames to a client that answers no ping."""

    @override
    def put(self, frame: bytes) -> None:
        pass

    @override
    def ping(self, number: bytes) -> None:
        pass


class HandingOver:
    """Each message to the mediator is a request for messages of its sender, and these are there."""

    def __init__(self, messages: int) -> None:
        self._ids = [new_id() for _ in range(messages)]

    async def receive(self, body: bytes, _: InboundSocket) -> ReceivedMessage:
        request = request_of(message("messagepickup/1.0/batch-pickup"))
        request = replace(request, sender=replace(request.sender, did=body.decode()))
        return ReceivedMessage(b"", request, Outcome(handed_over=self._ids))

    def handled(self, size_bytes: int) -> None:
        """As the client of the socket: nothing counts its bodies."""


def socket_of(settings: Settings, handing_over: HandingOver, shared: Shared) -> InboundSocket:
    """A socket whose agents send nothing that reaches a host."""
    unused = cast("Any", None)
    dependencies = SocketDependencies(
        settings=settings,
        envelopes=unused,
        inbound=cast("Any", handing_over),
        identities=unused,
        hub=Hub("edge-0", unused),
        waiting=unused,
        shared=shared,
    )
    return InboundSocket(dependencies, Unread(), cast("Any", handing_over))


async def crowd(socket: InboundSocket, senders: range) -> None:
    """Have these agents and strangers on a socket, whose addresses are as long as may be."""
    address, threads = longest_address(), itertools.count()

    async def admit(sender: int, **route: str) -> None:
        account = AgentAccount(f"did:example:{sender:048}", "v2", b"%d" % sender + address)
        await socket.admit(account, message("trust_ping/1.0/ping", **{"~transport": route}))

    for sender in senders:
        for _ in range(3 if sender else 0):
            thread = f"{next(threads):010}".ljust(ID_CHARS_MAX, "\U0001f600")
            await admit(sender, return_route="thread", return_route_thread=thread)
        await admit(sender, return_route="all")
        for _ in range(3 if sender else 0):
            await socket.take(f"did:example:{sender:048}".encode())
    await asyncio.sleep(0)  # so that the tasks of the last messages end


@pytest.mark.thorough
@pytest.mark.parametrize("messages", [1, 100])
async def test_what_strangers_make_a_socket_remember_is_within_its_bytes(
    settings: Settings, messages: int
) -> None:
    first = socket_of(settings, HandingOver(messages), Shared())
    await crowd(first, range(100))  # fills all caches
    shared = Shared()
    socket = socket_of(settings, HandingOver(messages), shared)
    await crowd(socket, range(1))
    tracemalloc.start()
    try:
        await crowd(socket, range(1, 100))
        gc.collect()  # what the interpreter keeps for the next objects is not of the socket
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    pushes_bytes = (_PEERS_MAX - 1) * PUSHES_BYTES
    assert held_bytes + pushes_bytes <= SOCKET_BYTES + shared.taken_bytes


@pytest.mark.thorough
@pytest.mark.parametrize("of_each", [100, 10_000])
def test_what_live_modes_remember_is_within_its_bytes(of_each: int) -> None:
    sessions, agents = Sessions(), [f"{n}" for n in range(10 * REMEMBERED_MAX // of_each)]
    for agent in agents:
        sessions.ask_live(agent, LiveMode("edge-0", "phone", since=1))

    def fetch(agent: str) -> None:
        fetched = [f"{agent:>11}{number:011}" for number in range(of_each)]
        sessions.note_fetched(agent, fetched)
        sessions.note_removed(agent, fetched[: of_each // 2])

    tracemalloc.start()
    try:
        for agent in agents:
            fetch(agent)
        gc.collect()
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes <= REMEMBERED_MAX * REMEMBERED_BYTES


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("identities", "of_each", "kept", "did_chars"),
    [
        (2 * SLOTS_MAX, 1, 0, 56),
        (SLOTS_MAX // 2, 1, 1, 56),
        (SLOTS_MAX // 12, 1, 1, DID_CHARS_MAX),
        (SLOTS_MAX // 66, 100, 100, 56),
        (SLOTS_MAX // 210, 1_000, 200, 56),
    ],
)
def test_what_a_host_keeps_of_leases_is_within_its_bytes(
    identities: int, of_each: int, kept: int, did_chars: int
) -> None:
    """Each lease is of another session, and then some of the messages are removed."""
    registry, request = SessionRegistry(), unclaimed("", delivery())
    tracemalloc.start()
    try:
        for number in range(identities):
            ids, name = [new_id() for _ in range(of_each)], f"did:key:{number:06}"
            for some in (ids[:1], ids[1:]):
                did = name.ljust(did_chars, "x")  # each command brings one of its own
                one = replace(request, target_did=did, partition=f"shard-{number % SHARDS}")
                for message_id in some:
                    ends = Lease(new_id(), NOW_MS + number % 1_000)
                    registry.lease(one, Leasing([message_id], ends))
            registry.leases.end(name.ljust(did_chars, "x"), ids[kept:])
        registry.set_back(1)
        _, held_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes <= SLOTS_MAX * LEASE_SLOT_BYTES


def size(text: str) -> int:
    """Bytes of ``6g``, ``6Gi`` or ``6G`` (which docker and systemd take for GiB), or of MiB."""
    found = re.fullmatch(r"(\d+)([mMgG])i?", text)
    assert found, text
    return int(found[1]) * {"m": MIB, "g": GIB}[found[2].lower()]


def limits_of_deploy() -> dict[str, int]:
    """The memory that each form of deployment gives a node."""

    def read(name: str) -> Any:
        return yaml.safe_load((ROOT / "deploy" / name).read_text())

    found = {
        "compose": read("compose/compose.yaml")["services"]["node"]["deploy"]["resources"][
            "limits"
        ]["memory"],
        "helm": read("helm/poste/values.yaml")["nodes"]["resources"]["limits"]["memory"],
    }
    unit = (ROOT / "deploy/systemd/poste.service").read_text()
    (found["systemd"],) = re.findall(r"^MemoryMax=(.*)$", unit, re.MULTILINE)
    return {name: size(text) for name, text in found.items()}


def test_all_bounds_together_stay_below_the_memory_of_every_deployment(settings: Settings) -> None:
    needed = sum(row[3] for row in rows(settings))
    assert {name: limit for name, limit in limits_of_deploy().items() if limit < needed} == {}
