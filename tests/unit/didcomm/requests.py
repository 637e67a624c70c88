"""Messages as handlers get them, and identities over real hosts in this process."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, cast

import orjson

from actors.core.commands import Command, Connect, Connection, FindKeyOwner
from actors.core.refusals import Refusal
from actors.core.replies import Done, KeyOwner
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import Answer, Json, Message
from http_edge.didcomm.envelopes.v1.plaintext import read, write_answer
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.identities import Identities, key_target
from http_edge.didcomm.protocols.protocol import Family, Outcome, PeerState, Request
from http_edge.settings.settings import Settings
from tests.edge.local_host import LocalHosts
from tests.unit.watched_identities import WatchedIdentities

NEW: Final = "https://didcomm.org/"
OLD: Final = "did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/"
MESSAGE_ID: Final = "message-1"
REPLY_ID: Final = "reply-1"
COMMAND: Final = b"c" * 16
"""The key in the log of every command."""
NOW_MS: Final = 1_800_000_000_000


def raw_key(number: int) -> bytes:
    """The raw public key number so-and-so."""
    return keys.KeyPair.from_seed(number.to_bytes(32, "big")).public


ALICE: Final = raw_key(1_001)
BOB: Final = raw_key(1_002)


def message(kind: str, prefix: str = NEW, /, **members: Any) -> Message:
    """A message as it was read."""
    body = {"@type": prefix + kind, "@id": MESSAGE_ID, **members}
    found = read(body)
    assert found is not None, body
    return found


def written(answer: Answer | None, question: Message) -> Json:
    """An answer as the sender of the question reads it."""
    assert answer is not None
    plaintext: Json = orjson.loads(orjson.dumps(write_answer(answer, question, REPLY_ID)))
    return plaintext


_UNUSED: Final = cast("Identities", None)
"""The identities behind families that send them no command."""


def request_of(message: Message, key: bytes = ALICE, identities: Identities = _UNUSED) -> Request:
    """The message, authenticated, over HTTP with return route."""
    return Request(
        message=message,
        sender=agent_account(key),
        command=COMMAND,
        identities=identities,
        session="session-1",
        peer=PeerState(routable=True),
    )


async def outcome(
    family: Family, message: Message, key: bytes = ALICE, identities: Identities = _UNUSED
) -> Outcome:
    """What the family makes of the message."""
    assert family.name == message.type.family
    assert family.major == message.type.major
    return await family.handlers[message.type.name](request_of(message, key, identities))


async def answer(
    family: Family, message: Message, key: bytes = ALICE, identities: Identities = _UNUSED
) -> Json:
    """The family's reply to the message."""
    return written((await outcome(family, message, key, identities)).reply, message)


class Agents(WatchedIdentities):
    """The identities of agents."""

    def __init__(self, hosts: LocalHosts) -> None:
        self.gateway = hosts.gateway("edge-0")
        super().__init__(self.gateway)
        self.hosts = hosts

    @contextmanager
    def cut_off(self, command: type[Command], *, is_lost: bool) -> Iterator[None]:
        """The answers to these commands are lost meanwhile, or the commands are refused."""
        if is_lost:
            self.lost.add(command)
        else:
            self.refused[command] = Refusal.TEMPORARILY_UNAVAILABLE
        yield
        self.lost.clear()
        self.refused.clear()

    async def connect(self, *raw_keys: bytes) -> None:
        """The agents with these keys connect."""
        for key in raw_keys:
            said = Connection(keys.did_key(key), "", "", [], "didexchange/1.1", "")
            done = await self.ask(keys.did_key(key), Connect(said), COMMAND, Done)
            assert done == Done()

    async def owner(self, key: bytes) -> str | None:
        """The owner of a key."""
        target = key_target(keys.base58(key))
        found = await self.ask(target, FindKeyOwner(), COMMAND, KeyOwner)
        return None if isinstance(found, Refusal) else found.owner_did


@asynccontextmanager
async def agents_of(data_dir: Path, **settings: Any) -> AsyncIterator[Agents]:
    """Identities in a log of their own, none of them connected yet."""
    ids = itertools.count(1)
    # A start claims each shard, and hundreds of tests start.
    read = Settings.model_validate({"data_dir": data_dir, "shards": 4, **settings})
    hosts = LocalHosts(read, clock=lambda: NOW_MS, new_id=lambda: f"id-{next(ids)}")
    hosts.start()
    agents = Agents(hosts)
    try:
        yield agents
    finally:
        await asyncio.wait_for(agents.gateway.drained(), 5)
        await hosts.stop()
