"""How partitions and identities come to a host and leave it, with their sessions and leases."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from actors.core.placement_table import handed_out_id
from actors.host.clock import Clock, NewId
from actors.host.log_outage import LogOutage
from actors.host.ownership import Ownership
from actors.host.session_registry import Handover, SessionRegistry
from actors.host.state_cache import StateCache
from actors.host.stored_states import read_identity
from actors.host.unknown_outcomes import UnknownOutcomes
from eventstore.log.event_log import EventLog
from eventstore.log.streams import identity_stream

_EXPECTED_MS: Final = 5_000


class PartitionMoves:
    """What a placer has a host do; called on the writer's thread."""

    def __init__(  # noqa: PLR0913 - the parts of the host that a move concerns
        self,
        log: EventLog,
        clock: Clock,
        new_id: NewId,
        *,
        ownership: Ownership,
        cache: StateCache,
        registry: SessionRegistry,
        unknown: UnknownOutcomes,
        outage: LogOutage,
    ) -> None:
        """Moves to and from the host that has these parts."""
        self._log = log
        self._clock = clock
        self._new_id = new_id
        self._ownership = ownership
        self._cache = cache
        self._registry = registry
        self._unknown = unknown
        self._outage = outage

    def adopt(self, names: Sequence[str], handover: bytes | None) -> Mapping[str, str]:
        """Own these partitions, whichever host owned them; return the ids of their sessions.

        Sessions and leases come from the handover; without one there are none.

        Raises:
            LogError: the log cannot be read or written; none of them is owned.
            msgspec.DecodeError: ``handover`` is not a handover.
        """
        given = Handover(handover)
        self._registry.lose(names)
        for name in names:
            self._cache.drop_partition(name)
        ids = self._ownership.adopt(names, given.ids())
        self._outage.worked(has_stored=True)
        for name in names:
            self._registry.take_over(name, name, given, self._clock())
        return ids

    def release(self, names: Sequence[str]) -> bytes:
        """Give up these partitions; return the handover for their next owner.

        Notices of what is stored there although its append failed go to the sessions before.
        """
        self._unknown.look(self._clock(), at_once=True)
        ids = self._ownership.release(names)
        for name in names:
            self._cache.drop_partition(name)
        return self._registry.hand_over(ids)

    def hand_out(self, did: str, shard: str) -> bytes:
        """Hand out the sessions and leases of an identity; return empty if it is not dedicated.

        Raises:
            LogError: it is not known whether the identity is dedicated.
        """
        id_ = self._ownership.holdings.get(shard)
        if not id_:
            return b""
        state = self._cache.peek(did) or read_identity(self._log, identity_stream(did))[0]
        if not state.dedicated_by:
            return b""
        return self._registry.hand_out(did, handed_out_id(id_, self._new_id()))

    def expect(self, did: str) -> None:
        """Refuse to serve an identity that returns to its shard until ``take_in``, for a while.

        Before that, its notices would be pushed to no edge.
        """
        self._registry.expect(did, self._clock() + _EXPECTED_MS)

    def take_in(self, did: str, shard: str, handover: bytes) -> bool:
        """Continue the sessions of an identity that returns to this shard; False if too late.

        Raises:
            msgspec.DecodeError: ``handover`` is not a handover.
        """
        given, now_ms = Handover(handover), self._clock()
        is_late = not self._registry.expect_no_longer(did, now_ms)
        if is_late or shard not in self._ownership.holdings:
            return False
        self._registry.take_over(did, shard, given, now_ms)
        return True
