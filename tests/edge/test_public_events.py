"""DCTRL-0007 as far as it is known: publishing, reading without authentication, withdrawing."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

import pytest
from multidict import MultiDict

from actors.core.commands import DeletePublicEvents
from actors.core.replies import Reply
from actors.core.submissions import Read, Submission
from http_edge.decentrl import public_events
from http_edge.dids.web import document_url
from http_edge.settings.settings import Limits
from tests.edge.identities import Identity, Json, public_event
from tests.edge.mediator import LAYOUTS, SUCCESS, WAIT_S, HandClock, Mediator

INVALID = (400, "INVALID_COMMAND")
UNAUTHORIZED = (401, "UNAUTHORIZED_COMMAND")


@pytest.fixture(autouse=True)
async def _alice_is_registered(mediator: Mediator, alice: Identity) -> None:
    await mediator.register(alice)


async def publish(mediator: Mediator, publisher: Identity, event: str, **members: Any) -> str:
    answer = await mediator.publish(publisher, event, **members)
    assert answer.status == 200, answer.body
    event_id: str = answer.json["publicEventId"]
    return event_id


async def withdraw(mediator: Mediator, publisher: Identity, **members: Any) -> None:
    payload = {"type": "DELETE_PUBLIC_EVENT", **members}
    answer = await mediator.send(publisher, payload, channel="ONE_WAY_PUBLIC")
    assert (answer.status, answer.json) == (200, SUCCESS)


async def read(mediator: Mediator, publisher: Identity | str, query: str = "") -> list[str]:
    did = publisher if isinstance(publisher, str) else publisher.did
    answer = await mediator.get(f"/public/{did}{query}")
    return [event["event"] for event in answer.payload["events"]]


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_anybody_reads_an_event_with_all_that_its_signature_covers(
    mediator: Mediator, alice: Identity
) -> None:
    payload = public_event(alice, '{"text":"é"}', channel_id="c", tags=["a", "b"], timestamp=1.5)
    answer = await mediator.send(alice, payload, channel="ONE_WAY_PUBLIC")
    event_id = answer.json["publicEventId"]
    assert (answer.status, answer.json) == (200, {"type": "SUCCESS", "publicEventId": event_id})
    found = await mediator.get(f"/public/{alice.did}")
    assert (found.status, found.json) == (
        200,
        {
            "type": "SUCCESS",
            "payload": {
                "events": [
                    {
                        "id": event_id,
                        "channel_id": "c",
                        "event": '{"text":"é"}',
                        "tags": ["a", "b"],
                        "timestamp": 1.5,
                        "event_signature": payload["event_signature"],
                    }
                ],
                "pagination": {"page": 0, "page_size": 10, "total": 1},
            },
        },
    )


@pytest.mark.parametrize(
    "members",
    [{"event": "another"}, {"tags": ["new"]}, {"timestamp": 2}, {"event_signature": "AAAA"}],
)
async def test_an_event_whose_own_signature_does_not_hold_is_refused(
    mediator: Mediator, alice: Identity, members: Json
) -> None:
    payload = {**public_event(alice, "x"), **members}
    answer = await mediator.send(alice, payload, channel="ONE_WAY_PUBLIC")
    assert answer.refusal == (401, "INVALID_SIGNATURE")
    assert await read(mediator, alice) == []


async def test_the_event_is_signed_by_its_publisher(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    answer = await mediator.send(alice, public_event(bob, "x"), channel="ONE_WAY_PUBLIC")
    assert answer.refusal == (401, "INVALID_SIGNATURE")


async def test_publishing_is_addressed_to_the_mediator_by_one_who_is_registered(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    payload = public_event(alice, "x")
    answer = await mediator.send(alice, payload, to=bob, channel="ONE_WAY_PUBLIC")
    assert answer.refusal == UNAUTHORIZED
    assert (await mediator.publish(bob, "x")).refusal == UNAUTHORIZED


async def test_the_newest_event_comes_first_and_pages_are_stable(
    mediator: Mediator, alice: Identity
) -> None:
    for event, at_s in (("b", 2), ("a", 3), ("d", 1), ("c", 2)):
        await publish(mediator, alice, event, timestamp=at_s)
    assert await read(mediator, alice) == ["a", "c", "b", "d"]
    pages = [await read(mediator, alice, f"?page={page}&page_size=3") for page in range(3)]
    assert pages == [["a", "c", "b"], ["d"], []]


async def test_events_are_filtered_by_channel_tags_and_time(
    mediator: Mediator, alice: Identity
) -> None:
    await publish(mediator, alice, "1", channel_id="x", tags=["a", "b"], timestamp=10)
    await publish(mediator, alice, "2", channel_id="y", tags=["b"], timestamp=20)
    await publish(mediator, alice, "3", channel_id="x", tags=["c,d"], timestamp=30.5)
    expected = {
        "?channel_id=x": ["3", "1"],
        "?channel_id=X": [],
        "?tags=b": ["2", "1"],
        "?tags=a,c": ["1"],
        "?tags=a&tags=c,d": ["3", "1"],
        "?tags=c,d": [],
        "?tags=c,d&tags=c,d": ["3"],
        "?tags=,": ["3", "2", "1"],
        "?after_timestamp=10": ["3", "2"],
        "?before_timestamp=20": ["1"],
        "?after_timestamp=10.5&before_timestamp=30.5": ["2"],
        "?after_timestamp=1e1": ["3", "2"],
        "?before_timestamp=30.500000000000004": ["3", "2", "1"],
        "?after_timestamp=-1.5e-7&before_timestamp=99999999999999999999": ["3", "2", "1"],
        "?channel_id=x&tags=b": ["1"],
        "?unknown=parameter": ["3", "2", "1"],
    }
    assert {query: await read(mediator, alice, query) for query in expected} == expected
    page = (await mediator.get(f"/public/{alice.did}?tags=b&page_size=1&page=1")).payload
    assert page["pagination"] == {"page": 1, "page_size": 1, "total": 2}


@pytest.mark.parametrize("form", ["public_event_id", "event_id", "event_ids"])
@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_withdrawn_event_is_gone_at_once_and_after_a_restart(
    mediator: Mediator, alice: Identity, form: str
) -> None:
    first = await publish(mediator, alice, "first")
    await publish(mediator, alice, "second")
    await withdraw(mediator, alice, **{form: [first] if form == "event_ids" else first})
    assert await read(mediator, alice) == ["second"]
    await withdraw(mediator, alice, public_event_id=first)
    await mediator.restart()
    assert await read(mediator, alice) == ["second"]


async def test_a_name_of_ids_that_is_null_is_as_good_as_none(
    mediator: Mediator, alice: Identity
) -> None:
    forms: list[Json] = [{"event_ids": None, "public_event_id": None}, {"event_ids": None}, {}]
    for form, name in zip(forms, ["event_id", "public_event_id", "event_ids"], strict=True):
        event_id = await publish(mediator, alice, "x")
        named = [event_id] if name == "event_ids" else event_id
        await withdraw(mediator, alice, **form, **{name: named}, channel_id=None)
        assert await read(mediator, alice) == []


async def test_no_publisher_withdraws_the_events_of_others(
    mediator: Mediator, alice: Identity, bob: Identity
) -> None:
    await mediator.register(bob)
    event_id = await publish(mediator, alice, "mine")
    before = mediator.facts()
    await withdraw(mediator, bob, public_event_id=event_id)
    await withdraw(mediator, bob, public_event_id="unknown")
    assert mediator.facts() == before
    assert await read(mediator, alice) == ["mine"]


async def test_a_withdrawal_that_names_a_channel_stays_within_it(
    mediator: Mediator, alice: Identity
) -> None:
    event_id = await publish(mediator, alice, "x", channel_id="one")
    await withdraw(mediator, alice, public_event_id=event_id, channel_id="two")
    assert await read(mediator, alice) == ["x"]


@pytest.mark.parametrize(
    "did",
    [
        "alice",
        "did:",
        "did:key",
        "did:key:",
        "DID:key:z1",
        "did:key:a%20b",
        "did:key:%C3%A9",
        "did:key:a%00b",
        "did:key:%ff",
        "did:key:%zz",
        "did:key:a%25zz",
        "%ff",
        "did:key:" + "a" * 2048,
        "did:key:a%3Fb",
    ],
)
async def test_trap_82_a_malformed_did_is_an_invalid_command(mediator: Mediator, did: str) -> None:
    assert (await mediator.get("/public/" + did)).refusal == INVALID


@pytest.mark.parametrize(
    "query",
    [
        "page=-1",
        "page=x",
        "page=1.5",
        "page=",
        "page_size=0",
        "page_size=1001",
        "page_size=9999999999",
        f"page={2**53}&page_size=1",
        f"page={2**52}&page_size=2",
        "page=" + "1" * 17,
        "page=٣",
        "after_timestamp=x",
        "after_timestamp=nan",
        "before_timestamp=1e999",
        "before_timestamp=1e",
        "before_timestamp=1_0",
        "before_timestamp=" + "1" * 33,
        "before_timestamp=",
        "tags=" + "&tags=".join("x" * 65),
        "tags=a%ffb",
        "channel_id=%ED%A0%80",
        "%e2%82=x",
    ],
)
async def test_trap_82_a_malformed_parameter_is_an_invalid_command(
    mediator: Mediator, alice: Identity, query: str
) -> None:
    path = f"/public/{alice.did}?{quote(query, safe='=&%')}"
    assert (await mediator.get(path)).refusal == INVALID


@pytest.mark.parametrize(("number", "size"), [(10**9, 10), (2**53 - 1, 1)])
async def test_a_page_beyond_the_last_is_empty_as_in_a_command(
    mediator: Mediator, alice: Identity, number: int, size: int
) -> None:
    await publish(mediator, alice, "1")
    pagination = {"page": number, "page_size": size}
    answer = await mediator.get(f"/public/{alice.did}?page={number}&page_size={size}")
    assert answer.payload == {"events": [], "pagination": {**pagination, "total": 1}}
    saved = await mediator.do(alice, "QUERY_EVENTS", pagination=pagination)
    assert saved.payload["pagination"] == {**pagination, "total": 0}


@pytest.mark.parametrize("settings", [{"limits": {"tags_per_query_max": 3}}])
async def test_a_list_of_tags_may_have_as_many_as_repeated_tags(
    mediator: Mediator, alice: Identity
) -> None:
    await publish(mediator, alice, "1", tags=["a"])
    for query in ("?tags=a,b,c", "?tags=a&tags=b&tags=c"):
        assert await read(mediator, alice, query) == ["1"]
    for query in ("?tags=a,b,c,d", "?tags=a&tags=b&tags=c&tags=d"):
        assert (await mediator.get(f"/public/{alice.did}{query}")).refusal == INVALID


@pytest.mark.parametrize("did", ["did:key:z1", "did:web:unknown.example", "did:unknown:x:y"])
async def test_trap_82_a_publisher_without_events_has_an_empty_page(
    mediator: Mediator, did: str
) -> None:
    answer = await mediator.get("/public/" + did)
    assert answer.payload == {
        "events": [],
        "pagination": {"page": 0, "page_size": 10, "total": 0},
    }


async def test_trap_82_escapes_in_the_path_are_decoded_exactly_once(mediator: Mediator) -> None:
    parts = Identity("alice?").did.split(":")
    spellings = ["YWxpY2U_", "YWxpY2U/", "YWxpY2U+", "YWxpY2U="]
    for alias in spellings:
        did = ":".join([*parts[:2], alias, *parts[3:]])
        publisher = Identity("alice?")
        publisher.did, publisher.key_id = did, did + "#signing"
        await mediator.register(publisher)
        await publish(mediator, publisher, did)
        assert await read(mediator, did) == [did]
        assert await read(mediator, quote(did, safe="")) == [did]
        twice = await mediator.get("/public/" + quote(quote(did, safe=""), safe=""))
        assert twice.refusal == INVALID  # "did%3Adecentrl…" is no DID


def test_trap_82_a_did_web_with_a_port_is_asked_for_with_its_escape_escaped() -> None:
    query: MultiDict[str] = MultiDict()
    found = public_events.read("did:web:example.org%253A8080", query, Limits())
    assert isinstance(found, Read)
    assert found.owner_did == "did:web:example.org%3A8080"
    other = public_events.read("did:web:example.org%3A8080", query, Limits())
    assert isinstance(other, Read)
    assert other.owner_did == "did:web:example.org:8080"


def test_the_public_events_of_each_did_web_that_can_have_a_document_can_be_read() -> None:
    names = ["example.org%3A8080:a", "EXAMPLE.org%3a8080"]
    names += [f"example.org:a{chr(code)}b" for code in range(0x80)]
    dids = [did for did in map("did:web:{}".format, names) if document_url(did) is not None]
    assert len(dids) == 2 + 26 + 26 + 10 + len("._-:")
    for did in dids:
        query = public_events.read(quote(did, safe=""), MultiDict(), Limits())
        assert isinstance(query, Read), did
        assert query.owner_did == did


@pytest.mark.parametrize("settings", [{"limits": {"public_events_max": 2}}])
async def test_public_events_have_a_quota_that_withdrawing_frees(
    mediator: Mediator, alice: Identity
) -> None:
    first, _ = [await publish(mediator, alice, text) for text in ("1", "2")]
    full = await mediator.publish(alice, "3")
    assert full.refusal == (429, "QUOTA_EXCEEDED")
    assert int(full.headers["Retry-After"]) > 0
    await withdraw(mediator, alice, public_event_id=first)
    await publish(mediator, alice, "3")
    assert sorted(await read(mediator, alice)) == ["2", "3"]


@pytest.mark.parametrize("settings", [{"limits": {"page_bytes_max": 1_048_576}}])
async def test_a_page_of_too_many_bytes_is_refused_and_a_smaller_one_is_not(
    mediator: Mediator, alice: Identity
) -> None:
    for _ in range(40):
        await publish(mediator, alice, "x" * 30_000)
    answer = await mediator.get(f"/public/{alice.did}?page_size=40")
    assert answer.refusal == (400, "INVALID_COMMAND")
    assert answer.json["detail"] == "page_size: the page is more than 1048576 bytes"
    assert len(await read(mediator, alice, "?page_size=30")) == 30
    assert len(await read(mediator, alice, "?page_size=30&page=1")) == 10


@pytest.mark.parametrize("written", ["x" * 30_000, "\x01" * 7_000])
@pytest.mark.parametrize(
    "settings",
    [
        {
            "limits": {"page_bytes_max": 1_048_576},
            "rates": {"per_address_per_s": 1_000, "burst_s": 1},
        }
    ],
)
async def test_an_address_pays_for_a_page_that_is_read_and_too_large(
    mediator: Mediator, alice: Identity, clock: HandClock, written: str
) -> None:
    for _ in range(40):
        await publish(mediator, alice, written)
        clock.advance(1)
    path = f"/public/{alice.did}?page_size=40"
    pages = [(await mediator.get(path)).status for _ in range(2)]
    assert pages == [400, 429]


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 4}}])
async def test_an_address_pays_for_all_events_that_match_its_query(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """They are counted for the total, on the list of each tag, however few are shown."""
    tags = [f"{number}" for number in range(16)]
    for _ in range(250):
        await mediator.publish(alice, "x", tags=tags)
        clock.advance(60)
    path = f"/public/{alice.did}?page_size=1&tags={'&tags='.join(tags)}"
    pages = [(await mediator.get(path)).status for _ in range(9)]
    assert pages == [200] * 8 + [429]  # of 5 tokens each, 4 of them for 16 lists of 250


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 10}}])
async def test_an_address_pays_for_what_it_is_answered_without_a_signature(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    """Of 100 tokens a page of public events takes one for itself and one for each KiB."""
    await mediator.register(alice)
    await mediator.publish(alice, "x" * 15_000)
    clock.advance(10)
    pages = [(await mediator.get(f"/public/{alice.did}")).status for _ in range(8)]
    assert pages == [200] * 7 + [429]


@pytest.mark.parametrize("settings", [{"rates": {"per_address_per_s": 10, "burst_s": 10}}])
async def test_pages_that_are_asked_for_at_once_cost_as_much_as_one_after_the_other(
    mediator: Mediator, alice: Identity, clock: HandClock
) -> None:
    await mediator.register(alice)
    await mediator.publish(alice, "x" * 60_000)
    clock.advance(20)
    requests = [mediator.get(f"/public/{alice.did}") for _ in range(30)]
    answers = [answer.status for answer in await asyncio.gather(*requests)]
    assert answers.count(200) <= 7
    assert set(answers) == {200, 429}


@pytest.mark.parametrize("settings", [{"retention": {"public_events_s": 1_000, "look_s": 3_600}}])
async def test_public_events_leave_after_the_operators_age_and_their_publisher_goes_on(
    mediator: Mediator, clock: HandClock, alice: Identity
) -> None:
    await publish(mediator, alice, "old")
    clock.advance(600)
    await publish(mediator, alice, "new")
    clock.advance(401)
    for host in mediator.hosts.running.values():
        while await asyncio.to_thread(host._expiry.step):  # the test looks by hand
            pass
    assert await read(mediator, alice) == ["new"]
    await mediator.restart()
    assert await read(mediator, alice) == ["new"]
    assert mediator.facts().count("public-events-expired.1") == 1
    await publish(mediator, alice, "newer")
    assert len(await read(mediator, alice)) == 2


async def test_public_events_are_read_after_the_registration_of_their_publisher_has_ended(
    mediator: Mediator, clock: HandClock, bob: Identity
) -> None:
    await mediator.register(bob, lifetime_s=60)
    await publish(mediator, bob, "said")
    clock.advance(60)
    assert (await mediator.publish(bob, "late")).refusal == UNAUTHORIZED
    assert await read(mediator, bob) == ["said"]
    await mediator.restart()
    assert await read(mediator, bob) == ["said"]


async def test_a_target_in_another_form_is_the_same(mediator: Mediator, alice: Identity) -> None:
    """A whole URL (RFC 9112, section 3.2.2), and escapes of what needs none (RFC 3986, 6.2.2.2)."""
    port = mediator.ports[0]
    await mediator.register(alice)
    await publish(mediator, alice, "said")
    plain = f"/public/{alice.did}"
    whole = f"http://127.0.0.1:{port}{plain}"
    for target in (plain, whole, f"/%70ubli%63/{alice.did}", f"{whole}?page=0", f"{plain}?x=/a/b"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), WAIT_S)
        writer.close()
        assert answer.startswith(b"HTTP/1.1 200 "), answer
        assert b'"said"' in answer


async def test_many_events_are_withdrawn_in_parts_between_which_other_commands_come(
    mediator: Mediator, alice: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = mediator.edges[0]._gateway
    submit, submitted = gateway.submit, list[Submission]()

    async def noted(submission: Submission, *sizes: int) -> Reply:
        submitted.append(submission)
        return await submit(submission, *sizes)

    event_id = await publish(mediator, alice, "said")
    monkeypatch.setattr(gateway, "submit", noted)
    ids = [*map(str, range(39)), event_id]
    await withdraw(mediator, alice, event_ids=ids)
    assert await read(mediator, alice) == []
    parts = [each.command for each in submitted]
    assert parts == [DeletePublicEvents(ids[at : at + 16]) for at in (0, 16, 32)]
    assert [each.claim is None for each in submitted] == [False, True, True], "one nonce for all"
    assert [each.charge > 0 for each in submitted] == [True, False, False], "paid with the first"
