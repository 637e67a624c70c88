"""Decentrl agents for a load: recipients, each with a contract with a sender."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final, NamedTuple, Self

from typing_extensions import override

from http_edge.clients.decentrl import (
    Account,
    Channel,
    Identity,
    MediatorClient,
    signed_command,
)
from http_edge.clients.load.agents import (
    MESSAGE_BYTES,
    SETUP_CONNECTIONS,
    SOURCES,
    Agents,
    each,
    patiently,
)
from http_edge.clients.load.closed_loop import Progress, no_progress
from http_edge.crypto.key_agreement import new_key_pair
from http_edge.dids.contract_profile import ContractRequest, accept_request, new_request

REGISTERED_S: Final = 86_400
"""Agents of a load are registered for a day."""


class Pair(NamedTuple):
    """A sender, and a recipient that has saved a contract with it."""

    sender: Identity
    recipient: Account


@dataclass(frozen=True, slots=True)
class DecentrlAgents(Agents):
    """Recipients of Decentrl messages, each with a sender of its own."""

    client: MediatorClient
    pairs: Sequence[Pair]
    media_type: str = "application/json"

    @classmethod
    async def registered(
        cls, client: MediatorClient, count: int, progress: Progress = no_progress
    ) -> Self:
        """Register ``count`` recipients, each with a contract with its sender.

        Raises: ClientError.
        """
        mediator = await client.document()

        async def pair(number: int) -> Pair:
            sender = Identity.create(f"sender-{number}", mediator.did)
            recipient = client.as_(Identity.create(f"recipient-{number}", mediator.did))
            until_s = SOURCES.now_ms() // 1000 + REGISTERED_S
            await patiently(lambda: recipient.register(expires_at_s=until_s))
            signed = contract_of(sender, recipient.identity, until_s)
            await patiently(lambda: recipient.save_communication_contract(signed))
            return Pair(sender, recipient)

        return cls(client, await each(range(count), pair, SETUP_CONNECTIONS, progress))

    def __len__(self) -> int:
        return len(self.pairs)

    @property
    @override
    def endpoint(self) -> str:
        return str(self.client.transport.at("/"))

    def message(self, pair: Pair, payload: str) -> bytes:
        """A signed TWO_WAY_PRIVATE command."""
        return signed_command(
            pair.sender,
            Channel.TWO_WAY_PRIVATE,
            pair.recipient.identity.did,
            payload,
            now_ms=SOURCES.now_ms(),
            nonce=SOURCES.new_nonce(),
        )

    @override
    def messages(self, count: int, size_bytes: int = MESSAGE_BYTES) -> Iterator[bytes]:
        payload = "x" * size_bytes
        return (self.message(pair, payload) for pair in islice(cycle(self.pairs), count))

    @override
    async def take_page(self, number: int, page_size: int) -> int:
        recipient = self.pairs[number].recipient
        waiting = await patiently(lambda: recipient.query_pending_events(page_size=page_size))
        ids = [event.id for event in waiting.items]
        if ids:
            await patiently(lambda: recipient.acknowledge_pending_events(ids))
        return len(ids)

    @override
    async def leave(self) -> None:
        """Do nothing: registrations end by themselves."""


def contract_of(sender: Identity, recipient: Identity, until_s: int) -> dict[str, object]:
    """Make a contract signed by both (DCTRL-0003), without the exchange that leads to one."""
    signed_request = new_request(
        sender.did, recipient.did, until_s, sender.signing_seed, new_key_pair().public
    )
    request = ContractRequest(sender.did, recipient.did, until_s, signed_request)
    return accept_request(request, recipient.signing_seed, new_key_pair().public)
