"""Routing (RFC 0094, routing 2.0): from a recipient's name to the queue of its owner (RFC 0211).

The message version reads the forward (``envelopes.versions``). The edge remembers the owner of a
name, but the owner itself decides, so the next message for a key that was released or changed hands
corrects the edge. A forward to a key's name on the other curve finds the same owner
(``envelopes.recipient_names``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec
from cachetools import LRUCache

from actors.core.commands import FindKeyOwner, QueueEnvelopes
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued, KeyOwner
from http_edge.didcomm.envelopes.recipient_names import twins
from http_edge.didcomm.identities import Identities, key_target
from http_edge.didcomm.protocols.protocol import Family

FORWARDS: Final = {1: "routing/1.0/forward", 2: "routing/2.0/forward"}
"""The name of a forward in measures and refusal counts, by DIDComm generation."""
FAMILIES: Final = tuple(Family("routing", major, (0,), ("mediator",), {}) for major in FORWARDS)
"""The protocol as disclosed. It has no handlers, because a forward has no authenticated sender."""
Wake: TypeAlias = Callable[[str], None]
"""Called with an identity for which a message was queued; must not block."""


def _others(name: str, dids: Mapping[str, Sequence[str]]) -> Sequence[str]:
    """Return the other names of one recipient: its key on the other curve, and its DIDs."""
    return [*twins(name), *dids.get(name, ())]


class Forwarding:
    """Queues envelopes for the owners of names."""

    def __init__(
        self,
        identities: Identities,
        *,
        owners_remembered_max: int,
        outbound: Wake,
        push: Wake | None = None,
    ) -> None:
        """Remember up to ``owners_remembered_max`` owners, about 300 bytes each.

        ``outbound`` is called for owners with an endpoint, ``push`` for those with a device.
        """
        self._identities = identities
        self._owners: LRUCache[str, str] = LRUCache(owners_remembered_max)
        self._outbound = outbound
        self._push = push

    async def forward(
        self,
        name: str,
        envelopes: QueueEnvelopes,
        command: bytes,
        dids: Mapping[str, Sequence[str]],
    ) -> EnvelopeQueued | Refusal:
        """Queue envelopes for the owner of a name; ``KEY_UNKNOWN`` if no account registered it.

        ``command`` is the key of the message in the log, ``dids`` as in ``messages.Forward``.
        """
        reply = await self._forward(name, envelopes, command)
        if reply is not Refusal.KEY_UNKNOWN:
            return reply
        # Try the name itself first each time: it may have been registered meanwhile.
        for twin in _others(name, dids):
            reply = await self._forward(twin, envelopes, command)
            if reply is not Refusal.KEY_UNKNOWN:
                return reply
        return Refusal.KEY_UNKNOWN

    async def _forward(
        self, name: str, envelopes: QueueEnvelopes, command: bytes
    ) -> EnvelopeQueued | Refusal:
        remembered = self._owners.get(name)
        if remembered is not None:
            reply = await self.queue(remembered, name, envelopes, command)
            if reply is not Refusal.KEY_UNKNOWN:
                return reply
            self._owners.pop(name, None)
        found = await self._find(name, command)
        if isinstance(found, Refusal):
            return found
        reply = await self.queue(found.owner_did, name, envelopes, command)
        if not isinstance(reply, Refusal):
            self._owners[name] = found.owner_did
        return reply

    async def forward_to_all(
        self,
        names: Sequence[str],
        envelopes: QueueEnvelopes,
        command: bytes,
        dids: Mapping[str, Sequence[str]],
    ) -> list[EnvelopeQueued | Refusal]:
        """Queue envelopes for the owners of these names, once for each owner.

        Return one reply for each owner, and one for each name without a known owner. Queued name by
        name, an owner could refuse one name, whose share of its queue is full, and store the
        envelopes under another: its sender would be refused what was stored, and send it again.
        """
        # Ask for every owner: if two keys were remembered with one owner, and one of the keys has
        # changed hands, its new owner would get nothing.
        found = await asyncio.gather(*[self._find_key(name, command, dids) for name in names])
        names_of: dict[str, list[str]] = {}
        for name, owner in found:
            if isinstance(owner, KeyOwner):
                names_of.setdefault(owner.owner_did, []).append(name)
        queued = await asyncio.gather(
            *[self._queue_once(did, own, envelopes, command) for did, own in names_of.items()]
        )
        return [*queued, *(owner for _, owner in found if isinstance(owner, Refusal))]

    async def _find_key(
        self, name: str, command: bytes, dids: Mapping[str, Sequence[str]]
    ) -> tuple[str, KeyOwner | Refusal]:
        """Find the owner of a name or of another; return it with the name that it registered."""
        for each in (name, *_others(name, dids)):
            owner = await self._find(each, command)
            if owner is not Refusal.KEY_UNKNOWN:
                return each, owner
        return name, Refusal.KEY_UNKNOWN

    async def _find(self, name: str, command: bytes) -> KeyOwner | Refusal:
        """Find the owner of a name; refused for the disk no later than its queue would refuse."""
        return await self._identities.ask(
            key_target(name), FindKeyOwner(), command, KeyOwner, adds=True
        )

    async def _queue_once(
        self, did: str, names: Sequence[str], envelopes: QueueEnvelopes, command: bytes
    ) -> EnvelopeQueued | Refusal:
        """Queue envelopes for one owner, under the first of the names that is in its keylist."""
        reply: EnvelopeQueued | Refusal = Refusal.KEY_UNKNOWN
        for name in names:
            reply = await self.queue(did, name, envelopes, command)
            if reply is not Refusal.KEY_UNKNOWN:
                break
        return reply

    async def queue(
        self, did: str, name: str, envelopes: QueueEnvelopes, command: bytes
    ) -> EnvelopeQueued | Refusal:
        """Queue envelopes for an identity; ``name`` is empty for the mediator's own messages."""
        named = msgspec.structs.replace(envelopes, recipient_key=name)
        reply = await self._identities.ask(did, named, command, EnvelopeQueued)
        if isinstance(reply, EnvelopeQueued):
            if reply.outbound:
                self._outbound(did)
            if reply.pushes and self._push is not None:
                self._push(did)
        return reply
