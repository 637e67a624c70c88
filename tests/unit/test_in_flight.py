"""What an edge works on at once, by client address."""

from __future__ import annotations

from contextlib import ExitStack, suppress

from http_edge.listener.in_flight import InFlight, parked
from http_edge.listener.transfers import Cut, Transfer
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


def test_all_sockets_together_have_a_bound() -> None:
    in_flight = InFlight(Limits(sockets_max=1, sockets_per_identity_max=1))
    with in_flight.socket_of("a", DECENTRL):
        assert not in_flight.has_room_for_socket("b")
    assert in_flight.has_room_for_socket("b")


def test_a_request_holds_a_place_until_it_ends_and_none_while_it_only_waits() -> None:
    in_flight = InFlight(Limits(commands_in_flight_max=1))
    room = [in_flight.has_room]
    with in_flight.request_of():
        room.append(in_flight.has_room)
        with parked():
            room.append(in_flight.has_room)
        room.append(in_flight.has_room)
    room.append(in_flight.has_room)
    assert room == [True, False, True, False, True]
    with parked():  # of no request any more
        assert in_flight.requests == 0


def test_an_address_takes_a_quarter_of_the_places_that_stay_free_and_none_while_it_waits() -> None:
    in_flight = InFlight(Limits(commands_in_flight_max=10))
    with ExitStack() as requests:
        while in_flight.slots.has_one_for("a"):
            requests.enter_context(in_flight.request_of(address="a"))
        assert in_flight.requests == 2
        assert in_flight.slots.has_one_for("b")
        with parked():
            assert in_flight.slots.has_one_for("a")
        assert not in_flight.slots.has_one_for("a")
    assert not in_flight.slots._held
    with ExitStack() as requests:
        for _ in range(9):
            assert in_flight.slots.has_one_for(None)  # it has no rate, and no share
            requests.enter_context(in_flight.request_of())


def test_an_edge_that_stops_has_no_room() -> None:
    in_flight = InFlight(Limits())
    in_flight.draining = True
    assert not in_flight.has_room
    assert not in_flight.has_room_for_socket("a")


def test_an_address_has_its_bodies_and_one_that_fails_holds_no_bytes() -> None:
    in_flight = InFlight(
        Limits(bodies_per_address_max=1, body_bytes_max=65_536, bodies_bytes_per_address_max=65_536)
    )
    cuts: list[Cut] = []
    body = Transfer("a", 0.0, cuts.append)
    with suppress(ConnectionError), in_flight.body_of(body):
        assert not in_flight.has_room_for_body("a")
        assert in_flight.has_room_for_body("b")
        in_flight.bodies.grow(body, 65_536)
        assert in_flight.bodies.no_room_for("a", 1) is Cut.BYTES_PER_ADDRESS
        raise ConnectionError
    assert in_flight.has_room_for_body("a")
    assert in_flight.bodies.no_room_for("a", 1) is None
    assert cuts == []
