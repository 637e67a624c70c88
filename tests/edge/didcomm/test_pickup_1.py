"""Pickup 1.0 with its extension (the owner's document), every case of it, over real sockets.

A delay passes by the event loop's time, so these tests wait for a few tenths of a second.
"""

from __future__ import annotations

import asyncio
from itertools import chain
from typing import Any, Final

import aiohttp
import pytest

from http_edge.clients.didcomm import ProblemReported
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, OLD_PREFIX
from tests.edge.didcomm.wallet_network import (
    PREFIXES,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    fresh,
    ids,
    numbered,
    opened,
    routed,
    sealed,
)
from tests.edge.identities import Json
from tests.edge.mediator import HandClock, Mediator

PICKUP: Final = "messagepickup/1.0/"
SHORT_MS: Final = 250
LONG_MS: Final = 20_000


def problem(answer: Json | None) -> tuple[str, object]:
    """Name and code of the protocol's own problem report."""
    assert answer is not None
    assert isinstance(answer["explain"], str)
    return str(answer["@type"]).removeprefix(NEW_PREFIX + PICKUP), answer["problem-code"]


async def reply_to(bob: Bob, name: str, **members: Any) -> Json:
    return await answer_to(bob.wallet, PICKUP + name, **members)


def seconds() -> float:
    return asyncio.get_running_loop().time()


async def test_a_status_has_every_attribute_over_http(
    network: WalletNetwork, bob: Bob, clock: HandClock
) -> None:
    empty = await reply_to(bob, "status-request")
    assert {name: empty[name] for name in ("message_count", "duration_waited", "total_size")} == {
        "message_count": 0,
        "duration_waited": 0,
        "total_size": 0,
    }
    envelopes = [envelope_of(bob.key, text) for text in ("one", "two")]
    for envelope in envelopes:
        assert (await network.post(envelope)).status == 202
        clock.advance(60)
    await bob.wallet.batch(1)
    await bob.wallet.ping()  # what was written has left the queue by then
    clock.advance(30)
    status = await reply_to(bob, "status-request")
    for name in ("@id", "@type", "~thread"):
        status.pop(name)
    assert status == {
        "message_count": 1,
        "duration_waited": 30,
        "last_added_time": "2027-01-15 08:01:00Z",
        "last_delivered_time": "2027-01-15 08:02:00Z",
        "last_removed_time": "2027-01-15 08:02:00Z",
        "total_size": len(envelopes[1]),
    }


async def test_of_10_waiting_a_batch_of_3_takes_3_and_7_stay(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(10)
    await network.write(bob, *texts)
    assert bob.texts(await bob.wallet.batch(3)) == texts[:3]
    assert (await bob.wallet.pickup1_status()).message_count == 7
    assert bob.texts(await bob.wallet.batch(10)) == texts[3:]


async def test_of_10_waiting_a_batch_of_30_takes_10_at_once(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(10)
    await network.write(bob, *texts)
    assert bob.texts(await bob.wallet.batch(30)) == texts
    assert (await bob.wallet.pickup1_status()).message_count == 0


async def test_of_10_waiting_and_5_arriving_a_batch_of_30_with_delay_takes_15(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(15)
    await network.write(bob, *texts[:10])
    started = seconds()
    polling = asyncio.create_task(bob.wallet.batch(30, 4 * SHORT_MS))
    await network.write(bob, *texts[10:])
    assert bob.texts(await polling) == texts
    assert seconds() - started >= 4 * SHORT_MS / 1000


async def test_of_0_waiting_and_none_arriving_a_batch_with_delay_is_empty(bob: Bob) -> None:
    started = seconds()
    batch = await reply_to(
        bob, "batch-pickup", batch_size=30, **{"~timing": {"delay_milli": SHORT_MS}}
    )
    assert batch["@type"] == NEW_PREFIX + PICKUP + "batch"
    assert batch["messages~attach"] == []
    assert seconds() - started >= SHORT_MS / 1000


async def test_a_batch_with_delay_is_answered_as_soon_as_it_is_full(
    network: WalletNetwork, bob: Bob
) -> None:
    texts = numbered(3)
    polling = asyncio.create_task(bob.wallet.batch(3, LONG_MS))
    await network.write(bob, *texts)
    assert bob.texts(await polling) == texts
    await network.write(bob, *texts)
    assert bob.texts(await bob.wallet.batch(2, LONG_MS)) == texts[:2]


async def test_a_batch_of_an_empty_queue_without_delay_is_empty_at_once(bob: Bob) -> None:
    assert await bob.wallet.batch(10) == []


async def test_a_batch_of_nothing_is_empty_and_takes_nothing(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    assert await bob.wallet.batch(0, LONG_MS) == []
    assert await bob.drained() == ["one"]


async def test_an_item_of_a_batch_has_its_id_in_both_spellings(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    (item,) = (await reply_to(bob, "batch-pickup", batch_size=1))["messages~attach"]
    assert set(item) == {"@id", "id", "message"}
    assert item["@id"] == item["id"]
    assert set(item["message"]) == {"protected", "iv", "ciphertext", "tag"}


async def test_a_noop_brings_the_oldest_message_raw(network: WalletNetwork, bob: Bob) -> None:
    envelope = envelope_of(bob.key, "one")
    assert (await network.post(envelope)).status == 202
    await network.write(bob, "two")
    answer = await network.say(bob.connection, PICKUP + "noop", **routed())
    assert (answer.status, answer.body) == (200, envelope)
    assert bob.read(await bob.wallet.noop()) == "two"


async def test_a_noop_of_an_empty_queue_reports_that_it_is_empty(bob: Bob) -> None:
    assert problem(await reply_to(bob, "noop")) == ("problem_report", "empty_queue")


async def test_a_noop_with_delay_reports_when_the_time_is_over(bob: Bob) -> None:
    started = seconds()
    answer = await reply_to(bob, "noop", **{"~timing": {"delay_milli": SHORT_MS}})
    assert problem(answer) == ("problem_report", "timeout_occurred")
    assert seconds() - started >= SHORT_MS / 1000


@pytest.mark.parametrize("transport", ["HTTP", "WebSocket"])
async def test_a_noop_with_delay_is_answered_when_a_message_arrives(
    network: WalletNetwork, bob: Bob, transport: str
) -> None:
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet if transport == "HTTP" else bob.wallet.over(socket)
        polling = asyncio.create_task(wallet.noop(LONG_MS))
        await network.polled()
        assert not polling.done()
        await network.write(bob, "one")
        assert bob.read(await polling) == "one"


async def test_other_messages_pass_a_long_poll_on_its_socket(
    network: WalletNetwork, bob: Bob
) -> None:
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket)
        polling = asyncio.create_task(wallet.noop(LONG_MS))
        await asyncio.sleep(0)
        await wallet.ping()
        assert (await wallet.pickup1_status()).message_count == 0
        await network.write(bob, "one")
        assert bob.read(await polling) == "one"


@pytest.mark.parametrize("settings", [{"didcomm": {"delay_s_max": 0.2}}])
async def test_a_delay_is_bounded_by_the_operator(bob: Bob) -> None:
    assert await bob.wallet.batch(1, 600_000) == []


@pytest.mark.parametrize("settings", [{"didcomm": {"waiters_max": 1}}])
async def test_who_finds_no_room_to_wait_is_answered_as_if_the_time_were_over(
    network: WalletNetwork, bob: Bob
) -> None:
    polling = asyncio.create_task(bob.wallet.noop(LONG_MS))
    await network.polled()
    assert await bob.wallet.batch(1, LONG_MS) == []
    await network.write(bob, "one")
    assert bob.read(await polling) == "one"


async def test_a_long_poll_ends_with_its_socket(network: WalletNetwork, bob: Bob) -> None:
    async with network.socket() as socket:
        timing = {"~timing": {"delay_milli": LONG_MS}}
        await socket.raw.send_bytes(sealed(bob.connection, PICKUP + "noop", **routed(), **timing))
        await _listeners(network, 1 + 1)  # the wallet on the socket, and its long poll
    await _listeners(network, 0)


async def _listeners(network: WalletNetwork, number: int) -> None:
    """Return when so many listen, well before a long poll is over."""
    hub = network.mediator.edges[0]._hub
    async with asyncio.timeout(LONG_MS / 2_000):
        while len(hub) != number:  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0)


async def test_a_socket_holds_eight_long_polls_and_answers_the_next_at_once(
    network: WalletNetwork, bob: Bob
) -> None:
    timing = {"~timing": {"delay_milli": LONG_MS}}
    async with network.socket() as socket:
        for number in range(9):
            named = {**routed(), **timing, "@id": f"{number}"}
            poll = sealed(bob.connection, PICKUP + "batch-pickup", batch_size=1, **named)
            await socket.raw.send_bytes(poll)
        answer = opened(bob.connection, await socket.data())
        assert answer["~thread"]["thid"] == "8"
        assert answer["messages~attach"] == []


async def test_long_polls_and_live_mode_of_one_wallet_never_share_a_message(
    network: WalletNetwork, bob: Bob
) -> None:
    polling = [asyncio.create_task(bob.wallet.batch(2, LONG_MS)) for _ in range(3)]
    await network.write(bob, *numbered(6))
    batches = [bob.texts(await poll) for poll in polling]
    assert sorted(chain.from_iterable(batches)) == numbered(6)


async def test_a_list_pickup_reads_what_it_names_and_removes_nothing(
    network: WalletNetwork,
) -> None:
    bob, carol = await network.bobs(2)
    await network.write(bob, *numbered(3))
    await network.write(carol, "for carol")
    (foreign,) = ids(await carol.wallet.fetch(1))
    async with bob.wallet.socket() as socket:
        wallet = bob.wallet.over(socket)
        first, second, third = ids(await wallet.fetch(10))
        named = [third, "unknown", foreign, first, third]
        answer = await answer_to(wallet, PICKUP + "list-pickup", message_ids=named)
        assert answer["@type"] == NEW_PREFIX + PICKUP + "list-response"
        assert [item["@id"] for item in answer["messages~attach"]] == [third, first]
        assert bob.texts(await wallet.list_pickup([second])) == ["message 001"]
    assert (await bob.wallet.pickup1_status()).message_count == 3


async def test_a_list_pickup_shows_what_another_session_of_its_owner_holds(
    network: WalletNetwork, bob: Bob
) -> None:
    """Over HTTP each request is a session: what was delivered before is leased to another."""
    await network.write(bob, *numbered(2))
    picked = ids(await bob.wallet.fetch(1))
    assert bob.texts(await bob.wallet.list_pickup(picked)) == numbered(1)
    # It was a read: the lease holds, and the message leaves by its acknowledgement alone.
    assert bob.texts(await bob.wallet.fetch(10)) == numbered(1, start=1)
    await bob.wallet.received(picked)
    assert await bob.wallet.list_pickup(picked) == []


async def test_a_request_that_cannot_be_followed_is_invalid(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = [
        ("nonsense", {}),
        ("delivery-request", {"limit": 1}),
        ("batch-pickup", {}),
        ("batch-pickup", {"batch_size": -1}),
        ("batch-pickup", {"batch_size": "ten"}),
        ("batch-pickup", {"batch_size": 1.5}),
        ("batch-pickup", {"batch_size": True}),
        ("list-pickup", {}),
        ("list-pickup", {"message_ids": "id"}),
        ("list-pickup", {"message_ids": [1]}),
        ("list-pickup", {"message_ids": ["x"] * 1_001}),
    ]
    for name, members in cases:
        await network.write(bob, "one")
        answer = await reply_to(bob, name, **members)
        assert problem(answer) == ("problem_report", "invalid_request")
        assert await bob.drained() == ["one"]


async def test_an_answer_has_the_prefix_and_the_thread_of_its_question(bob: Bob) -> None:
    cases: list[Any] = PREFIXES
    more: list[Any] = [
        ("status-request", "status"),
        ("batch-pickup", "batch"),
        ("list-pickup", "list-response"),
        ("noop", "problem_report"),
        ("nonsense", "problem_report"),
    ]
    for prefix in cases:
        for name, answered in more:
            question = fresh(
                **{"@type": prefix + PICKUP + name, "batch_size": 1, "message_ids": []}
            )
            answer = await bob.wallet.ask(question)
            assert answer is not None
            assert answer["@type"] == prefix + PICKUP + answered
            assert answer["~thread"] == {"thid": question["@id"]}


async def test_a_stranger_has_no_queue(network: WalletNetwork) -> None:
    with pytest.raises(ProblemReported) as reported:
        await network.stranger().batch(1)
    assert reported.value.code == "invalid_request"


async def test_without_a_return_route_nothing_is_handed_out(
    network: WalletNetwork, bob: Bob
) -> None:
    cases: list[Any] = ["batch-pickup", "noop", "list-pickup", "status-request"]
    for name in cases:
        await network.write(bob, "one")
        answer = await network.say(bob.connection, PICKUP + name, batch_size=1, message_ids=[])
        assert (answer.status, answer.body) == (202, b"")
        assert await bob.drained() == ["one"]


@pytest.mark.parametrize("name", ["batch-pickup", "noop"])
async def test_who_goes_away_before_the_answer_gets_the_messages_again(
    network: WalletNetwork, bob: Bob, mediator: Mediator, name: str
) -> None:
    """Over HTTP: the connection is gone when the long poll comes to its end."""
    question = sealed(
        bob.connection,
        PICKUP + name,
        batch_size=2,
        **routed(),
        **{"~timing": {"delay_milli": 2 * SHORT_MS}},
    )
    async with aiohttp.ClientSession() as leaving:
        polling = asyncio.create_task(leaving.post(mediator.url("/didcomm"), data=question))
        await network.polled()
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)
    await network.write(bob, "one")
    # Either its poll holds the message still, or it has given it back: another poll gets it.
    assert bob.texts(await bob.wallet.batch(1, LONG_MS)) == ["one"]
    assert (await bob.wallet.pickup1_status()).message_count == 0


@pytest.mark.parametrize("name", ["batch-pickup", "noop"])
async def test_what_was_not_read_from_a_socket_is_offered_again(
    network: WalletNetwork, bob: Bob, name: str
) -> None:
    await network.write(bob, "one")
    async with network.socket(autoping=False) as socket:
        await socket.raw.send_bytes(sealed(bob.connection, PICKUP + name, batch_size=1, **routed()))
        assert await socket.data()
        # No pong follows, which would say that this was read.
        assert (await bob.wallet.pickup1_status()).message_count == 1
        assert await bob.wallet.batch(1) == []
    assert bob.texts(await bob.wallet.batch(1, LONG_MS)) == ["one"]


async def test_many_questions_at_once_on_one_socket_are_all_answered(
    network: WalletNetwork, bob: Bob
) -> None:
    """Each answer waits for a pong, and the pongs stand behind the questions."""
    texts = numbered(60)
    await network.write(bob, *texts)
    async with network.socket() as socket:
        for _ in texts:
            await socket.raw.send_bytes(sealed(bob.connection, PICKUP + "noop", **routed()))
        assert [bob.read(await socket.data()) for _ in texts] == texts
        status = sealed(bob.connection, PICKUP + "status-request", **routed())
        while True:
            await socket.raw.send_bytes(status)
            if opened(bob.connection, await socket.data())["message_count"] == 0:
                break


async def test_a_problem_report_is_not_answered(bob: Bob) -> None:
    for prefix in (NEW_PREFIX, OLD_PREFIX):
        report = fresh(**{"@type": prefix + PICKUP + "problem_report", "problem-code": "x"})
        assert await bob.wallet.ask(report) is None
