"""Delivery to agents that have mediators of their own."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence

import orjson
import pytest

from actors.core.commands import QueryConnection
from actors.host.clock import new_id
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key, did_key_reference
from http_edge.didcomm.envelopes.peer_documents import ROUTING_KEYS_MAX
from http_edge.didcomm.outbound import worker
from http_edge.didcomm.outbound.worker import _REFUSALS_MAX
from http_edge.didcomm.unknown_dids import methods
from http_edge.dids.fetched import Caller, FetchedDids, WebLimits
from tests.unit.didcomm.test_wrapping import opened
from tests.unit.outbound.agent_host import WAIT_S, AgentHost
from tests.unit.outbound.delivery_network import ALICE, BOB, DeliveryNetwork, envelopes, idle


async def test_an_agent_behind_mediators_of_its_own_gets_forwards(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    near, far = (KeyPair.from_seed(bytes([number]) * 32) for number in (1, 2))
    keys = [base58(near.public), did_key_reference(far.public)]
    await network.connect(ALICE, agents.url(), keys)
    await network.queue(ALICE, *envelopes(1))
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    (received,) = agents.received
    outer = opened(received, far)
    inner = opened(orjson.dumps(outer["msg"]), near)
    assert [orjson.dumps(inner["msg"])] == envelopes(1)
    assert await network.waiting(ALICE) == 0


@pytest.mark.parametrize("generation", ["1", "2"])
async def test_a_large_message_is_wrapped_outside_of_the_event_loop(
    network: DeliveryNetwork,
    agents: AgentHost,
    monkeypatch: pytest.MonkeyPatch,
    generation: str,
) -> None:
    pairs = [KeyPair.from_seed(bytes([number]) * 32) for number in range(ROUTING_KEYS_MAX)]
    members = b'"recipients":[],' if generation == "2" else b""
    large = b'{%s"ciphertext":"%s"}' % (members, b"a" * 524_000)
    await network.connect(ALICE, agents.url(), [did_key(pair.public) for pair in pairs])
    await network.queue(ALICE, large)
    threads = []

    def watched() -> str:
        threads.append(threading.current_thread())
        return new_id()

    monkeypatch.setattr(worker, "new_id", watched)
    workers = network.workers(agents.lookup, wakes=ALICE)
    await idle(workers)
    assert len(agents.received[0]) > 2 * len(large)
    # Each forward has an id, and so has the session of the delivery.
    assert Counter(each is threading.main_thread() for each in threads) == {
        False: ROUTING_KEYS_MAX,
        True: 1,
    }


async def _no_answer(_host: str, _port: int) -> Sequence[str]:
    raise TimeoutError


@pytest.mark.parametrize("limits", [WebLimits(fetches_max=0), WebLimits()])
async def test_a_mediator_whose_document_may_come_later_has_refused_nothing(
    network: DeliveryNetwork, agents: AgentHost, limits: WebLimits
) -> None:
    """There is no slot for the fetch, or the host of the document does not answer."""
    await network.connect(ALICE, agents.url(), ["did:web:mediator.example"])
    await network.queue(ALICE, *envelopes(1))
    fetched = FetchedDids(methods(network.clock), limits, lookup=_no_answer)
    workers = network.workers(
        agents.lookup, fetched=fetched, retry_s_min=0.01, retry_s_max=0.01, wakes=ALICE
    )
    await network.identities().answered(QueryConnection, _REFUSALS_MAX + 2)
    assert workers.figures()["failed"] == 0
    assert (await network.state(ALICE)).available == 1


async def test_agents_whose_mediators_are_slow_keep_no_other_from_its_mediators_document(
    network: DeliveryNetwork, agents: AgentHost
) -> None:
    looked_up: asyncio.Queue[str] = asyncio.Queue()
    answers = asyncio.Event()

    async def lookup(host: str, _port: int) -> Sequence[str]:
        looked_up.put_nowait(host)
        await answers.wait()
        raise OSError("no such name")

    limits = WebLimits(fetches_max=1)
    fetched = FetchedDids(methods(network.clock), limits, caller=Caller(lambda: ""), lookup=lookup)
    workers = network.workers(agents.lookup, fetched=fetched)
    for number, (did, mediator) in enumerate(((BOB, "slow"), (ALICE, "other")), 1):
        await network.connect(did, agents.url(), [f"did:web:{mediator}.example"])
        await network.queue(did, *envelopes(1))
        workers.wake(did)
        await network.identities().answered(QueryConnection, number)
        await network.state(did)  # by the time of an answer the document is wanted
    assert await asyncio.wait_for(looked_up.get(), WAIT_S) == "slow.example"
    answers.set()
    assert await asyncio.wait_for(looked_up.get(), WAIT_S) == "other.example"
