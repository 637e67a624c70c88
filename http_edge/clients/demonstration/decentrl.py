"""Alice and Bob walk through the whole protocol; each step proves one promise of the mediator.

The steps build on one another, so the walk ends at the first one that fails. Both identities are
new and registered for an hour; they leave behind a contract and one saved event.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, TypeVar

from http_edge.clients.decentrl import contracts
from http_edge.clients.decentrl.account import Account, MediatorClient
from http_edge.clients.decentrl.commands import Channel, signed_command
from http_edge.clients.decentrl.contracts import Contract
from http_edge.clients.decentrl.errors import ClientError, CommandRefused
from http_edge.clients.decentrl.identity import Identity
from http_edge.clients.decentrl.socket import ContractsUpdated, MessagesArrived, Notice
from http_edge.clients.demonstration.proofs import PUSH_S_MAX, NotProven, Proof, check, prove, step
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.strict_json import parse

REGISTERED_S: Final = 3600
MESSAGE: Final[dict[str, object]] = {
    "type": "chat.message",
    "data": {"text": "Meet me at the poste restante."},
}
Kind = TypeVar("Kind", bound=Notice)


@dataclass(slots=True)
class Walk:
    """The two identities, their mediators, and what they have so far."""

    alice: Account
    bob: Account
    invitation: str | None = None
    sockets: AsyncExitStack = field(default_factory=AsyncExitStack, repr=False)
    alice_notices: AsyncIterator[Notice] = field(init=False, repr=False)
    bob_notices: AsyncIterator[Notice] = field(init=False, repr=False)
    contract: Contract | None = None
    event_id: str = ""
    command: bytes = field(default=b"", repr=False)

    @step("Alice and Bob register", "an identity needs nothing but its keys")
    async def _register(self) -> str:
        """Both register by a contract with their mediator; the client verifies the signatures."""
        until_s = self._now_s() + REGISTERED_S
        for account in (self.alice, self.bob):
            await account.register(expires_at_s=until_s, invitation=self.invitation)
        return f"two contracts, each signed by both sides, until {until_s}"

    @step("both listen", "a socket opens to the holder of the key alone")
    async def _listen(self) -> str:
        self.alice_notices = aiter(await self.sockets.enter_async_context(self.alice.socket()))
        self.bob_notices = aiter(await self.sockets.enter_async_context(self.bob.socket()))
        return "two WebSockets, authenticated by signature"

    @step("Alice writes to Bob", "no contract, no message: spam is refused")
    async def _write_without_contract(self) -> str:
        return await _refused(
            self.alice.send(self.bob.identity.did, "spam"), "COMMUNICATION_CONTRACT_NOT_FOUND"
        )

    @step("Alice asks for a contract", "a stranger can only knock")
    async def _request(self) -> str:
        until_s = self._now_s() + REGISTERED_S
        await self.alice.request_contract(self.bob.identity.did, expires_at_s=until_s)
        await _arrived(self.bob_notices, ContractsUpdated)
        return "Bob was notified at once; the mediator holds only ciphertext"

    @step("Bob answers", "a contract needs both signatures")
    async def _answer(self) -> str:
        """Bob verifies, counter-signs, saves, and responds at Alice's mediator."""
        waiting = [request async for request in self.bob.contract_requests()]
        check(len(waiting) == 1, f"{len(waiting)} requests wait for Bob instead of 1")
        self.contract = await self.bob.answer_contract(waiting[0])
        await _arrived(self.alice_notices, ContractsUpdated)
        left = [request async for request in self.bob.contract_requests()]
        check(not left, "the answered request is offered again")
        return f"contract {self.contract.id[:16]}, and Alice was notified"

    @step("both look it up", "both sides hold the same contract and one secret")
    async def _agree(self) -> str:
        """Both find the contract at their own mediators and derive one secret."""
        found = []
        for account, other in ((self.alice, self.bob), (self.bob, self.alice)):
            mine = [contract async for contract in account.contracts(did=other.identity.did)]
            check(mine == [self.contract], "a mediator does not list exactly the one contract")
            found.append(contracts.root_secret(account.identity, mine[0]))
        check(found[0] == found[1], "the two derive different secrets")
        return f"SHA-256 of the secret: {hashlib.sha256(found[0]).hexdigest()[:16]}"

    @step("Alice writes again", "messages arrive live, unread by the mediator")
    async def _send(self) -> str:
        """Alice's encrypted message reaches Bob's open socket."""
        payload = self.alice.encrypt(MESSAGE, self._contract(), tags=["chat"])
        bobs = await self.alice.mediator.of(self.bob.identity.did)
        sources = self.alice.mediator.sources
        # Signed by hand, because the replay below needs the very same bytes.
        self.command = signed_command(
            self.alice.identity,
            Channel.TWO_WAY_PRIVATE,
            self.bob.identity.did,
            payload,
            now_ms=sources.now_ms(),
            nonce=sources.new_nonce(),
        )
        self.event_id = str((await bobs.transport.post(self.command)).get("pendingEventId"))
        arrived = await _arrived(self.bob_notices, MessagesArrived)
        (event,) = arrived.events
        check(event.id == self.event_id, "the push carries another id than the answer")
        check(event.payload == payload, "the payload was changed on the way")
        read = self.bob.decrypt(event, self._contract())
        check(read.event == MESSAGE, "Bob reads something else than Alice wrote")
        return f"pushed, decrypted and its author verified: {read.event['data']}"

    @step("the command is replayed", "a command works once")
    async def _replay(self) -> str:
        bobs = await self.alice.mediator.of(self.bob.identity.did)
        return await _refused(bobs.transport.post(self.command), "DUPLICATE_NONCE")

    @step("the command is forged", "only the key's holder speaks for an identity")
    async def _forge(self) -> str:
        """Alice's command is refused with another nonce, which she did not sign."""
        bobs = await self.alice.mediator.of(self.bob.identity.did)
        command = parse(self.command)
        assert isinstance(command, dict)
        command["header"]["nonce"] = self.alice.mediator.sources.new_nonce()
        return await _refused(bobs.transport.post(canonical(command)), "INVALID_SIGNATURE")

    @step("Bob asks what waits", "a push is no acknowledgement")
    async def _query(self) -> str:
        page = await self.bob.query_pending_events()
        ids = [event.id for event in page.items]
        check(ids == [self.event_id], f"waiting: {ids} instead of the one message")
        return f"total {page.pagination.total}, id {self.event_id}"

    @step("Bob saves and acknowledges", "acknowledgement alone removes")
    async def _acknowledge(self) -> str:
        async for event in self.bob.take_pending_events():
            envelope = self.bob.decrypt(event, self._contract())
            await self.bob.save(envelope, self._contract())
        page = await self.bob.query_pending_events()
        check(page.pagination.total == 0, "an acknowledged message is offered again")
        return "saved in Bob's encrypted history; nothing waits any more"

    @step("Bob tags his history", "the mediator searches what it cannot read")
    async def _tag(self) -> str:
        """The saved event is unprocessed until it is tagged, then found by its tag."""
        saved = [event async for event in self.bob.saved_events(unprocessed_only=True)]
        check(len(saved) == 1, f"{len(saved)} unprocessed events instead of 1")
        await self.bob.tag(saved[0].id, ["friends"])
        tagged = [event async for event in self.bob.saved_events(tags=["friends"])]
        check([event.id for event in tagged] == [saved[0].id], "the tag does not find the event")
        check(self.bob.open_saved(tagged[0]).event == MESSAGE, "the history was changed")
        rest = [event async for event in self.bob.saved_events(unprocessed_only=True)]
        check(not rest, "a tagged event is still unprocessed")
        return f"found by {tagged[0].encrypted_tags[0][:16]}…, which only Bob can read"

    @step("Bob publishes", "publications verify without trust in the mediator")
    async def _publish(self) -> str:
        """Bob publishes; a reader without an account verifies; Bob withdraws."""
        event_id = await self.bob.publish("news", '{"headline":"open"}', tags=["demo"])
        reader = self.bob.mediator
        seen = [event.id async for event in reader.public_events(self.bob.identity.did)]
        check(seen == [event_id], "the publication is not readable")
        await self.bob.delete_public_events([event_id])
        left = [event.id async for event in reader.public_events(self.bob.identity.did)]
        check(not left, "a withdrawn publication is still readable")
        return f"{event_id}: read without an account, signature verified, then gone"

    def _contract(self) -> Contract:
        if self.contract is None:
            raise NotProven("there is no contract")
        return self.contract

    def _now_s(self) -> int:
        return self.alice.mediator.sources.now_ms() // 1000


async def walk(
    alices: MediatorClient, bobs: MediatorClient, invitation: str | None = None
) -> AsyncIterator[Proof]:
    """Run the steps up to the first whose proof does not hold.

    ``invitation`` is the id of an invitation for many, if the mediator asks for one to register.

    Raises:
        MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer: before the first step, if one of the
            two is no running mediator.
    """
    alice = alices.as_(Identity.create("alice", (await alices.document()).did))
    bob = bobs.as_(Identity.create("bob", (await bobs.document()).did))
    state = Walk(alice, bob, invitation)
    async with state.sockets:
        async for proof in prove(ClientError, state):
            yield proof


async def _refused(call: Awaitable[object], code: str) -> str:
    try:
        await call
    except CommandRefused as refused:
        check(refused.code == code, f"refused with {refused.code} instead of {code}")
        return f"refused with {refused.code}, HTTP {refused.http_status}"
    raise NotProven(f"accepted instead of refused with {code}")


async def _arrived(notices: AsyncIterator[Notice], kind: type[Kind]) -> Kind:
    async with asyncio.timeout(PUSH_S_MAX):
        async for notice in notices:
            if isinstance(notice, kind):
                return notice
    raise NotProven("the socket ended")
