"""The DIDComm v2 part of the demonstration: Carol's wallet, and Dave, who writes to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import aiohttp

from http_edge.clients.didcomm.connection_2 import seal_for
from http_edge.clients.didcomm.invitation import fetch_invitation_2
from http_edge.clients.didcomm.pickup import PICKUP_3, PICKUP_4, Picked
from http_edge.clients.didcomm.protocol_session import new_id
from http_edge.clients.didcomm.recipients_2 import Recipient2, endpoint_of, forward_2
from http_edge.clients.didcomm.transport import post
from http_edge.clients.didcomm.wallet_2 import Wallet2
from http_edge.clients.proofs import PUSH_S_MAX, Step, check
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE

WRITTEN: Final = ("one", "two", "three")
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/2.0/message"


@dataclass(slots=True)
class NewerDemonstration:
    """Carol's wallet at the mediator whose invitation is at ``url``, and what she has so far."""

    session: aiohttp.ClientSession
    url: str
    carol: Wallet2 = field(init=False, repr=False)
    recipient: Recipient2 = field(init=False, repr=False)
    dave: Recipient2 = field(init=False, repr=False)

    def steps(self, stack: AsyncExitStack) -> list[Step]:
        """The steps in order; sockets stay open as long as ``stack``."""
        return [
            ("Carol follows the same invitation in DIDComm v2",
             "no handshake: the first request makes the relation", self.connect),
            ("Carol registers a DID", "a DID is one in every spelling", self.register),
            ("Dave writes to Carol", "several messages in one forward, stored in order",
             self.write),
            ("Carol fetches by Pickup 3.0", "the same queue, the same leases", self.pick_up_3),
            ("Carol fetches by Pickup 4.0", "an empty delivery ends it", self.pick_up_4),
            ("Carol goes live", "messages arrive while she listens",
             lambda: self.go_live(stack)),
        ]  # fmt: skip

    async def connect(self) -> str:
        """Carol asks for mediation, twice, and pings."""
        invitation = await fetch_invitation_2(self.session, self.url)
        self.carol = await Wallet2.connect(invitation, session=self.session)
        again = await self.carol.request_mediation()
        check(again == self.carol.routing_did, "the second grant differs from the first")
        check(again == invitation.did, "another DID is granted than was addressed")
        await self.carol.ping()
        return f"granted {again[:32]}…; the ping was answered"

    async def register(self) -> str:
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

    async def write(self) -> str:
        """Dave, who has no mediator, sends all messages in one forward."""
        self.dave = Recipient2(KeyPair.new(), self.carol.routing_did)
        await self._send(*WRITTEN)
        status = await self.carol.status(self.recipient.did)
        check(status.message_count == len(WRITTEN), f"{status.message_count} messages wait")
        return f"{status.message_count} messages wait, {status.total_bytes} bytes of ciphertext"

    async def pick_up_3(self) -> str:
        """Carol fetches one message and acknowledges it."""
        self.carol.pickup = PICKUP_3
        picked = await self.carol.fetch(1)
        text = self._reads(picked, WRITTEN[:1])
        status = await self.carol.received([one.id for one in picked])
        return f"{text}; {status.message_count} wait after the acknowledgement"

    async def pick_up_4(self) -> str:
        """Carol fetches the rest, until a delivery is empty."""
        self.carol.pickup = PICKUP_4
        picked = [one async for one in self.carol.drain()]
        return f"{self._reads(picked, WRITTEN[1:])}; then nothing"

    async def go_live(self, stack: AsyncExitStack) -> str:
        """Carol receives a message over a socket in live mode."""
        live = await stack.enter_async_context(self.carol.live())
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
            {"@type": _BASIC_MESSAGE, "@id": new_id(), "content": text} for text in texts
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
