"""``IdentityHost``: the actor that owns identities, in the form that Ray runs.

The class itself knows nothing of Ray: ``actors.ray.processes`` makes it a Ray actor, and tests run
it in their own process. Its methods block, and many threads call them at once: measured, a
threaded actor costs 40 % less per call than an asyncio one. Hosts of shards, which own many
identities, and dedicated hosts, which own one, both run this class.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, TypeVar, assert_never

import msgspec

from actors.core.commands import ClaimedKey
from actors.core.cost import history_cost, size_cost, source_key, time_cost
from actors.core.limits import HostLimits
from actors.core.placement_table import HostHoldings
from actors.core.replies import KeysOver, MessagesPage, Push
from actors.core.submissions import Read, WaitingAt
from actors.host.clock import Ahead, Clock, NewId, new_id, new_secret, system_clock
from actors.host.disk_floor import disk_of, unknown_disk
from actors.host.expiry import Expiry, watched
from actors.host.host import Host
from actors.host.inspection import Inspector
from actors.host.log_outage import reason
from actors.host.measures import Growth, HostReport, HostStats, LogWatch, families
from actors.host.packed_page import pack_page
from actors.host.pages import read_messages
from actors.host.port import (
    PAGE_TOO_LARGE,
    AdoptPartitions,
    AnyQuestion,
    EndHost,
    Expect,
    HandOut,
    HostUnavailable,
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
    StartDedicated,
    TakeIn,
)
from actors.host.writer import MayServe, PushOut, Writer, always
from eventstore.log.errors import (
    AppendConflict,
    AppendUnknown,
    LogError,
    LogUnavailable,
    PageTooLarge,
)
from eventstore.log.event_log import (
    EventLog,
    PageBounds,
    PublicEventsFilter,
    PublicEventsPage,
    SavedEventsFilter,
    SavedEventsPage,
)
from eventstore.log.host_leases import LEASE_S, NODE_PROTOCOL, HostLeases
from eventstore.log.log_format import record_format
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import file_of, open_host_leases, open_log
from eventstore.stores.postgres_bounds import PostgresBounds

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_REPORT_S_MAX: Final = 1.0
"""A report waits this long for the writer, and as long again for the log."""
_KEYS_AT_ONCE: Final = 1_000
_CHARGED_MIN: Final = 1.5
"""The least units for which a page is charged: its query pays for a cheaper one, because charging
takes a turn of the writer."""


class HostOptions(msgspec.Struct, frozen=True):
    """What a host needs to start, as plain data.

    ``partitions`` are those that it owns from the start, None if a placer assigns them. ``node``
    names the machine that it runs on, empty if there is only one. ``lease_s`` is the time of its
    lease, and ``protocol`` its ``node_protocol``. It listens for edges at ``address``. ``shards``
    is the number of shards of the log; with 0 (unknown) the host does not look for due records by
    itself.
    """

    name: str
    dsn: str
    partitions: Sequence[str] | None
    limits: HostLimits
    node: str = ""
    postgres: PostgresBounds = PostgresBounds()
    allow_unsafe: bool = False
    lease_s: float = LEASE_S
    protocol: int = NODE_PROTOCOL
    address: str = "127.0.0.1"
    shards: int = 0

    @property
    def is_placed(self) -> bool:
        """Does a placer assign partitions to the host?"""
        return self.partitions is None

    def open_leases(self) -> HostLeases:
        """Open the store of host leases."""
        return open_host_leases(self.dsn, self.postgres, lease_s=self.lease_s)

    def open_log(self) -> EventLog:
        """Open the log of the host.

        Raises:
            LogError: as ``eventstore.stores.open_log.open_log``.
        """
        return open_log(self.dsn, allow_unsafe=self.allow_unsafe, postgres=self.postgres)


class IdentityHost:
    """Owner of partitions: batches run on its writer thread, reads on the caller's thread."""

    def __init__(  # noqa: PLR0913 - what a host works with, each part by itself
        self,
        options: HostOptions,
        push_out: PushOut,
        *,
        clock: Clock = system_clock,
        new_id: NewId = new_id,
        log: EventLog | None = None,
        may_serve: MayServe = always,
        ahead_ms: Ahead = lambda: 0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the log (unless ``log`` is already open), claim the partitions and start.

        The writer calls ``may_serve`` before each transaction. Nothing expires by what the clock is
        ahead according to ``ahead_ms``. ``monotonic`` gives the seconds by which histories cost.

        Raises:
            LogUnavailable: the log cannot be opened, or its format not be recorded.
            UnsafeLog: the log's settings cannot keep the promise of an acknowledgement.
            UnknownTopic, CorruptRow: a partition's seals cannot be understood.
        """
        self._log = log or options.open_log()
        record_format(self._log)
        self._name, self._node = options.name, options.node
        self._draining, self._is_placed = False, options.is_placed
        self._clock, self._monotonic, self._incarnation = clock, monotonic, new_id()
        file = file_of(options.dsn)
        limits = watched(options.limits, self._log, clock())
        self._host = Host(
            options.name,
            self._log,
            limits,
            clock=clock,
            new_id=new_id,
            secret=new_secret(),
            is_placed=options.is_placed,
            measure_disk=unknown_disk if file is None else disk_of(file.parent),
            ahead_ms=ahead_ms,
        )
        self._claim(options.partitions or ())
        self._writer = Writer(
            self._host,
            self._log,
            incarnation=self._incarnation,
            push_out=push_out,
            limits=limits,
            may_serve=may_serve,
        )
        self._log_watch = LogWatch(self._log)
        self._growth = Growth(self._log, clock)
        self._inspector = Inspector(self._host, self._log, self._on_writer)
        self._reporting: Future[HostStats] | None = None
        """The question of the last report to the writer."""
        self._sockets: dict[str, int] = {}
        self._push_out, self._may_serve = push_out, may_serve
        self._expiry = self._expiry_of(limits, options.shards, clock, ahead_ms, new_id)
        self._writer.start()
        if options.shards:
            self._expiry.start()

    @property
    def incarnation(self) -> str:
        """An id unlike that of any other host, even an earlier one of the same name."""
        return self._incarnation

    def answer(self, question: AnyQuestion) -> object:  # noqa: C901, PLR0912 - one arm per question
        """Answer a question with the type that the question names.

        Any thread may call this. Questions that touch the host's state wait for the writer's
        thread, between transactions; pages, pings, holdings and lists from the log do not.

        Raises:
            LogError: the log cannot be read, or written where that is needed.
            msgspec.DecodeError: a question holds no valid handover.
        """
        match question:
            case Ping():
                return self.ping()
            case NoteSockets(edge, sockets):
                self._sockets.pop(edge, None)  # the edge that reported last is the last one
                self._sockets[edge] = sockets
                return self._incarnation
            case ReadPages(reads):
                return [self._page(read) for read in reads]
            case IsKnown(did):
                return bool(self._log.read_stream(identity_stream(did), limit=1))
            case ListQueues(limit, outbound_only, only, after):
                return self._log.waiting_queues(
                    outbound_only=outbound_only, did=only, after=after, limit=limit
                )
            case Inspect(about):
                return self._inspector.answer(about)
            case QueryStats():
                return self.stats()
            case QueryHoldings():
                return self.holdings()
            case ListDedicated():
                return self._log.dedicated()
            case ReleasePartitions(names):
                return self._on_writer(lambda: self._host.moves.release(names))
            case AdoptPartitions(names, handover):
                return self._on_writer(lambda: self._host.moves.adopt(names, handover))
            case SetDraining(draining):
                self._draining = draining
                return None
            case StartDedicated() | EndHost():
                raise HostUnavailable(
                    "only the process that runs this host can start and end hosts"
                )
            case HandOut(did, shard):
                return self._on_writer(lambda: self._host.moves.hand_out(did, shard))
            case Expect(did):
                return self._on_writer(lambda: self._host.moves.expect(did))
            case TakeIn(did, shard, handover):
                return self._on_writer(lambda: self._host.moves.take_in(did, shard, handover))
            case _:
                assert_never(question)

    def ping(self) -> str:
        """Prove that the host owns its partitions and its log takes writes; return its incarnation.

        With a placer, the host's lease is the proof that the log takes writes: the database stored
        it moments ago.

        Raises:
            AppendConflict: another owner has taken partitions.
            LogUnavailable: the log cannot be written.
        """
        lost = len(self._host.ownership.fenced)
        if lost:
            raise AppendConflict(f"{lost} partitions have another owner")
        if not self._is_placed:
            self._log.check_writable()
        elif not self._may_serve():
            raise LogUnavailable("the lease of this host is over")
        return self._incarnation

    def forget_edge(self, edge: str) -> None:
        """Drop the sessions of an edge that has lost its sockets, or pushes on their way to it.

        If the edge still runs, it reports its sockets over its next connection.
        """
        self._sockets.pop(edge, None)
        self._writer.call(lambda: self._host.registry.sessions.drop_edge(edge))

    def stats(self, *, with_log: bool = True) -> HostStats:
        """What the host has counted and what it holds, even if writer or log hang.

        The figures of the log are None if it fails or hangs, or without ``with_log``.
        """
        # A question that timed out is still under way: wait for its answer instead of asking again.
        query = self._reporting
        if query is None or query.done():
            query = self._reporting = self._begun_on_writer(self._host.snapshot_stats)
        try:
            stats = query.result(_REPORT_S_MAX)
        except TimeoutError:
            stats = self._host.stats  # the counters are current, the rest is from the last time
        log = storage = None
        if with_log and (log := self._log_watch.figures(_REPORT_S_MAX)) is not None:
            storage = self._log_watch.storage(_REPORT_S_MAX)
        return msgspec.structs.replace(
            stats,
            log=log,
            storage=storage,
            growth_bytes_per_day=self._growth.bytes_per_day if with_log else None,
            sockets=dict(self._sockets),
            node=self._node,
        )

    def report(self, *, with_log: bool) -> bytes:
        """The msgpack of ``actors.host.measures.HostReport``."""
        measured = families(self._host.measures.registry)
        return msgspec.msgpack.encode(HostReport(self.stats(with_log=with_log), measured))

    def holdings(self) -> HostHoldings:
        """What this host owns, answered on the caller's thread.

        A log that hangs must not make its host look dead.
        """
        return HostHoldings(
            self._name,
            self._node,
            self._incarnation,
            self._draining,
            dict(self._host.ownership.holdings),
            self._host.rates.reported,
            self._host.disk.is_short,
            self._host.outage.is_on,
        )

    def stop(self) -> None:
        """Answer the batches already taken, then stop and close the log."""
        self._expiry.stop()
        self._writer.stop()
        self._log_watch.close()
        self._log.close()

    def _claim(self, partitions: Sequence[str]) -> None:
        try:
            self._host.ownership.assign(partitions)
        except (AppendConflict, AppendUnknown, LogUnavailable) as error:
            # The first command for each partition claims it. A host that gave up here would still
            # be missing when the log is back.
            _LOG.error("partitions could not be claimed yet: %s", reason(error))

    def _expiry_of(
        self, limits: HostLimits, shards: int, clock: Clock, ahead_ms: Ahead, new_id: NewId
    ) -> Expiry:
        return Expiry(
            self._log,
            limits,
            shards=shards,
            holdings=lambda: self._host.ownership.holdings,
            submit=self._writer.submit,
            clock=clock,
            ahead_ms=ahead_ms,
            new_id=new_id,
            on_look=self._growth.look,
            hand_over_keys=self._hand_over_keys,
            under_way=self._host.measures.rounds,
        )

    def _hand_over_keys(self, did: str, keys: Sequence[ClaimedKey]) -> None:
        """Have the connected edge that reported last release these keys.

        Without such an edge, or if it is killed meanwhile, the ended account keeps each claim until
        another account claims the key.
        """
        for edge in list(self._sockets)[-1:]:
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                over = KeysOver(list(keys[start : start + _KEYS_AT_ONCE]))
                self._push_out(edge, [Push(did, over)])

    def _page(self, read: Read) -> memoryview:
        """The msgpack of a page, ``b""`` if it cannot be read, or ``PAGE_TOO_LARGE``.

        Read on the caller's thread, so as to delay no command.
        """
        stream, source = identity_stream(read.owner_did), source_key(read.owner_did)
        bounds = PageBounds(read.page.offset, read.page.size, read.page.bytes_max)
        page: SavedEventsPage | PublicEventsPage | MessagesPage
        missing, damaged = set[int](), set[int]()
        began_s, units = self._monotonic(), 0.0
        try:
            if isinstance(read.where, WaitingAt):
                page = read_messages(self._log, stream, read.where, missing, damaged)
            elif isinstance(read.where, PublicEventsFilter):
                page = self._log.query_public_events(stream, read.where, bounds)
            elif self._host.charges.pause_s(source, self._clock()):
                return memoryview(b"")  # it had waited here for the query that costs the pause
            else:
                page = self._log.query_saved_events(stream, read.where, bounds)
        except PageTooLarge:
            units = size_cost(bounds.bytes_max or 0)  # the records were read all the same
            return memoryview(PAGE_TOO_LARGE)
        except LogError as error:
            _LOG.error("cannot read a page: %s", reason(error))
            return memoryview(b"")
        else:
            answer = pack_page(page)
            if isinstance(read.where, SavedEventsFilter):
                tags = len(set(read.where.encrypted_tags))
                units = history_cost(len(answer), page.total, tags)
            return answer
        finally:
            if isinstance(read.where, SavedEventsFilter):
                elapsed_s = self._monotonic() - began_s
                self._charge(source, max(units, time_cost(elapsed_s)))
            if missing or damaged:
                self._writer.call(lambda: self._host.cache.lack(read.owner_did, missing, damaged))

    def _charge(self, source: bytes, units: float) -> None:
        """Charge for a history before its answer leaves, so that the owner's next command pays."""
        self._host.charges.pause(source, units, self._clock())
        if units > _CHARGED_MIN:
            charges, now_ms = self._host.charges, self._host.now_ms
            self._writer.call(lambda: charges.add_page(source, units, now_ms()))

    def _on_writer(self, run: Callable[[], _T]) -> _T:
        return self._begun_on_writer(run).result()

    def _begun_on_writer(self, run: Callable[[], _T]) -> Future[_T]:
        done: Future[_T] = Future()

        def call() -> None:
            try:
                done.set_result(run())
            except Exception as error:  # noqa: BLE001 - passed on to the caller, whatever it is
                done.set_exception(error)

        self._writer.call(call)
        return done
