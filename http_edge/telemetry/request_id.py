"""The id of the current request, for log lines.

The id comes with the request (``X-Request-Id``, from a proxy or from the client), or the edge makes
one. It goes back with the answer, and is in every line that is written for the request: the edge's
lines get it from ``http_edge.telemetry.logs``, a host gets it with the commands. The id proves
nothing and decides nothing. Work that outlives its request is started in an empty context.
"""

from __future__ import annotations

import re
from contextvars import ContextVar
from typing import Final

from actors.host.clock import new_id

HEADER: Final = "X-Request-Id"
_GIVEN: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
"""Long enough for a UUID, a trace id or a counter, too short for a payload, and without characters
that a reader of the log could misunderstand."""
_CURRENT: Final[ContextVar[str]] = ContextVar("request_id", default="")


def begin(given: str | None) -> None:
    """Begin a request with the id that came with it, if that is well-formed, else with a new id.

    New ids are not consecutive: these would show a client how many requests others have made.
    """
    is_taken = given is not None and _GIVEN.fullmatch(given) is not None
    _CURRENT.set(given if given and is_taken else new_id())


def current() -> str:
    """The id of the current request; empty outside of a request."""
    return _CURRENT.get()
