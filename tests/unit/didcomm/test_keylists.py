"""Updates of one wallet in every order of their steps, stopped at every step, and cut short."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from actors.core.commands import (
    CheckKeys,
    ClaimedKey,
    ClaimKey,
    Command,
    Connect,
    Connection,
    FindAccount,
    FindKeyOwner,
    GrantMediation,
    ReleaseKey,
    UpdateKeylist,
)
from actors.core.cost import source_key
from actors.core.refusals import Refusal
from actors.core.replies import Done, KeyClaim, KeylistChanged, KeyOwner, KeysKnown, Reply
from actors.core.submissions import Submission
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.recipient_names import twins
from http_edge.didcomm.identities import key_target, speak_as
from http_edge.didcomm.protocols import keylists
from http_edge.didcomm.protocols.keylists import Changed, KeyChanges, Keylists
from http_edge.listener import address_charge
from http_edge.listener.address_charge import (
    AddressCharge,
    AddressRates,
    charged_to,
    page_turn,
)
from http_edge.settings.settings import Rates
from tests.unit.didcomm.requests import ALICE, BOB, COMMAND, Agents, agents_of, raw_key
from tests.unit.didcomm.stepped_identities import ADD, KEY, OWNER, REMOVE, Stepped, mediated

STEPS_MAX: Final = 4


def schedules() -> Iterator[str]:
    """All orders of up to four steps of each of two requests, and all their beginnings."""

    def more(done: str) -> Iterator[str]:
        yield done
        for name in "ab":
            if done.count(name) < STEPS_MAX:
                yield from more(done + name)

    return more("")


async def in_turns(
    identities: Stepped, lists: Keylists, schedule: str, changes: Mapping[str, KeyChanges]
) -> None:
    """Make changes step by step in this order, break them off, and look for the key's owner."""
    tasks = [
        identities.start(name, lists.change(OWNER, COMMAND, wanted))
        for name, wanted in changes.items()
    ]
    await asyncio.sleep(0)
    for name in schedule:
        await identities.step(name)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    if KEY in identities.states[OWNER].keylist:
        assert identities.states[key_target(KEY)].owner_did == OWNER, schedule


@pytest.mark.parametrize("first", [ADD, REMOVE], ids=["add", "remove"])
@pytest.mark.parametrize("second", [ADD, REMOVE], ids=["add", "remove"])
@pytest.mark.parametrize("was_there", [False, True], ids=["absent", "present"])
async def test_a_key_in_the_keylist_always_has_an_owner(
    first: KeyChanges, second: KeyChanges, was_there: bool
) -> None:
    for schedule in schedules():
        identities = await mediated()
        lists = Keylists(identities, keys_max=10, command_s_max=100)
        if was_there:
            before = identities.start("before", lists.change(OWNER, COMMAND, ADD))
            for _ in range(STEPS_MAX):
                await identities.step("before")
            await before
        await in_turns(identities, lists, schedule, {"a": first, "b": second})


@pytest.mark.parametrize(
    "why", [Refusal.QUOTA_EXCEEDED, Refusal.INSUFFICIENT_STORAGE, Refusal.NOT_SPEAKING]
)
async def test_a_key_keeps_its_owner_although_an_update_at_the_same_time_is_refused(
    why: Refusal,
) -> None:
    for schedule in schedules():
        identities = await mediated()
        identities.refused["b"] = why
        lists = Keylists(identities, keys_max=10, command_s_max=100)
        await in_turns(identities, lists, schedule, {"a": ADD, "b": ADD})


@pytest.mark.parametrize("second", [ADD, REMOVE], ids=["add", "remove"])
async def test_a_key_whose_removal_has_no_answer_is_released_unless_it_is_added_meanwhile(
    second: KeyChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keylists, "_AGAIN_AFTER_S", (0,))
    for schedule in schedules():
        identities = await mediated()
        lists = Keylists(identities, keys_max=10, command_s_max=100)
        identities.lost.add("removal")
        others = asyncio.all_tasks()
        for name, wanted in (("before", ADD), ("removal", REMOVE)):
            done = identities.start(name, lists.change(OWNER, COMMAND, wanted))
            while not done.done():
                await identities.step(name)
        (later,) = {task for task in asyncio.all_tasks() - others if not task.done()}
        identities.follow(later)
        task = identities.start("a", lists.change(OWNER, COMMAND, second))
        await asyncio.sleep(0)
        for name in schedule:
            await identities.step({"a": "a", "b": "later"}[name])
        if schedule.count("b") > 1 and second is REMOVE:
            assert identities.states[key_target(KEY)].owner_did == "", schedule
        for each in (task, later):
            each.cancel()
        await asyncio.gather(task, later, return_exceptions=True)
        if KEY in identities.states[OWNER].keylist:
            assert identities.states[key_target(KEY)].owner_did == OWNER, schedule


async def test_a_key_whose_only_update_is_refused_is_free(tmp_path: Path) -> None:
    async with agents_of(tmp_path) as agents:
        owner, name = keys.did_key(ALICE), keys.base58(FIRST)
        await agents.connect(ALICE)
        await agents.ask(owner, GrantMediation(), COMMAND, Done)
        agents.refused[UpdateKeylist] = Refusal.INSUFFICIENT_STORAGE
        wanted = KeyChanges([name], [])
        changed = await Keylists(agents, keys_max=10, command_s_max=100).change(
            owner, COMMAND, wanted
        )
        assert isinstance(changed, Changed)
        assert changed.failed == {name: "server_error"}
        assert await agents.owner(FIRST) is None


async def test_the_core_without_hosts_answers_as_hosts_do(tmp_path: Path) -> None:
    identities, other = Stepped(), "did:key:other"
    questions: list[tuple[str, Command, type[Reply]]] = [
        (OWNER, Connect(Connection("did:x", "", "", [], "didexchange/1.1", "")), Done),
        (OWNER, CheckKeys([KEY]), KeysKnown),
        (OWNER, GrantMediation(), Done),
        (key_target(KEY), ClaimKey(OWNER), KeyClaim),
        (key_target(KEY), ClaimKey(other), KeyClaim),
        (OWNER, UpdateKeylist([ClaimedKey(KEY, 1)], []), KeylistChanged),
        (OWNER, CheckKeys([KEY]), KeysKnown),
        (OWNER, UpdateKeylist([], [KEY]), KeylistChanged),
        (key_target(KEY), ReleaseKey(OWNER, 1), Done),
        (key_target(KEY), FindKeyOwner(), KeyOwner),
        (key_target(KEY), ClaimKey(other), KeyClaim),
    ]
    async with agents_of(tmp_path) as agents:
        for target, command, reply in questions:
            at_hosts = await agents.ask(target, command, COMMAND, reply)
            assert identities.decide(target, command) == at_hosts, command


FIRST, SECOND = raw_key(6_001), raw_key(6_002)


async def give_up(agents: Agents, lists: Keylists, raw_keys: list[bytes]) -> asyncio.Task[Any]:
    """Alice gives up keys while no shard of theirs answers; return what repeats the release."""
    before = asyncio.all_tasks()
    owner, names = keys.did_key(ALICE), [keys.base58(key) for key in raw_keys]
    await agents.connect(ALICE)
    await agents.ask(owner, GrantMediation(), COMMAND, Done)
    await lists.change(owner, COMMAND, KeyChanges(names, []))
    agents.refused[ReleaseKey] = Refusal.TEMPORARILY_UNAVAILABLE
    await lists.change(owner, COMMAND, KeyChanges([], names))
    (repeating,) = asyncio.all_tasks() - before
    return repeating


def pauses(agents: Agents) -> Iterator[float]:
    """The times before each repetition; the shards answer the third one."""
    yield from (0, 0)
    agents.refused.clear()
    yield 0


async def test_a_key_that_was_given_up_is_free_once_its_shard_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keylists, "_UNRELEASED_MAX", 2)
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        for _ in range(2):  # what is released makes room for others
            monkeypatch.setattr(keylists, "_AGAIN_AFTER_S", pauses(agents))
            await (await give_up(agents, lists, [FIRST, SECOND]))
            assert [await agents.owner(key) for key in (FIRST, SECOND)] == [None, None]


@pytest.mark.parametrize("how", ["lost", "refused"])
async def test_a_key_whose_removal_had_no_answer_is_free_if_it_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(keylists, "_AGAIN_AFTER_S", (0, 0))
    owner, name = keys.did_key(ALICE), keys.base58(FIRST)
    add, remove = (KeyChanges([name], []), KeyChanges([], [name]))
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        for agent in (ALICE, BOB):
            await agents.connect(agent)
            await agents.ask(keys.did_key(agent), GrantMediation(), COMMAND, Done)
        await lists.change(owner, COMMAND, add)
        before = asyncio.all_tasks()
        with agents.cut_off(UpdateKeylist, is_lost=how == "lost"):
            cut_off = await lists.change(owner, COMMAND, remove)
        assert cut_off == Changed({name: True}, {name: "server_error"})
        await asyncio.gather(*asyncio.all_tasks() - before)
        if how == "refused":
            assert await agents.owner(FIRST) == owner
        again = await lists.change(owner, COMMAND, remove)
        assert again == Changed({name: how == "refused"})
        assert await lists.change(keys.did_key(BOB), COMMAND, add) == Changed({name: False})


async def test_a_key_is_free_once_its_removal_is_carried_out_though_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not known at the first look, there at the second, and gone at the third."""
    owner, name = keys.did_key(ALICE), keys.base58(FIRST)
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):

        async def carry_out() -> None:
            await agents.ask(owner, UpdateKeylist([], [name]), COMMAND, KeylistChanged)

        def looks() -> Iterator[float]:
            agents.refused[FindAccount] = Refusal.TEMPORARILY_UNAVAILABLE
            yield 0
            agents.refused.clear()
            agents.before_answer[FindAccount] = carry_out
            yield 0
            yield 0

        monkeypatch.setattr(keylists, "_AGAIN_AFTER_S", looks())
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        await agents.connect(ALICE)
        await agents.ask(owner, GrantMediation(), COMMAND, Done)
        await lists.change(owner, COMMAND, KeyChanges([name], []))
        before = asyncio.all_tasks()
        with agents.cut_off(UpdateKeylist, is_lost=False):
            await lists.change(owner, COMMAND, KeyChanges([], [name]))
        assert await agents.owner(FIRST) == owner
        await asyncio.gather(*asyncio.all_tasks() - before)
        assert await agents.owner(FIRST) is None


async def test_only_a_removal_whose_outcome_is_unknown_is_looked_at_again_and_only_once(
    tmp_path: Path,
) -> None:
    owner, name = keys.did_key(ALICE), keys.base58(FIRST)
    unknown = Refusal.TEMPORARILY_UNAVAILABLE
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        await agents.connect(ALICE)
        await agents.ask(owner, GrantMediation(), COMMAND, Done)
        await lists.change(owner, COMMAND, KeyChanges([name], []))
        before, waiting = asyncio.all_tasks(), []
        for refusal in (Refusal.INSUFFICIENT_STORAGE, unknown, unknown):
            agents.refused[UpdateKeylist] = refusal
            changed = await lists.change(owner, COMMAND, KeyChanges([], [name]))
            assert changed == Changed({name: True}, {name: "server_error"})
            waiting.append(asyncio.all_tasks() - before)
        assert [len(tasks) for tasks in waiting] == [0, 1, 1]
        lists.stop()
        await asyncio.wait(waiting[-1])


async def test_no_claim_of_another_frees_a_key_that_is_registered_or_the_short_did_of_an_account(
    tmp_path: Path,
) -> None:
    owner, own, listed = "did:peer:4zQmOwn", "did:peer:4zQmOwn", keys.base58(FIRST)
    async with agents_of(tmp_path) as agents:
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        for agent in (owner, keys.did_key(BOB)):
            said = Connection(agent, "", "", [], "", "")
            assert await lists.enrol(agent, COMMAND, said, [agent] * (agent == owner)) is None
        held = KeyChanges([listed], [own], held=frozenset({own}))
        assert await lists.change(owner, COMMAND, held) == Changed({listed: False, own: True})
        others = asyncio.all_tasks()
        wanted = KeyChanges([listed, own], [])
        changed = await lists.change(keys.did_key(BOB), COMMAND, wanted)
        assert isinstance(changed, Changed)
        assert changed.failed == {listed: "client_error", own: "client_error"}
        assert asyncio.all_tasks() == others, "nothing is to be settled"


async def test_a_change_of_many_keys_whose_turn_comes_too_late_is_refused_and_a_small_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_charge, "_TURN_S_MAX", 0.05)
    owner = keys.did_key(ALICE)
    names = [keys.base58(raw_key(number)) for number in range(17)]
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        lists = Keylists(agents, keys_max=50, command_s_max=100)
        await agents.connect(ALICE)
        await agents.ask(owner, GrantMediation(), COMMAND, Done)
        agents.seen.clear()
        charged_to(AddressCharge(AddressRates(Rates(), 1), "203.0.113.1", lambda: 0))
        async with page_turn():
            many = KeyChanges(names, [])
            assert await lists.change(owner, COMMAND, many) is Refusal.RATE_LIMITED
            assert agents.seen == []
            few = await lists.change(owner, COMMAND, KeyChanges(names[1:], []))
        assert few == Changed(dict.fromkeys(names[1:], False))
        assert await lists.change(owner, COMMAND, KeyChanges([], names)) == Changed(
            {name: name != names[0] for name in names}
        )


@pytest.mark.parametrize("on_either_curve", [False, True])
async def test_a_key_of_another_on_the_other_curve_is_taken_where_agents_know_both_curves(
    tmp_path: Path, *, on_either_curve: bool
) -> None:
    """Agents of DIDComm v1 (RFC 0211) know one."""
    name = keys.base58(FIRST)
    async with agents_of(tmp_path) as agents:
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        for agent in (ALICE, BOB):
            await agents.connect(agent)
            await agents.ask(keys.did_key(agent), GrantMediation(), COMMAND, Done)
        of_bob = KeyChanges(twins(name), [])
        await lists.change(keys.did_key(BOB), COMMAND, of_bob)
        wanted = KeyChanges([name], [], on_either_curve=on_either_curve)
        changed = await lists.change(keys.did_key(ALICE), COMMAND, wanted)
        failed: Any = {name: "client_error"} if on_either_curve else {}
        assert changed == Changed({name: False}, failed)


async def test_no_request_outlasts_the_pause_before_what_it_has_left_is_looked_at(
    tmp_path: Path,
) -> None:
    """One that claims for longer than 20 s adds nothing, and its addition takes 100 s at most."""
    async with agents_of(tmp_path) as agents:
        settle: Any = Keylists(agents, keys_max=1, command_s_max=100)._claims(OWNER, COMMAND).settle
        assert keylists._CLAIMING_S_MAX == 20
        assert settle.keywords == {"after_s": [120, 480, 1_920], "are_left_over": True}


async def test_an_edge_that_stops_repeats_no_release(tmp_path: Path) -> None:
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        lists = Keylists(agents, keys_max=10, command_s_max=100)
        repeating = await give_up(agents, lists, [FIRST, SECOND])
        lists.stop()
        await asyncio.wait([repeating])


async def test_only_so_many_keys_wait_for_their_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keylists, "_UNRELEASED_MAX", 1)
    async with agents_of(tmp_path) as agents, asyncio.timeout(10):
        monkeypatch.setattr(keylists, "_AGAIN_AFTER_S", pauses(agents))
        await (
            await give_up(agents, Keylists(agents, keys_max=10, command_s_max=100), [FIRST, SECOND])
        )
        assert await agents.owner(FIRST) is None
        assert await agents.owner(SECOND) == keys.did_key(ALICE)


async def test_all_that_one_message_causes_takes_the_turns_of_its_sender(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred keys are claimed at once: with a turn for each, others would wait for them."""
    owner = keys.did_key(ALICE)
    async with agents_of(tmp_path) as agents:
        await agents.connect(ALICE)
        await agents.ask(owner, GrantMediation(), COMMAND, Done)
        submit, sources = agents.gateway.submit, set[bytes]()

        async def noted(submission: Submission, size_bytes: int, **others: bool) -> Reply:
            sources.add(submission.source)
            return await submit(submission, size_bytes, **others)

        monkeypatch.setattr(agents.gateway, "submit", noted)
        speak_as(owner)
        names = [keys.base58(raw_key(number)) for number in range(20)]
        wanted = KeyChanges(names, [])
        changed = await Keylists(agents, keys_max=50, command_s_max=100).change(
            owner, COMMAND, wanted
        )
        speak_as("")
        assert isinstance(changed, Changed)
        assert not changed.failed
    assert sources == {source_key(owner)}
