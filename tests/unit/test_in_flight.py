"""What an edge works on at once, by client address."""

from __future__ import annotations

from http_edge.listener.in_flight import InFlight
from http_edge.settings.settings import Limits
from http_edge.telemetry.refusal_counts import DECENTRL


def test_an_address_has_its_sockets_and_is_forgotten_after_the_last() -> None:
    in_flight = InFlight(Limits(sockets_per_address_max=2))
    with in_flight.socket_of("a", DECENTRL):
        with in_flight.socket_of("a", DECENTRL):
            assert not in_flight.has_room_for_socket("a")
            assert in_flight.has_room_for_socket("b")
        assert in_flight.has_room_for_socket("a")
        assert in_flight.sockets[DECENTRL] == 1
    assert not in_flight._sockets_of
    assert in_flight.sockets.total() == 0
