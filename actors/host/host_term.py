"""The term of a host: it may serve as long as its lease runs, by a clock that it can trust.

The database counts the time of a lease from when it stores the lease; the host counts from before
its request, by its own monotonic clock. So the host always stops first, whatever the clocks show: a
host that was paused or cut off from the database has stopped serving by the time that its
partitions go to other hosts. If a clock runs wrongly all the same, the log fences the host.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from actors.host.vital_thread import vital_thread
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease, HostLeases

_LOG = logging.getLogger(__name__)
_RENEWALS: Final = 4
"""Renewals in the time of a lease: two may fail, and the third is still in time."""
_OWN_SHARE: Final = 0.95
"""The part of a lease's time that the host counts, since clocks may run at different speeds."""


class HostTerm:
    """The term of one host; any thread may ask for it."""

    def __init__(self, lease_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.lease_s = lease_s
        self.monotonic = monotonic
        self._until_s = float("-inf")

    def is_running(self) -> bool:
        """May the host serve now?"""
        return self.monotonic() < self._until_s

    @property
    def left_s(self) -> float:
        """The remaining seconds; 0 when the term is over."""
        return max(0.0, self._until_s - self.monotonic())

    def renewed(self, asked_s: float) -> None:
        """Extend the term: the database granted the request made at this monotonic time."""
        self._until_s = asked_s + self.lease_s * _OWN_SHARE

    def ended(self) -> None:
        """End the term at once."""
        self._until_s = float("-inf")


class LeaseKeeper:
    """The thread that renews the lease of a host, whatever else the host does."""

    def __init__(
        self,
        lease: HostLease,
        leases: HostLeases,
        term: HostTerm,
        *,
        on_over: Callable[[], None],
    ) -> None:
        """A keeper that does not run yet; it calls ``on_over`` each time the term is over."""
        self._lease = lease
        self._leases = leases
        self._term = term
        self._on_over = on_over
        self._is_taken = False
        self._was_running = False
        self._is_failing = False
        self._stopped = threading.Event()
        self._thread = vital_thread("lease", self._keep)

    def start(self) -> None:
        """Take the lease on the host's name, and keep renewing it."""
        self._thread.start()

    def stop(self) -> None:
        """Give the lease back, so that no other host has to wait until it is over."""
        self._stopped.set()
        self._thread.join()
        self._term.ended()
        try:
            self._leases.leave(self._lease)
        except LogUnavailable as error:
            _LOG.warning("could not release the lease: %s", error)
        self._leases.close()

    def renew(self) -> None:
        """Take or renew the lease once; call ``on_over`` if the term is over."""
        self._tell()
        asked_s = self._term.monotonic()
        try:
            if not self._is_taken:
                self._leases.take(self._lease, self._term.lease_s)
                self._is_taken = is_ours = True
            else:
                is_ours = self._leases.renew(self._lease, self._term.lease_s)
        except LogUnavailable as error:
            # Only the first failure of an outage is logged as a warning.
            _LOG.log(logging.DEBUG if self._is_failing else logging.WARNING, "%s", error)
            self._is_failing = True
        else:
            self._is_failing = False
            if is_ours:
                self._term.renewed(asked_s)
            else:
                _LOG.error("another process uses the name of this host")
                self._term.ended()
        self._tell()

    def _tell(self) -> None:
        is_running = self._term.is_running()
        if self._was_running and not is_running:
            self._on_over()
        self._was_running = is_running

    def _keep(self) -> None:
        while not self._stopped.is_set():
            self.renew()
            pause_s = self._term.lease_s / _RENEWALS
            self._stopped.wait(min(pause_s, self._term.left_s) or pause_s)
