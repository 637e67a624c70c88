"""DIDComm wallets of either generation for a load, and messages for them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import Final, NamedTuple, Self

import aiohttp
import orjson
from typing_extensions import override

from http_edge.clients.didcomm import (
    Recipient,
    Recipient2,
    Wallet,
    Wallet2,
    endpoint_of,
    fetch_invitation,
    fetch_invitation_2,
    forward_2,
)
from http_edge.clients.load.agents import (
    MESSAGE_BYTES,
    SETUP_CONNECTIONS,
    Agents,
    each,
    patiently,
)
from http_edge.clients.load.closed_loop import Progress, no_progress
from http_edge.didcomm.envelopes.key_agreement import StaticSecrets
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json
from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.v1.version import MEDIA_TYPE
from http_edge.didcomm.envelopes.v2 import envelope, plaintext
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE as MEDIA_TYPE_2

_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"
_BASIC_MESSAGE_2: Final = NEW_PREFIX + "basicmessage/2.0/message"


class Mailbox(NamedTuple):
    """A wallet and its one key that is registered at the mediator."""

    wallet: Wallet
    recipient: Recipient


class Mailbox2(NamedTuple):
    """A wallet of DIDComm v2 and its one DID that is registered at the mediator."""

    wallet: Wallet2
    recipient: Recipient2


class _PickingUp(Agents):
    """Agents whose wallets fetch by the version of pickup that each has."""

    mailboxes: Sequence[Mailbox] | Sequence[Mailbox2]

    def __len__(self) -> int:
        return len(self.mailboxes)

    @override
    async def take_page(self, number: int, page_size: int) -> int:
        wallet = self.mailboxes[number].wallet
        picked = await patiently(lambda: wallet.fetch(page_size))
        ids = [one.id for one in picked]
        if ids:
            await patiently(lambda: wallet.acknowledge(ids))
        return len(ids)


@dataclass(frozen=True, slots=True)
class DidCommAgents(_PickingUp):
    """Wallets with one key each, and a sender without a mediator."""

    mailboxes: Sequence[Mailbox]
    sender: KeyPair = field(default_factory=KeyPair.new, repr=False)
    media_type: str = MEDIA_TYPE

    @classmethod
    async def registered(
        cls,
        session: aiohttp.ClientSession,
        url: str,
        count: int,
        progress: Progress = no_progress,
    ) -> Self:
        """Connect ``count`` wallets by the mediator's invitation, each with a key of its own.

        Raises: WalletError.
        """
        invitation = await fetch_invitation(session, f"{url.rstrip('/')}/invitation")

        async def mailbox(number: int) -> Mailbox:
            wallet = await patiently(
                lambda: Wallet.connect(invitation, session=session, label=f"load-{number}")
            )
            return Mailbox(wallet, await patiently(wallet.new_recipient))

        return cls(await each(range(count), mailbox, SETUP_CONNECTIONS, progress))

    @property
    @override
    def endpoint(self) -> str:
        return self.mailboxes[0].recipient.address.endpoint

    @override
    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        """Make forwards, about three times as long as the messages sealed in them."""
        for number, mailbox in enumerate(islice(cycle(self.mailboxes), count)):
            message: Json = {"@type": _BASIC_MESSAGE, "@id": f"message-{number}", "content": ""}
            message["content"] = "x" * max(0, size_bytes - len(orjson.dumps(message)))
            yield mailbox.recipient.address.seal(message, self.sender)

    @override
    async def leave(self) -> None:
        """Remove the keys from the keylists."""
        for wallet, recipient in self.mailboxes:
            await patiently(partial(wallet.update_keylist, remove=[recipient.key.public]))


@dataclass(frozen=True, slots=True)
class DidComm2Agents(_PickingUp):
    """Wallets of DIDComm v2 with one DID each.

    Wallets and sender name each other by the short forms of their did:peer:4, as agents do from the
    second message on.
    """

    mailboxes: Sequence[Mailbox2]
    sender: OwnDids = field(default_factory=lambda: OwnDids(KeyPair.new()), repr=False)
    media_type: str = MEDIA_TYPE_2

    @classmethod
    async def registered(
        cls,
        session: aiohttp.ClientSession,
        url: str,
        count: int,
        progress: Progress = no_progress,
    ) -> Self:
        """Connect ``count`` wallets by the mediator's invitation, each with a DID of its own.

        Raises: WalletError.
        """
        invitation = await fetch_invitation_2(session, f"{url.rstrip('/')}/invitation")

        async def mailbox(_: int) -> Mailbox2:
            wallet = await patiently(lambda: Wallet2.connect(invitation, session=session))
            return Mailbox2(wallet, await patiently(wallet.new_recipient))

        return cls(await each(range(count), mailbox, SETUP_CONNECTIONS, progress))

    @property
    @override
    def endpoint(self) -> str:
        return endpoint_of(self.mailboxes[0].recipient.did)

    @override
    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        """Make forwards, about four times as long as the messages sealed in them."""
        sender = self.sender.by_kid[self.sender.peer4_short]
        packed_by = envelope.Sender(sender.agreement_kid, sender.agreement, StaticSecrets())
        for number, (_, recipient) in enumerate(islice(cycle(self.mailboxes), count)):
            to = recipient.own.by_kid[recipient.own.peer4_short]
            message: Json = {
                "typ": plaintext.MEDIA_TYPE,
                "id": f"message-{number}",
                "type": _BASIC_MESSAGE_2,
                "from": sender.did,
                "to": [to.did],
                "body": {"content": ""},
            }
            content = "x" * max(0, size_bytes - len(orjson.dumps(message)))
            text = orjson.dumps({**message, "body": {"content": content}})
            packed_to = envelope.Recipient(to.agreement_kid, to.agreement.public)
            sealed = envelope.seal(text, [packed_to], packed_by)
            yield forward_2([sealed], to.did, recipient.routing_did)

    @override
    async def leave(self) -> None:
        """Remove the DIDs from the keylists."""
        for wallet, recipient in self.mailboxes:
            await patiently(partial(wallet.update_recipients, remove=[recipient.did]))
