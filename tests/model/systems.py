"""What the model is compared with: the pure core alone, and a real host on a real log.

Both run the same submissions. A host writes through a ``FaultyLog``, so that an append can go
wrong; the core keeps its events in a list and leaves out what only a store can do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Final, NamedTuple

import pytest
from eventsourcing.persistence import StoredEvent
from typing_extensions import override

from actors.core.commands import (
    CloseSession,
    Command,
    DeliverMessages,
    EndAccount,
    EndLive,
    ExpireRecords,
    Listen,
    OpenSession,
    ReleaseLeases,
    RotateAccount,
    StartLive,
    UpdateEventTags,
)
from actors.core.decide import decide, is_of_owner
from actors.core.decision import (
    ContractRefs,
    DecisionContext,
    DeliveryRefs,
    Leasing,
    MessageRefs,
    Refs,
    RequestRefs,
)
from actors.core.evolve import evolve, from_snapshot, to_snapshot
from actors.core.identity import FOLD, Identity
from actors.core.leases import Leases
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim, NonceWindow, UnprovenNonces, expiry_ms
from actors.core.partitioning import Placement
from actors.core.refusals import Refusal
from actors.core.replies import (
    ContractRequestsPage,
    ContractsPage,
    DeliveredMessage,
    Delivery,
    Done,
    Expired,
    MessagesPage,
    OwnedContract,
    QueueState,
    Refused,
    Reply,
    WaitingContractRequest,
    WaitingMessage,
)
from actors.core.retention import lapsed
from actors.core.sessions import LiveMode, Sessions
from actors.core.submissions import Read, Submission
from actors.host.host import Host
from actors.host.state_cache import StateCache
from eventstore.log.codec import decode
from eventstore.log.errors import LogError
from eventstore.log.event_log import (
    LogFigures,
    PageBounds,
    PublicEventsFilter,
    PublicEventsPage,
    SavedEventsFilter,
    SavedEventsPage,
    Snapshot,
    WaitingQueue,
)
from eventstore.log.events import (
    ContractRequested,
    ContractStored,
    Event,
    EventSaved,
    MessageQueued,
)
from eventstore.log.faults import Finding
from eventstore.log.streams import identity_stream
from eventstore.log.verify import verify
from eventstore.stores.open_log import open_log
from tests.log.faulty_log import FaultyLog, Plan, StoredButFailed
from tests.log.raw_sql import run_sql
from tests.log.samples import save
from tests.model.agents_reference import LIMITS

PLACEMENT: Final = Placement(shards=2, hosts=1)
PARTITIONS: Final = PLACEMENT.partitions_of(0)
HOST_LIMITS: Final = HostLimits(snapshot_after_events=4, identity_idle_s=60, identity=LIMITS)
EDGE: Final = "edge-0"
UNAVAILABLE: Final = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
NOT_OWNER: Final = Refused(Refusal.NOT_OWNER)


class Stored(NamedTuple):
    """What is kept of an identity; its events may be in the rows of a log."""

    snapshot: object
    rows: Sequence[Event | StoredEvent]


def event_in(row: Event | StoredEvent) -> Event:
    return decode(row.topic, row.state) if isinstance(row, StoredEvent) else row


class System(ABC):
    """Something that answers submissions."""

    now_ms = 0

    @abstractmethod
    def execute(
        self, batch: Sequence[Submission], ids: Sequence[str], fault: Plan | None = None
    ) -> list[Reply]:
        """Answer a batch, decided with these ids; the fault meets its append."""

    @abstractmethod
    def restart(self) -> None:
        """Lose everything that is in memory."""

    @abstractmethod
    def save_snapshots(self) -> None:
        """Take a snapshot of every identity in memory."""

    @abstractmethod
    def spoil_snapshots(self, how: str) -> None:
        """Make every snapshot ``"missing"``, ``"of another fold"`` or ``"damaged"``."""

    @abstractmethod
    def in_memory(self) -> dict[str, Identity]:
        """The states that answer now."""

    @abstractmethod
    def reloaded(self, did: str) -> Identity:
        """The state as the next start will load it."""

    @abstractmethod
    def stored(self, did: str) -> Stored:
        """All that the next start reads of an identity."""


class CoreSystem(System):
    """``decide`` and ``evolve`` over lists."""

    def __init__(self) -> None:
        self._events: dict[str, list[Event]] = {}
        self._states: dict[str, Identity] = {}
        self._snapshots: dict[str, bytes] = {}
        self._nonces = NonceWindow()
        self._unproven: UnprovenNonces
        self.restart()

    @override
    def execute(
        self, batch: Sequence[Submission], ids: Sequence[str], fault: Plan | None = None
    ) -> list[Reply]:
        before = None
        if fault is not None:
            events = {did: [*stored] for did, stored in self._events.items()}
            before = (events, deepcopy(self._nonces))
        unproven = deepcopy(self._unproven) if fault is not None else self._unproven
        self._leases.expire(self.now_ms)
        self._granted.clear()
        fresh = iter(ids)
        replies = [self._answer(submission, fresh) for submission in batch]
        if before is None:
            for submission, reply in zip(batch, replies, strict=True):
                self._follow(submission.target_did, submission.command, reply)
            return replies
        if not isinstance(fault, StoredButFailed):
            self._events, self._nonces = before
        self._unproven = unproven
        self._states.clear()
        for did, leasing in self._granted:
            self._leases.end(did, leasing.message_ids)
        return [UNAVAILABLE] * len(batch)

    def _answer(self, request: Submission, ids: Iterator[str]) -> Reply:
        claim = request.claim
        if claim is not None and (
            self._nonces.holds(claim.key, self.now_ms)
            or self._unproven.holds(claim.key, self.now_ms)
        ):
            return Refused(Refusal.DUPLICATE_NONCE)
        if request.refusal is not None or request.command is None:
            self._keep(claim, has_effect=request.refusal is None)
            return Done() if request.refusal is None else Refused(request.refusal)
        did = request.target_did
        state = self._states.get(did) or self.reloaded(did)
        if state.version:
            self._states[did] = state
        self._start_live(did, request.command)
        context = DecisionContext(
            did,
            self.now_ms,
            request.command_key,
            next(ids),
            b"secret",
            LIMITS,
            self._leases.of(did),
            bool(self._sessions.edges_of(did)),
            self._sessions.live_of(did),
            self._sessions.implicit_of(did),
            request.speaker,
            saved=self._saved(did) if isinstance(request.command, UpdateEventTags) else (),
        )
        if not isinstance(request.command, ExpireRecords):
            self._record(did, state, lapsed(state, context))
        decision = decide(state, request.command, context)
        is_own = state.version > 0 and is_of_owner(request.command)
        self._keep(claim, has_effect=not isinstance(decision, Refusal) or is_own)
        if isinstance(decision, Refusal):
            return Refused(decision)
        self._record(did, state, decision.events)
        if decision.leasing is not None:
            self._leases.grant(did, decision.leasing.message_ids, decision.leasing.lease)
            self._granted.append((did, decision.leasing))
            command = request.command
            if isinstance(command, DeliverMessages) and not command.live:
                self._sessions.note_fetched(did, decision.leasing.message_ids)
        return self._filled(did, decision.reply)

    def _saved(self, did: str) -> set[str]:
        return {e.event_id for e in self._events.get(did, []) if isinstance(e, EventSaved)}

    def _keep(self, claim: NonceClaim | None, *, has_effect: bool) -> None:
        if claim is not None:
            window_ms = HOST_LIMITS.timestamp_window_ms
            expires_ms = expiry_ms(self.now_ms, claim.timestamp_ms, window_ms)
            (self._nonces if has_effect else self._unproven).add(claim.key, expires_ms)

    def _record(self, did: str, state: Identity, events: Sequence[Event]) -> None:
        for event in events:
            evolve(state, event)
            self._events.setdefault(did, []).append(event)
            self._states[did] = state

    def _follow(  # noqa: C901 - one arm per command
        self, did: str, command: Command | None, reply: Reply
    ) -> None:
        match command:
            case CloseSession(edge):
                self._sessions.close(did, edge)
            case _ if isinstance(reply, Refused):
                pass
            case OpenSession(edge):
                self._sessions.open(did, edge)
            case Listen(edge, implicit):
                self._sessions.open(did, edge)
                if implicit:
                    self._leases.release(did, self._sessions.start_implicit(did, edge, implicit))
            case StartLive(edge, session) if isinstance(reply, QueueState):
                self._sessions.open(did, edge)
                replaced = self._replaced_by(did, session)
                leases = self._leases.of(did).items()
                leased = {i for i, lease in leases if lease.session not in replaced}
                mode = LiveMode(edge, session, reply.version, leased=leased)
                self._sessions.ask_live(did, mode)
            case RotateAccount() | EndAccount():
                self._sessions.end_handing_out(did)
            case ExpireRecords() if isinstance(reply, Expired) and reply.agents:
                self._sessions.end_handing_out(did)
            case EndLive(session):
                self._sessions.end_live(did, session)
            case ReleaseLeases(session):
                self._sessions.end_live(did, session)
                self._sessions.end_implicit(did, session)
                self._leases.release(did, session)
            case DeliverMessages(session) if not command.implicit:
                self._sessions.end_implicit(did, session)
            case _:
                pass

    def _start_live(self, did: str, command: Command) -> None:
        """The first fetch of a session takes the live mode that it asked for."""
        if not isinstance(command, DeliverMessages) or not command.live:
            return
        if self._sessions.starting_of(did) == command.session:
            for before in self._replaced_by(did, command.session):
                self._leases.release(did, before)
            self._sessions.end_implicit(did, self._sessions.implicit_of(did))
            self._sessions.start_live(did, command.lease_ms, command.bytes_max)

    def _replaced_by(self, did: str, session: str) -> set[str]:
        return {self._sessions.live_of(did).session, self._sessions.implicit_of(did)} - {session}

    def _filled(self, did: str, reply: Reply | Refs) -> Reply:
        if not isinstance(reply, Refs):
            return reply
        events = [self._events[did][version - 1] for version in reply.versions]
        match reply:
            case MessageRefs():
                queued = [e for e in events if isinstance(e, MessageQueued)]
                messages = [
                    WaitingMessage(e.message_id, e.sender_did, e.payload.data) for e in queued
                ]
                return MessagesPage(messages, reply.total)
            case RequestRefs():
                requests = [
                    WaitingContractRequest(
                        e.request_id,
                        e.sender_did,
                        e.encrypted_contract_request.data.decode(),
                        e.requestor_ephemeral_public_key,
                    )
                    for e in events
                    if isinstance(e, ContractRequested)
                ]
                return ContractRequestsPage(requests, reply.total)
            case ContractRefs():
                stored = [e for e in events if isinstance(e, ContractStored)]
                contracts = [OwnedContract(e.contract_id, e.contract) for e in stored]
                return ContractsPage(contracts, reply.total)
            case DeliveryRefs():
                queued = [e for e in events if isinstance(e, MessageQueued)]
                envelopes = [
                    DeliveredMessage(e.message_id, e.recipient_key, e.payload.data, e.at_ms)
                    for e in queued
                ]
                return Delivery(envelopes, reply.state)

    @override
    def restart(self) -> None:
        self._states.clear()
        self._leases, self._sessions = Leases(), Sessions()
        self._unproven = UnprovenNonces(HOST_LIMITS.unproven_nonces_max)
        self._granted: list[tuple[str, Leasing]] = []

    @override
    def save_snapshots(self) -> None:
        self._snapshots = {did: to_snapshot(state) for did, state in self._states.items()}

    @override
    def spoil_snapshots(self, how: str) -> None:
        self._snapshots = {did: b"\xc1" for did in self._snapshots if how == "damaged"}

    @override
    def in_memory(self) -> dict[str, Identity]:
        return self._states

    @override
    def reloaded(self, did: str) -> Identity:
        snapshot = self._snapshots.get(did)
        state = (snapshot and from_snapshot(snapshot)) or Identity()
        for event in self._events.get(did, [])[state.version :]:
            evolve(state, event)
        return state

    @override
    def stored(self, did: str) -> Stored:
        return Stored(self._snapshots.get(did), [*self._events.get(did, [])])


class HostSystem(System):
    """A ``Host`` that owns every shard, on the log at a URL."""

    def __init__(self, log_url: str) -> None:
        self._url = log_url
        self._real = open_log(log_url)
        self._log = FaultyLog(self._real)
        self._ids: Iterator[str] = iter(())
        self.restart()

    def close(self) -> None:
        self._log.close()

    @override
    def execute(
        self, batch: Sequence[Submission], ids: Sequence[str], fault: Plan | None = None
    ) -> list[Reply]:
        if fault is not None:
            # So that the fault meets the batch and no claim.
            self._host.ownership.assign(PARTITIONS)
            self._log.plan(fault)
        replies = self._ask(self._host, batch, ids)
        assert self._log.faults_left == 0
        return replies

    @override
    def restart(self) -> None:
        self._host = self._new_host()
        self._host.ownership.assign(PARTITIONS)

    def restart_on_a_failing_log(self, fault: Plan) -> None:
        """Restart while the log does not take the claim of the partitions."""
        self._host = self._new_host()
        self._log.plan(fault)
        with pytest.raises(LogError):
            self._host.ownership.assign(PARTITIONS)

    def take_over(self) -> Host:
        """Let another host claim everything; the former owner, which does not know it yet."""
        former = self._host
        former.ownership.assign(PARTITIONS)
        self.restart()
        return former

    def hand_over(self) -> Host:
        """Let another host have everything that this one knows; the former owner."""
        former, self._host = self._host, self._new_host()
        self._host.moves.adopt(PARTITIONS, former.moves.release(PARTITIONS))
        return former

    def ask_former(
        self, former: Host, batch: Sequence[Submission], ids: Sequence[str]
    ) -> list[Reply]:
        """What a host answers that has lost its partitions."""
        return self._ask(former, batch, ids)

    def _ask(self, host: Host, batch: Sequence[Submission], ids: Sequence[str]) -> list[Reply]:
        self._ids = iter(ids)
        replies, _ = host.execute([(EDGE, submission) for submission in batch])
        return replies

    def run_housekeeping(self) -> None:
        """Passivate, sweep, and save the snapshots that are due."""
        self._log.save_snapshots(self._host.run_housekeeping())

    def read(self, read: Read) -> SavedEventsPage | PublicEventsPage:
        """A page of a read model."""
        owner, page = identity_stream(read.owner_did), read.page
        if isinstance(read.where, SavedEventsFilter):
            return self._log.query_saved_events(
                owner, read.where, PageBounds(page.offset, page.size)
            )
        assert isinstance(read.where, PublicEventsFilter)
        return self._log.query_public_events(owner, read.where, PageBounds(page.offset, page.size))

    def figures(self) -> LogFigures:
        """What an operator is shown of all queues."""
        return self._log.figures()

    def waiting_queues(self) -> dict[str, WaitingQueue]:
        """What an operator is shown of each queue."""
        return {queue.did: queue for queue in self._log.waiting_queues(limit=100)}

    def findings(self) -> list[Finding]:
        """What is wrong with the log."""
        return [item for item in verify(self._real) if isinstance(item, Finding)]

    @override
    def save_snapshots(self) -> None:
        save(
            self._log,
            *[
                (identity_stream(did), Snapshot(state.version, FOLD, to_snapshot(state)))
                for did, state in self.in_memory().items()
            ],
        )

    @override
    def spoil_snapshots(self, how: str) -> None:
        spoil = {
            "missing": "DELETE FROM snapshots",
            "of another fold": "UPDATE snapshots SET fold = fold + 97",
            "damaged": "UPDATE snapshots SET state = SUBSTR(state, 1, 1)",
        }
        run_sql(self._url, spoil[how])

    @override
    def in_memory(self) -> dict[str, Identity]:
        cached = self._host.cache._cached
        return {did: one.state for did, one in cached.items()}

    @override
    def reloaded(self, did: str) -> Identity:
        cache = StateCache(self._real, HOST_LIMITS)
        return cache.get(did, PLACEMENT.partition_of(did), self.now_ms).state

    @override
    def stored(self, did: str) -> Stored:
        stream = identity_stream(did)
        rows = self._real.read_stream(stream)
        assert [row.originator_version for row in rows] == list(range(1, len(rows) + 1))
        return Stored(self._real.load_snapshot(stream), rows)

    def _new_host(self) -> Host:
        return Host(
            "host-0",
            self._log,
            HOST_LIMITS,
            secret=b"secret",
            clock=lambda: self.now_ms,
            uptime_s=lambda: self.now_ms / 1_000,  # no transaction is late, on no machine
            new_id=lambda: next(self._ids),
        )
