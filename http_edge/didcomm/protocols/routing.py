"""Routing (RFC 0094): from a recipient key to the queue of its owner (RFC 0211).

A forward is read by its message version (``envelopes.versions``). Who owns a key is remembered; the
owner itself has the last word, so a key that was given up or changed hands is noticed with the next
message for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from cachetools import LRUCache

from actors.core.commands import FindKeyOwner, QueueEnvelope
from actors.core.refusals import Refusal
from actors.core.replies import EnvelopeQueued, KeyOwner
from http_edge.didcomm.identities import Identities, key_target
from http_edge.didcomm.protocols.protocol import Family

FORWARD: Final = "routing/1.0/forward"
"""A forward among the commands that are measured and refused."""
FAMILY: Final = Family("routing", 1, (0,), ("mediator",), {})
"""The protocol as it is disclosed. It has no handler: a forward has no authenticated sender."""
Outbound: TypeAlias = Callable[[str], None]
"""Called with an identity with an endpoint that messages wait for; must not block."""


class Forwarding:
    """Queues envelopes for the owners of keys."""

    def __init__(
        self, identities: Identities, *, owners_remembered_max: int, outbound: Outbound
    ) -> None:
        """Forwarding that remembers so many owners, about 300 bytes each."""
        self._identities = identities
        self._owners: LRUCache[str, str] = LRUCache(owners_remembered_max)
        self._outbound = outbound

    async def forward(self, key: str, payload: bytes, command: bytes) -> EnvelopeQueued | Refusal:
        """Queue an envelope for the owner of a key in base58.

        ``KEY_UNKNOWN`` when it is not registered; ``command`` is the key of the message in the log.
        """
        remembered = self._owners.get(key)
        if remembered is not None:
            reply = await self.queue(remembered, key, payload, command)
            if reply is not Refusal.KEY_UNKNOWN:
                return reply
            self._owners.pop(key, None)
        found = await self._identities.ask(key_target(key), FindKeyOwner(), command, KeyOwner)
        if isinstance(found, Refusal):
            return found
        reply = await self.queue(found.owner_did, key, payload, command)
        if not isinstance(reply, Refusal):
            self._owners[key] = found.owner_did
        return reply

    async def forward_to_all(
        self, keys: Sequence[str], payload: bytes, command: bytes
    ) -> list[EnvelopeQueued | Refusal]:
        """Queue an envelope for the owners of these keys, once for each, whatever number it has.

        One answer for each owner, and one for each key without an owner that is known.
        """
        # Asked anew: of two keys with one owner, one that changed hands would get nothing.
        found = await asyncio.gather(
            *[self._identities.ask(key_target(k), FindKeyOwner(), command, KeyOwner) for k in keys]
        )
        keys_of: dict[str, list[str]] = {}
        for key, owner in zip(keys, found, strict=True):
            if isinstance(owner, KeyOwner):
                keys_of.setdefault(owner.owner_did, []).append(key)
        queued = await asyncio.gather(
            *[self._queue_once(did, own, payload, command) for did, own in keys_of.items()]
        )
        return [*queued, *(owner for owner in found if isinstance(owner, Refusal))]

    async def _queue_once(
        self, did: str, keys: Sequence[str], payload: bytes, command: bytes
    ) -> EnvelopeQueued | Refusal:
        """Queue an envelope for the first of the keys of one owner that is in its keylist."""
        reply: EnvelopeQueued | Refusal = Refusal.KEY_UNKNOWN
        for key in keys:
            reply = await self.queue(did, key, payload, command)
            if reply is not Refusal.KEY_UNKNOWN:
                break
        return reply

    async def queue(
        self, did: str, key: str, payload: bytes, command: bytes
    ) -> EnvelopeQueued | Refusal:
        """Queue an envelope for an identity; ``key`` is empty for the mediator's own messages."""
        reply = await self._identities.ask(
            did, QueueEnvelope(key, payload), command, EnvelopeQueued
        )
        if isinstance(reply, EnvelopeQueued) and reply.outbound:
            self._outbound(did)
        return reply
