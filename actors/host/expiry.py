"""Expiry: a thread that looks for due records and has them removed, without any client's request.

It works in bounded steps (``RetentionPace``): a step asks the log, by an index, for identities with
due records, and submits one command for each that this host owns to its writer, like any other
command. So every removal is an event, decided by its owner, sealed and stored before anything is
erased, and whichever process is killed, the next step finds what is left. For each kind of due
time a step continues where the last one stopped, and starts again after the end: identities of
other hosts, or wrong entries in an index of an earlier release, do not keep it from the rest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, TypeAlias

import msgspec

from actors.core.commands import ClaimedKey, ExpireRecords
from actors.core.cost import turn_cost
from actors.core.limits import HostLimits
from actors.core.partitioning import shard_of
from actors.core.replies import BatchResult, Expired
from actors.core.retention import due_until_ms
from actors.core.submissions import Submission
from actors.host.clock import Ahead, Clock, NewId
from actors.host.clock_steps import newest_ms
from actors.host.log_outage import reason
from actors.host.measures import UnderWay
from eventstore.log.errors import LogError
from eventstore.log.event_log import Due, DuePlace, EventLog
from eventstore.log.seal import command_key

MARK: Final = "idle_agents_watched"
"""The constant of the log with the time from which the silence of agents counts."""
_LOG = logging.getLogger(__name__)
_ANSWER_S_MAX: Final = 60.0
_ENCODER: Final = msgspec.msgpack.Encoder()
_RESULT: Final = msgspec.msgpack.Decoder(BatchResult)

Submit: TypeAlias = Callable[[str, bytes, Callable[[bytes], None]], None]
"""As ``Writer.submit``."""
HandOverKeys: TypeAlias = Callable[[str, Sequence[ClaimedKey]], None]
"""Called with an agent whose account has ended, and the keys that it had registered."""
Holdings: TypeAlias = Callable[[], Mapping[str, str]]
"""The partitions that this host owns."""


class Expiry:
    """Looks for due records in the log of one host, and has the host remove them."""

    def __init__(  # noqa: PLR0913 - what it works with, each part by itself
        self,
        log: EventLog,
        limits: HostLimits,
        *,
        shards: int,
        holdings: Holdings,
        submit: Submit,
        clock: Clock,
        new_id: NewId,
        ahead_ms: Ahead,
        on_look: Callable[[], None],
        hand_over_keys: HandOverKeys,
        under_way: UnderWay,
    ) -> None:
        """An expiry that does nothing before ``start`` or ``step``, in a log of ``shards`` shards.

        The thread calls ``on_look`` after each step that does not fail; if it raises, the next
        step comes all the same. Other hosts may own the keys of an ended agent, so
        ``hand_over_keys`` has them released. ``under_way`` shows how long a round takes.
        """
        self._log, self._limits, self._pace = log, limits.identity, limits.retention
        self._shards, self._holdings, self._submit = shards, holdings, submit
        self._clock, self._ahead_ms = clock, ahead_ms
        self._new_id, self._on_look = new_id, on_look
        self._hand_over_keys, self._under_way = hand_over_keys, under_way
        self._places: dict[Due, DuePlace | None] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="expiry", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait for the current step."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def step(self) -> bool:
        """Remove some due records, if there are any; may there be more?

        Raises:
            LogError: the log cannot be read.
            TimeoutError: the host did not answer.
        """
        found: dict[str, str] = {}
        is_all, limit = True, self._pace.identities_per_step_max
        now_ms = self._clock() - self._ahead_ms()
        for time, until_ms in due_until_ms(self._limits, now_ms).items():
            page = self._log.due_identities(
                time, until_ms=until_ms, after=self._places.get(time), limit=limit
            )
            is_last = len(page) < limit
            self._places[time] = None if is_last else page[-1].place
            is_all = is_all and is_last
            for identity in page:
                if (partition := self._partition(identity.did)) is not None:
                    found[identity.did] = partition
        is_any_removed = self._remove(found)
        return is_any_removed or not is_all

    def _partition(self, did: str) -> str | None:
        """The partition of an identity, if this host owns it."""
        holdings = self._holdings()
        if did in holdings:
            return did
        shard = shard_of(did, self._shards)
        return shard if shard in holdings else None

    def _remove(self, found: Mapping[str, str]) -> bool:
        """Have the writer remove due records of these identities; was anything removed?"""
        if not found:
            return False
        command = ExpireRecords(self._pace.records_per_step_max)
        submissions = [
            Submission(
                partition,
                did,
                command_key(did, self._new_id()),
                command=command,
                cost=turn_cost(command),
            )
            for did, partition in found.items()
        ]
        answered: Future[bytes] = Future()
        self._submit("", _ENCODER.encode(submissions), answered.set_result)
        replies = _RESULT.decode(answered.result(_ANSWER_S_MAX)).replies
        for did, reply in zip(found, replies, strict=True):
            if isinstance(reply, Expired) and reply.keys:
                self._hand_over_keys(did, reply.keys)
        return any(isinstance(reply, Expired) and reply.records for reply in replies)

    def _work(self) -> None:
        wait_s = self._pace.look_s
        while not self._ended.wait(wait_s):
            wait_s = self._pace.look_s
            try:
                with self._under_way.round("expiry"):
                    if self.step():
                        wait_s = self._pace.pause_s
                    self._on_look()
            except (LogError, TimeoutError) as error:
                _LOG.warning("search for expired items failed: %s", reason(error))
            except Exception:  # noqa: BLE001 - the host serves all the same
                _LOG.exception("search for expired items failed")


def watched(limits: HostLimits, log: EventLog, now_ms: int) -> HostLimits:
    """The limits with the time from which the silence of agents counts (``idle_agents_since_ms``).

    While the setting is off, polls of agents leave no row, so earlier silence does not count. The
    first host that starts with an age writes the present time to the log, beside its constants. The
    time starts again when the age becomes shorter, since signs of life were recorded more coarsely
    until then, after the setting was off, and if a clock that was ahead wrote a time still to come.
    A clock that is behind the newest record does not count: that record's time is the present then.
    So after a clock that was ahead it starts again only at a start that finds a later record.
    If the log does not answer, that time is now; the next start uses the time in the log again.
    """
    age_s = limits.identity.idle_agents_age_s_max
    try:
        since_ms = _watched_since_ms(log, age_s, now_ms)
    except LogError as error:
        _LOG.error("cannot read when the watch for idle agents began: %s", reason(error))
        since_ms = now_ms
    identity = msgspec.structs.replace(limits.identity, idle_agents_since_ms=since_ms)
    return msgspec.structs.replace(limits, identity=identity)


def _watched_since_ms(log: EventLog, age_s: int, now_ms: int) -> int:
    known = log.settings().get(MARK)
    if not age_s:
        if known is not None:
            log.mark(MARK, None)
        return 0
    now_ms = max(now_ms, newest_ms(log) or 0)
    since_ms, longest_s = (now_ms, age_s) if known is None else map(int, known.split())
    if age_s < longest_s or since_ms > now_ms:
        since_ms = now_ms
    if known != (wanted := f"{since_ms} {age_s}"):
        log.mark(MARK, wanted)
    return since_ms
