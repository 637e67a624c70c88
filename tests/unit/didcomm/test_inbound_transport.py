"""What may go back to a sender on a connection, and what a socket remembers of that (RFC 0092)."""

from __future__ import annotations

from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.inbound_transport import InboundTransport
from http_edge.didcomm.protocols.protocol import PeerState
from tests.unit.didcomm.requests import message, raw_key

NOTHING = PeerState()
ANSWER = PeerState(routable=True)
EVERYTHING = PeerState(routable=True, open_route=True)


def connection() -> InboundTransport:
    return InboundTransport()


async def admitted(
    socket: InboundTransport,
    route: str = "none",
    *,
    sender: int = 1,
    thread: str = "t",
    wanted: str | None = None,
) -> PeerState:
    """What may go back to a sender for a message in this thread; ``wanted`` is the one it names."""
    transport = {"return_route": route}
    if wanted is not None:
        transport["return_route_thread"] = wanted
    said = message("trust_ping/1.0/ping", **{"~thread": {"thid": thread}, "~transport": transport})
    return await socket.admit(agent_account(raw_key(sender)), said)


async def test_an_open_route_stays_that_of_its_sender_alone() -> None:
    socket = connection()
    assert await admitted(socket) == NOTHING
    assert await admitted(socket, "all") == EVERYTHING
    assert await admitted(socket) == EVERYTHING
    assert await admitted(socket, sender=2) == NOTHING


async def test_the_route_of_a_thread_is_that_of_its_sender_in_this_thread_alone() -> None:
    socket = connection()
    assert await admitted(socket, "thread") == ANSWER
    assert await admitted(socket) == await admitted(socket, thread="T") == ANSWER
    assert await admitted(socket, thread="other") == NOTHING
    assert await admitted(socket, sender=2) == NOTHING


async def test_a_message_opens_the_route_of_another_thread_than_its_own() -> None:
    socket = connection()
    assert await admitted(socket, "thread", wanted="Other") == NOTHING
    assert await admitted(socket) == NOTHING
    assert await admitted(socket, thread="other") == ANSWER


async def test_a_socket_remembers_the_routes_of_so_many_senders_and_answers_all() -> None:
    socket = connection()
    for sender in range(17):
        assert await admitted(socket, "all", sender=sender) == EVERYTHING
    assert await admitted(socket, sender=15) == EVERYTHING
    assert await admitted(socket, sender=16) == NOTHING
    assert await admitted(socket, "all", sender=16) == EVERYTHING


async def test_a_socket_remembers_so_many_threads_of_all_and_answers_in_each() -> None:
    socket = connection()
    for number in range(33):
        thread = f"t-{number}"
        assert await admitted(socket, "thread", sender=number % 2, thread=thread) == ANSWER
    assert await admitted(socket, sender=1, thread="t-31") == ANSWER
    assert await admitted(socket, sender=0, thread="t-32") == NOTHING
    assert await admitted(socket, "thread", sender=0, thread="t-32") == ANSWER
