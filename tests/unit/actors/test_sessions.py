"""Which edges get whose pushes."""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import Final

import pytest
from typing_extensions import override

from actors.core import sessions as core_sessions
from actors.core.sessions import FROM_THE_FIRST, LiveMode, Sessions


def test_an_edge_gets_pushes_from_opening_to_closing() -> None:
    sessions = Sessions()
    for _ in range(2):
        sessions.open("did:x:me", "edge-0")
    sessions.open("did:x:me", "edge-1")
    assert set(sessions.edges_of("did:x:me")) == {"edge-0", "edge-1"}
    sessions.close("did:x:me", "edge-0")
    assert set(sessions.edges_of("did:x:me")) == {"edge-1"}
    sessions.close("did:x:me", "edge-1")
    assert not sessions.edges_of("did:x:me")
    assert len(sessions) == 0


def test_closing_what_is_not_open_changes_nothing() -> None:
    sessions = Sessions()
    sessions.open("did:x:me", "edge-0")
    sessions.close("did:x:me", "edge-1")
    sessions.close("did:x:unknown", "edge-0")
    assert set(sessions.edges_of("did:x:me")) == {"edge-0"}


def test_an_edge_that_is_gone_gets_nothing_more() -> None:
    sessions = Sessions()
    for did in ("did:x:me", "did:x:friend"):
        sessions.open(did, "edge-0")
    sessions.open("did:x:me", "edge-1")
    sessions.drop_edge("edge-0")
    assert set(sessions.edges_of("did:x:me")) == {"edge-1"}
    assert not sessions.edges_of("did:x:friend")


def live(sessions: Sessions, mode: LiveMode) -> None:
    sessions.ask_live("did:x:me", mode)
    sessions.start_live("did:x:me", lease_ms=9, bytes_max=99)


END: Final[dict[str, Callable[[Sessions], None]]] = {
    "itself": lambda sessions: sessions.end_live("did:x:me", "phone"),
    "its edge": lambda sessions: sessions.close("did:x:me", "edge-0"),
    "its account": lambda sessions: sessions.end_handing_out("did:x:me"),
}


@pytest.mark.parametrize("end", END)
def test_a_session_that_is_ended_before_it_fetches_takes_no_live_mode(end: str) -> None:
    sessions = Sessions()
    sessions.ask_live("did:x:me", LiveMode("edge-0", "phone"))
    assert sessions.knows("did:x:me")
    sessions.end_live("did:x:me", "laptop")
    sessions.close("did:x:me", "edge-1")
    assert sessions.starting_of("did:x:me") == "phone"
    END[end](sessions)
    assert sessions.starting_of("did:x:me") == ""
    assert not sessions.knows("did:x:me")


def test_one_session_at_a_time_holds_the_live_mode() -> None:
    sessions = Sessions()
    assert sessions.live_of("did:x:me").session == ""
    live(sessions, LiveMode("edge-0", "phone"))
    live(sessions, LiveMode("edge-1", "phone"))
    assert sessions.live_of("did:x:me") == LiveMode("edge-0", "phone", lease_ms=9, bytes_max=99)
    sessions.ask_live("did:x:me", LiveMode("edge-1", "laptop"))
    assert sessions.live_of("did:x:me").session == "phone"
    assert sessions.starting_of("did:x:me") == "laptop"
    live(sessions, LiveMode("edge-1", "laptop"))
    assert sessions.live_of("did:x:me").session == "laptop"
    assert sessions.live_of("did:x:friend").session == ""


def test_the_live_mode_is_ended_by_the_session_that_holds_it() -> None:
    sessions = Sessions()
    live(sessions, LiveMode("edge-0", "phone"))
    sessions.end_live("did:x:me", "laptop")
    assert sessions.live_of("did:x:me").session == "phone"
    for _ in range(2):
        sessions.end_live("did:x:me", "phone")
    assert sessions.live_of("did:x:me").session == ""
    sessions.end_live("did:x:me", "")


def test_one_session_at_a_time_holds_implicit_pickup() -> None:
    sessions = Sessions()
    assert sessions.implicit_of("did:x:me") == ""
    assert sessions.start_implicit("did:x:me", "edge-0", "phone") == ""
    assert sessions.start_implicit("did:x:me", "edge-0", "phone") == ""
    assert sessions.start_implicit("did:x:me", "edge-1", "laptop") == "phone"
    sessions.end_implicit("did:x:me", "phone")
    assert sessions.implicit_of("did:x:me") == "laptop"
    assert sessions.implicit_of("did:x:friend") == ""


def test_implicit_pickup_ends_with_its_session_or_its_edge() -> None:
    sessions = Sessions()
    sessions.open("did:x:me", "edge-0")
    sessions.start_implicit("did:x:me", "edge-0", "phone")
    sessions.end_implicit("did:x:me", "")
    sessions.close("did:x:me", "edge-1")
    assert sessions.implicit_of("did:x:me") == "phone"
    sessions.end_implicit("did:x:me", "phone")
    assert sessions.implicit_of("did:x:me") == ""
    sessions.start_implicit("did:x:me", "edge-0", "phone")
    sessions.drop_edge("edge-0")
    assert sessions.implicit_of("did:x:me") == ""


def test_implicit_pickup_is_handed_over_with_the_other_sessions() -> None:
    former, next_owner = Sessions(), Sessions()
    former.open("did:x:me", "edge-0")
    former.start_implicit("did:x:me", "edge-0", "phone")
    taken = former.take("did:x:me")
    assert taken is not None
    next_owner.put("did:x:me", taken)
    assert (former.implicit_of("did:x:me"), next_owner.implicit_of("did:x:me")) == ("", "phone")


def test_the_live_mode_ends_with_its_edge_and_not_with_another() -> None:
    sessions = Sessions()
    for edge in ("edge-0", "edge-1"):
        sessions.open("did:x:me", edge)
    live(sessions, LiveMode("edge-0", "phone"))
    sessions.close("did:x:me", "edge-1")
    assert sessions.live_of("did:x:me").session == "phone"
    sessions.open("did:x:me", "edge-1")
    sessions.drop_edge("edge-0")
    assert sessions.live_of("did:x:me").session == ""
    assert set(sessions.edges_of("did:x:me")) == {"edge-1"}


class Id(str):
    """An id that counts how often any is looked up."""

    __slots__ = ()
    looked_up = 0

    @override
    def __hash__(self) -> int:
        Id.looked_up += 1
        return super().__hash__()


def test_what_a_live_mode_remembers_is_not_passed_over_to_remember_or_forget_more() -> None:
    sessions = Sessions()
    live(sessions, LiveMode("edge-0", "phone"))
    remembered = [Id(number) for number in range(1_000)]
    sessions.note_fetched("did:x:me", remembered)
    before = Id.looked_up
    sessions.note_fetched("did:x:me", ["one"])
    sessions.note_removed("did:x:me", ["one"])
    assert Id.looked_up == before
    assert sessions.live_of("did:x:me").leased == {*remembered}


def test_what_all_live_modes_remember_is_bounded_and_those_with_the_most_get_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(core_sessions, "REMEMBERED_MAX", 100)
    sessions, every = Sessions(), [f"did:x:{number}" for number in range(20)]
    for did in every:
        sessions.ask_live(did, LiveMode("edge-0", "phone", since=7))
        sessions.start_live(did, lease_ms=9, bytes_max=99)
    for at in range(10):
        for number, did in enumerate(every):
            ids = [f"{did} {at} {one}" for one in range(number)]
            sessions.note_fetched(did, ids)
            assert sum(len(sessions.live_of(each).leased) for each in every) <= 100
    assert sessions.live_of(every[1]).since == 7
    assert len(sessions.live_of(every[1]).leased) == 10
    for did in every[5:]:
        mode = sessions.live_of(did)
        assert (mode.since, mode.leased, mode.lease_ms) == (FROM_THE_FIRST, set(), 9)


def test_a_live_mode_keeps_no_room_for_what_it_no_longer_remembers() -> None:
    sessions, ids = Sessions(), [f"{number}" for number in range(10_000)]
    live(sessions, LiveMode("edge-0", "phone"))
    sessions.note_fetched("did:x:me", ids)
    for start in range(1, len(ids), 10):
        sessions.note_removed("did:x:me", ids[start : start + 10])
    leased = sessions.live_of("did:x:me").leased
    assert leased == {ids[0]}
    assert getsizeof(leased) == getsizeof(set())
