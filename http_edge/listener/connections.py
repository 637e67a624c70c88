"""The connections of one listener: bounds their number, and the bytes that they make it hold."""

from __future__ import annotations

import asyncio
import logging
import resource
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import Context
from heapq import nsmallest
from typing import Final, Protocol

from http_edge.listener.transfers import Cut, Pace, Transfers
from http_edge.settings.settings import Limits

_LOG = logging.getLogger(__name__)
_LOG_S: Final = 10.0
"""Seconds between two log lines about cut connections, however many were cut."""
_FILES_KEPT: Final = 512
_FILES_ANY: Final = 1_000_000
_OWING_MAX: Final = 64
"""Connections of an address that is out of tokens; the listener cuts any beyond."""
_LOOK_S_MAX: Final = 1.0
_NONE_IDLE_S: Final = 0.05
"""After a scan that found no idle connection: as many as come in this time cause no other scan."""


class Admitted(Protocol):
    """A connection as the bounds of its listener see it; they set its first three attributes."""

    address: str
    is_shared: bool
    newcomer: int | None

    @property
    def idle_since_s(self) -> float | None:
        """The loop time since which it has waited for a request; None while it has one."""

    def force_close(self) -> None:
        """Close it."""


class Newcomers:
    """Counts the connections of an address from their start until their first request.

    All may send one at once. Connections from before the last ``forget`` do not count: an idle
    connection costs nothing, and must not keep others of its address out.
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._era = 0

    def of(self, address: str) -> int:
        """The number of newcomers of an address."""
        return self._counts[address]

    def add(self, address: str) -> int:
        """Count one more newcomer; return the token for ``remove``."""
        self._counts[address] += 1
        return self._era

    def remove(self, address: str, added: int | None) -> None:
        """Stop counting a newcomer that sent a request or ended; None if it was removed before."""
        if added == self._era:
            self._counts[address] -= 1

    def forget(self) -> None:
        """Forget all newcomers so far; count only those from now on."""
        self._counts.clear()
        self._era += 1


class Connections:
    """The connections of one listener.

    ``leaving`` holds bytes that clients have not read. ``on_cut`` gets the cause of each cut.
    """

    def __init__(
        self,
        limits: Limits,
        arriving: Transfers,
        *,
        address_of: Callable[[str], str | None],
        affords: Callable[[str, int], bool],
        on_cut: Callable[[str], None],
        headers: Mapping[str, str],
    ) -> None:
        """Connections whose bodies count in ``arriving``.

        ``headers`` are those of every answer, ``common_head`` the same as bytes.
        ``address_of`` maps a remote host to its rate limit key; None for one without a share.
        ``affords`` says whether a key has the tokens for so many unproven requests.
        """
        self.arriving = arriving
        self.headers = headers
        self.common_head = "".join(f"{n}: {text}\r\n" for n, text in headers.items()).encode()
        self._address_of = address_of
        self._affords = affords
        self._connections_max = min(limits.connections_max, _connections_by_files())
        self._per_address_max = min(
            limits.connections_per_address_max, (self._connections_max + 1) // 2
        )
        self._open: dict[Admitted, str | None] = {}
        self._open_of: dict[str, dict[Admitted, None]] = {}
        self._newcomers = Newcomers()
        self._none_idle_until_s: dict[str | None, float] = {}
        """By address; None is for the connections of all."""
        self.leaving = Transfers(
            bytes_max=limits.answers_bytes_max,
            bytes_per_address_max=limits.answers_bytes_per_address_max,
            pace=Pace(
                limits.transfer_grace_s, limits.transfer_bytes_per_s_min, limits.answer_write_s_max
            ),
        )
        self._on_cut = on_cut
        self._look_s = min(_LOOK_S_MAX, limits.transfer_grace_s / 2, limits.answer_write_s_max / 2)
        self._not_logged: Counter[str] = Counter()
        self._timers: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Open connections."""
        return len(self._open)

    def admit(self, connection: Admitted, host: str) -> Cut | None:
        """Admit a new connection, closing an idle one if necessary; return why not, else None."""
        address = self._address_of(host)
        if address is not None:
            of_address = self._open_of.get(address, {})
            if len(of_address) >= _OWING_MAX and not self._affords(
                address, self._newcomers.of(address)
            ):
                # Refusing each request with an answer would cost more than serving it.
                return Cut.OWING
            if len(of_address) >= self._per_address_max and not self._close_idle(address):
                return Cut.CONNECTIONS_PER_ADDRESS
        if len(self._open) >= self._connections_max and not self._close_idle(None):
            return Cut.CONNECTIONS
        self._open[connection] = address
        connection.is_shared = address is None
        if address is not None:
            connection.address = address
            self._open_of.setdefault(address, {})[connection] = None
            connection.newcomer = self._newcomers.add(address)
        return None

    def pays(self, connection: Admitted) -> None:
        """Count the connection as a newcomer no longer: its address pays for its request now."""
        address = self._open.get(connection)
        if address is not None:
            self._newcomers.remove(address, connection.newcomer)
            connection.newcomer = None

    def forget(self, connection: Admitted) -> None:
        """Forget a connection that has ended or is about to end."""
        self.pays(connection)
        address = self._open.pop(connection, None)
        if address is not None:
            of_address = self._open_of[address]
            del of_address[connection]
            if not of_address:
                del self._open_of[address]

    def _close_idle(self, address: str | None) -> bool:
        """Close the connections of an address, or of all, that have been idle longest, if any.

        A scan of thousands takes milliseconds, so each closes one and a hundredth of the idle ones,
        and after one that finds none, nothing is closed for ``_NONE_IDLE_S``.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._none_idle_until_s.get(address, 0.0):
            return False
        idle = [
            (since_s, number, connection)
            for number, connection in enumerate(
                self._open if address is None else self._open_of[address]
            )
            if (since_s := connection.idle_since_s) is not None
        ]
        if not idle:
            self._none_idle_until_s[address] = now_s + _NONE_IDLE_S
        for _, _, connection in nsmallest(1 + len(idle) // 100, idle):
            self.forget(connection)
            self.note(Cut.IDLE)
            connection.force_close()
        return bool(idle)

    def start(self) -> None:
        """Cut slow clients from now on, until ``stop``."""
        loop = asyncio.get_running_loop()
        self._timers["look"] = loop.call_later(self._look_s, self.start)
        self._newcomers.forget()
        self._none_idle_until_s.clear()
        for transfers in (self.leaving, self.arriving):
            transfers.cut_slow(loop.time())

    def stop(self) -> None:
        """Cut the clients that have not read their answers, and log the last cuts."""
        self.leaving.cut_all(Cut.STOP)
        for timer in self._timers.values():
            timer.cancel()
        if self._not_logged:
            self._log()

    def note(self, cause: Cut) -> None:
        """Count a cut, and log it within ``_LOG_S`` together with the other cuts of that time."""
        self._on_cut(cause.value)
        self._not_logged[cause.value] += 1
        if "log" not in self._timers:
            # An empty context: the line is about the connections of many requests.
            loop = asyncio.get_running_loop()
            self._timers["log"] = loop.call_later(_LOG_S, self._log, context=Context())

    def _log(self) -> None:
        del self._timers["log"]
        _LOG.warning("connections cut", extra={"causes": dict(self._not_logged)})
        self._not_logged.clear()


def _connections_by_files() -> int:
    """Raise the limit of open files to the hard limit; return how many connections fit in it.

    The others are for the log, hosts, deliveries, operators, and connections not admitted yet.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        _LOG.info("raised the limit of open files", extra={"before": soft, "now": hard})
    if hard == resource.RLIM_INFINITY:
        return _FILES_ANY
    return hard - min(_FILES_KEPT, hard // 2)
