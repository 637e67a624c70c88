"""Waiting for envelopes: one wake-up path for long polls, live mode and implicit pickup.

A waiter subscribes at the edge's hub and has a session at the identity's host; the host notifies it
of every envelope that can be handed out. A wake-up is a hint: the waiter then asks the queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from actors.core.commands import Listen
from actors.core.refusals import Refusal
from actors.core.replies import Done, EnvelopesWaiting, IdentityGone, Notice
from http_edge.didcomm.identities import Identities
from http_edge.dids.address_slots import AddressSlots
from http_edge.dispatch.hub import Hub
from http_edge.listener.address_charge import paying_address
from http_edge.listener.in_flight import may_park, parked


class Wake:
    """A waiter; a subscriber of the hub (``http_edge.dispatch.hub.Subscriber``)."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()
        self.is_over = False

    def notify(self, notice: Notice) -> None:
        """Wake up if envelopes wait, or if the identity is gone."""
        if isinstance(notice, EnvelopesWaiting):
            self._happened.set()
        elif isinstance(notice, IdentityGone):
            self.close(0)

    def close(self, code: int) -> None:  # noqa: ARG002 - the signature of a subscriber
        """End the wait: no more notices will come."""
        self.is_over = True
        self._happened.set()

    async def next(self, seconds: float) -> bool:
        """Wait; True if envelopes may wait, False if the time is over or no notice will come."""
        if self.is_over or seconds <= 0:
            return False
        try:
            async with asyncio.timeout(seconds):
                with parked(partial(self.close, 0)):
                    await self._happened.wait()
        except TimeoutError:
            return False
        self._happened.clear()
        return not self.is_over


class Waiting:
    """Lets requests wait for the envelopes of an identity."""

    def __init__(
        self, hub: Hub, identities: Identities, *, waiters_max: int, per_identity_max: int
    ) -> None:
        """Let up to ``waiters_max`` requests wait at once; a further request does not wait.

        A client address takes a share of them: a stranger may have any number of identities.
        """
        self._per_identity_max = per_identity_max
        self._hub = hub
        self._identities = identities
        self._slots = AddressSlots(waiters_max)

    @asynccontextmanager
    async def listening(self, did: str) -> AsyncIterator[Wake]:
        """Yield a wake for the envelopes of an identity; it listens from before the block.

        A request with a large body is answered as if its wait were over: the body would wait, too.
        """
        wake = Wake()
        crowded = self._hub.subscribers_of(did) >= self._per_identity_max or not may_park()
        address = paying_address() or None
        if crowded or not self._slots.has_one_for(address):
            wake.close(0)
            yield wake
            return
        self._hub.add(did, wake)
        try:
            with self._slots.held_by(address):
                if not await self.open_session(did):
                    wake.close(0)
                yield wake
        finally:
            self._hub.remove(did, wake)

    async def open_session(self, did: str, implicit: str = "") -> bool:
        """Have the identity's host notify this edge; the hub must already have a subscriber.

        If ``implicit`` names a session, that session takes over implicit pickup.
        """
        await self._hub.session_ended(did)
        reply = await self._identities.ask(did, Listen(self._hub.edge, implicit), b"", Done)
        return not isinstance(reply, Refusal)
