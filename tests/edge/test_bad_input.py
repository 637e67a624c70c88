"""Whatever arrives, the answer is a refusal, nothing is stored and nothing is thrown."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import orjson
import pytest
from aiohttp import WSMsgType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.edge.identities import Identity, Json, contract_request, public_event, signed_contract
from tests.edge.mediator import KEYS, MEDIATOR_DID, WAIT_S, HandClock, Mediator

ALICE, BOB, MALLORY = Identity("alice"), Identity("bob"), Identity("mallory")

FEW: Final = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
NUMBERS = st.one_of(
    st.integers(-(2**53) + 1, 2**53 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)


class Target:
    """One mediator and the loop that it runs in, for all examples of a test."""

    def __init__(self, data_dir: Path, log: pytest.LogCaptureFixture) -> None:
        self._loop = asyncio.Runner()
        self._log = log
        self.mediator = Mediator(data_dir, HandClock(), rates={"per_address_per_s": 0})
        self.run(self._start)
        self._facts = self.mediator.facts()

    def run(self, work: Callable[[], Awaitable[Any]]) -> Any:
        async def call() -> Any:
            return await work()

        return self._loop.run(call())

    async def _start(self) -> None:
        await self.mediator.start()
        await self.mediator.register(ALICE, BOB)
        await self.mediator.befriend(BOB, ALICE)

    def is_refused(self, body: bytes) -> None:
        """The body is answered with an error of the protocol, below 500."""
        answer = self.run(lambda: self.mediator.post(body))
        status, _ = answer.refusal
        assert 400 <= status < 500, answer

    def is_answered(self, body: bytes) -> int:
        """The body is answered in the protocol's form, below 500; the status."""
        answer = self.run(lambda: self.mediator.post(body))
        assert answer.status == 200 or answer.refusal[0] < 500, answer
        assert answer.json["type"] in {"SUCCESS", "ERROR"}
        status: int = answer.status
        return status

    def is_unchanged(self) -> None:
        """No fact was added to the log, and nothing was logged that is an error."""
        assert self.mediator.facts() == self._facts
        self.is_calm()

    def is_calm(self) -> None:
        """Nothing was logged that is an error."""
        assert [r.getMessage() for r in self._log.records if r.levelno >= logging.ERROR] == []

    def close(self) -> None:
        self.run(self.mediator.stop)
        self._loop.close()


@pytest.fixture
def target(caplog: pytest.LogCaptureFixture) -> Iterator[Target]:
    with TemporaryDirectory() as folder:
        target = Target(Path(folder), caplog)
        yield target
        target.close()


def every_command(mediator: Mediator) -> list[tuple[Any, str, str]]:
    """A valid payload of every command, with its channel and recipient."""
    now_s = mediator.clock.now_s
    event = {
        "sender_did": ALICE.did,
        "recipient_did": BOB.did,
        "contract_id": "c",
        "timestamp": 1,
        "payload": "p",
        "encrypted_tags": ["t"],
    }
    page = {"page": 0, "page_size": 10}
    contract = signed_contract(ALICE, BOB, now_s + 60)
    direct: list[Json] = [
        mediator.registration(ALICE),
        {"type": "COMMUNICATION_CONTRACT_RESPONSE", "signed_communication_contract": contract},
        {"type": "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS", "pagination": page},
        {
            "type": "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS",
            "communication_contract_ids": ["x"],
        },
        {"type": "SAVE_COMMUNICATION_CONTRACT", "signed_communication_contract": contract},
        {
            "type": "QUERY_COMMUNICATION_CONTRACTS",
            "filter": {"did": BOB.did, "expires_at_before": 1, "expires_at_after": 0},
            "pagination": page,
        },
        {"type": "QUERY_PENDING_EVENTS", "filter": {"sender_did": BOB.did}, "pagination": page},
        {"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": ["x"]},
        {"type": "SAVE_EVENTS", "events": [event]},
        {
            "type": "QUERY_EVENTS",
            "filter": {
                "after_timestamp": 0,
                "before_timestamp": 9,
                "participant_did": BOB.did,
                "encrypted_tags": ["t"],
                "unprocessed_only": True,
            },
            "pagination": page,
        },
        {"type": "UPDATE_EVENT_TAGS", "events": [{"event_id": "x", "encrypted_tags": ["t"]}]},
    ]
    forwarded = contract_request(ALICE, BOB.pre_public, {"text": "hi"})
    return [
        *[(payload, "DIRECT_AUTHENTICATED", MEDIATOR_DID) for payload in direct],
        (forwarded, "DIRECT_AUTHENTICATED", BOB.did),
        ("sealed", "TWO_WAY_PRIVATE", BOB.did),
        (public_event(ALICE, "x", tags=["t"]), "ONE_WAY_PUBLIC", MEDIATOR_DID),
        (
            {"type": "DELETE_PUBLIC_EVENT", "public_event_id": "x", "channel_id": "c"},
            "ONE_WAY_PUBLIC",
            MEDIATOR_DID,
        ),
    ]


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every member of a JSON value."""
    members: dict[Any, Any] = {}
    if isinstance(value, dict | list):
        members = dict(value.items() if isinstance(value, dict) else enumerate(value))
    for name, member in members.items():
        yield (*path, name)
        yield from _places(member, (*path, name))


def _put(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    changed = copy.deepcopy(value)
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = new
    return changed


def test_random_bytes_are_refused(target: Target) -> None:
    @FEW
    @given(st.binary(max_size=200))
    def refused(body: bytes) -> None:
        target.is_refused(body)

    refused()
    target.is_unchanged()


def test_random_json_is_refused(target: Target) -> None:
    header = st.fixed_dictionaries(
        dict.fromkeys(
            ("channel", "sender_did", "sender_signing_key_id", "recipient_did", "nonce"), VALUES
        )
        | {"timestamp": VALUES}
    )
    envelopes = st.fixed_dictionaries({"header": header, "payload": VALUES, "signature": VALUES})

    @FEW
    @given(st.one_of(VALUES, envelopes))
    def refused(value: Any) -> None:
        target.is_refused(orjson.dumps(value))

    refused()
    target.is_unchanged()


def test_a_valid_command_with_changed_bytes_is_refused(target: Target) -> None:
    mediator = target.mediator
    kinds = every_command(mediator)

    @FEW
    @given(st.sampled_from(range(len(kinds))), st.data())
    def refused(kind: int, data: st.DataObject) -> None:
        payload, channel, to = kinds[kind]
        body = orjson.dumps(mediator.command(ALICE, payload, channel=channel, to=to))
        start = data.draw(st.integers(0, len(body) - 1))
        end = data.draw(st.integers(start, min(len(body), start + 8)))
        changed = body[:start] + data.draw(st.binary(max_size=8)) + body[end:]
        if _means_the_same(changed, body):
            return
        target.is_refused(changed)

    refused()
    target.is_unchanged()


def _means_the_same(changed: bytes, body: bytes) -> bool:
    """White space, or another spelling of the same signature, changes nothing."""
    try:
        one, two = orjson.loads(changed), orjson.loads(body)
    except orjson.JSONDecodeError:
        return False
    if not isinstance(one, dict):
        return False
    return {k: one.get(k) for k in ("header", "payload")} == {
        k: two[k] for k in ("header", "payload")
    }


def test_a_command_signed_with_random_members_is_answered_by_the_rules(target: Target) -> None:
    """Signed by its sender, so it comes as deep as it can; who is a stranger changes nothing."""
    mediator = target.mediator
    kinds = every_command(mediator)

    @FEW
    @given(st.sampled_from(range(len(kinds))), st.data())
    def answered(kind: int, data: st.DataObject) -> None:
        payload, channel, to = kinds[kind]
        places = list(_places(payload))
        if places:
            payload = _put(payload, data.draw(st.sampled_from(places)), data.draw(VALUES))
        else:
            payload = data.draw(VALUES)
        sender = data.draw(st.sampled_from([ALICE, MALLORY]))
        header = data.draw(st.sampled_from([{}, {}, {"recipient_did": data.draw(TEXTS)}]))
        command = mediator.command(sender, payload, channel=channel, to=to, **header)
        before = mediator.facts() if sender is MALLORY else None
        status = target.is_answered(orjson.dumps(command))
        if status != 200 and before is not None:
            assert mediator.facts() == before

    answered()
    target.is_calm()


def test_a_registration_with_a_random_plaintext_is_refused(target: Target) -> None:
    mediator = target.mediator

    @FEW
    @given(st.dictionaries(st.sampled_from(["communication_contract", "x"]), VALUES))
    def refused(plaintext: Json) -> None:
        payload = contract_request(MALLORY, KEYS.pre_public, plaintext)
        target.is_refused(orjson.dumps(mediator.command(MALLORY, payload)))

    refused()
    target.is_unchanged()


def test_random_frames_close_a_socket_before_it_is_authenticated(target: Target) -> None:
    @FEW
    @given(st.one_of(st.binary(max_size=100), TEXTS, VALUES.map(orjson.dumps)))
    def closed(frame: bytes | str) -> None:
        async def play() -> None:
            async with target.mediator.upgrade() as socket:
                if isinstance(frame, bytes):
                    await socket.raw.send_bytes(frame)
                else:
                    await socket.raw.send_str(frame)
                assert (await socket.hear())["code"] == "INVALID_MESSAGE"
                assert await socket.closing() == 4002

        target.run(play)

    closed()
    target.is_unchanged()


def test_random_frames_on_an_open_socket_are_ignored(target: Target) -> None:
    frames = st.lists(st.one_of(st.binary(max_size=50), TEXTS), max_size=10)

    @FEW
    @given(frames)
    def ignored(frames: list[bytes | str]) -> None:
        async def play() -> None:
            async with target.mediator.socket(ALICE) as socket:
                for frame in frames:
                    await socket.say(frame)
                await socket.raw.close()
                assert (await socket.raw.receive(WAIT_S)).type is WSMsgType.CLOSED

        target.run(play)

    ignored()
    target.is_unchanged()


def test_random_targets_are_answered(target: Target) -> None:
    escaped = st.binary(max_size=10).map(lambda raw: "".join(f"%{byte:02X}" for byte in raw))
    segment = st.one_of(escaped, st.text("abc:%/?&=+.~-_0", max_size=30))
    paths = st.builds("".join, st.tuples(st.sampled_from(["/", "/public/", "/ws/", "/a"]), segment))

    @FEW
    @given(paths, st.sampled_from(["GET", "POST", "PUT", "OPTIONS", "HEAD"]))
    def answered(path: str, method: str) -> None:
        answer = target.run(lambda: target.mediator.request(method, path))
        assert answer.status < 500, answer
        assert answer.headers["Access-Control-Allow-Origin"] == "*"

    answered()
    target.is_unchanged()
