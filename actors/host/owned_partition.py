"""One owned partition: its newest seal, by which the log fences it, and its nonces.

An owner *claims* a partition by storing an empty seal with the next epoch. From then on every
append of the former owner collides with that seal, whatever Ray believes: the log is the fence.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

import msgspec
from eventsourcing.persistence import StoredEvent

from actors.core.nonces import NonceWindow
from eventstore.log import seal
from eventstore.log.codec import decode, encode
from eventstore.log.errors import CorruptRow
from eventstore.log.event_log import DueSnapshot, LogReader, SealPlace, Snapshot
from eventstore.log.events import BatchSealed, Event
from eventstore.log.streams import partition_stream

_LOG = logging.getLogger(__name__)
NONCES_FOLD = 2
"""Version of the snapshot's layout; with another version the seals are read instead."""

_SEALS_PER_READ = 500
_SEALS_TO_READ_MIN = 1_000
_READ_BACK_MAX = 100_000
"""Seals and nonces, counted together, that are read of a partition only because the clock is behind
its newest seal: a second's work. A machine without a clock that runs while it is off starts years
behind: reading all seals would take minutes, and keeping all nonces gigabytes."""


class OwnedPartition:
    """The owner's view of a partition; made by ``load``, dropped after any failed append.

    ``at_ms`` is the time of the newest seal, in Unix milliseconds; ``former_window_ms`` is the
    timestamp window of the newest seal before the owner's own. ``digest`` is that of the newest
    seal, ``previous`` that of the one before it.
    """

    def __init__(self, name: str, last: BatchSealed | None, version: int) -> None:
        """A partition to be claimed, whose newest seal is ``last`` at ``version``."""
        self.name = name
        self.stream: UUID = partition_stream(name)
        self.epoch = 1 if last is None else last.epoch + 1
        self.version = version
        self.digest = seal.GENESIS if last is None else last.digest
        self.previous = self.digest
        self.former_window_ms = 0 if last is None else last.window_ms
        self.at_ms = 0 if last is None else last.at_ms
        self.nonces = NonceWindow()
        self._seals_to_read = 0

    def seal(
        self,
        rows: Sequence[StoredEvent],
        events: Sequence[Event],
        nonces: Sequence[tuple[bytes, int]],
        *,
        at_ms: int,
        window_ms: int,
    ) -> tuple[StoredEvent, BatchSealed]:
        """Make the next seal of this partition, over ``rows`` with ``events``, and advance to it.

        The times of seals never go back, whatever the clock does, because ``load`` stops at the
        first seal that is too old to matter, compared with the newest.
        """
        self.at_ms = max(self.at_ms, at_ms)
        sealed = seal.seal(
            rows,
            events,
            partition=self.name,
            epoch=self.epoch,
            at_ms=self.at_ms,
            window_ms=window_ms,
            nonces=seal.pack_nonces(nonces),
            previous=self.digest,
        )
        self.version += 1
        self.previous, self.digest = self.digest, sealed.digest
        self._seals_to_read += 1
        return encode(self.stream, self.version, sealed), sealed

    def follow(self, log: LogReader, window_ms: int) -> bool:
        """Take what the former owner has sealed since ``load``; return whether that is anything.

        ``window_ms`` is as in ``load``. A claim of another owner is not taken, nor what follows it.

        Raises:
            LogError: the log cannot be read.
        """
        known = self.version
        for version, sealed in _seals_from(log, self.stream, known + 1, limit=_SEALS_PER_READ):
            if (version, sealed.epoch) != (self.version + 1, self.epoch - 1):
                break
            self.version, self.at_ms, self.digest = version, sealed.at_ms, sealed.digest
            self.add_nonces(seal.unpack_nonces(sealed.nonces), sealed, window_ms)
        return self.version > known

    def add_nonces(
        self, nonces: Iterable[tuple[bytes, int]], sealed: BatchSealed, window_ms: int
    ) -> None:
        """Keep the nonces of a seal for as long as the wider one of both windows needs."""
        wider_ms = max(0, window_ms - sealed.window_ms)
        for key, expires_ms in nonces:
            self.nonces.add(key, expires_ms + wider_ms)

    @property
    def place(self) -> SealPlace:
        """The newest seal: while the log has it, it has all rows that this owner knows."""
        return SealPlace(self.stream, self.version, self.digest)

    def snapshot_if_due(self, window_ms: int) -> DueSnapshot | None:
        """A snapshot of the nonces, if reading the seals since the last one would take long.

        "Long" grows with the number of nonces, so the cost per seal stays constant.
        """
        if self._seals_to_read < max(_SEALS_TO_READ_MIN, len(self.nonces) // 8):
            return None
        self._seals_to_read = 0
        nonces = _Nonces(window_ms, self.nonces.packed(), self.nonces.forgotten_before_ms)
        state = msgspec.msgpack.encode(nonces)
        return DueSnapshot(self.stream, Snapshot(self.version, NONCES_FOLD, state), self.place)


class _Nonces(msgspec.Struct, frozen=True):
    """A snapshot of nonces claimed under this window; the last field is as in ``NonceWindow``."""

    window_ms: int
    packed: dict[int, bytes]
    forgotten_before_ms: int


def is_too_old(sealed: BatchSealed, newest_ms: int, window_ms: int) -> bool:
    """Whether no nonce of a seal is in force any more when its partition made its newest seal.

    ``newest_ms`` is the time of the newest seal in Unix milliseconds, ``window_ms`` the timestamp
    window.
    """
    return sealed.at_ms + 2 * max(sealed.window_ms, window_ms) < newest_ms


def load(log: LogReader, name: str, *, now_ms: int, window_ms: int) -> OwnedPartition:
    """Read a partition's newest seal and the recent nonces from the log.

    Nonces are recent at the time of the newest seal or at ``now_ms`` (Unix milliseconds), whichever
    is earlier: a clock that is ahead leaves no nonce out, and once a clock that was ahead is right,
    no nonce counts as forgotten, which would refuse commands with the right timestamp. The nonces
    of a seal written under another window are kept as long as the wider window needs, so a window
    that grew between restarts re-opens no nonce. If a clock that is behind needs more than
    ``_READ_BACK_MAX``, the rest is taken as the clock of the newest seal would take it.

    Raises:
        LogUnavailable: the log cannot be read.
        CorruptRow: a row of the partition's stream is not a seal.
    """
    stream = partition_stream(name)
    known_version, known = _known_nonces(log, stream, window_ms)
    lacks_nonces = known.forgotten_before_ms > now_ms
    partition: OwnedPartition | None = None
    newest_ms = reached_until_ms = 0
    reached = read_back = 0
    for version, sealed in _seals_newest_first(log, stream):
        if partition is None:
            partition = OwnedPartition(name, sealed, version)
            newest_ms = sealed.at_ms
        elif version < reached - 1:
            # The seals between have left for the archive: none is newer than the last one read.
            partition.nonces.forgotten_before_ms = reached_until_ms
            break
        reach_ms = max(sealed.window_ms, window_ms)
        # No command accepted by then has a timestamp more than a window later.
        reached, reached_until_ms = version, sealed.at_ms + reach_ms + 1
        if version <= known_version and (not lacks_nonces or read_back > _READ_BACK_MAX):
            partition.nonces.add_packed(known.packed)
            partition.nonces.forgotten_before_ms = known.forgotten_before_ms
            break
        nonces = list(seal.unpack_nonces(sealed.nonces))
        is_old = is_too_old(sealed, newest_ms, window_ms)
        if is_old or version <= known_version:
            read_back += 1 + len(nonces)
        if is_old and (is_too_old(sealed, now_ms, window_ms) or read_back > _READ_BACK_MAX):
            partition.nonces.forgotten_before_ms = reached_until_ms
            break
        partition.add_nonces(nonces, sealed, window_ms)
    return partition or OwnedPartition(name, None, 0)


def _known_nonces(log: LogReader, stream: UUID, window_ms: int) -> tuple[int, _Nonces]:
    """The version of the newest usable snapshot, and its nonces.

    One by a clock that was ahead lacks nonces that are in force.
    """
    none = 0, _Nonces(window_ms, {}, 0)
    snapshot = log.load_snapshot(stream)
    if snapshot is None or snapshot.fold != NONCES_FOLD:
        return none
    try:
        nonces = msgspec.msgpack.decode(snapshot.state, type=_Nonces)
    except msgspec.DecodeError:
        return none
    # A snapshot under a narrower window lacks nonces that had expired under it.
    return (snapshot.version, nonces) if nonces.window_ms >= window_ms else none


def newest_seal(log: LogReader, name: str) -> BatchSealed | None:
    """The newest seal of a partition, which shows who owns it now."""
    for _, sealed in _seals_newest_first(log, partition_stream(name)):
        return sealed
    return None


def log_losses(log: LogReader, owned: Iterable[OwnedPartition], *, are_confirmed: bool) -> None:
    """Log an error for each partition of which a seal that its owner has confirmed is not there.

    Another seal may be in its place. ``are_confirmed``: the newest seal of each is confirmed,
    otherwise the one before it.

    Raises:
        LogError: the log cannot be read.
    """
    for p in owned:
        confirmed, digest = (p.version, p.digest) if are_confirmed else (p.version - 1, p.previous)
        found = _seals_from(log, p.stream, confirmed, limit=1)
        # A later one alone: this one has left for the archive, because versions have no other gaps.
        if any(version > confirmed or sealed.digest == digest for version, sealed in found):
            continue
        seals = _seals_newest_first(log, p.stream)
        last = next((version for version, sealed in seals if sealed.epoch <= p.epoch), 0)
        _LOG.error(
            "the log has lost transactions that were confirmed, as in a fail-over to a standby that"
            " lacked them, or after a restore under a running mediator",
            extra={"stream": str(p.stream), "seals_lost": confirmed - last},
        )


def is_newest(log: LogReader, partition: OwnedPartition) -> bool:
    """Does the stream of a partition end with the newest seal that this owner knows?

    Another owner's claim would follow there, or, if a database server has lost the end in a
    fail-over, be in its place.
    """
    found = _seals_from(log, partition.stream, partition.version, limit=2)
    return [sealed.digest for _, sealed in found] == [partition.digest]


def is_sealed(log: LogReader, place: SealPlace) -> bool:
    """Is a seal that an owner has made in the log, at its place?"""
    found = _seals_from(log, place.stream, place.version, limit=1)
    return [sealed.digest for _, sealed in found] == [place.digest]


def is_taken(log: LogReader, place: SealPlace) -> bool:
    """Is a seal in the log where an owner could not store its own, or behind that place?

    Its digest does not matter: claims that two owners make in the same millisecond are the same.
    """
    return bool(_seals_from(log, place.stream, place.version, limit=1))


def _seals_from(
    log: LogReader, stream: UUID, version: int, *, limit: int
) -> list[tuple[int, BatchSealed]]:
    """The first seals of a partition from a version on, each with its own."""
    rows = log.read_stream(stream, after=version - 1, limit=limit)
    found = [(row.originator_version, decode(row.topic, row.state)) for row in rows]
    return [(number, sealed) for number, sealed in found if isinstance(sealed, BatchSealed)]


def _seals_newest_first(log: LogReader, stream: UUID) -> Iterator[tuple[int, BatchSealed]]:
    before: int | None = None
    while True:
        rows = log.read_stream(stream, before=before, limit=_SEALS_PER_READ, newest_first=True)
        for row in rows:
            sealed = decode(row.topic, row.state)
            if not isinstance(sealed, BatchSealed):
                raise CorruptRow(row.topic, "a partition's stream holds seals alone")
            yield row.originator_version, sealed
        if len(rows) < _SEALS_PER_READ:
            return
        before = rows[-1].originator_version
