"""Group commit: one thread per host takes all waiting commands and runs them as one transaction.

While a transaction commits, new batches gather, and the next transaction takes them together. An
idle host answers at once, and transactions grow with the load up to a bound of work. Beyond that
bound senders are served in turn, not in order of arrival.

Every command in a transaction waits for the whole transaction, so costly commands have transactions
of their own with their own bound: a cheap command never waits for more than one of those, and while
cheap commands wait, costly ones get at most half of the time.

The only timer is the commit delay: a commit costs the same for one command as for many, so when
several clients send at once, a short wait brings more of their commands into the transaction, and
all of them finish sooner. A single client sends only after its last answer, and never waits.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final, TypeAlias

import msgspec

from actors.core.cost import COSTLY
from actors.core.limits import HostLimits
from actors.core.replies import NOT_OWNER, UNAVAILABLE, BatchResult, Done, Push, Refused, Reply
from actors.core.submissions import Submission
from actors.core.turns import Turns
from actors.host.host import Host
from actors.host.host_connection import Answer
from actors.host.log_outage import reason
from actors.host.transaction import request_ids
from actors.host.vital_thread import vital_thread
from eventstore.log.errors import LogError
from eventstore.log.event_log import DueSnapshot, EventLog

_LOG = logging.getLogger(__name__)
_HOUSEKEEPING_S: Final = 1.0
DONE: Final = "done"
"""The result of a command that was not refused."""
_CLAIM: Final = "NonceClaim"
_EDGE_REFUSAL: Final = "EdgeRefusal"
"""Names of submissions without a command: a nonce alone, and what the edge has refused."""
_UNANSWERED: Final = Done()
UNANSWERED_BYTES_MAX: Final = 128 * 1024 * 1024
"""Bytes of the batches of one edge that wait for their answers. An edge has six calls in flight,
each with one command of 16 MiB at most (``limits.body_bytes_max``) or a smaller batch. While an
append hangs, for example because a standby of PostgreSQL is gone, the edge gives these up and sends
more."""
_SUBMISSION_BYTES: Final = 1_024
"""Bytes that a submission counts besides those of its message."""

SUBMISSIONS_DECODER: Final = msgspec.msgpack.Decoder(list[Submission])
_RESULT_ENCODER: Final = msgspec.msgpack.Encoder()

PushOut: TypeAlias = Callable[[str, list[Push]], None]
"""Sends pushes to an edge other than the one being answered; must not block."""
MayServe: TypeAlias = Callable[[], bool]
"""Does this host's lease run, so that no other host is given its partitions?"""


class _Batch(msgspec.Struct):
    """A batch. ``held_bytes`` is what it counts for its edge until it is answered."""

    edge: str
    submissions: list[Submission]
    size_bytes: int
    held_bytes: int
    answer: Answer
    incarnation: str
    arrived_s: float
    replies: list[Reply]
    unanswered: int


_Item: TypeAlias = tuple[_Batch, int]
"""A submission: its batch and its index there."""
_Call: TypeAlias = Callable[[], None]
"""What is to run between transactions."""


class _Unanswered:
    """The bytes that each edge's unanswered batches hold; any thread may add one."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._held: dict[str, int] = {}
        self._lock = threading.Lock()

    def take(self, batch: _Batch) -> bool:
        """Hold a batch until its release; False if its edge holds too much besides."""
        size_bytes = batch.size_bytes + _SUBMISSION_BYTES * len(batch.submissions)
        with self._lock:
            held_bytes = self._held.get(batch.edge, 0)
            if held_bytes and held_bytes + size_bytes > self._bytes_max:
                return False
            batch.held_bytes = size_bytes
            self._held[batch.edge] = held_bytes + size_bytes
        return True

    def release(self, batch: _Batch) -> None:
        """Hold a batch no longer, if it was taken."""
        with self._lock:
            if batch.held_bytes:
                self._held[batch.edge] -= batch.held_bytes
                if not self._held[batch.edge]:
                    del self._held[batch.edge]


def always() -> bool:
    """The ``MayServe`` of a host that no other host can replace."""
    return True


class Writer:
    """The thread that owns a ``Host``; everything that touches the host runs here."""

    def __init__(  # noqa: PLR0913 - the last one is for tests
        self,
        host: Host,
        log: EventLog,
        *,
        incarnation: str,
        push_out: PushOut,
        limits: HostLimits,
        may_serve: MayServe = always,
        unanswered_bytes_max: int = UNANSWERED_BYTES_MAX,
    ) -> None:
        """A writer that does not run yet; see ``start``.

        While ``may_serve`` is False, all commands are refused with ``Refusal.NOT_OWNER``, even if
        the log hangs, so that edges ask the new owner. Commands of an edge beyond
        ``unanswered_bytes_max`` are refused with ``Refusal.TEMPORARILY_UNAVAILABLE``.
        """
        self._may_serve = may_serve
        self._host = host
        self._log = log
        self._incarnation = incarnation
        self._push_out = push_out
        self._limits = limits
        self._commit_delay = CommitDelay(limits.commit_delay_s_max)
        self._cheap: Turns[_Item] = Turns()
        self._costly: Turns[_Item] = Turns()
        self._costly_from_s = 0.0
        self._inbox: queue.SimpleQueue[_Batch | _Call | None] = queue.SimpleQueue()
        self._unanswered = _Unanswered(unanswered_bytes_max)
        self._thread = vital_thread("writer", self._serve)
        self._snapshots: queue.SimpleQueue[list[DueSnapshot] | None] = queue.SimpleQueue()
        self._saver = threading.Thread(target=self._save, name="snapshots", daemon=True)

    def start(self) -> None:
        """Start the writer and its snapshot saver."""
        self._thread.start()
        self._saver.start()

    def submit(self, edge: str, batch: bytes, answer: Answer, incarnation: str = "") -> None:
        """Take a batch (msgpack of ``list[Submission]``); ``answer`` gets a ``BatchResult``.

        ``incarnation``, if not empty, is reported to the edge in place of the host's: its sessions
        can be lost without a restart of the host.

        Raises:
            msgspec.DecodeError: the batch is not a list of submissions.
        """
        submissions = SUBMISSIONS_DECODER.decode(batch)
        named = incarnation or self._incarnation
        count = len(submissions)
        replies: list[Reply] = [_UNANSWERED] * count
        arrived_s = perf_counter()
        taken = _Batch(edge, submissions, len(batch), 0, answer, named, arrived_s, replies, count)
        if not self._may_serve():
            taken.replies = [NOT_OWNER] * count
            self._answer(taken, [])
        elif not self._unanswered.take(taken):
            taken.replies = [UNAVAILABLE] * count
            self._answer(taken, [])
        else:
            self._inbox.put(taken)

    def call(self, run: _Call) -> None:
        """Run a function on the writer's thread, between transactions."""
        self._inbox.put(run)

    def stop(self) -> None:
        """Answer the batches already taken, then end both threads."""
        self._inbox.put(None)
        self._thread.join()
        self._snapshots.put(None)
        self._saver.join()

    def _serve(self) -> None:
        stopping = False
        while not stopping:
            call, stopping = self._gather()
            cheap = self._cheap.take(self._limits.transaction_work_max)
            self._run(cheap)
            if not cheap or perf_counter() >= self._costly_from_s:
                self._run(self._costly.take(self._limits.costly_work_max))
            # A call may undo earlier commands (such as a lost edge's sessions): run these first.
            while self._cheap and (call or stopping):
                self._run(self._cheap.take(self._limits.transaction_work_max))
            while self._costly and stopping:
                self._run(self._costly.take(self._limits.costly_work_max))
            if call:
                call()
            self._run_housekeeping()

    def _gather(self) -> tuple[_Call | None, bool]:
        """Wait for work, then take all of it up to a call, because turns depend on what waits.

        Return the call that ends it, and whether to stop.

        Each edge bounds the amount by its number of pending calls, and ``submit`` by its bytes:
        an edge stops waiting for a call after a time, and sends the next one.
        """
        try:
            waits = self._cheap or self._costly
            work = self._inbox.get_nowait() if waits else self._inbox.get(timeout=_HOUSEKEEPING_S)
            since_s = perf_counter()
            while True:
                if work is None:
                    return None, True
                if not isinstance(work, _Batch):
                    return work, False
                self._put(work)
                work = self._more(since_s)
        except queue.Empty:
            return None, False

    def _put(self, batch: _Batch) -> None:
        if not batch.submissions:
            self._answer(batch, [])
        for index, submission in enumerate(batch.submissions):
            turns = self._cheap if submission.cost <= COSTLY else self._costly
            turns.put(submission.source, submission.cost, (batch, index))

    def _more(self, since_s: float) -> _Batch | _Call | None:
        """The next work from the inbox, waiting for it as long as the commit delay says.

        Raises:
            queue.Empty: there is none.
        """
        wait_s = 0.0
        if self._cheap.cost < self._limits.transaction_work_max:
            wait_s = self._commit_delay.wait_s(len(self._cheap), perf_counter() - since_s)
        return self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()

    def _run_housekeeping(self) -> None:
        due = self._host.run_housekeeping()
        if due:
            self._snapshots.put(due)
        self._send(self._host.due_pushes())

    def _run(self, taken: Sequence[_Item]) -> None:
        """Run commands in one transaction, or in several if one would load too much for them."""
        while taken:
            taken = taken[self._transact(taken) :]
            if taken:
                self._run_housekeeping()

    def _transact(self, taken: Sequence[_Item]) -> int:
        """Run the first of these commands in one transaction; return how many ran."""
        items = [(batch.edge, batch.submissions[index]) for batch, index in taken]
        started_s = perf_counter()
        try:
            replies, pushes = self._execute(items)
        except MemoryError:
            raise  # reading the log again would need more: the process ends, and starts with none
        except Exception:  # noqa: BLE001 - a defect must not end the thread that answers
            # No client gets a success, and nothing in memory is trusted any more.
            _LOG.exception("transaction failed", extra={"request_ids": request_ids(items)})
            self._host.forget_everything()
            replies, pushes = [UNAVAILABLE] * len(items), []
        ended_s = perf_counter()
        taken, items = taken[: len(replies)], items[: len(replies)]
        if items[0][1].cost > COSTLY:
            self._costly_from_s = ended_s + (ended_s - started_s)
        else:
            self._commit_delay.committed(len(items), ended_s - started_s)
        by_edge = _by_edge(pushes)
        answered = []
        for (batch, index), reply in zip(taken, replies, strict=True):
            batch.replies[index] = reply
            batch.unanswered -= 1
            if not batch.unanswered:
                answered.append(batch)
        self._measure(answered, items, replies, started_s, ended_s - started_s)
        for batch in answered:
            self._answer(batch, by_edge.pop(batch.edge, []))
        for edge, rest in by_edge.items():
            self._push_out(edge, rest)
        return len(replies)

    def _execute(
        self, items: Sequence[tuple[str, Submission]]
    ) -> tuple[Sequence[Reply], Sequence[tuple[str, Push]]]:
        if not self._may_serve():
            return [NOT_OWNER] * len(items), []
        return self._host.execute(items)

    def _answer(self, batch: _Batch, pushes: list[Push]) -> None:
        self._unanswered.release(batch)
        result = BatchResult(batch.incarnation, batch.replies, pushes)
        batch.answer(_RESULT_ENCODER.encode(result))

    def _measure(
        self,
        batches: Sequence[_Batch],
        items: Sequence[tuple[str, Submission]],
        replies: Sequence[Reply],
        started_s: float,
        took_s: float,
    ) -> None:
        measures = self._host.measures
        measures.transaction.observe(took_s)
        measures.items.observe(len(items))
        measures.batch_bytes.observe(sum(batch.size_bytes for batch in batches))
        for batch in batches:
            measures.waited.observe(started_s - batch.arrived_s)
        is_debug = _LOG.isEnabledFor(logging.DEBUG)
        for (_, submission), reply in zip(items, replies, strict=True):
            command = _name_of(submission)
            result = reply.code.value if isinstance(reply, Refused) else DONE
            measures.commands.add(command, result)
            if is_debug and submission.request_id:
                _LOG.debug(
                    "command answered",
                    extra={
                        "request_id": submission.request_id,
                        "command": command,
                        "result": result,
                        "command_key": submission.command_key.hex("-", 4),
                    },
                )

    def _send(self, pushes: Sequence[tuple[str, Push]]) -> None:
        for edge, mine in _by_edge(pushes).items():
            self._push_out(edge, mine)

    def _save(self) -> None:
        while (due := self._snapshots.get()) is not None:
            try:
                with self._host.measures.rounds.round("snapshots"):
                    self._log.save_snapshots(due)
            except LogError as error:
                # A snapshot is a cache: without it the host reads the identity from its events.
                _LOG.warning("could not save snapshots: %s", reason(error))
            except Exception:  # noqa: BLE001 - a defect must not end the thread: its queue would grow
                _LOG.exception("could not save snapshots")


def _name_of(submission: Submission) -> str:
    """The name of a submission's command type, or of a submission without a command."""
    if submission.command is not None:
        return type(submission.command).__name__
    return _CLAIM if submission.refusal is None else _EDGE_REFUSAL


def _by_edge(pushes: Sequence[tuple[str, Push]]) -> dict[str, list[Push]]:
    by_edge: dict[str, list[Push]] = {}
    for edge, push in pushes:
        by_edge.setdefault(edge, []).append(push)
    return by_edge


ITEMS_MIN: Final = 5.0
"""A recent count of at least this means several clients: old counts halve, so one reaches two."""


class CommitDelay:
    """The wait for more commands, derived from a host's last transactions."""

    def __init__(self, wait_s_max: float) -> None:
        """Start without any transactions; with ``wait_s_max`` 0 it never waits."""
        self._wait_s_max = wait_s_max
        self._took_s = 0.0
        self._lately = 0.0

    def committed(self, items: int, took_s: float) -> None:
        """Record a finished transaction: how many commands it had, and how long it took."""
        # Each transaction counts half as much as the one after it.
        self._lately = self._lately / 2 + items
        self._took_s = took_s

    def wait_s(self, items: int, waited_s: float) -> float:
        """How much longer to wait with ``items`` commands, after ``waited_s``; 0 for not at all.

        At most as long as the last transaction took, so that a command waits at most twice that.
        """
        if self._lately < ITEMS_MIN or items >= self._lately:
            return 0.0
        return max(0.0, min(self._took_s, self._wait_s_max) - waited_s)
