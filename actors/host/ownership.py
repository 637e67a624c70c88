"""The partitions of one host: claimed in the log, handed over, or lost to a later owner.

The log decides: a claim is an empty seal with the next epoch, and a host with an older epoch has
lost the partition, whatever it believes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Final

from actors.core.placement_table import first_id
from actors.host import owned_partition as partitions
from actors.host.clock import Clock
from actors.host.owned_partition import OwnedPartition
from eventstore.log.errors import AppendConflict, LogError
from eventstore.log.event_log import EventLog, SealPlace

_LOG = logging.getLogger(__name__)
_WINDOW: Final = "nonce_window"
"""A mark in the log once a host has found seals under a wider timestamp window than its own: that
window in milliseconds, and until when its seals matter in Unix milliseconds."""
_CLAIMS_MAX: Final = 10
"""Tries of a claim while the former owner, which does not know that it is replaced, seals on."""


class Ownership:
    """The partitions that a host owns, and those that it is to claim once the log allows it."""

    def __init__(
        self, log: EventLog, clock: Clock, window_ms: int, *, on_lost: Callable[[str], None]
    ) -> None:
        """Start without partitions. ``on_lost`` gets each partition that another host claims.

        ``window_ms`` is the timestamp window for which nonces are kept.
        """
        self._log = log
        self._clock = clock
        self.window_ms = window_ms
        self._on_lost = on_lost
        self._assigned: set[str] = set()
        self._owned: dict[str, OwnedPartition] = {}
        self._epochs: dict[str, int] = {}
        self._claims_tried: dict[str, SealPlace] = {}
        self._sessions: dict[str, str] = {}
        self._adopted: set[str] = set()
        self.fenced: set[str] = set()
        """Lost partitions that no other host should own."""
        self.holdings: Mapping[str, str] = {}
        """The partitions that the host is to own, each with the id of its sessions, empty before
        its first claim. Replaced, never changed: any thread may read it."""

    @property
    def owned(self) -> Mapping[str, OwnedPartition]:
        """The partitions that are claimed and not given up."""
        return self._owned

    def assign(self, names: Sequence[str]) -> None:
        """Own these partitions from now on: claim each one in the log, in one append.

        Raises:
            LogError: the log cannot be read or written; the partitions are claimed by the first
                command that needs them.
        """
        self._take(names)
        self._claim([name for name in names if name not in self._owned])

    def adopt(self, names: Sequence[str], sessions: Mapping[str, str]) -> Mapping[str, str]:
        """Claim these partitions for this host, or none of them; return the ids of their sessions.

        ``sessions`` has the ids of sessions that were handed over; new sessions get their id from
        the epoch of the claim.

        Raises:
            LogError: the log cannot be read or written; as far as is known, none of them is owned.
        """
        self.release(names)
        self._take(names)
        self._adopted.update(names)
        try:
            self._claim(names)
        except LogError:
            self.release(names)
            raise
        self._sessions.update((name, sessions[name]) for name in names if name in sessions)
        self._tell()
        return {name: self._sessions[name] for name in names}

    def release(self, names: Sequence[str]) -> Mapping[str, str]:
        """Give up these partitions; return the session ids of those that were owned."""
        ids = {name: self._sessions[name] for name in names if name in self._sessions}
        for name in names:
            self._drop(name)
        self._tell()
        return ids

    def find(self, name: str) -> OwnedPartition | None:
        """An owned partition, which is claimed now if needed; None if it has another owner.

        Raises:
            AppendConflict: the claim conflicts with the log, but not with another owner's.
            LogError: the log cannot be read or written.
        """
        partition = self._owned.get(name)
        if partition is None and name in self._assigned:
            try:
                self._claim([name])
            except AppendConflict:
                if not partitions.is_taken(self._log, self._claims_tried[name]):
                    raise
            partition = self._owned.get(name)
        return partition

    def forget(self, name: str) -> None:
        """Drop a partition that may differ from the log; ``find`` reads and claims it again."""
        self._owned.pop(name, None)

    def give_up(self, name: str) -> None:
        """Give up a partition that another owner has claimed."""
        _LOG.error("partition %s has another owner: this host gave it up", name)
        if name not in self._adopted:
            self.fenced.add(name)
        self._drop(name)
        self._tell()
        self._on_lost(name)

    def _take(self, names: Sequence[str]) -> None:
        self._assigned.update(names)
        self.fenced.difference_update(names)
        for name in names:
            self._epochs.pop(name, None)
        self._tell()

    def _drop(self, name: str) -> None:
        self._assigned.discard(name)
        self._adopted.discard(name)
        for known in (self._owned, self._sessions, self._epochs, self._claims_tried):
            known.pop(name, None)

    def _tell(self) -> None:
        self.holdings = {name: self._sessions.get(name, "") for name in self._assigned}

    def _claim(self, names: Sequence[str]) -> None:
        """Read partitions from the log and claim them; give up those with another owner."""
        now_ms = self._clock()
        window_ms, until_ms, stamped_before_ms = self._former_window_ms(now_ms)
        claimed: list[OwnedPartition] = []
        for name in names:
            partition = partitions.load(self._log, name, now_ms=now_ms, window_ms=window_ms)
            if self._is_others(partition):
                self.give_up(name)
            else:
                partition.nonces.forget_before(stamped_before_ms)
                claimed.append(partition)
        if not claimed:
            return
        for partition in self._stored_claims(claimed, window_ms, until_ms):
            self._owned[partition.name] = partition
            self._epochs[partition.name] = partition.epoch
            self._sessions.setdefault(partition.name, first_id(partition.name, partition.epoch))
        self._tell()

    def _stored_claims(
        self, loaded: Sequence[OwnedPartition], window_ms: int, until_ms: int
    ) -> Sequence[OwnedPartition]:
        """Claim partitions in one append, each behind the newest seal of its former owner.

        That may seal more often than reading a partition takes, so only what it has sealed since is
        read before the next try. ``window_ms`` and ``until_ms`` are as in ``_former_window_ms``.
        """
        tried = 0
        while True:
            tried += 1
            self._note_former_window(loaded, window_ms, until_ms)
            claimed = [copy(partition) for partition in loaded]
            at_ms = self._clock()  # reading may have taken long; see ``DECISION_S_MAX``
            seals = [p.seal([], [], [], at_ms=at_ms, window_ms=self.window_ms) for p in claimed]
            self._claims_tried.update((p.name, p.place) for p in claimed)
            try:
                self._log.append([row for row, _ in seals], [event for _, event in seals])
            except AppendConflict:
                are_behind = [p.follow(self._log, window_ms) for p in loaded]
                if tried == _CLAIMS_MAX or not any(are_behind):
                    raise
            else:
                return claimed

    def _note_former_window(
        self, loaded: Sequence[OwnedPartition], window_ms: int, until_ms: int
    ) -> None:
        """Leave the mark of a wider window: from the newest seal on, which each try has anew."""
        found_ms = max(p.former_window_ms for p in loaded)
        if found_ms > self.window_ms:
            newest_ms = max(self._clock(), *(p.at_ms for p in loaded))
            until_ms = max(until_ms, newest_ms + 2 * found_ms)
            self._log.mark(_WINDOW, f"{max(window_ms, found_ms)} {until_ms}")

    def _former_window_ms(self, now_ms: int) -> tuple[int, int, int]:
        """The widest timestamp window whose nonces may matter, and until when; or the own one.

        The third is the time before which all commands were stamped whose nonces matter no more.
        That refuses nothing that is in time, unless the clock is ahead and its time is yet to come.

        A command may be stamped a window ahead and is in time for one more. So after the window has
        become narrower, the former one counts for twice its length: seals under the narrower one,
        too old to matter by then, would hide the older ones under the wider one from ``load``. The
        newest seal shows the former window only until it is followed by the first claim under the
        narrower one, so that claim leaves a mark.
        """
        widest_ms, until_ms = map(int, self._log.settings().get(_WINDOW, "0 0").split())
        if until_ms < now_ms:
            is_narrower = self.window_ms < widest_ms
            return self.window_ms, 0, until_ms - widest_ms + 1 if is_narrower else 0
        return max(widest_ms, self.window_ms), until_ms, 0

    def _is_others(self, loaded: OwnedPartition) -> bool:
        """Has another host claimed a partition since this host owned it?

        Not if the newest seal is this host's own claim, whose outcome was unknown.
        """
        newest_epoch = loaded.epoch - 1
        tried = self._claims_tried.get(loaded.name)
        if tried is not None and loaded.digest == tried.digest:
            self._epochs[loaded.name] = newest_epoch
        return newest_epoch > self._epochs.get(loaded.name, newest_epoch)
