"""What a socket remembers of the messages that its client is not known to have read."""

from __future__ import annotations

from http_edge.didcomm.unconfirmed import UNCONFIRMED_BYTES_MAX, Handover, Unconfirmed


def handover(did: str, *message_ids: str) -> Handover:
    return Handover(did, "did:example:speaker", b"c" * 16, [*message_ids])


def test_a_pong_confirms_what_precedes_its_ping_and_nothing_later() -> None:
    unconfirmed = Unconfirmed()
    given = [handover("alice", "1"), handover("bob", "2", "3"), handover("alice", "4")]
    for number, each in enumerate(given, start=10):
        assert unconfirmed.add(each, number)
    assert unconfirmed.confirm(9) == []
    assert unconfirmed.confirm(11) == given[:2]
    assert unconfirmed.confirm(11) == []
    assert unconfirmed.confirm(99) == given[2:]


def test_a_batch_of_any_size_is_confirmed_if_no_other_waits() -> None:
    unconfirmed = Unconfirmed()
    batch = handover("alice", *map(str, range(UNCONFIRMED_BYTES_MAX)))
    for number in (1, 2):
        assert unconfirmed.add(batch, number)
        assert not unconfirmed.add(handover("alice", "more"), number)
        assert unconfirmed.confirm(number) == [batch]


def test_what_was_confirmed_makes_room_for_as_much() -> None:
    unconfirmed, number = Unconfirmed(), 0

    def fill() -> int:
        nonlocal number
        count = 0
        while unconfirmed.add(handover(f"agent {count % 7}", f"{count:022}"), number + 1):
            number, count = number + 1, count + 1
        return count

    count = fill()
    for _ in range(3):
        assert len(unconfirmed.confirm(number)) == count
        assert fill() == count


def test_sixty_messages_that_one_agent_gets_one_by_one_have_room() -> None:
    unconfirmed, did = Unconfirmed(), "did:key:z6Mk" + "x" * 44
    for number in range(300, 360):
        assert unconfirmed.add(Handover(did, did, b"c" * 16, [f"{number:022}"]), number)
