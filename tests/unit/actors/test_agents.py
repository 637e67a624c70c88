"""Agents, invitations, and keys: who connected, and whose key it is."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.commands import (
    CheckKeys,
    ClaimKey,
    Command,
    Connect,
    FindKeyOwner,
    GrantMediation,
    QueryConnection,
    QueryKeylist,
    ReleaseKey,
    UpdateKeylist,
    UseInvitation,
)
from actors.core.decide import decide
from actors.core.decision import Accepted
from actors.core.identity import Identity
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import (
    Connected,
    Done,
    KeyClaim,
    KeylistChanged,
    KeylistPart,
    KeyOwner,
    KeysKnown,
)
from eventstore.log.events import (
    ConnectionEstablished,
    InvitationUsed,
    KeyClaimed,
    KeylistUpdated,
    KeyReleased,
    MediationGranted,
)
from eventstore.log.streams import ERASED
from tests.unit.actors.didcomm import (
    BY_AGENTS,
    INVITATION_TARGET,
    KEY,
    KEY_TARGET,
    ME,
    ON_ACCOUNTS,
    ON_KEYS,
    ON_QUEUES,
    Agent,
    agent,
    claimed,
)
from tests.unit.actors.given import NOW_MS, connection, context

OTHER = "did:key:z6MkOther"
BASE: dict[str, Any] = {"at_ms": NOW_MS, "command": b"c" * 16}
NOTHING_CHANGED = Accepted(KeylistChanged([], []))


def named(command: Command) -> str:
    return type(command).__name__


@pytest.mark.parametrize("command", BY_AGENTS, ids=named)
def test_who_never_connected_is_refused(command: Command) -> None:
    stranger = Agent()
    assert stranger.do(command) is Refusal.NOT_CONNECTED
    assert stranger.state == Identity()


@pytest.mark.parametrize(
    "command", [UpdateKeylist([], []), CheckKeys([]), QueryKeylist(0, 1)], ids=named
)
def test_keys_need_mediation(command: Command) -> None:
    connected = Agent()
    connected.do(Connect(connection()))
    assert connected.do(command) is Refusal.NOT_MEDIATED
    connected.do(GrantMediation())
    assert isinstance(connected.do(command), Accepted)


@pytest.mark.parametrize("command", [*BY_AGENTS, *ON_ACCOUNTS, *ON_KEYS, *ON_QUEUES], ids=named)
def test_a_decision_changes_nothing(command: Command) -> None:
    me = agent()
    me.queue(b"one", key=KEY)
    before = repr(me.state)
    decide(me.state, command, context())
    assert repr(me.state) == before


def test_a_connection_is_recorded_and_its_latest_word_counts() -> None:
    me, said = Agent(), connection()
    established = ConnectionEstablished(
        **BASE,
        did=ME,
        peer_did=said.peer_did,
        label=said.label,
        endpoint="",
        routing_keys=[],
        protocol="didexchange/1.1",
        invitation_id="",
    )
    assert me.do(Connect(said)) == Accepted(Done(), [established])
    assert me.do(Connect(connection())) == Accepted(Done())
    me.do(GrantMediation())
    moved = connection("https://me.example")
    assert isinstance(me.do(Connect(moved)), Accepted)
    assert me.do(QueryConnection()) == Accepted(Connected(moved, mediated=True))


def test_mediation_is_granted_once_and_asked_for_as_often_as_one_likes() -> None:
    me = Agent()
    me.do(Connect(connection()))
    assert me.do(QueryConnection()) == Accepted(Connected(connection(), mediated=False))
    assert me.do(GrantMediation()) == Accepted(Done(), [MediationGranted(**BASE)])
    assert me.do(GrantMediation()) == Accepted(Done())
    assert me.do(QueryConnection()) == Accepted(Connected(connection(), mediated=True))


def test_an_invitation_for_one_use_is_the_first_users_alone() -> None:
    invitation = Agent(INVITATION_TARGET)
    used = InvitationUsed(**BASE, invitation_id="once", by_did=ME)
    assert invitation.do(UseInvitation(ME)) == Accepted(Done(), [used])
    assert invitation.do(UseInvitation(OTHER)) is Refusal.INVITATION_USED
    assert invitation.do(UseInvitation(ME)) == Accepted(Done())


def test_one_key_has_one_owner() -> None:
    key = Agent(KEY_TARGET)
    assert key.do(FindKeyOwner()) is Refusal.KEY_UNKNOWN
    first = KeyClaimed(**BASE, key=KEY, owner_did=ME)
    assert key.do(ClaimKey(ME)) == Accepted(KeyClaim(1, owned_before=False), [first])
    assert key.do(FindKeyOwner()) == Accepted(KeyOwner(ME, 1))


def test_a_second_claim_by_another_is_refused() -> None:
    key = Agent(KEY_TARGET)
    key.do(ClaimKey(ME))
    assert key.do(ClaimKey(OTHER)) is Refusal.KEY_TAKEN
    assert key.do(FindKeyOwner()) == Accepted(KeyOwner(ME, 1))


def test_a_key_whose_owner_was_erased_is_free_once_that_ones_name_has_left() -> None:
    key = Agent(KEY_TARGET)
    key.do(ClaimKey(ERASED + 32 * "0"))  # as it reads then
    assert key.do(FindKeyOwner()) is Refusal.KEY_UNKNOWN
    for number in (2, 3):
        claimed_now = key.do(ClaimKey(ME))
        assert isinstance(claimed_now, Accepted)
        known = KeyClaim(number, owned_before=number > 2)
        assert claimed_now.reply == known, "there is no keylist to take it out of"
    assert key.do(ClaimKey(OTHER)) is Refusal.KEY_TAKEN


def test_who_holds_a_key_gets_it_from_another_and_learns_who_that_was() -> None:
    key = Agent(KEY_TARGET)
    key.do(ClaimKey(OTHER))
    taken = KeyClaimed(**BASE, key=KEY, owner_did=ME)
    assert key.do(ClaimKey(ME, holds_key=True)) == Accepted(KeyClaim(2, OTHER, False), [taken])
    assert key.do(FindKeyOwner()) == Accepted(KeyOwner(ME, 2))
    assert key.do(ClaimKey(OTHER)) is Refusal.KEY_TAKEN
    # An owner that is interrupted before the other's keylist is changed learns it again.
    again = key.do(ClaimKey(ME))
    assert isinstance(again, Accepted)
    assert again.reply == KeyClaim(3, OTHER)
    key.do(ReleaseKey(OTHER, 1))
    assert key.do(FindKeyOwner()) == Accepted(KeyOwner(ME, 3))
    key.do(ReleaseKey(ME, 3))
    fresh = key.do(ClaimKey(ME))
    assert isinstance(fresh, Accepted)
    assert fresh.reply == KeyClaim(5, owned_before=False)


def test_only_its_owner_releases_a_key_and_then_it_is_free() -> None:
    key = Agent(KEY_TARGET)
    assert key.do(ReleaseKey(ME, 0)) == Accepted(Done())
    key.do(ClaimKey(ME))
    assert key.do(ReleaseKey(OTHER, 1)) == Accepted(Done())
    assert key.do(ReleaseKey(ME, 1)) == Accepted(Done(), [KeyReleased(**BASE, key=KEY)])
    assert key.do(FindKeyOwner()) is Refusal.KEY_UNKNOWN
    assert key.do(ReleaseKey(ME, 1)) == Accepted(Done())
    assert isinstance(key.do(ClaimKey(OTHER)), Accepted)
    assert key.do(FindKeyOwner()) == Accepted(KeyOwner(OTHER, 3))


def test_a_late_release_does_not_end_a_later_claim() -> None:
    key = Agent(KEY_TARGET)
    key.do(ClaimKey(ME))
    again = key.do(ClaimKey(ME))
    assert isinstance(again, Accepted)
    assert again.reply == KeyClaim(2)
    for claim in (1, 3, -1):
        assert key.do(ReleaseKey(ME, claim)) is Refusal.KEY_TAKEN
    assert key.do(FindKeyOwner()) == Accepted(KeyOwner(ME, 2))
    assert isinstance(key.do(ReleaseKey(ME, 2)), Accepted)
    assert key.do(FindKeyOwner()) is Refusal.KEY_UNKNOWN


def test_a_keylist_says_what_really_changed_and_records_no_more() -> None:
    me = agent(keys=("a", "b"))
    assert me.do(UpdateKeylist(claimed("c", "a", "c"), ["b", "x", "b"])) == Accepted(
        KeylistChanged(["c"], claimed("b")),
        [KeylistUpdated(**BASE, added=["c"], claims=[1], removed=["b"])],
    )
    assert me.do(UpdateKeylist(claimed("a"), ["x"])) == NOTHING_CHANGED
    assert list(me.state.keylist) == ["a", "c"]


def test_a_later_claim_replaces_the_one_that_a_key_is_held_by() -> None:
    me = agent(keys=("a", "b"))
    assert me.do(UpdateKeylist(claimed("a", claim=5), [])) == Accepted(
        KeylistChanged([], []), [KeylistUpdated(**BASE, added=["a"], claims=[5], removed=[])]
    )
    assert me.do(UpdateKeylist(claimed("a", claim=4), [])) == NOTHING_CHANGED
    removal = me.do(UpdateKeylist([], ["a"]))
    assert isinstance(removal, Accepted)
    assert removal.reply == KeylistChanged([], claimed("a", claim=5))


def test_the_named_keys_that_are_there_are_answered() -> None:
    me = agent(keys=("a", "b"))
    assert me.do(CheckKeys(["b", "x", KEY])) == Accepted(KeysKnown(["b"], 2, [1]))
    assert me.do(CheckKeys([])) == Accepted(KeysKnown([], 2))


def test_a_keylist_is_read_in_parts_oldest_first() -> None:
    me = agent(keys=("c", "a", "b"))
    me.do(UpdateKeylist(claimed("c"), ["a"]))
    me.do(UpdateKeylist(claimed("a"), []))
    assert me.do(QueryKeylist(0, 2)) == Accepted(KeylistPart(["c", "b"], 3))
    assert me.do(QueryKeylist(2, 2)) == Accepted(KeylistPart(["a"], 3))
    assert me.do(QueryKeylist(3, 2)) == Accepted(KeylistPart([], 3))
    assert me.do(QueryKeylist(0, 0)) == Accepted(KeylistPart([], 3))


def test_a_keylist_has_a_cap_and_takes_all_or_nothing() -> None:
    me, limits = agent(keys=("a", "b")), IdentityLimits(keylist_keys_max=3)
    assert me.do(UpdateKeylist(claimed("c", "d"), []), limits=limits) is Refusal.QUOTA_EXCEEDED
    assert list(me.state.keylist) == ["a", "b"]
    assert isinstance(me.do(UpdateKeylist(claimed("c", "d"), ["a"]), limits=limits), Accepted)
    assert list(me.state.keylist) == ["b", "c", "d"]
    assert me.do(UpdateKeylist(claimed("b"), []), limits=limits) == NOTHING_CHANGED
    lower = IdentityLimits(keylist_keys_max=1)
    assert isinstance(me.do(UpdateKeylist([], ["b"]), limits=lower), Accepted)
