"""The times of the tries at one agent's endpoint."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_DOUBLINGS_MAX: Final = 32
_SPREAD_BYTES: Final = 4


def pause_s(attempt: int, name: str, *, first_s: float, longest_s: float) -> float:
    """Return the seconds to wait after the failed try number ``attempt`` (from 1).

    ``name`` and ``attempt`` choose a pause between half of the backoff time and all of it, so that
    the agents behind one failing endpoint do not retry together.
    """
    ceiling_s = min(longest_s, first_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX))
    digest = blake2b(f"{name} {attempt}".encode(), digest_size=_SPREAD_BYTES).digest()
    share = int.from_bytes(digest, "big") / 256**_SPREAD_BYTES
    return ceiling_s * (1 + share) / 2
