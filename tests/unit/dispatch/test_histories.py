"""Pages of long histories, which take seconds, hold up no other pages, and each other in turn."""

from __future__ import annotations

import asyncio
from contextvars import copy_context

import msgspec
import pytest
from pydantic import ValidationError

from actors.core.commands import Page
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Read, WaitingAt
from eventstore.log.event_log import PublicEventsFilter, SavedEventsFilter, SavedEventsPage
from http_edge.dispatch.gateway import READS_WAITING_MAX
from http_edge.settings.limits import Limits
from tests.unit.dispatch.test_gateway import ADDRESS, LIMITS, Setting, read_of, sender_and_target

PAGE = msgspec.msgpack.encode(SavedEventsPage([], 0))


def history(setting: Setting, did: str, payer: str = "") -> asyncio.Task[object]:
    read, request = Read(did, Page(0, 1), SavedEventsFilter()), copy_context()
    request.run(ADDRESS.set, payer)
    return asyncio.create_task(setting.gateway.read(read), context=request)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_histories_hold_up_no_page_of_messages_or_public_events() -> None:
    limits = LIMITS.model_copy(update={"reads_in_flight_max": 4})
    setting = Setting(hosts=2, limits=limits)
    for host in setting.hosts.values():
        host.page = PAGE
        host.hold()
    dids = sender_and_target(setting)
    histories = [history(setting, did) for did in dids for _ in range(8)]
    await turns()
    others = [
        asyncio.create_task(setting.gateway.read(Read(dids[0], Page(0, 1), where)))
        for where in (WaitingAt([1], 1), PublicEventsFilter())
    ]
    await turns()
    reading = [host.reading for host in setting.hosts.values()]
    assert reading == [[dids[0]] * 3, [dids[1]]], "one history at each host, and the others"
    for host in setting.hosts.values():
        host.answer_all()
    assert await asyncio.gather(*histories, *others) == [PAGE] * 18


async def test_histories_that_wait_for_one_of_several_hosts_leave_places_to_its_other_pages() -> (
    None
):
    limits = LIMITS.model_copy(update={"commands_in_flight_max": 16, "reads_in_flight_max": 4})
    setting = Setting(hosts=2, limits=limits)
    for host in setting.hosts.values():
        host.page = PAGE
    dids = sender_and_target(setting)
    assert await asyncio.gather(*(history(setting, did) for did in dids)) == [PAGE] * 2
    setting.host.hold()
    histories = [history(setting, dids[0]) for _ in range(3)]
    await turns()
    others = [read_of(setting, dids[0]) for _ in range(2)]
    await turns()
    assert setting.host.reading == [dids[0]] * (1 + 1 + 2)
    setting.host.answer_all()
    refused = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
    assert await asyncio.gather(*histories, *others) == [PAGE, PAGE, refused, PAGE, PAGE]


async def test_a_history_leaves_a_place_even_of_the_fewest_that_can_be_set() -> None:
    with pytest.raises(ValidationError):
        Limits(reads_in_flight_max=1)
    setting = Setting(limits=LIMITS.model_copy(update={"reads_in_flight_max": 2}))
    setting.host.page = PAGE
    setting.host.hold()
    reads = [history(setting, "did:a:1"), history(setting, "did:a:2")]
    await turns()
    reads.append(read_of(setting, "did:a:3"))
    await turns()
    assert setting.host.reading == ["did:a:1", "did:a:3"]
    setting.host.answer_all()
    assert await asyncio.gather(*reads) == [PAGE] * 3


async def test_for_one_address_a_bounded_number_of_histories_waits() -> None:
    """Whatever number of identities has them."""
    setting = Setting()
    setting.host.page = PAGE
    setting.host.hold()
    reads = [history(setting, f"did:a:{n}", "many") for n in range(READS_WAITING_MAX)]
    beyond, other = history(setting, "did:a:x", "many"), history(setting, "did:a:y", "other")
    assert await asyncio.wait_for(beyond, 10) == Refused(Refusal.RATE_LIMITED)
    setting.host.answer_all()
    assert await asyncio.gather(*reads, other) == [PAGE] * (READS_WAITING_MAX + 1)


async def test_histories_of_one_address_hold_up_those_of_others_by_one_at_most() -> None:
    setting = Setting()
    setting.host.page = PAGE
    setting.host.hold()
    many = [history(setting, f"did:a:{number}", "many") for number in range(6)]
    await turns()
    other = [history(setting, f"did:b:{number}", "other") for number in range(2)]
    await turns()
    setting.host.answer_all()
    assert await asyncio.gather(*many, *other) == [PAGE] * 8
    order = [did[:5] for did in setting.host.reading]
    assert order == ["did:a", "did:a", "did:b", "did:a", "did:b", "did:a", "did:a", "did:a"]
