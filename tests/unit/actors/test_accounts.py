"""Who speaks for an account: grants of DIDComm v2, rotated DIDs, and the end of a relationship."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from actors.core.commands import (
    ClaimedKey,
    Command,
    Connect,
    EndAccount,
    EraseIdentity,
    FindAccount,
    GrantMediation,
    NameSpeaker,
    QueryConnection,
    QueueEnvelopes,
    QueueMessage,
    RotateAccount,
    SaveContract,
    SetQueuePolicy,
    UnnameSpeaker,
    UpdateKeylist,
)
from actors.core.decision import Accepted
from actors.core.erasure import OPERATOR
from actors.core.identity import PRIOR_DIDS_MAX, PRIOR_SPEAKERS_MAX, Identity
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.replies import AccountFound, AccountOver, Connected, Done, EnvelopesWaiting
from eventstore.log.events import (
    AccountEnded,
    AccountRotated,
    ConnectionEstablished,
    KeylistUpdated,
    MediationGranted,
    MessagesRemoved,
    SpeakerNamed,
)
from tests.unit.actors.didcomm import BY_AGENTS, FRIEND, KEY, ME, NEW_DID, Agent, agent, claimed
from tests.unit.actors.given import NOW_MS, NOW_S, connection, contract, registration

OTHER = "did:key:z6MkOther"
LATER_DID = "did:peer:4zQmLater"
BASE: dict[str, Any] = {"at_ms": NOW_MS, "command": b"c" * 16}
ROTATION = RotateAccount(ME, NEW_DID, NOW_S, own=claimed(NEW_DID))
BY_THE_AGENT = [each for each in BY_AGENTS if not type(each).__name__.startswith("Queue")]


def named(command: Command) -> str:
    return type(command).__name__


def rotated() -> Agent:
    me = agent()
    assert isinstance(me.do(ROTATION), Accepted)
    return me


# Grants -------------------------------------------------------------------------------------


def test_connection_grant_and_own_names_are_one_transaction() -> None:
    me, said = Agent(), connection()
    accepted = me.do(GrantMediation(said, claimed("own", "twin", claim=7)))
    assert isinstance(accepted, Accepted)
    assert accepted.reply == Done()
    assert list(map(type, accepted.events)) == [
        ConnectionEstablished,
        MediationGranted,
        KeylistUpdated,
    ]
    assert me.do(QueryConnection()) == Accepted(Connected(said, mediated=True))
    assert me.state.keylist == {"own": 7, "twin": 7}


def test_a_grant_that_is_asked_for_again_stores_nothing() -> None:
    me = Agent()
    command = GrantMediation(connection(), claimed("own"))
    me.do(command)
    assert me.do(command) == me.do(GrantMediation()) == Accepted(Done())
    moved = connection("https://me.example")
    assert isinstance(me.do(GrantMediation(moved)), Accepted)
    assert me.do(QueryConnection()) == Accepted(Connected(moved, mediated=True))


def test_a_grant_for_which_there_is_no_room_changes_nothing() -> None:
    me, limits = agent(keys=("a", "b")), IdentityLimits(keylist_keys_max=2)
    assert me.do(GrantMediation(None, claimed("c")), limits=limits) is Refusal.QUOTA_EXCEEDED
    assert me.do(GrantMediation(None, claimed("b")), limits=limits) == Accepted(Done())
    assert Agent().do(GrantMediation(None, claimed("c"))) is Refusal.NOT_CONNECTED


# Rotation -----------------------------------------------------------------------------------


def test_a_did_without_an_account_is_to_speak_for_another() -> None:
    new = Agent(NEW_DID)
    named_event = SpeakerNamed(**BASE, did=NEW_DID, account_did=ME)
    assert new.do(NameSpeaker(ME)) == Accepted(Done(), [named_event])
    assert new.do(NameSpeaker(ME)) == Accepted(Done())
    assert new.do(NameSpeaker(OTHER)) is Refusal.KEY_TAKEN
    assert new.do(FindAccount()) == Accepted(AccountFound(ME, NEW_DID, connected=False, keys=[]))


@pytest.mark.parametrize("command", [*BY_THE_AGENT, Connect(connection())], ids=named)
def test_what_speaks_for_another_is_no_account_itself(command: Command) -> None:
    new = Agent(NEW_DID)
    new.do(NameSpeaker(ME))
    before = msgspec.msgpack.encode(new.state)
    assert new.do(command, speaker=NEW_DID) is Refusal.SPEAKS_FOR_ANOTHER
    assert msgspec.msgpack.encode(new.state) == before


def test_what_speaks_for_another_is_not_erased_without_the_account() -> None:
    new = Agent(NEW_DID)
    new.do(NameSpeaker(ME))
    assert new.do(EraseIdentity(OPERATOR, 1)) is Refusal.SPEAKS_FOR_ANOTHER
    new.do(UnnameSpeaker(ME))
    assert isinstance(new.do(EraseIdentity(OPERATOR, 1)), Accepted)


def test_a_did_that_was_given_up_speaks_for_no_other_account_even_after_its_own_has_ended() -> None:
    me = rotated()
    assert isinstance(me.do(EndAccount(NEW_DID, NOW_S + 1)), Accepted)
    assert me.do(NameSpeaker(OTHER)) is Refusal.KEY_TAKEN


def test_who_was_to_speak_for_an_account_that_is_over_is_free_again() -> None:
    new = Agent(NEW_DID)
    new.do(NameSpeaker(ME))
    assert new.do(UnnameSpeaker(OTHER)) == Accepted(Done())
    assert new.state.account_did == ME
    free = SpeakerNamed(**BASE, did=NEW_DID, account_did="")
    assert new.do(UnnameSpeaker(ME)) == Accepted(Done(), [free])
    assert new.do(UnnameSpeaker(ME)) == Accepted(Done())
    assert isinstance(new.do(GrantMediation(connection()), speaker=NEW_DID), Accepted)


def test_an_account_does_not_become_the_name_of_another() -> None:
    assert agent().do(NameSpeaker(OTHER)) is Refusal.KEY_TAKEN


def test_a_rotation_keeps_everything_and_changes_who_speaks() -> None:
    me = agent()
    waiting = me.queue(b"one", b"two", key=KEY)
    (taken,) = me.take(limit=1)
    me.do(SetQueuePolicy(messages_max=50))
    said = msgspec.structs.replace(connection(), peer_did=NEW_DID)
    command = msgspec.structs.replace(ROTATION, connection=said)
    accepted = me.do(command)
    assert isinstance(accepted, Accepted)
    assert accepted.events == [
        AccountRotated(**BASE, speaker_did=NEW_DID, prior_did=ME, issued_at_s=NOW_S),
        ConnectionEstablished(**BASE, did=ME, **msgspec.structs.asdict(said)),
        KeylistUpdated(**BASE, added=[NEW_DID], claims=[1], removed=[]),
    ]
    assert accepted.notice == EnvelopesWaiting()
    assert list(me.state.messages) == waiting
    assert list(me.state.keylist) == [KEY, NEW_DID]
    assert taken in me.leases
    assert me.state.policy is not None
    assert me.state.mediated
    assert me.do(command) == Accepted(Done())


@pytest.mark.parametrize("command", [*BY_THE_AGENT, Connect(connection())], ids=named)
def test_after_a_rotation_the_new_did_speaks_and_the_prior_one_does_not(command: Command) -> None:
    me = rotated()
    assert me.do(command, speaker=ME) is Refusal.NOT_SPEAKING
    assert me.do(command, speaker=OTHER) is Refusal.NOT_SPEAKING
    assert isinstance(me.do(command, speaker=NEW_DID), Accepted)
    assert isinstance(me.do(command), Accepted), "the mediator itself"


def test_messages_to_every_name_come_to_the_same_queue_in_order() -> None:
    me = rotated()
    me.queue(b"old", key=KEY)
    me.queue(b"new", key=NEW_DID)
    me.queue(b"old again", key=KEY)
    assert me.take(at={"speaker": NEW_DID}) == list(me.state.messages)
    assert len(me.state.messages) == 3


def test_a_rotation_goes_on_from_the_last_one_and_back() -> None:
    me = rotated()
    assert isinstance(me.do(RotateAccount(NEW_DID, LATER_DID, NOW_S)), Accepted)
    assert me.do(QueryConnection(), speaker=NEW_DID) is Refusal.NOT_SPEAKING
    assert isinstance(me.do(RotateAccount(LATER_DID, ME, NOW_S + 1)), Accepted)
    assert isinstance(me.do(QueryConnection(), speaker=ME), Accepted)


def test_the_dids_that_were_given_up_last_stay_known() -> None:
    me = agent()
    stated = [f"did:peer:4zQm{number}:z{number}" for number in range(7)]
    spoke = ME
    for number, did in enumerate(stated):
        said = msgspec.structs.replace(connection(), peer_did=did)
        speaker = f"did:key:z6Mk{number}"
        accepted = me.do(RotateAccount(spoke, speaker, NOW_S + number, said))
        assert isinstance(accepted, Accepted)
        spoke = speaker
    found = me.do(QueryConnection())
    assert isinstance(found, Accepted)
    assert isinstance(found.reply, Connected)
    assert found.reply.connection.peer_did == stated[-1]
    assert found.reply.prior_dids == stated[-1 - PRIOR_DIDS_MAX : -1]
    me.do(EndAccount(spoke, NOW_S + 9))
    me.do(GrantMediation(connection(), []))
    assert me.do(QueryConnection()) == Accepted(Connected(connection(), mediated=True))


def test_a_did_that_was_given_up_twice_is_known_once() -> None:
    me = agent()
    spoke, (one, two) = ME, (f"did:peer:4zQm{number}:z{number}" for number in range(2))
    for number, did in enumerate((one, two, one, two)):
        said = msgspec.structs.replace(connection(), peer_did=did)
        speaker = f"did:key:z6Mk{number}"
        assert isinstance(me.do(RotateAccount(spoke, speaker, NOW_S + number, said)), Accepted)
        spoke = speaker
    first = connection().peer_did
    assert me.state.prior_dids == [first, two, one]


def test_a_rotation_that_is_sent_again_later_does_not_rotate_back() -> None:
    me = rotated()
    me.do(RotateAccount(NEW_DID, ME, NOW_S + 1))
    assert me.do(ROTATION) is Refusal.NOT_SPEAKING
    assert me.state.speaker_did == ME


def test_an_answer_waits_in_the_queue_only_for_who_speaks_for_the_account() -> None:
    me, answer = rotated(), QueueEnvelopes("", [b"answer"])
    assert me.do(answer, speaker=ME) is Refusal.NOT_SPEAKING
    # The mediator's own, and a forward, which is for the name and whose sender is no DID of ours.
    for command, by in ((answer, NEW_DID), (answer, ""), (QueueEnvelopes(KEY, [b"forward"]), ME)):
        assert isinstance(me.do(command, speaker=by), Accepted)


def test_only_who_speaks_for_it_rotates_an_account() -> None:
    me = agent()
    assert me.do(RotateAccount(OTHER, NEW_DID, NOW_S)) is Refusal.NOT_SPEAKING
    assert Agent().do(ROTATION) is Refusal.NOT_CONNECTED
    full = IdentityLimits(keylist_keys_max=1)
    assert me.do(ROTATION, limits=full) is Refusal.QUOTA_EXCEEDED
    assert me.state.speaker_did == ""


def test_names_that_were_left_out_enter_with_the_same_rotation_again() -> None:
    me = agent()
    me.do(RotateAccount(ME, NEW_DID, NOW_S))
    added = KeylistUpdated(**BASE, added=[NEW_DID], claims=[1], removed=[])
    assert me.do(ROTATION) == Accepted(Done(), [added])


def test_an_account_says_who_speaks_for_it_and_which_names_it_has() -> None:
    me = rotated()
    assert me.do(FindAccount([NEW_DID, KEY, "x"])) == Accepted(
        AccountFound("", NEW_DID, connected=True, keys=[NEW_DID, KEY], rotates_from_s=NOW_S)
    )
    assert Agent().do(FindAccount([KEY])) == Accepted(
        AccountFound("", ME, connected=False, keys=[])
    )


def test_an_account_says_that_a_did_never_spoke_for_it_only_if_it_is_certain() -> None:
    me = rotated()

    def never_spoke(did: str) -> bool:
        found = me.do(FindAccount([], did))
        assert isinstance(found, Accepted)
        assert isinstance(found.reply, AccountFound)
        return found.reply.never_spoke

    me.do(RotateAccount(NEW_DID, LATER_DID, NOW_S))
    dids = [OTHER, ME, NEW_DID, LATER_DID, ""]
    assert list(map(never_spoke, dids)) == [True, False, False, False, False]
    me.do(EndAccount(LATER_DID, NOW_S))
    assert list(map(never_spoke, dids)) == [True, False, False, False, False]
    me.do(GrantMediation(connection()))
    speakers = [LATER_DID, *(f"did:peer:4zQm{n}" for n in range(PRIOR_SPEAKERS_MAX))]
    for prior, new in pairwise(speakers):
        me.do(RotateAccount(prior, new, NOW_S))
    assert NEW_DID not in me.state.prior_speakers
    assert not any(map(never_spoke, [*dids, *speakers]))


# The end ------------------------------------------------------------------------------------


def test_the_end_of_a_relationship_ends_queue_keylist_and_connection() -> None:
    me = agent()
    waiting = me.queue(b"one", b"two", key=KEY)
    me.do(SetQueuePolicy(messages_max=5))
    versions = [me.state.messages[message_id].version for message_id in waiting]
    accepted = me.do(EndAccount(ME, NOW_S))
    assert accepted == Accepted(
        AccountOver([ClaimedKey(KEY, 1)]),
        [
            MessagesRemoved(**BASE, message_ids=waiting, reason="ended", versions=versions),
            KeylistUpdated(**BASE, added=[], claims=[], removed=[KEY]),
            AccountEnded(**BASE, prior_did=ME, issued_at_s=NOW_S),
        ],
        EnvelopesWaiting(),
    )
    left = Identity(version=me.state.version, ended_at_s=NOW_S)
    for name in ("last_added_ms", "last_removed_ms", "seen_ms", "recent"):
        setattr(left, name, getattr(me.state, name))
    assert me.state == left
    assert me.do(QueueEnvelopes(KEY, [b"late"])) is Refusal.KEY_UNKNOWN
    assert me.do(QueryConnection()) is Refusal.NOT_CONNECTED


def test_an_end_that_is_sent_again_does_not_end_what_began_anew() -> None:
    me = agent()
    me.do(EndAccount(ME, NOW_S))
    assert me.do(EndAccount(ME, NOW_S)) == Accepted(AccountOver([]))
    me.do(GrantMediation(connection(), claimed(KEY, claim=3)))
    assert me.do(EndAccount(ME, NOW_S)) == Accepted(AccountOver([]))
    assert isinstance(me.do(QueueEnvelopes(KEY, [b"x"])), Accepted)
    ended = me.do(EndAccount(ME, NOW_S + 1))
    assert isinstance(ended, Accepted)
    assert ended.reply == AccountOver([ClaimedKey(KEY, 3)])


def test_only_who_speaks_for_it_ends_an_account() -> None:
    me = rotated()
    assert me.do(EndAccount(ME, NOW_S + 1)) is Refusal.NOT_SPEAKING
    assert isinstance(me.do(EndAccount(NEW_DID, NOW_S + 1)), Accepted)


def test_what_waits_of_other_protocols_outlives_the_end() -> None:
    me = agent()
    me.do(registration(ME))
    me.do(SaveContract(contract(FRIEND, ME)))
    me.queue(b"envelope", key=KEY)
    me.do(QueueMessage(FRIEND, b"message"))
    me.do(EndAccount(ME, NOW_S))
    (left,) = me.state.messages.values()
    assert left.sender_did == FRIEND
    assert me.state.queue_bytes == len(b"message")


def test_names_of_the_ended_account_are_in_no_keylist_any_more() -> None:
    me = agent(keys=("a", "b", "c"))
    me.do(EndAccount(ME, NOW_S))
    assert me.do(UpdateKeylist([], []), speaker=ME) is Refusal.NOT_CONNECTED
    assert me.state.keylist == {}
