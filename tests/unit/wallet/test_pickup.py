"""The shapes in which mediators hand messages out, and what the wallet makes of them."""

from __future__ import annotations

import base64

import orjson
import pytest

from http_edge.clients.didcomm import (
    PICKUP_2,
    PICKUP_4,
    Address,
    Fetched,
    KeylistKey,
    KeylistResult,
    Mediation,
    Picked,
    PickupVersion,
    ProblemReported,
    Status,
    UnexpectedAnswer,
    Wallet,
    transport,
)
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from tests.unit.wallet.scripted_mediator import (
    SERVICE,
    Answer,
    Said,
    ScriptedMediator,
    in_thread,
    problem,
    reply,
)

KEY = KeyPair.from_seed(b"r" * 32)
RAW = Address(KEY.public, "").seal({"@type": "x", "@id": "1"})
DELIVERY_REQUEST = "messagepickup/2.0/delivery-request"
RECEIVED = "messagepickup/2.0/messages-received"
LIVE = "messagepickup/2.0/live-delivery-change"


def attachment(message_id: str, **data: object) -> Json:
    return {"@id": message_id, "data": data}


def delivery(*ids: str) -> Answer:
    text = base64.b64encode(RAW).decode()
    return reply("delivery", **{"~attach": [attachment(one, base64=text) for one in ids]})


def status(count: int, **members: object) -> Answer:
    return reply("status", message_count=count, **members)


# ---- Pickup 2.0


@pytest.mark.parametrize(
    "data",
    [
        {"base64": base64.b64encode(RAW).decode()},
        {"base64": base64.urlsafe_b64encode(RAW).decode().rstrip("=")},
        {"json": orjson.loads(RAW)},
    ],
    ids=["standard", "url-safe", "json"],
)
async def test_an_attachment_is_read_in_every_dialect(
    wallet: Wallet, mediator: ScriptedMediator, data: Json
) -> None:
    mediator.answer(DELIVERY_REQUEST, reply("delivery", **{"~attach": [attachment("a", **data)]}))
    assert await wallet.fetch(1) == [Picked("a", RAW)]


@pytest.mark.parametrize(
    "attached", [None, {}, [{}], [attachment("a")], [attachment("a", base64="%")], [1]]
)
async def test_a_malformed_delivery_is_refused(
    wallet: Wallet, mediator: ScriptedMediator, attached: object
) -> None:
    mediator.answer(DELIVERY_REQUEST, reply("delivery", **{"~attach": attached}))
    with pytest.raises(UnexpectedAnswer):
        await wallet.fetch()


async def test_a_drain_acknowledges_what_was_taken_until_nothing_is_left(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(DELIVERY_REQUEST, delivery("a", "b"), delivery("c"), status(0))
    mediator.answer(RECEIVED, status(1), status(0))
    assert [picked.id async for picked in wallet.drain(2)] == ["a", "b", "c"]
    lists = [m["message_id_list"] for m in mediator.received if "message_id_list" in m]
    assert lists == [["a", "b"], ["c"]]


async def test_a_drain_that_is_left_early_acknowledges_nothing(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(DELIVERY_REQUEST, delivery("a", "b"))
    draining = wallet.drain()
    assert (await anext(draining)).id == "a"
    assert mediator.names == ["delivery-request"]


async def test_a_message_that_comes_back_after_its_acknowledgement_ends_the_drain(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(DELIVERY_REQUEST, delivery("a"), delivery("a"))
    mediator.answer(RECEIVED, status(1))
    with pytest.raises(UnexpectedAnswer, match="offered again"):
        assert [picked.id async for picked in wallet.drain()] == ["a"]


async def test_a_status_is_read_whole(wallet: Wallet, mediator: ScriptedMediator) -> None:
    members = {"longest_waited_seconds": 3, "total_bytes": 9, "live_delivery": False, "new": {}}
    mediator.answer("messagepickup/2.0/status-request", status(2, recipient_key="k", **members))
    read = await wallet.status(KEY.public)
    assert read == Status(2, "k", longest_waited_s=3, total_bytes=9, live_delivery=False)
    assert mediator.received[0]["recipient_key"] == did_key(KEY.public)


async def test_a_live_socket_gives_deliveries_and_raw_envelopes(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    def turned_on(request: Json) -> list[Json | bytes]:
        pushed = in_thread({**request, "@id": "other"}, "delivery")
        two = [attachment(one, json=orjson.loads(RAW)) for one in "ab"]
        return [
            in_thread(request, "status", message_count=0, live_delivery=True),
            {**pushed, "~attach": two},
            in_thread({**request, "@id": "other"}, "status", message_count=2),
            RAW,
        ]

    mediator.answer(LIVE, turned_on)
    mediator.answer(RECEIVED, status(0))
    async with wallet.live() as live:
        messages = aiter(live)
        assert [await anext(messages) for _ in range(3)] == [
            Picked("a", RAW),
            Picked("b", RAW),
            Picked("", RAW),
        ]
        assert (await live.received(["a", "b"])).message_count == 0


def pushed_by(request: Json, *deliveries: Answer) -> list[Said]:
    """These deliveries, which are no answers to the request."""
    return [said for one in deliveries for said in one({**request, "@id": "other"})]


def live_with(mediator: ScriptedMediator, *deliveries: Answer) -> None:
    """Have live mode turned on, and these pushed at once."""
    on = {"message_count": 0, "live_delivery": True}

    def turned_on(request: Json) -> list[Said]:
        return [in_thread(request, "status", **on), *pushed_by(request, *deliveries)]

    protocol, _, _ = LIVE.rpartition("/")
    for one in (protocol, PICKUP_4.protocol):
        mediator.answer(f"{one}/live-delivery-change", turned_on)


@pytest.mark.parametrize("pickup", [PICKUP_2, PICKUP_4], ids=["answered", "not answered"])
async def test_a_copy_that_came_before_its_acknowledgement_is_not_handed_out(
    wallet: Wallet, mediator: ScriptedMediator, pickup: PickupVersion
) -> None:
    """It is pushed again at the end of each lease; else a slow program handles little else."""
    wallet.pickup = pickup
    live_with(mediator, delivery("a", "b"))
    copies = [delivery("a", "b"), delivery("a"), delivery("b", "c")]
    mediator.answer(
        f"{pickup.protocol}/status-request",
        lambda request: [*pushed_by(request, *copies), *status(3)(request)],
    )
    mediator.answer(RECEIVED, status(2), status(1))
    async with wallet.live() as live:
        assert [one.id for one in await live.next()] == ["a", "b"]
        await live.status()  # so all copies are here
        await live.acknowledge(["a"])
        assert [one.id for one in await live.next()] == ["b"], "not acknowledged yet"
        await live.acknowledge(["b"])
        assert [one.id for one in await live.next()] == ["c"]
    lists = [m["message_id_list"] for m in mediator.received if "message_id_list" in m]
    assert lists == [["a"], ["b"]]


@pytest.mark.parametrize("pickup", [PICKUP_2, PICKUP_4], ids=["answered", "not answered"])
async def test_copies_of_what_waits_to_be_received_take_no_room(
    wallet: Wallet,
    mediator: ScriptedMediator,
    monkeypatch: pytest.MonkeyPatch,
    pickup: PickupVersion,
) -> None:
    """A program that takes hours for what is here has its socket to the end."""
    monkeypatch.setattr(transport, "UNRECEIVED_BYTES_MAX", 8 * 1024)
    wallet.pickup = pickup
    live_with(mediator, delivery("a", "b"), *[delivery("b", "a")] * 20, delivery("b", "c"))
    mediator.answer(f"{pickup.protocol}/status-request", status(3))
    async with wallet.live() as live:
        await live.status()  # so all are here
        assert [one.id for one in await live.next()] == ["a", "b"]
        assert [one.id for one in await live.next()] == ["c"]


async def test_what_was_received_takes_no_room(
    wallet: Wallet, mediator: ScriptedMediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "UNRECEIVED_BYTES_MAX", 8 * 1024)
    live_with(mediator)
    ids = [str(number) for number in range(10)]
    mediator.answer(
        f"{PICKUP_2.protocol}/status-request",
        *[lambda q, one=one: [*pushed_by(q, delivery(one)), *status(1)(q)] for one in ids],
    )
    async with wallet.live() as live:
        for one in ids:
            await live.status()
            assert [each.id for each in await live.next()] == [one]


async def test_a_message_that_comes_after_its_acknowledgement_is_handed_out_again(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    """Its acknowledgement may have been refused."""
    wallet.pickup = PICKUP_4
    live_with(mediator, delivery("a"))
    mediator.answer(
        f"{PICKUP_4.protocol}/status-request",
        lambda request: [*pushed_by(request, delivery("a")), *status(1)(request)],
    )
    async with wallet.live() as live:
        assert [one.id for one in await live.next()] == ["a"]
        await live.acknowledge(["a"])
        await live.status()
        assert [one.id for one in await live.next()] == ["a"]


async def test_a_live_mode_that_is_not_turned_on_is_an_error(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer(LIVE, status(0, live_delivery=False))
    with pytest.raises(UnexpectedAnswer):
        async with wallet.live():
            pass
    unsupported = problem("e.m.live-mode-not-supported", "no")
    mediator.answer(LIVE, lambda request: [{**unsupported, "~thread": {"pthid": request["@id"]}}])
    with pytest.raises(ProblemReported) as reported:
        await wallet.live_delivery(on=True)
    assert reported.value.code == "e.m.live-mode-not-supported"


async def test_a_problem_between_deliveries_is_an_error(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    on = {"message_count": 0, "live_delivery": True}
    report = problem("e.x", "no")
    mediator.answer(LIVE, lambda request: [in_thread(request, "status", **on), report])
    async with wallet.live() as live:
        with pytest.raises(ProblemReported):
            await live.next()


# ---- Pickup 1.0


@pytest.mark.parametrize("name", ["@id", "id"])
@pytest.mark.parametrize("message", [orjson.loads(RAW), RAW.decode()], ids=["object", "text"])
async def test_a_batch_is_read_in_every_form(
    wallet: Wallet, mediator: ScriptedMediator, name: str, message: object
) -> None:
    attached = {"messages~attach": [{name: "a", "message": message}]}
    mediator.answer("messagepickup/1.0/batch-pickup", reply("batch", **attached))
    mediator.answer("messagepickup/1.0/list-pickup", reply("list-response", **attached))
    assert await wallet.batch(3, delay_ms=20) == [Picked("a", RAW)]
    assert await wallet.list_pickup(["a"]) == [Picked("a", RAW)]
    batch_pickup, listed = mediator.received
    assert (batch_pickup["batch_size"], batch_pickup["~timing"]) == (3, {"delay_milli": 20})
    assert listed["message_ids"] == ["a"]


@pytest.mark.parametrize("over_socket", [False, True], ids=["http", "socket"])
async def test_a_noop_brings_a_raw_envelope_or_the_reason_why_not(
    wallet: Wallet, mediator: ScriptedMediator, *, over_socket: bool
) -> None:
    empty = reply("problem_report", **{"problem-code": "empty_queue", "explain": "nothing"})
    mediator.answer("messagepickup/1.0/noop", lambda _: [RAW], empty, lambda _: [RAW])
    async with wallet.socket() as socket:
        asking = wallet.over(socket) if over_socket else wallet
        assert await asking.noop() == RAW
        with pytest.raises(ProblemReported) as reported:
            await asking.noop(delay_ms=1)
        assert (reported.value.code, reported.value.text) == ("empty_queue", "nothing")
        assert await asking.noop() == RAW


async def test_a_delivery_of_live_mode_is_no_answer_to_a_noop(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    data = attachment("a", base64=base64.b64encode(RAW).decode())
    kind = f"{NEW_PREFIX}messagepickup/2.0/delivery"
    pushed: Json = {"@type": kind, "@id": "1", "~attach": [data]}
    live_with(mediator)
    mediator.answer("messagepickup/1.0/noop", lambda _: [pushed, RAW])
    async with wallet.live() as live:
        assert await wallet.over(live.socket).noop() == RAW
        assert await live.next() == [Picked("a", RAW)]


async def test_a_status_of_pickup_1_is_read(wallet: Wallet, mediator: ScriptedMediator) -> None:
    mediator.answer("messagepickup/1.0/status-request", status(1, total_size=7))
    read = await wallet.pickup1_status()
    assert (read.message_count, read.total_bytes) == (1, 7)


# ---- Aries queue 1.0


async def test_a_queue_is_read_and_its_rules_are_changed(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    state = {"message_count": 2, "will_queue": True, "size": 10, "message_size_limit": 0}
    mediator.answer("queue/1.0/status-request", reply("status", status=state))
    mediator.answer(
        "queue/1.0/status-update-request", reply("status", status={**state, "will_queue": False})
    )
    read = await wallet.queue_status()
    assert (read.message_count, read.total_bytes, read.message_bytes_limit) == (2, 10, 0)
    assert not (await wallet.update_queue(will_queue=False)).will_queue
    assert mediator.received[-1]["update"] == {"will_queue": False}


async def test_a_queue_batch_says_when_a_message_came(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    entry = {"id": "a", "msg": orjson.loads(RAW), "added_time": "2026-05-01 12:00:00Z"}
    batch = reply("batch", message_count=1, messages=[entry])
    mediator.answer("queue/1.0/fetch-request", batch)
    assert await wallet.queue_fetch(5) == [Fetched("a", RAW, "2026-05-01 12:00:00Z")]
    assert mediator.received[0]["message_count_limit"] == 5


# ---- mediation


def grant(mediator: ScriptedMediator) -> Answer:
    return reply("mediate-grant", endpoint=mediator.url, routing_keys=[did_key(SERVICE.public)])


async def test_a_recipient_is_a_registered_key_and_the_way_to_it(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    mediator.answer("coordinate-mediation/1.0/mediate-request", grant(mediator))
    result = {"recipient_key": "k", "action": "add", "result": "success"}
    updated = reply("keylist-update-response", updated=[result])
    mediator.answer("coordinate-mediation/1.0/keylist-update", updated, updated)
    recipient = await wallet.new_recipient()
    await wallet.new_recipient()
    assert mediator.names == ["mediate-request", "keylist-update", "keylist-update"]
    key = did_key(recipient.key.public)
    assert mediator.received[1]["updates"] == [{"recipient_key": key, "action": "add"}]
    assert recipient.address == Address(recipient.key.public, mediator.url, (SERVICE.public,))


async def test_a_routing_key_that_nothing_can_be_packed_to_is_no_grant(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    granted = reply("mediate-grant", endpoint=mediator.url, routing_keys=[did_key(bytes(32))])
    mediator.answer("coordinate-mediation/1.0/mediate-request", granted)
    with pytest.raises(UnexpectedAnswer, match="routing key"):
        await wallet.request_mediation()


async def test_a_key_that_is_not_registered_is_no_recipient(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    wallet.mediation = Mediation(mediator.url, (SERVICE.public,))
    result = {"recipient_key": "k", "action": "add", "result": "client_error"}
    mediator.answer(
        "coordinate-mediation/1.0/keylist-update",
        reply("keylist-update-response", updated=[result]),
    )
    with pytest.raises(ProblemReported):
        await wallet.new_recipient()


async def test_a_key_of_which_the_mediator_says_nothing_is_no_recipient(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    wallet.mediation = Mediation(mediator.url, (SERVICE.public,))
    mediator.answer(
        "coordinate-mediation/1.0/keylist-update", reply("keylist-update-response", updated=[])
    )
    with pytest.raises(UnexpectedAnswer):
        await wallet.new_recipient()


async def test_a_denied_mediation_is_a_problem(wallet: Wallet, mediator: ScriptedMediator) -> None:
    mediator.answer("coordinate-mediation/1.0/mediate-request", reply("mediate-deny"))
    with pytest.raises(ProblemReported) as reported:
        await wallet.request_mediation()
    assert reported.value.code == "mediate-deny"


async def test_keys_are_sent_in_the_spelling_that_they_are_given_in(
    wallet: Wallet, mediator: ScriptedMediator
) -> None:
    text = base58(KEY.public)
    result = {"recipient_key": text, "action": "remove", "result": "no_change"}
    mediator.answer(
        "coordinate-mediation/1.0/keylist-update",
        reply("keylist-update-response", updated=[result]),
    )
    mediator.answer(
        "coordinate-mediation/1.0/keylist-query",
        reply("keylist", keys=[{"recipient_key": text}]),
    )
    assert await wallet.update_keylist(remove=[text]) == [KeylistResult(**result)]
    listed = await wallet.query_keylist(limit=1, offset=2)
    assert listed.keys == (KeylistKey(text),)
    updated, queried = mediator.received
    assert updated["updates"] == [{"recipient_key": text, "action": "remove"}]
    assert queried["paginate"] == {"limit": 1, "offset": 2}


async def test_features_are_disclosed(wallet: Wallet, mediator: ScriptedMediator) -> None:
    feature = {"feature-type": "protocol", "id": NEW_PREFIX + "messagepickup/2.0"}
    disclosed = reply("disclosures", disclosures=[feature])
    mediator.answer("discover-features/2.0/queries", disclosed)
    (disclosure,) = await wallet.discover()
    assert disclosure.id == NEW_PREFIX + "messagepickup/2.0"
    assert mediator.received[0]["queries"] == [{"feature-type": "protocol", "match": "*"}]
