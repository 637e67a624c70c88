"""Accounts of one mediator, and the peers that speak for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from actors.core.commands import (
    CheckKeys,
    Command,
    Connection,
    FindKeyOwner,
    QueryConnection,
    QueryQueue,
    QueueEnvelopes,
)
from actors.core.refusals import Refusal
from actors.core.replies import (
    Connected,
    EnvelopeQueued,
    KeyOwner,
    KeysKnown,
    QueueState,
)
from http_edge.didcomm.accounts import Accounts
from http_edge.didcomm.envelopes import keys
from http_edge.didcomm.envelopes.messages import AgentAccount, DidRotation, Message, read_type
from http_edge.didcomm.identities import key_target, speak_as
from http_edge.didcomm.protocols.keylists import Keylists
from http_edge.didcomm.protocols.routing import Forwarding
from tests.unit.didcomm.requests import ALICE, NEW, Agents, agents_of, raw_key
from tests.unit.didcomm.test_newer_mediation import peer4

OLD, OLD_NAME = keys.did_key(ALICE), keys.base58(ALICE)
COMMAND: Final = b"c" * 16
KIND = read_type(f"{NEW}empty/1.0/empty")
assert KIND is not None
SAID: Final = Connection(OLD, "phone", "https://old.example", [], "connections/1.0", "")


class Peer:
    """A DID with a document, and the account that its envelopes prove."""

    def __init__(self, number: int) -> None:
        self.long = peer4(number)
        self.name = self.long.rpartition(":")[0]
        self.account = AgentAccount(self.name, "v2", raw_key(number))

    def message(self, rotation: DidRotation | None = None) -> Message:
        assert KIND is not None
        return Message("v2", KIND, "m", {}, sender_did=self.long, rotation=rotation)

    def rotation(self, *prior: str, at_s: int = 1_000) -> DidRotation:
        """Its prior DID, as the message version has verified it."""
        return DidRotation(prior[0], self.long, at_s, prior)


async def reach(message: Message) -> tuple[str, list[str]]:
    """Where the sender of a message is reached, as if its document said so."""
    return f"https://{message.sender_did[-4:]}.example", []


NEW_PEER, NEWER, STRANGER = Peer(3_001), Peer(3_002), Peer(3_003)


class Mediator:
    """Accounts, keylists and forwarding of one edge."""

    def __init__(self, agents: Agents) -> None:
        self.agents = agents
        self.keylists = Keylists(agents, keys_max=50, command_s_max=100)
        self.accounts = self.edge()
        self.forwarding = Forwarding(agents, owners_remembered_max=10, outbound=lambda _: None)

    def edge(self) -> Accounts:
        """Another edge, which remembers nothing."""
        return Accounts(
            self.agents,
            self.keylists,
            reach,
            accounts_remembered_max=10,
        )

    async def rotate(self, peer: Peer, *prior: str, at_s: int = 1_000) -> Refusal | None:
        rotation = peer.rotation(*prior, at_s=at_s)
        return await self.accounts.rotate(rotation, peer.account, peer.message(rotation), COMMAND)

    async def end(self, *prior: str, at_s: int = 2_000) -> Refusal | None:
        return await self.accounts.end(DidRotation(prior[0], None, at_s, prior), COMMAND)

    async def ask_as(self, did: str, account: str) -> Connected | Refusal:
        """What an agent learns that speaks as this DID of an account."""
        speak_as(did)
        try:
            return await self.agents.ask(account, QueryConnection(), COMMAND, Connected)
        finally:
            speak_as("")

    async def forward(self, name: str, payload: bytes = b"{}") -> EnvelopeQueued | Refusal:
        command = payload.ljust(16, b"-")[:16]
        return await self.forwarding.forward(name, QueueEnvelopes("", [payload], 2), command, {})

    async def waiting(self, account: str) -> int:
        state = await self.agents.ask(account, QueryQueue(), COMMAND, QueueState)
        assert isinstance(state, QueueState)
        return state.messages

    async def owner(self, name: str) -> str | None:
        found = await self.agents.ask(key_target(name), FindKeyOwner(), COMMAND, KeyOwner)
        return None if isinstance(found, Refusal) else found.owner_did

    async def has(self, account: str, *names: str) -> list[str]:
        known = await self.agents.ask(account, CheckKeys(list(names)), COMMAND, KeysKnown)
        assert isinstance(known, KeysKnown)
        return known.keys

    def count(self, kind: type[Command]) -> int:
        return sum(type(each) is kind for each in self.agents.seen)


@asynccontextmanager
async def mediator_of(folder: Path) -> AsyncIterator[Mediator]:
    """A mediator with an account of DIDComm v1 and one message that waits for it."""
    async with agents_of(folder) as agents:
        made = Mediator(agents)
        assert await made.keylists.enrol(OLD, COMMAND, SAID, [OLD_NAME]) is None
        assert isinstance(await made.forward(OLD_NAME, b"first"), EnvelopeQueued)
        yield made
