"""A day of a mediator in simulated time: what its disk holds while messages come, go and leave.

One host in this process takes messages of 1 KiB for many queues, half of them of each protocol, in
batches as under load. Each recipient fetches its messages when some wait, and acknowledges them.
At intervals of that time old rows leave for the archive. What is measured is bytes, not speed: the
clock is the simulation's, and only what is due to be erased has to wait for a real minute. Bytes
written are those that this process, and PostgreSQL, gave to the disk (not to one in memory).
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from abc import ABC, abstractmethod
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

import msgspec
from typing_extensions import override

from actors.core.commands import (
    AcknowledgeMessages,
    ClaimedKey,
    Connect,
    DeliverMessages,
    GrantMediation,
    QueueEnvelopes,
    QueueMessage,
    RemoveMessages,
    SaveContract,
    UpdateKeylist,
)
from actors.core.replies import EnvelopeQueued, MessageAccepted, Refused
from actors.core.submissions import Submission
from actors.host.host import Host
from eventstore.log.event_log import EventLog
from eventstore.stores.open_log import open_log
from http_edge.cli.output import ProgressBar
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.archive_round import archive_once
from http_edge.settings.sections import Archive, Export
from http_edge.settings.settings import Settings
from tests.bench.report import Measurement, Report, report, timed
from tests.database_server import DatabaseServer, database_directory, recommended_settings
from tests.unit.actors.given import (
    NOW_MS,
    HandClock,
    connection,
    contract,
    host,
    registration,
    run,
    submission,
    unclaimed,
)

_PAYLOAD_BYTES: Final = 1_024
_BATCH: Final = 64
_FETCHED_AT_ONCE: Final = 20
_HOURS: Final = 24
_MINUTES: Final = 60
_MINUTE_S: Final = 60
_ERASED_S: Final = 60
_MIB: Final = 1024 * 1024
_SENDER: Final = "did:example:sender"


class DayPlan(msgspec.Struct, frozen=True):
    """So many messages in a day, through so many queues; rows leave once they are so old.

    They are looked for every so many seconds. The log is in SQLite, or in a PostgreSQL server that
    is started for it.
    """

    messages: int
    queues: int
    rows_age_s: int
    every_s: int
    on_postgres: bool = False


async def run_day(wanted: DayPlan, folder: Path, bar: ProgressBar) -> Report:
    """Carry a plan out: one line for each hour."""
    with ExitStack() as stack:
        disk: _Disk = _SqliteDisk(folder / "log.db")
        log = None
        if wanted.on_postgres:
            server = DatabaseServer.new(stack.enter_context(database_directory()) / "server")
            server.start(recommended_settings())
            disk, log = _PostgresDisk(server), server.url
        settings = Settings(
            data_dir=folder,
            did="did:web:mediator.example",
            log=log,
            archive=Archive(rows_age_s_min=wanted.rows_age_s, rows_per_step_max=10_000),
            export=Export(to=str(folder / "archive") if wanted.on_postgres else None),
        )
        load_or_create(settings.keys_path)
        return report(wanted, await _hours(wanted, settings, disk, bar))


async def _hours(
    wanted: DayPlan, settings: Settings, disk: _Disk, bar: ProgressBar
) -> list[Measurement]:
    clock = HandClock()
    done = bar("messages", wanted.messages)
    lines: list[Measurement] = []
    with closing(open_log(settings.log_dsn)) as log:
        log.setting("mediator_did", settings.mediator_did)
        log.setting("shards", "2")
        day = _Day(log, clock, wanted)
        for hour in range(1, _HOURS + 1):
            started_s, before, largest_bytes = time.perf_counter(), day.accepted, 0
            for minute in range(1, _MINUTES + 1):
                day.minute(wanted.messages // _HOURS // _MINUTES)
                if minute * _MINUTE_S % wanted.every_s == 0:
                    largest_bytes = max(largest_bytes, disk.log_bytes())
                    archive_once(settings, is_checked=False, clock=clock)
            done(day.accepted)
            spent_s = time.perf_counter() - started_s
            if hour == _HOURS:
                await asyncio.sleep(_ERASED_S)  # until then contents of the last hour may be there
            sizes = _sizes(Path(settings.archive_place), disk, day.accepted)
            sizes["log_mib_max"] = largest_bytes / _MIB
            lines.append(timed(f"hour {hour}", day.accepted - before, spent_s, **sizes))
    return lines


class _Day:
    """The agents of a day, and what waits for them."""

    def __init__(self, log: EventLog, clock: HandClock, wanted: DayPlan) -> None:
        self.accepted = 0
        self._log, self._clock = log, clock
        self._host: Host = host(log, clock=clock)
        self._random = random.Random(1)  # noqa: S311 - which queue comes next
        self._dids = [f"did:example:recipient-{n}" for n in range(wanted.queues)]
        self._waiting: dict[str, list[str]] = {did: [] for did in self._dids}
        self._keys = {did: f"key of {did}" for did in self._dids[::2]}
        until_s = NOW_MS // 1000 + 10 * 86_400
        for did in self._dids:
            if did in self._keys:
                self._do(
                    unclaimed(did, Connect(connection())),
                    unclaimed(did, GrantMediation()),
                    unclaimed(did, UpdateKeylist([ClaimedKey(self._keys[did], 1)], [])),
                )
            else:
                made = contract(_SENDER, did, until_s)
                self._do(submission(did, registration(did, until_s)))
                self._do(submission(did, SaveContract(made)))

    def minute(self, messages: int) -> None:
        """A minute with so many messages."""
        self._clock.now_ms += _MINUTE_S * 1_000
        for left in range(messages, 0, -_BATCH):
            self._accept(min(left, _BATCH))
        if due := self._host.run_housekeeping():
            self._log.save_snapshots(due)

    def _accept(self, count: int) -> None:
        dids = self._random.choices(self._dids, k=count)
        for did, reply in zip(dids, self._do(*map(self._message, dids)), strict=True):
            assert isinstance(reply, MessageAccepted | EnvelopeQueued), reply
            self._waiting[did].append(reply.message_id)
            self.accepted += 1
        fetching = [did for did in set(dids) if len(self._waiting[did]) >= _FETCHED_AT_ONCE]
        self._do(*[unclaimed(did, _FETCH) for did in fetching if did in self._keys])
        self._do(*[self._acknowledgement(did) for did in fetching])

    def _message(self, did: str) -> Submission:
        payload = os.urandom(_PAYLOAD_BYTES)
        if did in self._keys:
            return unclaimed(did, QueueEnvelopes(self._keys[did], [payload]))
        return self._now(did, QueueMessage(_SENDER, payload), _SENDER)

    def _acknowledgement(self, did: str) -> Submission:
        ids, self._waiting[did] = self._waiting[did], []
        if did in self._keys:
            return unclaimed(did, RemoveMessages(ids, "acknowledged"))
        return self._now(did, AcknowledgeMessages(ids), did)

    def _now(self, did: str, command: QueueMessage | AcknowledgeMessages, by: str) -> Submission:
        return submission(did, command, sender=by, timestamp_ms=self._clock.now_ms)

    def _do(self, *items: Submission) -> list[object]:
        replies = run(self._host, *items) if items else []
        assert not any(isinstance(reply, Refused) for reply in replies), replies
        return list(replies)


_FETCH: Final = DeliverMessages(
    session="phone", channel="pickup/2.0", limit=100, bytes_max=1_000_000, lease_ms=60_000
)


class _Disk(ABC):
    """What a log takes of a disk, and what was written to it."""

    @abstractmethod
    def log_bytes(self) -> int:
        """Of the tables of the log."""

    def wal_bytes(self) -> int:
        """Of its write-ahead log, which the server keeps as it is set to."""
        return 0

    def written_bytes(self) -> int:
        """By this process, and by the server, since both began."""
        found = re.search(r"^write_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)
        assert found is not None
        return int(found[1])


class _SqliteDisk(_Disk):
    def __init__(self, path: Path) -> None:
        self._path = path

    @override
    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in self._path.parent.glob(f"{self._path.name}*"))


class _PostgresDisk(_Disk):
    def __init__(self, server: DatabaseServer) -> None:
        self._server = server

    @override
    def log_bytes(self) -> int:
        return self._ask("pg_database_size(current_database())")

    @override
    def wal_bytes(self) -> int:
        return self._ask("sum(size) FROM pg_ls_waldir()")

    @override
    def written_bytes(self) -> int:
        written = "sum(coalesce(write_bytes, 0) + coalesce(extend_bytes, 0)) FROM pg_stat_io"
        return super().written_bytes() + self._ask(written)

    def _ask(self, what: str) -> int:
        ((found,),) = self._server.run(f"SELECT {what}")
        return int(found)


def _sizes(archive: Path, disk: _Disk, accepted: int) -> dict[str, float]:
    """MiB of the log and of its archive, and per cent of what all messages so far weighed."""
    archived = (path.stat() for path in archive.rglob("*") if path.is_file())
    archive_bytes, log_bytes = sum(each.st_size for each in archived), disk.log_bytes()
    weighed_bytes = accepted * _PAYLOAD_BYTES
    return {
        "log_mib": log_bytes / _MIB,
        "wal_mib": disk.wal_bytes() / _MIB,
        "archive_mib": archive_bytes / _MIB,
        "log_percent": 100 * log_bytes / weighed_bytes,
        "archive_percent": 100 * archive_bytes / weighed_bytes,
        "written_kib_per_message": disk.written_bytes() / 1_024 / accepted,
    }
