"""The format of a log: everything stored in it that a release must know in order to go on with it.

That is the kinds of events, the seals, and the tables that an append keeps. A release that stores
something that the release before it does not know has the next number. The log records the number
(``FORMAT_NAME``, beside its constants) when the first host of that release opens it, and a release
opens no log with a later number than its own. Without this an older release would serve such a log:
it would refuse single identities, omit tables that it does not know, and take seals for forged.

``tests/golden/test_formats.py`` holds what belongs to each number.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from eventstore.log.errors import LogOfLaterRelease
from eventstore.log.event_log import EventLog

FORMAT: Final = 1
FORMAT_NAME: Final = "format"
_FIRST: Final = "1"
"""Logs of the first builds have no number."""


def check_format(constants: Mapping[str, str]) -> None:
    """Refuse a log of a later release, given its constants.

    Raises:
        LogOfLaterRelease: its format has a later number than this release's.
    """
    stored = int(constants.get(FORMAT_NAME, _FIRST))
    if stored > FORMAT:
        raise LogOfLaterRelease(
            f"a later release has written to this log: it has format {stored},"
            f" and this release knows formats up to {FORMAT}"
        )


def record_format(log: EventLog) -> None:
    """Record that the log may from now on hold what this release stores.

    Raises:
        LogUnavailable: the store failed; nothing new may be stored yet.
    """
    if int(log.settings().get(FORMAT_NAME, "0")) < FORMAT:
        log.mark(FORMAT_NAME, str(FORMAT))
