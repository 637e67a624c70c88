"""Names of an account over real identities: rotation, take-over of names, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from actors.core.commands import (
    ClaimKey,
    Command,
    EndAccount,
    EraseIdentity,
    FindAccount,
    GrantMediation,
    NameSpeaker,
    QueryConnection,
    ReleaseKey,
    RotateAccount,
    UnnameSpeaker,
)
from actors.core.refusals import Refusal
from actors.core.replies import (
    AccountFound,
    Connected,
    Done,
    EnvelopeQueued,
    Erased,
)
from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream
from http_edge.didcomm.accounts import ErasedAccounts
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import AgentAccount
from http_edge.didcomm.envelopes.recipient_names import twins
from http_edge.didcomm.identities import speak_as
from http_edge.didcomm.protocols import keylists
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges
from tests.contract.test_name_erasure_contract import take_out_names
from tests.unit.didcomm.accounts import (
    COMMAND,
    NEW_PEER,
    NEWER,
    OLD,
    OLD_NAME,
    SAID,
    STRANGER,
    Mediator,
    mediator_of,
    reach,
)
from tests.unit.didcomm.requests import agents_of, raw_key


@pytest.fixture
async def mediator(tmp_path: Path) -> AsyncIterator[Mediator]:
    async with mediator_of(tmp_path) as made:
        yield made


# Erasure ------------------------------------------------------------------------------------


async def erased(mediator: Mediator, did: str, *, is_cut_short: bool = False) -> None:
    """Erase an identity, and let go what it held elsewhere."""
    lets_go = not is_cut_short
    while True:
        step = await mediator.agents.ask(did, EraseIdentity("operator", 64), COMMAND, Erased)
        assert isinstance(step, Erased)
        if lets_go:
            await ErasedAccounts(mediator.agents, mediator.keylists).let_go(did, COMMAND, step)
        if step.is_over:
            return


@pytest.mark.parametrize("is_cut_short", [False, True])
async def test_who_spoke_for_an_erased_account_begins_anew(
    mediator: Mediator, *, is_cut_short: bool
) -> None:
    new, agents = NEW_PEER, mediator.agents
    assert await mediator.rotate(new, OLD) is None
    await erased(mediator, OLD, is_cut_short=is_cut_short)
    again = (new.account.did, COMMAND, SAID, [new.name])
    speak_as(new.account.did)
    try:
        refused = await agents.ask(new.account.did, GrantMediation(SAID), COMMAND, Done)
        assert (refused is Refusal.SPEAKS_FOR_ANOTHER) is is_cut_short
        account = await mediator.edge().of(new.account, COMMAND)
        assert account == new.account
        assert await mediator.keylists.enrol(*again) is None
    finally:
        speak_as("")
    assert await mediator.has(new.account.did, new.name) == [new.name]
    assert isinstance(await mediator.forward(new.name, b"anew"), EnvelopeQueued)
    await erased(mediator, new.account.did)


async def erased_in_part(mediator: Mediator, *, is_restarted: bool) -> EventLog:
    """Erase an account, but do not let go who spoke for it; names leave, then the host starts."""
    hosts = mediator.agents.hosts
    assert await mediator.rotate(NEW_PEER, OLD) is None
    await erased(mediator, OLD, is_cut_short=True)
    (host,) = hosts.running.values()
    assert take_out_names(host._log) > 0
    if is_restarted:
        await hosts.restart(0)
        (host,) = hosts.running.values()
    return host._log


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_erased_account_is_not_named_by_who_spoke_for_it_although_its_end_was_cut_short(
    mediator: Mediator, *, is_restarted: bool
) -> None:
    new = NEW_PEER
    log = await erased_in_part(mediator, is_restarted=is_restarted)
    rows = log.read_stream(identity_stream(new.account.did))
    assert [row.topic for row in rows if OLD.encode() in row.state] == []
    mediator.agents.moved[new.account.did] = None
    assert await mediator.edge().of(new.account, COMMAND) == new.account
    assert await speaks_for(mediator, new.account.did) == ""
    assert await mediator.keylists.enrol(new.account.did, COMMAND, SAID, [new.name]) is None


@pytest.mark.parametrize("is_restarted", [False, True])
async def test_an_account_that_comes_back_rotates_to_who_spoke_for_it_before_its_erasure(
    mediator: Mediator, *, is_restarted: bool
) -> None:
    new = NEW_PEER
    await erased_in_part(mediator, is_restarted=is_restarted)
    assert await mediator.keylists.enrol(OLD, COMMAND, SAID, [OLD_NAME]) is None
    assert await mediator.rotate(new, OLD, at_s=5_000) is None
    assert await speaks_for(mediator, new.account.did) == OLD


@pytest.mark.parametrize("is_over", [False, True])
async def test_who_speaks_for_an_account_that_has_ended_is_not_let_go(
    mediator: Mediator, *, is_over: bool
) -> None:
    assert await mediator.rotate(NEW_PEER, OLD) is None
    if is_over:
        assert await mediator.end(NEW_PEER.account.did) is None
    accounts = ErasedAccounts(mediator.agents, mediator.keylists)
    assert await accounts.freed(NEW_PEER.account.did, OLD, COMMAND) is False


async def test_to_be_erased_only_the_last_speaker_of_an_account_that_has_ended_is_let_go(
    mediator: Mediator,
) -> None:
    assert await mediator.rotate(NEW_PEER, OLD) is None
    assert await mediator.rotate(NEWER, NEW_PEER.name, at_s=1_001) is None
    accounts = ErasedAccounts(mediator.agents, mediator.keylists)
    names = [OLD, NEW_PEER.account.did, NEWER.account.did]
    assert [await accounts.free(did, COMMAND) for did in names] == [False, False, False]
    assert await mediator.end(NEWER.account.did) is None
    assert [await accounts.free(did, COMMAND) for did in names] == [False, False, True]
    assert await speaks_for(mediator, NEW_PEER.account.did) == OLD
    assert await speaks_for(mediator, NEWER.account.did) == ""


async def test_an_edge_that_remembers_an_erased_account_looks_for_another(
    mediator: Mediator,
) -> None:
    new = NEW_PEER
    assert await mediator.rotate(new, OLD) is None
    assert await mediator.rotate(NEWER, new.name, at_s=1_001) is None
    await erased(mediator, OLD)
    for peer in (new, NEWER):
        assert await mediator.ask_as(peer.name, OLD) is Refusal.NOT_SPEAKING
        assert await mediator.accounts.of(peer.account, COMMAND) == peer.account
        assert await mediator.keylists.enrol(peer.name, COMMAND, SAID, [peer.name]) is None


async def speaks_for(mediator: Mediator, did: str) -> str:
    """The account of another that a DID is to speak for; empty for none."""
    found = await mediator.agents.ask(did, FindAccount([]), COMMAND, AccountFound)
    assert isinstance(found, AccountFound)
    return found.account_did


async def test_every_did_that_spoke_for_an_erased_account_is_let_go(mediator: Mediator) -> None:
    chain = NEW_PEER, NEWER, STRANGER
    names = [OLD, *[peer.name for peer in chain]]
    for number, peer in enumerate(chain):
        assert await mediator.rotate(peer, names[number], at_s=1_000 + number) is None
    await erased(mediator, OLD)
    assert [await speaks_for(mediator, peer.account.did) for peer in chain] == ["", "", ""]


async def test_a_did_that_spoke_before_is_let_go_once_it_speaks_again(mediator: Mediator) -> None:
    assert await mediator.rotate(NEW_PEER, OLD) is None
    assert await mediator.rotate(NEWER, NEW_PEER.name, at_s=1_001) is None
    assert await mediator.rotate(NEW_PEER, NEWER.name, at_s=1_002) is None
    await erased(mediator, OLD)
    assert mediator.count(UnnameSpeaker) == 2
    assert [await speaks_for(mediator, p.account.did) for p in (NEW_PEER, NEWER)] == ["", ""]


@pytest.mark.parametrize("after", [NameSpeaker, QueryConnection])
async def test_a_rotation_that_an_erasure_comes_before_leaves_its_did_free(
    mediator: Mediator, after: type[Command]
) -> None:
    mediator.agents.before_answer[after] = partial(erased, mediator, OLD)
    assert await mediator.rotate(NEW_PEER, OLD) is Refusal.NOT_CONNECTED
    assert await speaks_for(mediator, NEW_PEER.account.did) == ""


async def test_a_key_of_an_erased_account_is_free_for_the_next(mediator: Mediator) -> None:
    assert await mediator.owner(OLD_NAME) == OLD
    await erased(mediator, OLD)
    assert await mediator.owner(OLD_NAME) is None
    wanted = KeyChanges([OLD_NAME], [])
    name = STRANGER.name
    assert await mediator.keylists.enrol(name, COMMAND, SAID, [name]) is None
    changed = await mediator.keylists.change(name, COMMAND, wanted)
    assert not isinstance(changed, Refusal)
    assert changed.failed == {}


# Forwards -----------------------------------------------------------------------------------


async def test_a_forward_finds_a_key_by_its_name_on_the_other_curve(mediator: Mediator) -> None:
    (image,) = twins(OLD_NAME)
    for number in range(3):
        assert isinstance(await mediator.forward(image, b"%d" % number), EnvelopeQueued)
    assert await mediator.waiting(OLD) == 4
    # Registered under its own name later, that is what counts.
    me = NEW_PEER.name
    await mediator.keylists.enrol(me, COMMAND, SAID, [me])
    await mediator.keylists.change(me, COMMAND, KeyChanges([image], []))
    assert isinstance(await mediator.forward(image, b"direct"), EnvelopeQueued)
    assert (await mediator.waiting(OLD), await mediator.waiting(me)) == (4, 1)
    await mediator.keylists.change(OLD, COMMAND, KeyChanges([], [OLD_NAME]))
    assert isinstance(await mediator.forward(OLD_NAME, b"by its twin"), EnvelopeQueued)
    assert (await mediator.waiting(OLD), await mediator.waiting(me)) == (4, 2)
    await mediator.keylists.change(me, COMMAND, KeyChanges([], [image]))
    assert await mediator.forward(image, b"unknown") is Refusal.KEY_UNKNOWN


# Rotation -----------------------------------------------------------------------------------


async def test_a_rotation_moves_the_relationship_and_keeps_what_waits(mediator: Mediator) -> None:
    assert await mediator.rotate(NEW_PEER, OLD) is None
    assert (await mediator.accounts.of(NEW_PEER.account, COMMAND)) == AgentAccount(
        OLD, "v2", raw_key(3_001)
    )
    known = await mediator.ask_as(NEW_PEER.name, OLD)
    assert isinstance(known, Connected)
    assert known.connection.peer_did == NEW_PEER.long
    assert known.connection.endpoint == f"https://{NEW_PEER.long[-4:]}.example"
    assert known.connection.label == "phone"
    assert await mediator.ask_as(OLD, OLD) is Refusal.NOT_SPEAKING
    for name in (OLD_NAME, NEW_PEER.name):
        assert isinstance(await mediator.forward(name, name.encode()[-9:]), EnvelopeQueued)
    assert await mediator.waiting(OLD) == 3


async def test_a_rotation_leaves_nothing_of_where_the_prior_did_was_reached(tmp_path: Path) -> None:
    async with agents_of(tmp_path) as agents:
        mediator, new = Mediator(agents), NEW_PEER
        said = replace(SAID, routing_keys=["did:example:mediator"])
        assert await mediator.keylists.enrol(OLD, COMMAND, said, [OLD_NAME]) is None
        assert await mediator.rotate(new, OLD) is None
        known = await mediator.ask_as(new.name, OLD)
        assert isinstance(known, Connected)
        endpoint, routing_keys = await reach(new.message())
        assert known.connection == replace(
            said, peer_did=new.long, endpoint=endpoint, routing_keys=routing_keys
        )


async def test_another_edge_learns_of_a_rotation_when_the_did_speaks_there(
    mediator: Mediator,
) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    elsewhere = mediator.edge()
    assert await elsewhere.of(NEW_PEER.account, COMMAND) == NEW_PEER.account
    assert await mediator.ask_as(NEW_PEER.name, NEW_PEER.name) is Refusal.SPEAKS_FOR_ANOTHER
    assert elsewhere.is_moved(NEW_PEER.account)
    found = await elsewhere.of(NEW_PEER.account, COMMAND)
    assert isinstance(found, AgentAccount)
    assert found.did == OLD
    assert not elsewhere.is_moved(NEW_PEER.account)
    mediator.agents.seen.clear()
    assert await elsewhere.of(NEW_PEER.account, COMMAND) == found
    assert mediator.agents.seen == [], "it is remembered"


async def test_the_same_rotation_many_times_stores_nothing_more(mediator: Mediator) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    mediator.agents.seen.clear()
    for _ in range(3):
        assert await mediator.rotate(NEW_PEER, OLD) is None
    assert {type(each) for each in mediator.agents.seen} == {FindAccount}


@pytest.mark.parametrize(
    "lost", [FindAccount, NameSpeaker, ClaimKey, QueryConnection, RotateAccount]
)
@pytest.mark.parametrize("how", ["lost", "refused"])
async def test_a_rotation_that_is_cut_off_anywhere_is_finished_by_the_next_message(
    mediator: Mediator, lost: type[Command], how: str
) -> None:
    with mediator.agents.cut_off(lost, is_lost=how == "lost"):
        assert await mediator.rotate(NEW_PEER, OLD) is Refusal.TEMPORARILY_UNAVAILABLE
    assert mediator.count(RotateAccount) == (lost is RotateAccount), "nothing follows"
    assert await mediator.rotate(NEW_PEER, OLD) is None
    assert isinstance(await mediator.ask_as(NEW_PEER.name, OLD), Connected)
    assert await mediator.ask_as(OLD, OLD) is Refusal.NOT_SPEAKING
    assert await mediator.has(OLD, NEW_PEER.name) == [NEW_PEER.name]
    assert await mediator.waiting(OLD) == 1


async def test_a_rotation_that_is_refused_claims_no_name(mediator: Mediator) -> None:
    assert await mediator.rotate(NEW_PEER, OLD, at_s=2_000) is None
    for prior, at_s in ((OLD, 3_000), (NEW_PEER.name, 1_999)):
        mediator.agents.seen.clear()
        assert await mediator.rotate(NEWER, prior, at_s=at_s) is Refusal.NOT_SPEAKING
        assert mediator.count(ClaimKey) == 0


async def test_a_rotation_goes_on_from_a_rotated_did(mediator: Mediator) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    assert await mediator.rotate(NEWER, NEW_PEER.name, at_s=1_001) is None
    assert isinstance(await mediator.ask_as(NEWER.name, OLD), Connected)
    assert await mediator.ask_as(NEW_PEER.name, OLD) is Refusal.NOT_SPEAKING
    assert await mediator.rotate(NEW_PEER, OLD) is Refusal.NOT_SPEAKING, "an old message again"
    assert isinstance(await mediator.ask_as(NEWER.name, OLD), Connected)


async def test_a_key_that_was_rotated_away_takes_its_name_back_in_no_spelling(
    mediator: Mediator,
) -> None:
    (image,) = twins(OLD_NAME)
    await mediator.rotate(NEW_PEER, OLD)
    assert await mediator.keylists.enrol(image, COMMAND, SAID, [image]) is Refusal.KEY_TAKEN
    assert isinstance(await mediator.forward(image), EnvelopeQueued)
    await mediator.keylists.enrol(STRANGER.name, COMMAND, SAID, [STRANGER.name])
    wanted = KeyChanges([OLD_NAME], [], held=frozenset({OLD_NAME}))
    changed = await mediator.keylists.change(STRANGER.name, COMMAND, wanted)
    assert not isinstance(changed, Refusal)
    assert changed.failed == {OLD_NAME: "client_error"}
    assert await mediator.owner(OLD_NAME) == OLD
    assert await mediator.waiting(OLD) == 2


async def test_the_name_of_a_did_follows_its_key_only_while_the_did_speaks(
    mediator: Mediator,
) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    await mediator.rotate(NEWER, NEW_PEER.name, at_s=1_001)
    me, names = STRANGER.name, [NEW_PEER.name, NEWER.name]
    await mediator.keylists.enrol(me, COMMAND, SAID, [me])
    wanted = KeyChanges(names, [], held=frozenset(names))
    changed = await mediator.keylists.change(me, COMMAND, wanted)
    assert not isinstance(changed, Refusal)
    assert changed.failed == {NEW_PEER.name: "client_error"}
    assert [await mediator.owner(name) for name in names] == [OLD, me]


async def test_a_rotation_that_another_was_before_leaves_its_did_free(mediator: Mediator) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    assert await mediator.rotate(NEWER, OLD, at_s=999) is Refusal.NOT_SPEAKING
    assert await mediator.keylists.enrol(NEWER.name, COMMAND, SAID, [NEWER.name]) is None
    assert isinstance(await mediator.ask_as(NEWER.name, NEWER.name), Connected)


async def test_of_two_rotations_at_once_one_leaves_its_did_free(mediator: Mediator) -> None:
    peers = NEW_PEER, NEWER
    done = await asyncio.gather(*[mediator.rotate(peer, OLD) for peer in peers])
    assert set(done) == {None, Refusal.NOT_SPEAKING}
    free = peers[done.index(Refusal.NOT_SPEAKING)].name
    assert await mediator.keylists.enrol(free, COMMAND, SAID, [free]) is None
    assert isinstance(await mediator.ask_as(free, free), Connected)


async def test_a_rotation_older_than_the_last_one_leaves_its_did_free(mediator: Mediator) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    assert await mediator.rotate(NEWER, NEW_PEER.name, at_s=999) is Refusal.NOT_SPEAKING
    assert await mediator.keylists.enrol(NEWER.name, COMMAND, SAID, [NEWER.name]) is None
    assert isinstance(await mediator.ask_as(NEWER.name, NEWER.name), Connected)
    assert isinstance(await mediator.ask_as(NEW_PEER.name, OLD), Connected)


async def test_a_rotation_older_than_the_end_leaves_its_did_free(mediator: Mediator) -> None:
    await mediator.end(OLD)
    assert await mediator.keylists.enrol(OLD, COMMAND, SAID, [OLD]) is None
    assert await mediator.rotate(NEW_PEER, OLD) is Refusal.NOT_SPEAKING
    assert await mediator.keylists.enrol(NEW_PEER.name, COMMAND, SAID, [NEW_PEER.name]) is None


async def test_a_rotation_for_which_there_is_no_room_leaves_its_did_free(tmp_path: Path) -> None:
    async with agents_of(tmp_path, didcomm={"keylist_keys_max": 1}) as agents:
        mediator = Mediator(agents)
        assert await mediator.keylists.enrol(OLD, COMMAND, SAID, [OLD_NAME]) is None
        assert await mediator.rotate(NEW_PEER, OLD) is Refusal.QUOTA_EXCEEDED
        assert await mediator.keylists.enrol(NEW_PEER.name, COMMAND, SAID, [NEW_PEER.name]) is None
        await mediator.keylists.change(OLD, COMMAND, KeyChanges([], [OLD_NAME]))
        assert await mediator.rotate(NEWER, OLD) is None


async def test_the_account_of_the_key_comes_before_that_of_the_did(mediator: Mediator) -> None:
    assert await mediator.rotate(NEW_PEER, OLD, STRANGER.name) is None
    assert await mediator.rotate(NEWER, STRANGER.name, NEW_PEER.name) is None
    assert isinstance(await mediator.ask_as(NEWER.name, OLD), Connected)


async def test_a_did_without_an_account_has_none_to_give(mediator: Mediator) -> None:
    assert await mediator.rotate(NEW_PEER, STRANGER.name) is Refusal.NOT_CONNECTED
    assert mediator.count(NameSpeaker) == 0
    assert await mediator.accounts.of(NEW_PEER.account, COMMAND) == NEW_PEER.account


async def test_an_account_of_its_own_stays_one(mediator: Mediator) -> None:
    name = NEW_PEER.name
    await mediator.keylists.enrol(name, COMMAND, SAID, [name])
    assert await mediator.rotate(NEW_PEER, OLD) is Refusal.KEY_TAKEN
    assert isinstance(await mediator.ask_as(name, name), Connected)
    assert isinstance(await mediator.ask_as(OLD, OLD), Connected)


async def test_a_rotation_to_another_did_than_the_senders_is_none(mediator: Mediator) -> None:
    rotation = NEW_PEER.rotation(OLD)
    done = await mediator.accounts.rotate(
        rotation, STRANGER.account, STRANGER.message(rotation), COMMAND
    )
    assert done is Refusal.NOT_SPEAKING
    assert isinstance(await mediator.ask_as(OLD, OLD), Connected)


# The end ------------------------------------------------------------------------------------


async def test_the_end_of_a_relationship_frees_its_names(mediator: Mediator) -> None:
    assert await mediator.end(OLD) is None
    assert await mediator.ask_as(OLD, OLD) is Refusal.NOT_CONNECTED
    assert await mediator.forward(OLD_NAME, b"late") is Refusal.KEY_UNKNOWN
    assert await mediator.owner(OLD_NAME) is None
    assert await mediator.end(OLD) is Refusal.NOT_CONNECTED, "there is none any more"


@pytest.mark.parametrize("lost", [FindAccount, EndAccount, ReleaseKey])
async def test_an_end_that_is_cut_off_is_finished_and_its_owner_may_begin_anew(
    mediator: Mediator, lost: type[Command]
) -> None:
    mediator.agents.lost.add(lost)
    await mediator.end(OLD)
    mediator.agents.lost.clear()
    await mediator.end(OLD)
    assert await mediator.ask_as(OLD, OLD) is Refusal.NOT_CONNECTED
    assert await mediator.keylists.enrol(OLD, COMMAND, SAID, [OLD_NAME]) is None
    await mediator.end(OLD)
    assert isinstance(await mediator.ask_as(OLD, OLD), Connected), "the same end again"
    assert isinstance(await mediator.forward(OLD_NAME, b"anew"), EnvelopeQueued)
    assert await mediator.waiting(OLD) == 1


async def test_a_key_of_an_account_whose_end_had_no_answer_is_free_after_the_claim_of_another(
    mediator: Mediator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keylists, "_SETTLED_AFTER", (0,))
    other, wanted = STRANGER.name, KeyChanges([OLD_NAME], [])
    await mediator.keylists.enrol(other, COMMAND, SAID, [other])
    mediator.agents.lost = {EndAccount}
    assert await mediator.end(OLD) is Refusal.TEMPORARILY_UNAVAILABLE
    mediator.agents.lost = set()
    others = asyncio.all_tasks()
    refused = Changed({OLD_NAME: False}, {OLD_NAME: "client_error"})
    assert await mediator.keylists.change(other, COMMAND, wanted) == refused
    await asyncio.gather(*asyncio.all_tasks() - others)
    assert await mediator.keylists.change(other, COMMAND, wanted) == Changed({OLD_NAME: False})
    assert await mediator.owner(OLD_NAME) == other


async def test_only_who_speaks_for_an_account_ends_it(mediator: Mediator) -> None:
    await mediator.rotate(NEW_PEER, OLD)
    assert await mediator.end(OLD) is Refusal.NOT_SPEAKING
    assert await mediator.end(STRANGER.name) is Refusal.NOT_CONNECTED
    assert isinstance(await mediator.ask_as(NEW_PEER.name, OLD), Connected)
    assert await mediator.end(NEW_PEER.name) is None
    assert await mediator.ask_as(NEW_PEER.name, OLD) is Refusal.NOT_CONNECTED


async def test_a_long_keylist_is_released_whole(mediator: Mediator) -> None:
    names = [keys.base58(raw_key(5_000 + n)) for n in range(40)]
    await mediator.keylists.change(OLD, COMMAND, KeyChanges(names, []))
    assert await mediator.end(OLD) is None
    assert [await mediator.owner(name) for name in names] == [None] * 40
