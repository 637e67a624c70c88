"""Costs: every command has one, it grows with what is in it, and nothing is lost in parts."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest
from msgspec import structs

from actors.core.charges import Charges
from actors.core.commands import (
    AcknowledgeMessages,
    Command,
    DeletePublicEvents,
    DeliverMessages,
    EraseIdentity,
    ExpireRecords,
    NewSavedEvent,
    Page,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QueryQueue,
    QuerySavedEvents,
    QueueEnvelopes,
    QueueMessage,
    RequestContract,
    SaveContract,
    SaveEvents,
    StoreContract,
    TagUpdate,
    UpdateEventTags,
)
from actors.core.cost import COSTLY, cost, history_cost, page_cost, parts, time_cost, turn_cost
from actors.core.decide import RULES
from actors.core.limits import HostLimits, RetentionPace
from actors.core.refusals import Refusal
from actors.core.submissions import Submission
from eventstore.log.event_log import SavedEventsFilter
from http_edge.settings.settings import Limits
from tests.unit.actors.given import contract, registration

KIB = 1_024


def saved(events: int, tags: int = 0, payload: str = "x") -> SaveEvents:
    names = [f"tag {number}" for number in range(tags)]
    return SaveEvents([NewSavedEvent("a", "b", None, 1, payload, names)] * events)


def saved_as(**texts: Any) -> SaveEvents:
    event = NewSavedEvent("a", "b", None, 1, "x", ["t"])
    return SaveEvents([structs.replace(event, **texts)])


def retagged(events: int, tags: int = 0) -> UpdateEventTags:
    return UpdateEventTags([TagUpdate(str(number), ["tag"] * tags) for number in range(events)])


def published(tags: int) -> PublishPublicEvent:
    return PublishPublicEvent("c", "x", [f"tag {number}" for number in range(tags)], 1, "s", True)


def test_a_message_of_a_kibibyte_is_the_unit() -> None:
    assert cost(QueueMessage("a", bytes(KIB))) == cost(QueueEnvelopes("k", [bytes(KIB)])) == 1
    assert cost(QueryMessages(Page(0, 1_000))) == cost(AcknowledgeMessages(["id"])) == cost(None)


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (QueueMessage("a", bytes(KIB)), QueueMessage("a", bytes(64 * KIB))),
        (QueueEnvelopes("k", [b"1"]), QueueEnvelopes("k", [b"1", b"2"])),
        (QueueEnvelopes("k", [b"1"]), QueueEnvelopes("k", [bytes(64 * KIB)])),
        (saved(1), saved(2)),
        (saved(1), saved(1, tags=1)),
        (saved(1), saved(1, payload="x" * 64 * KIB)),
        (retagged(1), retagged(2)),
        (retagged(1), retagged(1, tags=1)),
        (
            UpdateEventTags([TagUpdate("id", ["t"])]),
            UpdateEventTags([TagUpdate("id", ["t" * 2 * KIB])]),
        ),
        (saved_as(), saved_as(sender_did="d" * 2 * KIB)),
        (saved_as(), saved_as(recipient_did="d" * 2 * KIB)),
        (saved_as(), saved_as(contract_id="c" * 2 * KIB)),
        (saved_as(), saved_as(payload="é" * KIB)),
        (saved_as(), saved_as(encrypted_tags=["t" * 2 * KIB])),
        (RequestContract("a", "sealed", "key"), RequestContract("a", "sealed", "k" * 2 * KIB)),
        (registration("a"), registration("a" * 2 * KIB)),
        (SaveContract(contract("a", "b")), SaveContract(contract("a", "b" * 2 * KIB))),
        (StoreContract(contract("a", "b")), StoreContract(contract("a", "b" * 2 * KIB))),
        (published(0), published(1)),
        (AcknowledgeMessages(["id"]), AcknowledgeMessages(["id"] * 1_000)),
        (
            QuerySavedEvents(Page(0, 1), SavedEventsFilter()),
            QuerySavedEvents(Page(0, 100), SavedEventsFilter()),
        ),
    ],
)
def test_more_of_anything_costs_more(small: Command, large: Command) -> None:
    assert 1 <= cost(small) < cost(large)


def test_a_search_among_the_envelopes_of_other_recipients_travels_alone() -> None:
    """With 10,000 in the queue it takes as long as 17 messages; it is charged when it is known."""
    picked = DeliverMessages("s", "c", 10, KIB, 1)
    narrowed = structs.replace(picked, recipient_key="k")
    assert cost(picked) == cost(narrowed) == cost(QueryQueue()) == cost(QueryQueue("k")) == 1
    assert turn_cost(picked) == turn_cost(QueryQueue()) == 1
    assert 1 < turn_cost(QueryQueue("k")) < COSTLY < turn_cost(narrowed)
    assert cost(structs.replace(narrowed, message_ids=["id"] * 100)) > cost(narrowed)


@pytest.mark.parametrize("kind", [QueryContracts, QueryContractRequests])
def test_a_large_page_of_contracts_or_requests_travels_alone_and_a_usual_one_with_others(
    kind: type[QueryContracts | QueryContractRequests],
) -> None:
    """The writer reads and packs it: a thousand of 16 KiB take it 70 ms."""
    usual, large = kind(Page(0, Limits().page_size_default)), kind(Page(0, Limits().page_size_max))
    assert cost(usual) == cost(large) == 1
    assert turn_cost(usual) < COSTLY < turn_cost(large)
    assert 2 * turn_cost(large) > Limits().costly_work_max, "one of them in a transaction"


def test_an_empty_page_costs_no_more_than_the_question() -> None:
    assert page_cost(0, 0) == 0
    assert 0 < page_cost(0, 0, looked_at=100) < page_cost(0, 0, looked_at=10_000)
    assert 0 < page_cost(10, 10 * KIB) < page_cost(1_000, KIB * KIB)


def test_a_page_of_a_long_history_costs_more_and_of_many_tags_the_most() -> None:
    assert history_cost(KIB, 0, 16) == 0
    few = history_cost(KIB, 1_000, 1)
    assert 0 < few < 1 < history_cost(KIB, 1_000_000, 1) < history_cost(KIB, 1_000_000, 2)
    assert history_cost(KIB, 1_000_000, 2) < history_cost(KIB, 1_000_000, 16)


def test_a_second_of_reading_costs_as_much_as_it_counts_and_a_short_reading_nothing() -> None:
    assert time_cost(-1) == time_cost(0.005) == 0 < time_cost(0.006)
    assert time_cost(0.805) == pytest.approx(history_cost(0, 200_000, 16))


def test_what_was_looked_through_for_a_page_is_charged_behind_it() -> None:
    charges = Charges(HostLimits(per_sender_per_s=1, burst_s=5))
    query = Submission("p", "did:x:me", b"key", source=b"me", charge=1.0)
    for looked_at in (0, 10_000):
        assert charges.refusal(query, 0) is None
        charges.add_page(query.source, page_cost(0, 0, looked_at), 0)
    refused = charges.refusal(query, 0)
    assert refused is not None
    assert refused.code is Refusal.RATE_LIMITED


def test_what_people_send_is_not_costly_and_what_imports_send_is() -> None:
    assert turn_cost(saved(1, tags=8)) <= COSTLY
    assert turn_cost(retagged(1, tags=4)) <= COSTLY
    assert turn_cost(QueueMessage("a", bytes(64 * KIB))) <= COSTLY
    assert turn_cost(saved(100, tags=1)) > COSTLY
    assert turn_cost(QueueMessage("a", bytes(512 * KIB))) > COSTLY


def test_a_usual_step_of_an_erasure_is_as_small_as_what_people_send() -> None:
    step = EraseIdentity("operator", RetentionPace().records_per_step_max)
    assert cost(step) == 1 < turn_cost(step) <= COSTLY
    assert turn_cost(EraseIdentity("operator", 256)) > COSTLY
    assert turn_cost(ExpireRecords(RetentionPace().records_per_step_max)) > COSTLY


def test_a_turn_may_cost_more_than_the_command_says_but_for_reads() -> None:
    """Tags that an event loses stand in no command."""
    for command in (saved(9), retagged(9), published(9), DeletePublicEvents(["a"] * 9)):
        assert turn_cost(command) >= cost(command)
    reading = QuerySavedEvents(Page(0, 1_000), SavedEventsFilter())
    assert turn_cost(reading) == 1


def test_the_parts_of_a_command_are_the_command() -> None:
    large, withdrawn = retagged(1_000, tags=1), DeletePublicEvents([str(n) for n in range(99)], "c")
    updates = [part.updates for part in parts(large) if isinstance(part, UpdateEventTags)]
    assert list(chain(*updates)) == large.updates
    ids = [part.event_ids for part in parts(withdrawn) if isinstance(part, DeletePublicEvents)]
    assert list(chain(*ids)) == withdrawn.event_ids
    assert all(part.channel_id == "c" for part in parts(withdrawn))  # type: ignore[union-attr]
    assert max(map(turn_cost, parts(large))) < 400


def test_what_is_all_or_nothing_has_no_parts() -> None:
    assert parts(saved(1_000)) == [saved(1_000)]
    assert len(RULES) > len(parts(published(64))) == 1
