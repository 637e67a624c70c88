"""The schedule of retries: bounded, exponential, with full jitter."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from http_edge.clients.decentrl.errors import (
    CommandRefused,
    MediatorUnreachable,
    OutcomeUnknown,
)
from http_edge.clients.sources import Sources

Answer = TypeVar("Answer")
_RATE_LIMITED: Final = "RATE_LIMITED"


@dataclass(frozen=True, slots=True)
class Backoff:
    """A bounded schedule of retries.

    Attributes:
        attempts_max: Tries in all, the first one included.
        first_s: Upper bound of the first pause in seconds; it doubles with each further pause.
        pause_s_max: Upper bound of every pause, whatever the mediator demands.
    """

    attempts_max: int = 4
    first_s: float = 0.1
    pause_s_max: float = 10.0

    def pause_s(self, attempt: int, chance: float, retry_after_s: float | None = None) -> float:
        """Seconds to wait after the failed try number ``attempt`` (from 1).

        Full jitter: clients that failed together do not come back together. If the mediator names
        a pause (``Retry-After``), the pause is at least as long, up to ``pause_s_max``.
        """
        # The exponent is bounded so that a long outage cannot overflow the float.
        ceiling_s = min(self.pause_s_max, self.first_s * 2.0 ** min(attempt - 1, 32))
        return min(self.pause_s_max, max(chance * ceiling_s, retry_after_s or 0.0))


ONCE: Final = Backoff(attempts_max=1)
"""No retries."""
PATIENT: Final = Backoff(attempts_max=60, first_s=0.5, pause_s_max=30.0)
"""For background work: retries for about a quarter of an hour, enough for a restart."""


async def repeated(
    once: Callable[[], Awaitable[Answer]], backoff: Backoff, sources: Sources, *, repeat: bool
) -> Answer:
    """Call ``once`` until it succeeds, while a retry can help and is allowed; return its result.

    An unreachable mediator got nothing, and one that limits the rate did nothing: after these a
    retry is always allowed, after an unknown outcome only with ``repeat``. ``once`` has to make a
    new command each time: the first try uses up its nonce, whatever its outcome (companions, trap
    21).
    """
    attempt = 1
    while True:
        try:
            return await once()
        except MediatorUnreachable:
            if attempt >= backoff.attempts_max:
                raise
            retry_after_s = None
        except CommandRefused as error:
            if error.code != _RATE_LIMITED or attempt >= backoff.attempts_max:
                raise
            retry_after_s = error.retry_after_s
        except OutcomeUnknown as error:
            if not repeat or attempt >= backoff.attempts_max:
                raise
            retry_after_s = error.retry_after_s
        await sources.sleep(backoff.pause_s(attempt, sources.chance(), retry_after_s))
        attempt += 1
