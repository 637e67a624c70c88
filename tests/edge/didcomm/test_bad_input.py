"""Whatever comes in is answered by the book and changes nothing; failing hosts lose nothing."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import orjson
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as bounds
from hypothesis import strategies as st

from actors.core.partitioning import host_name
from http_edge.clients.didcomm import Wallet
from http_edge.didcomm.envelopes.keys import KeyPair, base58
from http_edge.didcomm.envelopes.messages import NEW_PREFIX
from http_edge.didcomm.envelopes.v1.envelope import pack
from tests.edge.didcomm.wallet_network import (
    SENDER,
    SERVICE,
    Bob,
    WalletNetwork,
    answer_to,
    envelope_of,
    forwarded,
    fresh,
    ids,
    keys,
    numbered,
    opened,
    routed,
    sealed,
)
from tests.edge.identities import Json
from tests.edge.mediator import WAIT_S, Answer, Mediator

T = TypeVar("T")
NOT_AN_ENVELOPE: Final = "not-an-envelope"
UNDECRYPTABLE: Final = "undecryptable"
NOT_A_MESSAGE: Final = "not-a-message"
PING: Final = fresh(**{"@type": NEW_PREFIX + "trust_ping/1.0/ping", **routed()})
HOST: Final = host_name(0)


def packed(plaintext: bytes, *recipients: bytes, sender: KeyPair | None = SENDER) -> bytes:
    return pack(plaintext, recipients or [SERVICE.public], sender)


def changed(**members: Any) -> bytes:
    """An envelope for the mediator, with members exchanged; None takes one away."""
    envelope = {**orjson.loads(packed(orjson.dumps(PING))), **members}
    return orjson.dumps({name: value for name, value in envelope.items() if value is not None})


def reheaded(**members: Any) -> bytes:
    """An envelope whose protected header has members exchanged."""
    envelope = orjson.loads(packed(orjson.dumps(PING)))
    header = orjson.loads(base64.urlsafe_b64decode(envelope["protected"] + "=="))
    header.update(members)
    protected = base64.urlsafe_b64encode(orjson.dumps(header)).rstrip(b"=").decode()
    return orjson.dumps({**envelope, "protected": protected})


def recipient(**header: Any) -> Json:
    return {"encrypted_key": "AAAA", "header": {"kid": base58(SERVICE.public), **header}}


BAD: Final[list[tuple[str, bytes]]] = [
    (NOT_AN_ENVELOPE, b""),
    (NOT_AN_ENVELOPE, b"garbage"),
    (NOT_AN_ENVELOPE, b"\xff\xfe\x00"),
    (NOT_AN_ENVELOPE, b"[]"),
    (NOT_AN_ENVELOPE, b"{}"),
    (NOT_AN_ENVELOPE, b"[" * 100_000),
    (NOT_AN_ENVELOPE, b'{"a":' * 100_000),
    (NOT_AN_ENVELOPE, orjson.dumps(PING)),  # plaintext
    (NOT_AN_ENVELOPE, orjson.dumps({"type": "https://didcomm.org/trust-ping/2.0/ping"})),
    (NOT_AN_ENVELOPE, packed(orjson.dumps(PING))[:-20]),
    (NOT_AN_ENVELOPE, changed(protected=None)),
    (NOT_AN_ENVELOPE, changed(tag=None)),
    (NOT_AN_ENVELOPE, changed(protected="e30")),
    (NOT_AN_ENVELOPE, changed(protected="???")),
    (NOT_AN_ENVELOPE, changed(iv=1)),
    (NOT_AN_ENVELOPE, changed(ciphertext=["x"])),
    (NOT_AN_ENVELOPE, reheaded(alg="none")),
    (NOT_AN_ENVELOPE, reheaded(enc="A256GCM")),
    (NOT_AN_ENVELOPE, reheaded(recipients=[])),
    (NOT_AN_ENVELOPE, reheaded(recipients=[recipient()] * 1_000)),
    (NOT_AN_ENVELOPE, reheaded(recipients=[recipient(kid="no key")])),
    (NOT_AN_ENVELOPE, reheaded(recipients=[recipient(kid=1)])),
    (UNDECRYPTABLE, reheaded(typ="JWM/1.0 ")),  # the header is signed along
    (UNDECRYPTABLE, reheaded(recipients=[recipient()])),
    (UNDECRYPTABLE, reheaded(recipients=[recipient(sender="AAAA", iv="AAAA")])),
    (UNDECRYPTABLE, reheaded(alg="Anoncrypt")),
    (UNDECRYPTABLE, changed(tag="AAAAAAAAAAAAAAAAAAAAAA")),
    (UNDECRYPTABLE, changed(tag="AAAA")),
    (UNDECRYPTABLE, changed(iv="AAAA")),
    (UNDECRYPTABLE, changed(iv="")),
    (UNDECRYPTABLE, changed(ciphertext="AAAA")),
    (NOT_A_MESSAGE, packed(b"")),
    (NOT_A_MESSAGE, packed(b"\xff")),
    (NOT_A_MESSAGE, packed(b"[1]")),
    (NOT_A_MESSAGE, packed(b'{"@id":"1"}')),
    (NOT_A_MESSAGE, packed(orjson.dumps({**PING, "@type": "ping"}))),
    (NOT_A_MESSAGE, packed(orjson.dumps({**PING, "@type": NEW_PREFIX + "a/b/c"}))),
    (NOT_A_MESSAGE, packed(orjson.dumps({**PING, "@id": ""}))),
    (NOT_A_MESSAGE, packed(orjson.dumps({**PING, "@id": 7}))),
    (NOT_A_MESSAGE, packed(orjson.dumps({**PING, "@id": "x" * 257}))),
    (NOT_A_MESSAGE, packed(b'{"@type":"x","@type":"y"}')),
    (
        NOT_A_MESSAGE,
        packed(orjson.dumps(PING)[:-1] + b',"x":' + b"[" * 5_000 + b"]" * 5_000 + b"}"),
    ),
    (NOT_A_MESSAGE, forwarded([base58(key) for key in keys(1_000)], {})),
    ("anonymous", packed(orjson.dumps(PING), sender=None)),
    (
        "anonymous",
        packed(orjson.dumps({**PING, "@type": NEW_PREFIX + "routing/2.0/forward"}), sender=None),
    ),
]


async def test_what_cannot_be_read_is_reported_and_changes_nothing_over_http(
    network: WalletNetwork,
) -> None:
    facts = network.mediator.facts()
    position = network.mediator.log_position()
    for code, body in BAD:
        answer = await network.post(body)
        assert (answer.status, answer.json) == (400, {"error": code}), body[:100]
    assert (network.mediator.facts(), network.mediator.log_position()) == (facts, position)


@pytest.mark.parametrize("is_text", [False, True], ids=["binary", "text"])
async def test_what_cannot_be_read_closes_a_socket_with_a_code_and_changes_nothing(
    network: WalletNetwork, is_text: bool
) -> None:
    """Never a plain answer: Credo stops reading, or ends, at a frame that is no envelope."""
    facts = network.mediator.facts()
    for code, body in BAD:
        if is_text and not body.isascii():
            continue
        async with network.socket() as socket:
            await (socket.raw.send_str(body.decode()) if is_text else socket.raw.send_bytes(body))
            assert await socket.ended_because() == (4400, code), body[:100]
    assert network.mediator.facts() == facts


async def test_what_was_sent_before_a_message_that_cannot_be_read_is_answered(
    network: WalletNetwork, bob: Bob
) -> None:
    async with network.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, "trust_ping/1.0/ping", **routed()))
        await socket.raw.send_bytes(b"garbage")
        opened(bob.connection, await socket.data())
        assert await socket.ended_because() == (4400, NOT_AN_ENVELOPE)


async def test_a_text_frame_that_is_no_text_closes_the_socket(network: WalletNetwork) -> None:
    async with network.socket() as socket:
        await socket.raw._writer.send_frame(b"\xff\xfe", 1)  # no wallet can say it
        assert await socket.closing() == 1007


def samples(strategy: st.SearchStrategy[T], number: int) -> list[T]:
    """So many examples, always the same; all are sent to one mediator."""
    found: list[T] = []

    @bounds(
        max_examples=number,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(example: T) -> None:
        found.append(example)

    collect()
    return found


async def all_posted(network: WalletNetwork, bodies: Sequence[bytes]) -> list[Answer]:
    answers: list[Answer] = []
    for start in range(0, len(bodies), 20):
        answers += await asyncio.gather(*map(network.post, bodies[start : start + 20]))
    return answers


GENUINE: Final = packed(orjson.dumps(PING))
JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["protected", "tag"]), inner, max_size=3
        )
    ),
    max_leaves=5,
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A genuine envelope with some of its bytes replaced, taken away or added."""
    start = draw(st.integers(0, len(GENUINE)))
    end = draw(st.integers(start, min(len(GENUINE), start + 8)))
    return GENUINE[:start] + draw(st.binary(min_size=1, max_size=8)) + GENUINE[end:]


async def test_random_bytes_are_never_an_error_of_ours(network: WalletNetwork) -> None:
    facts = network.mediator.facts()
    bodies = samples(st.binary(max_size=200), 60)
    bodies += [one for one in samples(damaged(), 120) if one != GENUINE]
    bodies += [_dumped(value) for value in samples(JSON, 60)]
    for answer, body in zip(await all_posted(network, bodies), bodies, strict=True):
        # Blanks and escapes can change in an envelope without harm; then it is a stranger's ping.
        assert answer.status in {400, 200}, body
    assert network.mediator.facts() == facts


KINDS: Final = [
    "trust_ping/1.0/ping",
    "messagepickup/2.0/status-request",
    "messagepickup/2.0/delivery-request",
    "messagepickup/2.0/messages-received",
    "messagepickup/2.0/live-delivery-change",
    "messagepickup/1.0/batch-pickup",
    "messagepickup/1.0/list-pickup",
    "messagepickup/1.0/noop",
    "queue/1.0/status-update-request",
    "queue/1.0/fetch-request",
    "coordinate-mediation/1.0/keylist-update",
    "coordinate-mediation/1.0/keylist-query",
    "discover-features/1.0/query",
    "discover-features/2.0/queries",
    "connections/1.0/request",
    "didexchange/1.1/request",
    "out-of-band/1.1/handshake-reuse",
    "routing/1.0/forward",
]
MEMBERS: Final = [
    "limit", "recipient_key", "message_id_list", "live_delivery", "batch_size", "message_ids",
    "update", "message_count_limit", "updates", "paginate", "query", "queries", "connection", "did",
    "did_doc~attach", "to", "msg", "~thread", "~timing", "~please_ack", "label",
]  # fmt: skip


@pytest.mark.parametrize("settings", [{"didcomm": {"delay_s_max": 0, "error_reports_max": 0}}])
async def test_whatever_stands_in_a_message_is_answered(network: WalletNetwork, bob: Bob) -> None:
    bodies = []
    members = st.dictionaries(st.sampled_from(MEMBERS), JSON, min_size=1, max_size=4)
    for kind, body in samples(st.tuples(st.sampled_from(KINDS), members), 250):
        message = fresh(**{"@type": NEW_PREFIX + kind, **body, **routed()})
        bodies.append(packed(_dumped(message), sender=bob.connection.key))
    for answer in await all_posted(network, bodies):
        assert answer.status in {200, 202, 400}
    await bob.wallet.ping()


# ---- no sender learns which keys are registered


async def test_registered_and_unregistered_keys_answer_byte_for_byte_alike(
    network: WalletNetwork, bob: Bob
) -> None:
    given_up = await bob.wallet.new_recipient()
    await bob.wallet.update_keylist(remove=[given_up.key.public])
    (unknown,) = keys(1)
    known = [bob.key, given_up.key.public, bob.connection.key.public, unknown]
    answers = []
    for key in known:
        envelope = envelope_of(key, "one")
        for body in (envelope, forwarded(base58(key), orjson.loads(envelope))):
            answer = await network.post(body)
            headers = {name.lower(): text for name, text in answer.headers.items()}
            made = [headers.pop(name) for name in ("date", "x-request-id")]  # whatever was asked
            assert all(made)
            answers.append((answer.status, headers, answer.body))
    assert answers == [answers[0]] * len(answers)


# ---- hosts that do not answer


async def reported(wallet: Wallet, kind: str, **members: Any) -> object:
    report = await answer_to(wallet, kind, **members)
    description = report.get("description")
    return description["code"] if isinstance(description, dict) else report["problem-code"]


async def test_with_its_host_away_every_sender_is_asked_to_try_again_and_nothing_is_lost(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    await network.write(bob, *numbered(2))
    picked = ids(await bob.wallet.fetch(1))
    facts = mediator.facts()
    mediator.hosts.cut(HOST)
    refused = await network.forward_text(bob.key, "lost?")
    assert (refused.status, refused.json) == (503, {"error": "try-again"})
    assert refused.headers["Retry-After"] == "1"
    for kind in ("status-request", "delivery-request", "messages-received"):
        code = await reported(
            bob.wallet, "messagepickup/2.0/" + kind, limit=1, message_id_list=picked
        )
        assert code == "try-again"
    for kind in ("status-request", "batch-pickup", "list-pickup", "noop"):
        code = await reported(
            bob.wallet, "messagepickup/1.0/" + kind, batch_size=1, message_ids=picked
        )
        assert code == "temporarily_unavailable"
    for kind in (
        "queue/1.0/status-request",
        "queue/1.0/status-update-request",
        "queue/1.0/fetch-request",
        "coordinate-mediation/1.0/mediate-request",
        "coordinate-mediation/1.0/keylist-update",
        "coordinate-mediation/1.0/keylist-query",
    ):
        assert await reported(bob.wallet, kind, updates=[]) == "try-again"
    assert await bob.wallet.implicit() is None
    mediator.hosts.mend(HOST)
    assert mediator.facts() == facts
    await bob.wallet.received(picked)
    assert await bob.drained() == ["message 001"]


async def test_a_request_whose_outcome_is_unknown_is_not_counted_as_done(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    kinds = [
        "messagepickup/1.0/status-request",
        "messagepickup/2.0/delivery-request",
        "queue/1.0/status-request",
        "coordinate-mediation/1.0/keylist-query",
    ]
    mediator.hosts.cut(HOST)
    for kind in kinds:
        await reported(bob.wallet, kind, limit=1)
    (counted,) = [
        family.samples for family in mediator.edges[0].report() if family.name == "poste_commands"
    ]
    results = [(each["command"], each["result"]) for _, each, count in counted if count]
    assert [one for one in results if one[0] in kinds] == [(kind, "try-again") for kind in kinds]


async def test_an_answer_that_cannot_wait_is_to_be_asked_for_again(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    """Without a return route it would have to be queued; accepted, it would never come."""
    mediator.hosts.cut(HOST)
    answer = await network.say(bob.connection, "trust_ping/1.0/ping")
    assert (answer.status, answer.json) == (503, {"error": "try-again"})
    mediator.hosts.mend(HOST)
    assert (await network.say(bob.connection, "trust_ping/1.0/ping")).status == 202
    assert (await bob.wallet.status()).message_count == 1


@pytest.mark.parametrize("settings", [{"limits": {"queue_messages_max": 1}}])
async def test_an_answer_that_finds_the_queue_full_is_reported(
    network: WalletNetwork, bob: Bob
) -> None:
    await network.write(bob, "one")
    answer = await network.say(bob.connection, "trust_ping/1.0/ping")
    assert (answer.status, answer.json) == (429, {"error": "queue-full"})
    async with network.socket() as socket:
        await socket.raw.send_bytes(sealed(bob.connection, "trust_ping/1.0/ping"))
        report = opened(bob.connection, await socket.data())
        assert report["description"]["code"] == "queue-full"
        assert report["who_retries"] == "you"


@pytest.mark.parametrize("settings", [{"limits": {"queue_messages_max": 1}}])
async def test_a_forward_that_is_not_taken_closes_a_socket_with_a_code(
    network: WalletNetwork, bob: Bob
) -> None:
    """Its sender is unknown, so there is no key that a report could be packed for."""
    await network.write(bob, "one")
    async with network.socket() as socket:
        await socket.raw.send_bytes(envelope_of(bob.key, "two"))
        assert await socket.ended_because() == (4429, "queue-full")


async def test_a_message_whose_time_is_over_is_not_handled(
    network: WalletNetwork, bob: Bob
) -> None:
    updates = [{"recipient_key": base58(KeyPair.new().public), "action": "add"}]
    late = {"~timing": {"expires_time": "2027-01-15 08:00:00Z"}, "updates": updates, **routed()}
    facts = network.mediator.facts()
    update = sealed(bob.connection, "coordinate-mediation/1.0/keylist-update", **late)
    answer = await network.post(update)
    assert (answer.status, answer.json) == (410, {"error": "expired"})
    async with network.socket() as socket:
        await socket.raw.send_bytes(update)
        report = opened(bob.connection, await socket.data())
        assert report["description"]["code"] == "expired"
    assert network.mediator.facts() == facts
    late["~timing"] = {"expires_time": "2027-01-15 08:00:01Z"}
    update = sealed(bob.connection, "coordinate-mediation/1.0/keylist-update", **late)
    assert (await network.post(update)).status == 200


async def test_a_live_socket_outlives_a_host_that_is_away_for_a_while(
    network: WalletNetwork, bob: Bob, mediator: Mediator
) -> None:
    async with bob.wallet.live() as live:
        mediator.hosts.cut(HOST)
        assert (await network.forward_text(bob.key, "lost?")).status == 503
        mediator.hosts.mend(HOST)
        await network.write(bob, "one")
        assert bob.texts(await live.next(WAIT_S)) == ["one"]


def _dumped(value: Any) -> bytes:
    return json.dumps(value).encode("utf-8", "surrogatepass")
