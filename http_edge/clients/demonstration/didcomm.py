"""Alice and Bob write to each other through the mediator; each step proves one of its promises.

Bob fetches by every generation of pickup from one queue. Then Dave writes to Carol, whose wallet
speaks DIDComm v2. The steps build on one another, so the demonstration ends at the first one that
fails. It leaves behind four connections and their keys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from http_edge.clients.demonstration.proofs import PUSH_S_MAX, NotProven, Proof, check, prove, step
from http_edge.clients.didcomm.connection import seal_for
from http_edge.clients.didcomm.errors import WalletError
from http_edge.clients.didcomm.invitation import Invitation, fetch_invitation, fetch_invitation_2
from http_edge.clients.didcomm.pickup import PICKUP_3, PICKUP_4, Picked
from http_edge.clients.didcomm.protocol_session import new_id
from http_edge.clients.didcomm.recipients import (
    Address,
    Recipient,
    Recipient2,
    endpoint_of,
    forward_2,
    send,
)
from http_edge.clients.didcomm.transport import post
from http_edge.clients.didcomm.wallet import Wallet, Wallet2
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key_reference
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE

WRITTEN: Final = ("one", "two", "three", "four", "five", "six", "seven")
"""Alice's messages while Bob is away; he fetches them in five ways."""
_DAVES: Final = ("one", "two", "three")
"""Dave's messages to Carol, whose wallet speaks DIDComm v2."""
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"
_BASIC_MESSAGE_2: Final = NEW_PREFIX + "basicmessage/2.0/message"


@dataclass(slots=True)
class WalletDemonstration:
    """The two wallets, their mediators, and what they have so far."""

    session: aiohttp.ClientSession
    sockets: AsyncExitStack = field(repr=False)
    alices: Invitation
    bobs: Invitation
    alice: Wallet = field(init=False, repr=False)
    bob: Wallet = field(init=False, repr=False)
    alices_key: Recipient = field(init=False, repr=False)
    bobs_key: Recipient = field(init=False, repr=False)
    pushed: Picked = field(init=False, repr=False)
    accepted: int = 0
    read: int = 0

    @step("Alice and Bob connect", "a scanned invitation is enough; its key proves the answer")
    async def _connect(self) -> str:
        """Both follow the invitation, Alice by DID exchange, Bob as older wallets do."""
        self.alice = await Wallet.connect(self.alices, session=self.session, label="alice")
        self.bob = await Wallet.connect(
            self.bobs, session=self.session, handshake="connections/1.0", label="bob"
        )
        for wallet in (self.alice, self.bob):
            await wallet.ping()
        return "Alice by DID exchange 1.1, Bob by connections 1.0; both pings were answered"

    @step("both ask for mediation", "asking twice gives the same")
    async def _mediate(self) -> str:
        """Both ask for mediation; Bob twice."""
        self.alice.mediation = await self.alice.request_mediation()
        self.bob.mediation = granted = await self.bob.request_mediation()
        again = await self.bob.request_mediation()
        check(again == granted, "the second grant differs from the first")
        keys = ", ".join(map(base58, granted.routing_keys))
        return f"senders post to {granted.endpoint}, wrapped for {keys}"

    @step("each registers a key for the other", "a key is one in every spelling")
    async def _register(self) -> str:
        """Each makes a key for the other; Bob registers his once more, in another spelling."""
        self.alices_key = await self.alice.new_recipient()
        self.bobs_key = await self.bob.new_recipient()
        key = self.bobs_key.key.public
        (again,) = await self.bob.update_keylist(add=[did_key_reference(key)])
        check(again.result == "no_change", f"registered twice: {again.result}")
        listed = await self.bob.query_keylist()
        check(len(listed.keys) == 1, f"{len(listed.keys)} keys are listed instead of 1")
        return f"{base58(key)}; in another spelling it is no change"

    @step("Mallory registers Bob's key", "a key belongs to one wallet")
    async def _claim(self) -> str:
        """Mallory, with a connection of her own, tries to register Bob's key."""
        mallory = await Wallet.connect(
            self.bobs,
            session=self.session,
            handshake="didexchange/1.0",
            did_method="peer2",
            label="mallory",
        )
        await mallory.request_mediation()
        (claimed,) = await mallory.update_keylist(add=[self.bobs_key.key.public])
        check(claimed.result == "client_error", f"a second claim of a key: {claimed.result}")
        return "Mallory's keylist-update is answered with client_error"

    @step("Alice writes while Bob is away", "what is accepted waits, in ciphertext")
    async def _write(self) -> str:
        for text in WRITTEN:
            self.accepted = await self._post(self.bobs_key.address, text, self.alices_key)
        status = await self.bob.status(self.bobs_key.key.public)
        check(status.message_count == len(WRITTEN), f"{status.message_count} messages wait for Bob")
        return f"{status.message_count} messages wait, {status.total_bytes} bytes of ciphertext"

    @step("Alice writes to an unknown key", "no sender learns who is registered")
    async def _write_to_unknown_key(self) -> str:
        bobs = self.bobs_key.address
        unknown = Address(KeyPair.new().public, bobs.endpoint, bobs.routing_keys)
        answered = await self._post(unknown, "anybody?", self.alices_key)
        check(
            answered == self.accepted,
            f"an unknown key is answered with HTTP {answered}, a known one with {self.accepted}",
        )
        return f"HTTP {answered}, as for Bob's"

    @step("Bob fetches by Pickup 1.0", "oldest first, in a batch and raw")
    async def _pick_up_1(self) -> str:
        """Two messages by Pickup 1.0: in a batch, and raw."""
        batch = await self.bob.batch(1)
        return self._bob_reads([*_envelopes(batch), await self.bob.noop()], 2)

    @step("Bob fetches by Aries queue 1.0", "another generation, the same queue")
    async def _fetch_from_queue_1(self) -> str:
        """A message by Aries queue 1.0."""
        fetched = await self.bob.queue_fetch(1)
        status = await self.bob.queue_status()
        check(status.will_queue, "the queue says that it takes nothing more")
        return self._bob_reads(_envelopes(fetched), 1)

    @step("Bob fetches by Pickup 2.0", "acknowledgement alone removes")
    async def _pick_up_2(self) -> str:
        """A message by Pickup 2.0, then its acknowledgement."""
        picked = await self.bob.fetch(1)
        text = self._bob_reads(_envelopes(picked), 1)
        status = await self.bob.received([one.id for one in picked])
        return f"{text}; {status.message_count} wait after the acknowledgement"

    @step("Bob opens a return route", "older wallets need not even ask")
    async def _open_return_route(self) -> str:
        """One message over HTTP, the rest over a socket; none was requested."""
        first = await self.bob.implicit()
        if first is None:
            raise NotProven("nothing came back by return route")
        text = self._bob_reads([first], 1)
        rest = len(WRITTEN) - self.read
        async with self.bob.implicit_socket() as socket:
            received = [await socket.receive(PUSH_S_MAX) for _ in range(rest)]
            # The first round trip shows that all was read, the second that it is removed.
            await self.bob.over(socket).ping()
            await self.bob.over(socket).ping()
        texts = self._bob_reads([one for one in received if isinstance(one, bytes)], rest)
        check(not await self.bob.fetch(1), "a message is offered a second time")
        return f"{text} over HTTP, {texts} over a socket; nothing is left"

    @step("Bob goes live", "messages arrive while he listens")
    async def _go_live(self) -> str:
        """Bob opens a socket in live mode; Alice writes."""
        live = await self.sockets.enter_async_context(self.bob.live())
        await self._post(self.bobs_key.address, "now", self.alices_key)
        (self.pushed,) = await live.next(PUSH_S_MAX)
        return f"pushed: {self._reads(self.bobs_key, self.pushed.envelope, self.alices_key)}"

    @step("Bob changes networks", "what was not acknowledged comes again")
    async def _change_networks(self) -> str:
        """Bob's connection hangs before he acknowledges; he opens another."""
        live = await self.sockets.enter_async_context(self.bob.live())
        again = await live.fetch()
        check(
            [one.id for one in again] == [self.pushed.id],
            f"{len(again)} messages are offered, not the one that was lost",
        )
        status = await live.received([self.pushed.id])
        check(status.message_count == 0, "an acknowledged message still waits")
        return f"{self.pushed.id} came again, and went when it was acknowledged"

    @step("Bob answers", "it works in both directions")
    async def _answer(self) -> str:
        await self._post(self.alices_key.address, "I read you", self.bobs_key)
        texts = [
            self._reads(self.alices_key, picked.envelope, self.bobs_key)
            async for picked in self.alice.drain()
        ]
        check(len(texts) == 1, f"{len(texts)} messages wait for Alice instead of 1")
        return f"Alice reads: {texts[0]}"

    async def _post(self, to: Address, text: str, sender: Recipient) -> int:
        """Send a message; return the HTTP status of its acceptance."""
        message: Json = {"@type": _BASIC_MESSAGE, "@id": new_id(), "content": text}
        return await send(self.session, to.endpoint, to.seal(message, sender.key))

    def _bob_reads(self, envelopes: Sequence[bytes], count: int) -> str:
        """Let Bob open ``count`` envelopes, which must be Alice's next messages, in order."""
        texts = [self._reads(self.bobs_key, one, self.alices_key) for one in envelopes]
        due = list(WRITTEN[self.read : self.read + count])
        check(texts == due, f"Bob got {texts} instead of {due}")
        self.read += count
        return ", ".join(texts)

    def _reads(self, recipient: Recipient, envelope: bytes, sender: Recipient) -> str:
        message, sender_key = recipient.unpack(envelope)
        check(sender_key == sender.key.public, "the message is by another sender")
        return str(message.get("content"))


@dataclass(slots=True)
class NewerDemonstration:
    """Carol's wallet at the mediator whose invitation is at ``url``, and what she has so far."""

    session: aiohttp.ClientSession
    sockets: AsyncExitStack = field(repr=False)
    url: str
    carol: Wallet2 = field(init=False, repr=False)
    recipient: Recipient2 = field(init=False, repr=False)
    dave: Recipient2 = field(init=False, repr=False)

    @step(
        "Carol follows the same invitation in DIDComm v2",
        "no handshake: the first request makes the relation",
    )
    async def _connect(self) -> str:
        """Carol asks for mediation, twice, and pings."""
        invitation = await fetch_invitation_2(self.session, self.url)
        self.carol = await Wallet2.connect(invitation, session=self.session)
        again = await self.carol.request_mediation()
        check(again == self.carol.routing_did, "the second grant differs from the first")
        check(again == invitation.did, "another DID is granted than was addressed")
        await self.carol.ping()
        return f"granted {again[:32]}…; the ping was answered"

    @step("Carol registers a DID", "a DID is one in every spelling")
    async def _register(self) -> str:
        """Carol registers a DID for Dave in its long form, then in its short one."""
        self.recipient = await self.carol.new_recipient()
        short = self.recipient.own.peer4_short
        (again,) = await self.carol.update_recipients(add=[short])
        check(
            (again.recipient_did, again.result) == (short, "success"),
            f"the short form: {again.result}",
        )
        listed = await self.carol.query_recipients()
        own = canonical_name(self.carol.connection.did)
        names = [canonical_name(each.recipient_did) for each in listed.dids]
        check(names == [own, short], f"{names} are listed")
        return f"{short}; before it her own is listed, which was registered by itself"

    @step("Dave writes to Carol", "several messages in one forward, stored in order")
    async def _write(self) -> str:
        """Dave, who has no mediator, sends all messages in one forward."""
        self.dave = Recipient2(KeyPair.new(), self.carol.routing_did)
        await self._send(*_DAVES)
        status = await self.carol.status(self.recipient.did)
        check(status.message_count == len(_DAVES), f"{status.message_count} messages wait")
        return f"{status.message_count} messages wait, {status.total_bytes} bytes of ciphertext"

    @step("Carol fetches by Pickup 3.0", "the same queue, the same leases")
    async def _pick_up_3(self) -> str:
        self.carol.pickup = PICKUP_3
        picked = await self.carol.fetch(1)
        text = self._reads(picked, _DAVES[:1])
        status = await self.carol.received([one.id for one in picked])
        return f"{text}; {status.message_count} wait after the acknowledgement"

    @step("Carol fetches by Pickup 4.0", "an empty delivery ends it")
    async def _pick_up_4(self) -> str:
        """Carol fetches the rest, until a delivery is empty."""
        self.carol.pickup = PICKUP_4
        picked = [one async for one in self.carol.drain()]
        return f"{self._reads(picked, _DAVES[1:])}; then nothing"

    @step("Carol goes live", "messages arrive while she listens")
    async def _go_live(self) -> str:
        live = await self.sockets.enter_async_context(self.carol.live())
        await self._send("now")
        pushed = await live.next(PUSH_S_MAX)
        text = self._reads(pushed, ("now",))
        status = await live.received([one.id for one in pushed])
        check(status.message_count == 0, "an acknowledged message still waits")
        return f"pushed: {text}"

    async def _send(self, *texts: str) -> None:
        """Send one forward with these messages to the endpoint that Carol's DID leads to."""
        to = self.recipient.did
        messages: list[Json] = [
            {"@type": _BASIC_MESSAGE_2, "@id": new_id(), "content": text} for text in texts
        ]
        envelopes = [
            seal_for(self.dave.version, self.dave.did, message, to) for message in messages
        ]
        body = forward_2(envelopes, to)
        await post(self.session, endpoint_of(to), body, media_type=MEDIA_TYPE)

    def _reads(self, picked: Sequence[Picked], due: Sequence[str]) -> str:
        """Let Carol open envelopes, which must be Dave's, with these texts in this order."""
        texts = []
        for one in picked:
            message, sender = self.recipient.unpack(one.envelope)
            check(sender == self.dave.did, "the message is by another sender")
            texts.append(str(message.get("content")))
        check(texts == list(due), f"Carol got {texts} instead of {list(due)}")
        return ", ".join(texts)


async def demonstrate(
    session: aiohttp.ClientSession, alices_url: str, bobs_url: str, invitation: str | None = None
) -> AsyncIterator[Proof]:
    """Run the steps up to the first whose proof does not hold.

    Alice uses the mediator at the first URL, Bob the one at the second, which may be the same.
    Carol, whose wallet speaks DIDComm v2, uses Bob's. They follow the public invitation, or the
    multi-use invitation with the id ``invitation``.

    Raises:
        WalletError: before the first step, if one of the mediators gives no invitation.
    """
    query = "" if invitation is None else f"?id={invitation}"
    alices, bobs = (f"{url.rstrip('/')}/invitation{query}" for url in (alices_url, bobs_url))
    sockets = AsyncExitStack()
    invitations = await fetch_invitation(session, alices), await fetch_invitation(session, bobs)
    state = WalletDemonstration(session, sockets, *invitations)
    newer = NewerDemonstration(session, sockets, bobs)
    async with sockets:
        async for proof in prove(WalletError, state, newer):
            yield proof


def _envelopes(picked: Sequence[Picked]) -> list[bytes]:
    return [one.envelope for one in picked]
