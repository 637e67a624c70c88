"""Times of QUERY_EVENTS against one owner with very many saved events.

    python -m tests.log.saved_events_scale [events] [--postgres]

Fills a fresh log through ``append`` and prints the median and the worst of five runs of each
query, for the first page, a page in the middle and the last one. SQLite in a temporary directory,
or a PostgreSQL server started for the purpose.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import click
import msgspec

from eventstore.log.codec import encode
from eventstore.log.event_log import EventLog, PageBounds, SavedEventsFilter
from eventstore.log.events import EventSaved
from eventstore.log.streams import identity_stream
from eventstore.stores.open_log import open_log
from tests.log.samples import content
from tests.postgres import running_postgres

OWNER_DID = "did:example:owner"
OWNER = identity_stream(OWNER_DID)
BATCH = 1000
PAGE = 50
RUNS = 5
CONTACTS = 200


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("events", nargs="?", type=int, default=1_000_000)
    parser.add_argument("--postgres", action="store_true")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        if arguments.postgres:
            url = stack.enter_context(running_postgres()).get_uri()
        else:
            directory = stack.enter_context(tempfile.TemporaryDirectory())
            url = f"sqlite:{Path(directory) / 'log.db'}"
        log = open_log(url)
        stack.callback(log.close)
        started = time.perf_counter()
        for first in range(1, arguments.events + 1, BATCH):
            batch = list(_events(first, min(first + BATCH, arguments.events + 1)))
            rows = [encode(OWNER, first + i, event) for i, event in enumerate(batch)]
            log.append(rows, batch)
        filled_s = time.perf_counter() - started
        click.echo(f"{arguments.events} events in {filled_s:.1f} s on {url.partition(':')[0]}")
        _report(log, arguments.events)


def _events(first: int, end: int) -> Iterator[EventSaved]:
    """Chats with some contacts, one much busier; 60 % share a tag; 10 % are unprocessed."""
    chance = random.Random(first)  # noqa: S311 - repeatable on purpose
    for version in range(first, end):
        contact = f"did:example:contact-{min(int(chance.expovariate(0.05)), CONTACTS - 1)}"
        outgoing = chance.random() < 0.5
        tags = [f"conversation {contact}", f"day {version // 2000}"]
        if chance.random() < 0.6:
            tags.append("chat")
        yield EventSaved(
            at_ms=0,
            command=bytes(16),
            event_id=f"{version:032x}",
            sender_did=OWNER_DID if outgoing else contact,
            recipient_did=contact if outgoing else OWNER_DID,
            contract_id=None,
            timestamp_s=1_700_000_000 + version // 3,
            payload=content(b"p" * 400),
            encrypted_tags=tags,
            processed=chance.random() < 0.9,
        )


def _filters(events: int) -> dict[str, SavedEventsFilter]:
    after = 1_700_000_000 + events // 12
    before = 1_700_000_000 + events // 4
    busy, quiet = "did:example:contact-0", "did:example:contact-60"
    single = {
        "none": SavedEventsFilter(),
        "time": SavedEventsFilter(after_timestamp_s=after, before_timestamp_s=before),
        "participant": SavedEventsFilter(participant_did=busy),
        "participant, owner": SavedEventsFilter(participant_did=OWNER_DID),
        "tag, 60 %": SavedEventsFilter(encrypted_tags=["chat"]),
        "tag, few": SavedEventsFilter(encrypted_tags=["day 7"]),
        "unprocessed": SavedEventsFilter(unprocessed_only=True),
    }
    change = msgspec.structs.replace
    pairs = {
        "time + participant": change(single["time"], participant_did=busy),
        "time + owner": change(single["time"], participant_did=OWNER_DID),
        "time + tag": change(single["time"], encrypted_tags=["chat"]),
        "time + unprocessed": change(single["time"], unprocessed_only=True),
        "participant + tag": change(single["participant"], encrypted_tags=["chat"]),
        "owner + tag": change(single["participant, owner"], encrypted_tags=["chat"]),
        "participant + unprocessed": change(single["participant"], unprocessed_only=True),
        "owner + unprocessed": change(single["participant, owner"], unprocessed_only=True),
        "tag + unprocessed": change(single["tag, 60 %"], unprocessed_only=True),
        "quiet participant + tag": SavedEventsFilter(
            participant_did=quiet, encrypted_tags=["chat"]
        ),
        "all four": change(
            single["time"],
            participant_did=busy,
            encrypted_tags=["chat"],
            unprocessed_only=True,
        ),
    }
    several = {
        "any of 2 tags": SavedEventsFilter(encrypted_tags=["chat", "day 7"]),
        "any of 12 tags": SavedEventsFilter(encrypted_tags=[f"day {n}" for n in range(12)]),
    }
    return {**single, **pairs, **several}


def _report(log: EventLog, events: int) -> None:
    click.echo(
        f"{'filter':<28}{'total':>9}   {'first page':<15}{'middle page':<15}last page"
        "   (ms: median, worst)"
    )
    worst_ms = 0.0
    for name, where in _filters(events).items():
        total = log.query_saved_events(OWNER, where, PageBounds(0, 1)).total
        cells = []
        for offset in (0, total // 2, max(0, total - PAGE)):
            times_ms = []
            for _ in range(RUNS):
                started = time.perf_counter()
                page = log.query_saved_events(OWNER, where, PageBounds(offset, PAGE))
                times_ms.append((time.perf_counter() - started) * 1000)
                assert page.total == total
            worst_ms = max(worst_ms, *times_ms)
            cells.append(f"{median(times_ms):6.1f} {max(times_ms):6.1f}")
        click.echo(f"{name:<28}{total:>9}   {'  '.join(cells)}")
    click.echo(f"worst of all {worst_ms:.1f} ms")


if __name__ == "__main__":
    main()
