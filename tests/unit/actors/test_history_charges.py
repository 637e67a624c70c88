"""What histories cost their owners, whose queries take the time of a host and not of its writer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from uuid import UUID

import pytest
from typing_extensions import override

from actors.core.charges import Charges
from actors.core.commands import CheckRegistered, Command, Page, QuerySavedEvents
from actors.core.cost import history_cost, source_key, time_cost
from actors.core.limits import HostLimits
from actors.core.refusals import Refusal
from actors.core.submissions import Read, Submission
from actors.host.identity_host import HostOptions, IdentityHost
from actors.host.port import PAGE_TOO_LARGE, ReadPages
from eventstore.log.errors import LogError, LogUnavailable, PageTooLarge, ReadTooLong
from eventstore.log.event_log import EventLog, PageBounds, SavedEventsFilter, SavedEventsPage
from eventstore.stores.open_log import open_log
from tests.log.faulty_log import FaultyLog

DID, PAGE, MIB = "did:x:me", Page(0, 10), 1 << 20
LIMITS = HostLimits(per_sender_per_s=200, burst_s=5)
TAGS = [f"tag {number}" for number in range(16)]
QUERY = QuerySavedEvents(PAGE, SavedEventsFilter(encrypted_tags=TAGS))


def wait_s(charges: Charges, command: Command, now_s: float) -> float:
    """The wait that a refusal of the command names; 0 for none."""
    by = Submission("p", DID, b"key", command=command, source=source_key(DID), charge=1.0)
    refused = charges.refusal(by, int(now_s * 1000))
    if refused is None:
        return 0.0
    assert refused.code is Refusal.RATE_LIMITED
    return refused.retry_after_s


def test_what_a_history_costs_beyond_what_may_be_owed_is_paid_by_a_pause() -> None:
    """Of histories alone: other commands wait as long as ever."""
    charges = Charges(LIMITS)
    units = history_cost(0, 1_000_000, len(TAGS))
    assert units == 16_000
    charges.add_page(source_key(DID), units, 0)
    charges.pause(source_key(DID), units, 0)
    assert wait_s(charges, QUERY, 0) == (units - 1_000) / 200 == 75
    assert 5 < wait_s(charges, CheckRegistered(), 0) < 6 > wait_s(charges, CheckRegistered(), 5) > 0
    assert wait_s(charges, CheckRegistered(), 6) == 0
    assert 0 < wait_s(charges, QUERY, 74) <= 1
    assert wait_s(charges, QUERY, 76) == 0


def test_histories_that_cost_no_more_than_may_be_owed_are_paid_for_without_a_pause() -> None:
    charges = Charges(LIMITS)
    charges.pause(source_key(DID), 1_000, 0)
    assert wait_s(charges, QUERY, 0) == 0
    unlimited = Charges(HostLimits(per_sender_per_s=0))
    unlimited.pause(source_key(DID), 80_000, 0)
    assert wait_s(unlimited, QUERY, 0) == 0


def test_pauses_add_up_to_ten_minutes_and_end_if_the_clock_is_set_back() -> None:
    charges = Charges(LIMITS)
    for _ in range(2):
        charges.pause(source_key(DID), 41_000, 1_000_000)
    assert wait_s(charges, QUERY, 1_000) == 400
    charges.pause(source_key(DID), 81_000, 1_000_000)
    assert wait_s(charges, QUERY, 1_000) == 600
    assert wait_s(charges, QUERY, 999) == 0
    charges.pause(source_key("did:x:other"), 41_000, 900_000)
    assert len(charges._pauses) == 1


class LongHistories(FaultyLog):
    """A log whose queries of histories take ``takes_s`` of a clock of its own, and are counted.

    They find a page in which ``total`` events match, or fail with ``error``.
    """

    def __init__(self, log: EventLog) -> None:
        super().__init__(log)
        self.error: LogError | None = None
        self.now_s = self.takes_s = 0.0
        self.total = self.queries = 0

    @override
    def query_saved_events(
        self, owner: UUID, where: SavedEventsFilter, bounds: PageBounds
    ) -> SavedEventsPage:
        self.queries += 1
        self.now_s += self.takes_s
        if self.error:
            raise self.error
        return SavedEventsPage([], self.total)


@pytest.fixture
def log(tmp_path: Path) -> LongHistories:
    return LongHistories(open_log(f"sqlite:{tmp_path / 'log.db'}"))


@pytest.fixture
def host(tmp_path: Path, log: LongHistories) -> Iterator[IdentityHost]:
    options = HostOptions("host", f"sqlite:{tmp_path / 'log.db'}", ["shard-0"], LIMITS)
    host = IdentityHost(
        options,
        lambda _edge, _pushes: None,
        clock=lambda: 0,
        log=log,
        monotonic=lambda: log.now_s,
    )
    yield host
    host.stop()


def pages(host: IdentityHost, *tags: str, page: Page = PAGE) -> Sequence[bytes]:
    where = SavedEventsFilter(encrypted_tags=[*tags], participant_did=DID)
    answer = host.answer(ReadPages([Read(DID, page, where)] * 3))
    assert isinstance(answer, list)
    return [bytes(page) for page in answer]


def pause_s(host: IdentityHost) -> float:
    return wait_s(host._host.charges, QUERY, 0)


@pytest.mark.parametrize("tags", [0, 1, 16])
def test_a_history_that_takes_too_long_costs_its_time_whatever_its_query(
    host: IdentityHost, log: LongHistories, tags: int
) -> None:
    """Those that wait for it are not read."""
    log.error, log.takes_s = ReadTooLong("planned"), 15
    assert pages(host, *TAGS[:tags]) == [b""] * 3
    assert log.queries == 1
    longest = history_cost(0, LIMITS.identity.saved_events_max, len(TAGS))
    assert pause_s(host) == (time_cost(15) - 1_000) / 200 < (longest - 1_000) / 200


def test_a_history_too_large_for_a_page_costs_the_time_in_which_it_was_counted(
    host: IdentityHost, log: LongHistories
) -> None:
    log.error, log.takes_s = PageTooLarge("planned"), 8
    page = Page(0, 10, bytes_max=MIB)
    assert pages(host, *TAGS, page=page) == [PAGE_TOO_LARGE, b"", b""]
    assert pause_s(host) == (time_cost(8) - 1_000) / 200


def test_a_history_of_which_nothing_matches_costs_the_time_in_which_it_was_searched(
    host: IdentityHost, log: LongHistories
) -> None:
    log.takes_s = 3
    assert [bool(page) for page in pages(host, *TAGS)] == [True, False, False]
    assert pause_s(host) == (time_cost(3) - 1_000) / 200


def test_a_history_costs_by_what_matches_however_soon_it_is_found(
    host: IdentityHost, log: LongHistories
) -> None:
    log.total, log.takes_s = 1_000_000, 1
    assert [bool(page) for page in pages(host, *TAGS)] == [True, False, False]
    assert pause_s(host) == (history_cost(0, 1_000_000, len(TAGS)) - 1_000) / 200


def test_a_history_that_the_log_cannot_give_costs_no_more_than_its_time(
    host: IdentityHost, log: LongHistories
) -> None:
    log.error = LogUnavailable("planned")
    assert pages(host) == [b""] * 3
    assert log.queries == 3
    assert pause_s(host) == 0
    log.takes_s = 5
    assert pages(host) == [b""] * 3
    assert log.queries == 4
    assert pause_s(host) == (time_cost(5) - 1_000) / 200
