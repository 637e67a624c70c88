"""The closed loop of a load: what is sent, what is counted, when it ends."""

from __future__ import annotations

import pytest

from http_edge.clients.decentrl import CommandRefused, MediatorClient, Sources
from http_edge.clients.didcomm import (
    Mediation,
    MediatorRefused,
    ProblemReported,
    Recipient,
    Recipient2,
)
from http_edge.clients.load import agents as agents_module
from http_edge.clients.load.agents import MESSAGE_BYTES, patiently
from http_edge.clients.load.closed_loop import closed_loop, http_posts, refusal_of
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from http_edge.clients.load.didcomm_agents import DidComm2Agents, DidCommAgents, Mailbox, Mailbox2
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import Unpacked
from http_edge.didcomm.envelopes.own_dids import OwnDids, own_services
from http_edge.didcomm.envelopes.versions import Envelopes
from tests.unit.client.scripted_mediator import ScriptedMediator, cut, error, page, success


async def test_every_message_is_sent_once_and_refusals_are_counted_by_code(
    mediator: ScriptedMediator,
) -> None:
    mediator.answer("SAVE_COMMUNICATION_CONTRACT", success())
    async with MediatorClient(mediator.url) as client:
        agents = await DecentrlAgents.registered(client, 3)
        before = len(mediator.received)
        mediator.script.extend([error("RATE_LIMITED", 429)] * 2)
        async with http_posts(agents.endpoint, agents.media_type, 4) as posts:
            result = await closed_loop(posts, list(agents.messages(20)), seconds_max=30)
    assert (result.accepted, result.refused) == (18, {"429 RATE_LIMITED": 2})
    sent = mediator.received[before:]
    assert len({command["header"]["nonce"] for command in sent}) == len(sent) == 20
    assert {len(command["payload"]) for command in sent} == {MESSAGE_BYTES}
    assert len({command["header"]["recipient_did"] for command in sent}) == 3


async def test_a_connection_that_breaks_is_counted_and_the_load_goes_on(
    mediator: ScriptedMediator,
) -> None:
    async with http_posts(f"{mediator.url}/", "application/json", 1) as posts:
        mediator.answer("SAVE_COMMUNICATION_CONTRACT", success())
        async with MediatorClient(mediator.url) as client:
            agents = await DecentrlAgents.registered(client, 1)
        mediator.script.append(cut)
        result = await closed_loop(posts, list(agents.messages(3)), seconds_max=30)
    assert (result.accepted, list(result.refused.values())) == (2, [1])
    assert next(iter(result.refused)).startswith("no answer: ")


async def test_nothing_is_sent_when_the_time_is_over(mediator: ScriptedMediator) -> None:
    async with http_posts(f"{mediator.url}/", "application/json", 1) as posts:
        result = await closed_loop(posts, [b"{}"] * 5, seconds_max=0)
    assert (result.accepted, result.refused, mediator.received) == (0, {}, [])


def _reported(code: str, **more: str) -> ProblemReported:
    return ProblemReported(code, "", {"@type": "https://didcomm.org/x/1.0/problem_report", **more})


@pytest.mark.parametrize(
    ("refused", "wait_s"),
    [
        (CommandRefused("RATE_LIMITED", 429, 7.0), 7.0),
        (MediatorRefused(429, "", 7.0), 7.0),
        (_reported("request_processing_error"), 1.0),
        (_reported("rate-limited", who_retries="you"), 1.0),
        (_reported("e.m.me.res.rate-limited"), 1.0),
    ],
)
async def test_a_load_waits_as_long_as_the_mediator_asks_for(
    refused: Exception, wait_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    async def sleep(seconds: float) -> None:
        waits_s.append(seconds)

    refusals = [refused]

    async def once() -> str:
        if refusals:
            raise refusals.pop()
        return "done"

    monkeypatch.setattr(agents_module, "SOURCES", Sources(sleep=sleep))
    assert await patiently(once) == "done"
    assert waits_s == [wait_s]


@pytest.mark.parametrize(
    "refused", [_reported("request_not_accepted"), _reported("not-connected", who_retries="none")]
)
async def test_a_load_does_not_repeat_what_is_refused_for_good(refused: Exception) -> None:
    async def once() -> None:
        raise refused

    with pytest.raises(ProblemReported) as caught:
        await patiently(once)
    assert caught.value is refused


async def test_a_queue_is_drained_in_spite_of_a_rate_limit(mediator: ScriptedMediator) -> None:
    mediator.answer("SAVE_COMMUNICATION_CONTRACT", success())
    waiting = [{"id": "1", "sender_did": "did:x", "payload": "x"}]
    async with MediatorClient(mediator.url) as client:
        agents = await DecentrlAgents.registered(client, 1)
        mediator.script.extend([
            error("RATE_LIMITED", 429, Retry_After="0"),
            page("pending_events", waiting),
            success(),
            page("pending_events", []),
        ])  # fmt: skip
        drained = await agents.drain(connections=2)
    assert (drained.messages, len(drained.latencies_ns)) == (1, 1)


def test_a_sealed_message_is_for_its_recipient_and_as_long_as_was_wanted() -> None:
    mediation = Mediation("http://127.0.0.1:1/didcomm", ())
    boxes = [Mailbox(None, Recipient(KeyPair.new(), mediation)) for _ in range(2)]  # type: ignore[arg-type]
    bodies = list(DidCommAgents(boxes).messages(4, 500))
    assert len(set(bodies)) == 4
    for number, body in enumerate(bodies):
        message = boxes[number % 2].recipient.unpack(body).message
        assert message["@id"] == f"message-{number}"
        assert str(message["content"]).strip("x") == ""


def test_a_v2_message_is_for_its_recipient_and_as_long_as_was_wanted() -> None:
    key = KeyPair.new()
    mediator = OwnDids(key, own_services("http://127.0.0.1:1/didcomm"))
    envelopes = Envelopes(mediator)
    boxes = [Mailbox2(None, Recipient2(KeyPair.new(), mediator.peer2)) for _ in range(2)]  # type: ignore[arg-type]
    agents = DidComm2Agents(boxes)
    assert agents.endpoint == "http://127.0.0.1:1/didcomm"
    for number, body in enumerate(agents.messages(4, 500)):
        opened = envelopes.unpack(body)
        assert isinstance(opened, Unpacked)
        message = envelopes.of(opened.version).read(opened)
        assert message is not None
        forward = envelopes.of(message.version).read_forward(message, recipients_max=1)
        assert forward is not None
        recipient = boxes[number % 2].recipient
        recipient.version.seen.learn(agents.sender.peer4)
        found, sender = recipient.unpack(forward.payloads[0])
        assert forward.recipients == [recipient.own.peer4_short]
        assert (found["@id"], sender) == (f"message-{number}", agents.sender.peer4_short)
        assert str(found["content"]).strip("x") == ""


@pytest.mark.parametrize(
    ("status", "answer", "refusal"),
    [
        (200, b"", None),
        (202, b"whatever", None),
        (429, b'{"type":"ERROR","code":"RATE_LIMITED"}', "429 RATE_LIMITED"),
        (400, b'{"error":"undecryptable"}', "400 undecryptable"),
        (503, b"<html>", "503"),
        (500, b'["code"]', "500"),
        (400, b'{"code":1}', "400"),
    ],
)
def test_a_refusal_is_known_by_its_status_and_code(
    status: int, answer: bytes, refusal: str | None
) -> None:
    assert refusal_of(status, answer) == refusal
