"""Who is erased leaves the rows of every database of the log, also those of others' identities.

Gone is in the first database. In the second one are Stays, to whom Gone wrote, a key in Gone's
keylist, an invitation that Gone used, and a DID that spoke for Gone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from actors.core import erasure
from actors.core.commands import (
    EraseIdentity,
    ExpireRecords,
    FindKeyOwner,
    NameSpeaker,
    UnnameSpeaker,
    UseInvitation,
)
from actors.core.erasure import ELSEWHERE, OPERATOR
from actors.core.partitioning import Placement
from actors.core.refusals import Refusal
from actors.core.replies import Done, Erased, Expired, KeyOwner
from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream
from eventstore.parquet.files import open_place
from eventstore.stores.open_log import open_log
from http_edge.didcomm.accounts import ErasedAccounts
from http_edge.didcomm.identities import Identities, key_target
from http_edge.didcomm.protocols.keylists import KeyChanges, Keylists
from tests.contract.test_erasure_contract import wrong
from tests.contract.test_name_erasure_contract import naming, take_out_names
from tests.edge.conftest import StartMediator
from tests.edge.identities import Identity
from tests.edge.mediator import DAY_S, Mediator
from tests.export.samples import export_all, exporter, findings
from tests.log.stored import faults
from tests.unit.actors.given import connection

pytestmark = pytest.mark.postgres
TWO = Placement(shards=4, hosts=1, databases=2)
COMMAND = bytes(16)
OTHER = "host-1-0"
"""The host of the second database."""
NAMING = [
    *("contract-stored.1", "message-queued.2", "key-claimed.1"),
    *("invitation-used.1", "speaker-named.1"),
]


def name_in(database: int, prefix: str) -> str:
    """A name whose data is in this database."""
    names = (f"{prefix}{number}" for number in itertools.count())
    return next(name for name in names if TWO.database_of(name) == database)


def person_in(database: int, name: str) -> Identity:
    """An identity whose data is in this database."""
    people = (Identity(f"{name}-{number}") for number in itertools.count())
    return next(one for one in people if TWO.database_of(one.did) == database)


GONE, STAYS = person_in(0, "gone"), person_in(1, "stays")
KEY = name_in(1, key_target("")).removeprefix(key_target(""))
SPEAKER, INVITATION = name_in(1, "did:x:speaker"), name_in(1, "invitation:")
ERASE = f"/identities/erase?did={GONE.did}"


class People:
    """What Gone and Stays do, and what of Gone is in the databases."""

    def __init__(self, mediator: Mediator, logs: list[EventLog]) -> None:
        self.mediator, self.logs = mediator, logs
        self.identities = Identities(mediator.edges[0]._gateway)
        self.keylists = Keylists(self.identities, keys_max=9, command_s_max=100)

    async def meet(self) -> None:
        """Gone writes to Stays, who reads it; their contract is over two days later."""
        await self.mediator.register(GONE, STAYS, lifetime_s=9 * DAY_S)
        await self.mediator.befriend(STAYS, GONE, lifetime_s=60)
        message = await self.mediator.delivered(GONE, STAYS, "from who goes")
        read = await self.mediator.do(STAYS, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=[message])
        assert read.status == 200, read.body
        await self.enrol()
        used = await self.identities.ask(INVITATION, UseInvitation(GONE.did), COMMAND, Done)
        assert isinstance(used, Done)
        for change in (NameSpeaker(GONE.did), UnnameSpeaker(GONE.did)):
            await self.identities.ask(SPEAKER, change, COMMAND, Done, by_mediator=True)
        self.mediator.clock.advance(2 * DAY_S)
        over = ExpireRecords(100)
        await self.identities.ask(STAYS.did, over, COMMAND, Expired, by_mediator=True)

    async def enrol(self) -> None:
        """Gone becomes an agent with a key."""
        assert await self.keylists.enrol(GONE.did, COMMAND, connection(), []) is None
        changed = await self.keylists.change(GONE.did, COMMAND, KeyChanges([KEY], []))
        assert not isinstance(changed, Refusal)
        assert not changed.failed

    async def owner_of_key(self) -> str:
        found = await self.identities.ask(key_target(KEY), FindKeyOwner(), b"", KeyOwner)
        return found.owner_did if isinstance(found, KeyOwner) else found.value

    def naming(self, database: int = 1) -> list[str]:
        """The rows of a database that name Gone, after a removal of names."""
        take_out_names(self.logs[database])
        assert faults(self.logs[database]) == []
        return naming(self.logs[database], GONE.did.encode())


@pytest.fixture
def logs(two_postgres_urls: str) -> Iterator[list[EventLog]]:
    with ExitStack() as stack:
        yield [stack.enter_context(closing(open_log(url))) for url in two_postgres_urls.split()]


@pytest.fixture
async def people(
    two_postgres_urls: str, start_mediator: StartMediator, logs: list[EventLog]
) -> People:
    ages = {"expired_contracts_s": DAY_S}
    found = People(
        await start_mediator(log=two_postgres_urls, shards=TWO.shards, retention=ages), logs
    )
    await found.meet()
    return found


async def test_who_is_erased_leaves_the_rows_of_every_database(
    people: People, two_postgres_urls: str
) -> None:
    assert people.naming() == NAMING
    answer = (await people.mediator.operate(ERASE, "POST")).json
    assert (answer["known"], answer["is_over"], "away" in answer) == (True, True, False)
    assert [people.naming(database) for database in (0, 1)] == [[], []]
    assert [wrong(url) for url in two_postgres_urls.split()] == [[], []]


async def test_nothing_is_erased_while_a_database_is_away(people: People) -> None:
    people.mediator.hosts.cut(OTHER)
    answer = (await people.mediator.operate(ERASE, "POST")).json
    assert (answer["is_over"], answer["away"]) == (False, [1])
    assert await people.mediator.waiting(GONE) == []
    people.mediator.hosts.mend(OTHER)
    assert people.naming() == NAMING


async def test_a_database_that_goes_away_meanwhile_is_named_and_another_try_completes_it(
    people: People,
) -> None:
    begun = await people.identities.ask(
        GONE.did, EraseIdentity(OPERATOR, 9), COMMAND, Erased, by_mediator=True
    )
    assert isinstance(begun, Erased)
    await ErasedAccounts(people.identities, people.keylists).let_go(GONE.did, COMMAND, begun)
    people.mediator.hosts.cut(OTHER)
    first = (await people.mediator.operate(f"{ERASE}&begun=true", "POST")).json
    assert (first["known"], first["is_over"], first["away"]) == (True, True, [1])
    people.mediator.hosts.mend(OTHER)
    assert people.naming() == NAMING
    for _ in range(2):
        again = (await people.mediator.operate(ERASE, "POST")).json
        assert (again["known"], again["is_over"], "away" in again) == (True, True, False)
        assert people.naming() == []
        assert len(people.logs[1].read_stream(identity_stream(GONE.did))) == 1


async def test_an_owner_erases_itself_everywhere_or_not_at_all(people: People) -> None:
    erase = {"type": "ERASE_IDENTITY", "did": GONE.did}
    people.mediator.hosts.cut(OTHER)
    refused = await people.mediator.send(GONE, erase)
    assert refused.refusal == (503, "TEMPORARILY_UNAVAILABLE")
    assert await people.mediator.waiting(GONE) == []
    people.mediator.hosts.mend(OTHER)
    assert (await people.mediator.send(GONE, erase)).json["type"] == "SUCCESS"
    assert [people.naming(database) for database in (0, 1)] == [[], []]


async def test_an_owner_is_not_erased_while_a_host_of_an_earlier_release_could_not_record_it(
    people: People, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a host takes the command for one about an identity that it does not know."""
    monkeypatch.setattr(erasure, "_ELSEWHERE", frozenset())
    erase = {"type": "ERASE_IDENTITY", "did": GONE.did}
    refused = await people.mediator.send(GONE, erase)
    assert refused.refusal == (503, "TEMPORARILY_UNAVAILABLE")
    assert (await people.mediator.operate(ERASE, "POST")).json["away"] == [1]
    assert await people.mediator.waiting(GONE) == []


async def test_who_was_never_here_leaves_the_rows_of_every_database(people: People) -> None:
    friend = person_in(0, "friend")
    await people.mediator.befriend(STAYS, friend)
    message = await people.mediator.delivered(friend, STAYS, "from a friend")
    await people.mediator.do(STAYS, "ACKNOWLEDGE_PENDING_EVENTS", event_ids=[message])
    path = f"/identities/erase?did={friend.did}"
    assert not (await people.mediator.operate(path, "POST")).json["known"]
    assert people.logs[1].read_stream(identity_stream(friend.did), limit=1) == []
    answer = (await people.mediator.operate(f"{path}&foreign=true", "POST")).json
    assert (answer["known"], "away" in answer) == (True, False)
    take_out_names(people.logs[1])
    assert naming(people.logs[1], friend.did.encode()) == ["contract-stored.1"]  # in force
    assert faults(people.logs[1]) == []


async def test_who_comes_back_keeps_what_it_has_in_other_databases(people: People) -> None:
    await people.mediator.operate(ERASE, "POST")
    await people.mediator.register(GONE)
    await people.enrol()
    for _ in range(2):
        assert people.naming() == ["key-claimed.1"]
        assert await people.owner_of_key() == GONE.did
        await people.mediator.restart()
    await people.mediator.operate(ERASE, "POST")
    assert people.naming() == []
    assert await people.owner_of_key() == Refusal.KEY_UNKNOWN.value


async def test_a_key_claimed_anew_before_the_erasure_is_recorded_stays_its_owners(
    people: People,
) -> None:
    await people.mediator.operate(ERASE, "POST")
    await people.mediator.register(GONE)
    await people.enrol()
    await people.mediator.operate(f"{ERASE}&begun=true", "POST")
    assert people.naming() == ["key-claimed.1"]
    await people.mediator.restart()
    assert await people.owner_of_key() == GONE.did


async def test_no_identity_is_recorded_as_erased_in_its_own_database(people: People) -> None:
    """Each records what it cannot know by itself, and what it knows is not so."""
    erase = EraseIdentity(ELSEWHERE, 1)
    for did in (STAYS.did, GONE.did):
        answer = await people.identities.ask(did, erase, COMMAND, Erased, by_mediator=True)
        assert answer is Refusal.INVALID_COMMAND


async def test_an_export_of_another_database_loses_the_name_and_verifies(
    people: People, tmp_path: Path
) -> None:
    log, place = people.logs[1], open_place(str(tmp_path / "export"))
    export_all(log, place)
    await people.mediator.operate(ERASE, "POST")
    with closing(exporter(log, place)) as export:
        while export.step():
            pass
        assert export.take_out_erased().names
        export.sweep(0)
    assert findings(place) == []
    files = [file.read_bytes() for file in (tmp_path / "export").rglob("*") if file.is_file()]
    assert not any(GONE.did.encode() in content for content in files)
