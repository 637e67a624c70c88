"""How long to wait before an agent is tried again: exponential, bounded, spread."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

_DOUBLINGS_MAX: Final = 32
_SPREAD_BYTES: Final = 4


def pause_s(attempt: int, name: str, *, first_s: float, longest_s: float) -> float:
    """Seconds to wait after the failed try number ``attempt`` (from 1).

    Between half of the time and all of it, by ``name`` and attempt: agents behind one endpoint
    that fails do not come back to it together.
    """
    ceiling_s = min(longest_s, first_s * 2.0 ** min(attempt - 1, _DOUBLINGS_MAX))
    digest = blake2b(f"{name} {attempt}".encode(), digest_size=_SPREAD_BYTES).digest()
    share = int.from_bytes(digest, "big") / 256**_SPREAD_BYTES
    return ceiling_s * (1 + share) / 2
