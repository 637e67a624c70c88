"""What has to be in a log after whatever happened to the process that wrote it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.log.codec import decode_whole
from eventstore.log.event_log import EventLog
from eventstore.log.events import MessageQueued
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from tests.crash.commands import (
    UNAVAILABLE,
    introduced,
    introduction,
    message,
    query,
    texts_in,
)
from tests.crash.owner import ask, here

BYTES_MAX: Final = 1_000_000_000


def stored_texts(log: EventLog) -> list[str]:
    """The messages of a log that were not removed, in its order, after a check of all of it.

    Raises:
        AssertionError: a row is missing, changed or without its seal.
    """
    *findings, summary = verify(log)
    assert findings == []
    assert isinstance(summary, Summary)
    rows = log.read_rows(after=0, rows_max=max(1, summary.position), bytes_max=BYTES_MAX)
    events = [decode_whole(row.topic, row.state, row.content) for row in rows]
    queued = [event.payload for event in events if isinstance(event, MessageQueued)]
    return [payload.data.decode() for payload in queued if payload.stored is not None]


def assert_kept(dsn: str, request: Sequence[str], accepted: Sequence[str]) -> None:
    """Every accepted message is stored, every other one once or not at all, in order.

    Then a restart: the host takes over what is there and goes on.
    """
    log = open_log(dsn)
    stored = stored_texts(log)
    log.close()
    assert stored == [text for text in request if text in set(stored)], "order, or a second copy"
    assert set(accepted) <= set(stored), "an accepted message is lost"
    with here(dsn) as host:
        # What was unknown may be there: both commands may be repeated under new nonces.
        assert introduced(ask(host, *introduction("again")))
        assert texts_in(ask(host, query("after the restart"))) == stored
        assert ask(host, message("after the restart")) != [UNAVAILABLE]
