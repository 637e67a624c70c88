"""The id of the request that is being worked on, for lines of the log.

It comes with the request (``X-Request-Id``: a proxy's, or a client's own) or is made here, goes
back with the answer, and stands in every line that is written for the request: here by itself
(``http_edge.telemetry.logs``), at a host because it travels with the commands. It proves nothing
and decides nothing. Work that goes on without its request is begun in an empty context.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

from actors.host.clock import NewId

HEADER: Final = "X-Request-Id"
_GIVEN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Enough for a UUID, a trace id or a counter; no room for a payload, no sign that a reader of the
log could take for something else."""
_CURRENT: Final[ContextVar[str]] = ContextVar("request_id", default="")


def begin(given: str | None, new_id: NewId) -> None:
    """A request begins, with the id that it brought if that is well-formed, else with a new one.

    A new one is no number in a row: that would show each client how many requests others have made.
    """
    is_taken = given is not None and _GIVEN.fullmatch(given) is not None
    _CURRENT.set(given if given and is_taken else new_id())


def current() -> str:
    """The id of the request that is being worked on; empty outside of any."""
    return _CURRENT.get()
