"""A DIDComm mediator as a benchmark sees it: where envelopes go, and the key that they are for."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

import aiohttp

from http_edge.bench.processes import ProcessTree
from http_edge.bench.server import OwnServer
from http_edge.bench.subject import Costs, spending
from http_edge.bench.target import Target
from http_edge.wallet import Connection, Invitation, Recipient, fetch_invitation
from http_edge.wallet.transport import MEDIA_TYPE

_PATH: Final = "/didcomm"


@dataclass(frozen=True, slots=True)
class Door:
    """Where a mediator takes envelopes; ``processes`` is None where its process is not known."""

    target: Target
    processes: ProcessTree | None

    def costs(self) -> AbstractContextManager[Costs]:
        """What the server spends while the block runs; filled in when it ends."""
        return spending(self.target, self.processes)


@dataclass(frozen=True, slots=True)
class Mediator(Door):
    """A mediator that invites wallets."""

    invitation: Invitation


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A wallet's connection with its mediator, and the one key that it has registered there."""

    connection: Connection
    recipient: Recipient


async def mediator_at(target: Target, processes: ProcessTree | None) -> Mediator:
    """The mediator there, asked for its invitation.

    Raises:
        WalletError: there is none, or it invites nobody.
    """
    async with aiohttp.ClientSession() as session:
        invitation = await fetch_invitation(session, f"{target.url}/invitation")
    return Mediator(target.posting(_PATH, MEDIA_TYPE), processes, invitation)


def mediator_of(server: OwnServer) -> Mediator:
    """A server of our own, asked for its invitation.

    Raises:
        WalletError: it invites nobody.
    """
    return asyncio.run(mediator_at(server.target, server.processes))
