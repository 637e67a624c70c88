"""Places dedicated identities, each on a host of its own, as the log and the load require.

The log says which identities are dedicated. The placer finds out everything else as for shards: the
living hosts from their rows, the owners from the hosts. So a placer may die between any two steps:
the next one reads which identities are dedicated, asks the hosts, and does the rest. A dedicated
identity without a host gets one; an identity that is no longer dedicated goes back to its shard,
and its host is ended.

A host is running, and edges know of it, before an identity moves to it: so the commands that wait
during the move wait for two commits, not for the start of a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Final, TypeVar

import msgspec

from actors.core.commands import Command, DedicateIdentity, DedicationReason, ReleaseIdentity
from actors.core.partitioning import dedicated_host_name, identity_of_host
from actors.core.placement_table import PlacementTable
from actors.core.refusals import Refusal
from actors.core.replies import BatchResult, Dedication, Refused, Reply
from actors.core.submissions import Submission
from actors.host.clock import new_id
from actors.host.port import (
    EndHost,
    Expect,
    HandOut,
    HostUnavailable,
    IsKnown,
    OwnerPort,
    StartDedicated,
    TakeIn,
)
from actors.host.session_registry import Handover
from actors.host.tasks import Tasks
from actors.placement.dedication import DedicationList, DedicationLoad, DedicationRules
from actors.placement.membership import Hosts, Membership
from actors.placement.orders import DedicationOrders
from actors.placement.port import IdentityPlace, Placed
from eventstore.log.seal import command_key

_OPERATOR, _LOAD = DedicationReason.OPERATOR, DedicationReason.LOAD
_LOG = logging.getLogger(__name__)
_LATE_S: Final = 2.0
"""How long a host that is no longer needed goes on answering, so that edges redirect commands under
way to the new owner."""
_START_S_MAX: Final = 20.0
"""Time for a process to start on a busy machine."""
_LOOK_S: Final = 0.2
_RETURNED_MAX: Final = 1_000
_T = TypeVar("_T")
_RESULTS: Final = msgspec.msgpack.Decoder(BatchResult)


class DedicatedPlaces:
    """Places the dedicated identities of a cluster."""

    def __init__(
        self,
        shard_hosts: Membership,
        locks: Mapping[str, asyncio.Lock],
        hosts: Hosts,
        rules: DedicationRules,
        *,
        tasks: Tasks,
        on_change: Callable[[], None],
    ) -> None:
        """Begin without knowing any identity or host; see ``act``.

        Args:
            shard_hosts: the hosts of shards.
            locks: a shard does not move while its lock is held.
            hosts: finds the hosts of single identities.
            rules: when identities are dedicated.
            tasks: holds the steps under way.
            on_change: called when the published table has changed.
        """
        self._shard_hosts = shard_hosts
        self._locks = locks
        self._hosts = hosts
        self._rules = rules
        self._shard_of = rules.placement.partition_of
        self._load = DedicationLoad(rules)
        self._on_change = on_change
        self._tasks = tasks
        self._moving: set[str] = set()
        self.membership = Membership(hosts, self._moving, tasks, silent_s_max=rules.silent_s_max)
        """The hosts of single identities."""
        self._owners = self.membership.owners
        self._list = DedicationList(shard_hosts)
        self._returned: dict[str, str] = {}
        self._orders = DedicationOrders()
        self._returning: set[str] = set()
        self._lacked_room = False
        self._announced: frozenset[str] = frozenset()
        self._unwanted_since: dict[str, float] = {}
        self._now_s = float("-inf")

    def act(self, now_s: float) -> None:
        """Begin all steps that are due, after every host was asked."""
        self._now_s = now_s
        if self._list.is_due(now_s):
            _ = self._tasks.run(self._list.read(now_s))
        homeless: set[str] = set()
        self._orders.give_up_overdue(now_s)
        if self._list.was_read and self._shard_hosts.names():
            self._order_by_load()
            held = Counter(identity_of_host(name)[1] for name in self.membership.names())
            takers = self._takers()
            for did in sorted({*self._list.known, *self._orders} - self._moving):
                if not self._has_its_host(did, takers):
                    homeless.add(did)
                    self._find_host(did, takers, held)
                elif (by := self._orders.by(did)) is not None:
                    _ = self._begin(did, self._confirm(did, self._owners[did].host, by))
        self._clear_away(homeless)

    def shown_in(self, table: PlacementTable) -> PlacementTable:
        """The table, completed with the places of dedicated identities; the caller publishes it."""
        living = {host.name: host.node for host in self.membership.living()}
        self._announced = frozenset(living)
        # A returning identity is shown without an owner until the ids of its sessions are known.
        dids = sorted({*self._list.known, *self._returning})
        return msgspec.structs.replace(
            table,
            dedicated={did: self._owners.get(did) for did in dids} if self._list.was_read else None,
            dedicated_hosts=living,
            returned=dict(self._returned),
        )

    def places(self) -> list[IdentityPlace]:
        """The place of every dedicated identity."""
        found = []
        for did, reason in sorted(self._list.known.items()):
            owner = self._owners.get(did)
            host = None if owner is None else owner.host
            node = None if host is None else identity_of_host(host)[1]
            found.append(IdentityPlace(did, reason, host, node))
        return found

    async def dedicate(self, did: str) -> Placed:
        """Give an identity a host of its own, by an operator's order; wait until it is there."""
        return await self._refused_order(did) or await self._orders.take(
            did, _OPERATOR, self._now_s
        )

    async def release(self, did: str) -> Placed:
        """Give an identity back to its shard, by an operator's order; wait until it is there."""
        if not self._list.was_read:
            return Placed.DID_NOT_ANSWER
        if did in self._orders or did in self._moving:
            return Placed.MOVING_NOW
        if did not in self._list.known:
            return Placed.ALREADY_SO
        owner = self._owners.get(did)
        if owner is None:
            return Placed.MOVING_NOW
        return await self._begin(did, self._release(did, owner.host, _OPERATOR))

    @property
    def has_orders(self) -> bool:
        """Is an order not carried out yet?"""
        return any(self._orders)

    def give_up(self) -> None:
        """Answer the orders under way as not carried out, and later ones at once.

        Without the role of the placer ``act`` is called no more, which would carry them out.
        """
        self._orders.give_up()

    def _begin(self, did: str, step: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
        """Begin a step for an identity; no other step for it begins before this one ends."""
        self._moving.add(did)

        async def run() -> _T:
            try:
                return await step
            finally:
                self._moving.discard(did)
                self._on_change()

        return self._tasks.run(run())

    async def _dedicate_named(self, did: str) -> None:
        refused = await self._refused_order(did)
        if refused is None:
            _ = self._orders.take(did, _OPERATOR, self._now_s)
        elif refused is Placed.TOO_MANY and not self._lacked_room:
            self._lacked_room = True
            _LOG.warning(
                "limits.dedicated_max leaves no room for some of dedicated_dids: of this database"
                " %d identities may be dedicated",
                self._rules.identities_max,
            )

    async def _refused_order(self, did: str) -> Placed | None:
        """The reason to refuse an operator's order to dedicate an identity; None for none."""
        refused = self._refused_now(did)
        if refused is not None:
            return refused
        try:
            is_known = await self._owner_of(self._shard_of(did)).ask(IsKnown(did))
        except HostUnavailable:
            return Placed.DID_NOT_ANSWER
        # Another order may have been taken meanwhile.
        return self._refused_now(did) if is_known else Placed.NO_SUCH_IDENTITY

    def _refused_now(self, did: str) -> Placed | None:
        if not self._list.was_read:
            return Placed.DID_NOT_ANSWER
        if did in self._orders or did in self._moving:
            return Placed.MOVING_NOW
        if self._list.known.get(did) == _OPERATOR:
            return Placed.ALREADY_SO
        if did not in self._list.known and not self._has_room:
            return Placed.TOO_MANY
        return None

    @property
    def _has_room(self) -> bool:
        return len({*self._list.known, *self._orders}) < self._rules.identities_max

    def _owner_of(self, shard: str) -> OwnerPort:
        """The port of the owner of a shard. Raises: HostUnavailable."""
        owner = self._shard_hosts.owners.get(shard)
        if owner is None:
            raise HostUnavailable(shard)
        return self._shard_hosts.port(owner.host)

    def _order_by_load(self) -> None:
        """Order the dedications and releases that the settings and the command rates call for."""
        for did in self._load.named(self._list.known, self._now_s):
            _ = self._tasks.run(self._dedicate_named(did))
        for did in self._load.busy(self._shard_hosts.living(), self._now_s):
            is_new = did not in self._list.known and did not in self._orders
            if is_new and did not in self._moving and self._has_room:
                _ = self._orders.take(did, _LOAD, self._now_s)
        placed = {did: reason for did, reason in self._list.known.items() if did in self._owners}
        for did in self._load.quiet(placed, self.membership.living(), self._now_s):
            if did not in self._moving and did not in self._orders:
                host = self._owners[did].host
                _ = self._begin(did, self._release(did, host, _LOAD))

    def _has_its_host(self, did: str, takers: Collection[str]) -> bool:
        """Does this identity have a host on a node where it may stay?"""
        owner = self._owners.get(did)
        return owner is not None and (identity_of_host(owner.host)[1] in takers or not takers)

    def _find_host(self, did: str, takers: Mapping[str, str], held: Counter[str]) -> None:
        """Begin the next step towards a host for this identity, if there is one.

        ``takers``: see ``_takers``. ``held`` counts the hosts of identities by node; it is updated.
        """
        names = {node: dedicated_host_name(did, node) for node in takers}
        there = {node: name for node, name in names.items() if name in self.membership.names()}
        ready = [n for n in there.values() if self.membership.lives(n) and n in self._announced]
        if ready:
            _ = self._begin(did, self._carry(did, ready[0]))
        elif takers and all(map(self.membership.is_silent, there.values())):
            node = min(takers, key=lambda node: (node in there, held[node], node))
            held[node] += 1
            _ = self._begin(did, self._start(did, node, takers[node]))

    def _takers(self) -> dict[str, str]:
        """The nodes that can take an identity, each with a host of shards."""
        living = self._shard_hosts.living()
        hosts = [host for host in living if not host.draining] or living
        return {host.node: host.name for host in hosts}

    def _clear_away(self, homeless: set[str]) -> None:
        """Give identities back that are not dedicated, and end hosts that are not needed.

        Without hosts of shards none is needed. But after the database was away, hosts renew their
        rows one after the other: those of shards may follow within the time of a lease.
        """
        since, self._unwanted_since = self._unwanted_since, {}
        is_alone = not self._shard_hosts.names()
        late_s = self._rules.silent_s_max if is_alone else _LATE_S
        for name in self.membership.names():
            did, _ = identity_of_host(name)
            owner = self._owners.get(did)
            if did in self._moving or did in homeless:
                continue
            if not is_alone and (not self._list.was_read or did in self._orders):
                continue
            if not is_alone and owner is not None and owner.host == name:
                if did not in self._list.known:
                    _ = self._begin(did, self._return(did, name, None))
            elif self._now_s - since.get(name, self._now_s) >= late_s:
                _ = self._begin(did, self._end(name))
            else:
                self._unwanted_since[name] = since.get(name, self._now_s)

    async def _start(self, did: str, node: str, beside: str) -> None:
        """Have the host ``beside`` start a host for an identity on its node; wait until it lives.

        The next tick checks whether it does.
        """
        name = dedicated_host_name(did, node)
        try:
            async with asyncio.timeout(_START_S_MAX):
                await self._shard_hosts.port(beside).ask(StartDedicated(did))
                while name not in await self._hosts.names():  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(_LOOK_S)
        except (HostUnavailable, TimeoutError) as error:
            _LOG.warning("no dedicated host started on the node of %s: %s", beside, error)

    async def _end(self, name: str) -> None:
        """End a host; one that is unavailable has ended already."""
        with contextlib.suppress(HostUnavailable):
            await self.membership.port(name).ask(EndHost())

    async def _carry(self, did: str, to: str) -> None:
        """Move an identity to a host; after a failure the next tick tries again."""
        placed = Placed.DID_NOT_ANSWER
        owner = self._owners.get(did)
        try:
            if owner is None:
                async with self._locks[self._shard_of(did)]:
                    placed = await self._leave_shard(did, to)
            else:
                handover = await self.membership.release(owner.host, [did])
                await self._adopt(did, to, handover)
                placed = Placed.DONE
        except HostUnavailable as error:
            _LOG.warning("an identity has not moved to a dedicated host: %s", error)
        finally:
            self._orders.answer(did, placed)

    async def _leave_shard(self, did: str, to: str) -> Placed:
        """Move an identity from its shard to a host. Raises: HostUnavailable."""
        is_first = did not in self._list.known
        if is_first and (refused := await self._dedicate_in_log(did)) is not None:
            return refused
        await self._adopt(did, to, await self._handed_out(did, is_first=is_first))
        return Placed.DONE

    async def _adopt(self, did: str, to: str, handover: bytes | None) -> None:
        await self.membership.adopt(to, [did], handover)
        self._returned.pop(did, None)
        _LOG.info("an identity is now on a dedicated host on %s", identity_of_host(to)[1])

    async def _dedicate_in_log(self, did: str) -> Placed | None:
        """Record in the log that an identity is dedicated; return None, or the reason why not.

        Raises: HostUnavailable.
        """
        by, shard = self._orders.by(did), self._shard_of(did)
        if by is None:  # the order was overdue, and has been answered
            return Placed.DID_NOT_ANSWER
        reply = await self._ask(self._owner_of(shard), did, shard, DedicateIdentity(by))
        if isinstance(reply, Dedication):
            return None
        self._list.look_again()
        is_unknown = reply == Refused(Refusal.RECIPIENT_NOT_REGISTERED)
        return Placed.NO_SUCH_IDENTITY if is_unknown else Placed.DID_NOT_ANSWER

    async def _confirm(self, did: str, host: str, by: DedicationReason) -> None:
        """Record another reason for an identity that is dedicated already."""
        placed = Placed.DID_NOT_ANSWER
        try:
            reply = await self._ask(self.membership.port(host), did, did, DedicateIdentity(by))
            if isinstance(reply, Dedication):
                placed = Placed.DONE if reply.changed else Placed.ALREADY_SO
        except HostUnavailable as error:
            _LOG.warning("could not confirm an identity on its dedicated host: %s", error)
        finally:
            self._orders.answer(did, placed)

    async def _release(self, did: str, host: str, by: DedicationReason) -> Placed:
        """Record in the log that an identity belongs to its shard again, and give it back.

        The owner of the shard serves the identity only after it has taken over its sessions from
        the dedicated host: messages before that would be pushed to no edge.
        """
        shard = self._shard_of(did)
        async with self._locks[shard]:
            try:
                to = self._owner_of(shard)
                await to.ask(Expect(did))
                reply = await self._ask(self.membership.port(host), did, did, ReleaseIdentity(by))
            except HostUnavailable:
                return Placed.DID_NOT_ANSWER
            if not isinstance(reply, Dedication):
                return Placed.DID_NOT_ANSWER
            if reply.reason:
                return Placed.ALREADY_SO
            self._returning.add(did)
            await self._return(did, host, to)
            return Placed.DONE

    async def _return(self, did: str, host: str, to: OwnerPort | None) -> None:
        """Take an identity from its dedicated host, and hand its sessions to ``to``.

        If no owner of its shard expects it, messages may have come that were not pushed: its
        sessions start anew.
        """
        returned = ""
        self.membership.disown([did])
        try:
            handover = await self.membership.release(host, [did])
            if to is not None and await to.ask(TakeIn(did, self._shard_of(did), handover)):
                returned = Handover(handover).ids().get(did, "")
            _LOG.info("an identity is back in its shard")
        except HostUnavailable as error:
            _LOG.warning("the sessions of an identity were lost: %s", error)
        finally:
            self._returned[did] = returned
            self._returning.discard(did)
            self._load.released(did, self._now_s)
            if len(self._returned) > _RETURNED_MAX:
                del self._returned[next(iter(self._returned))]

    async def _handed_out(self, did: str, *, is_first: bool) -> bytes | None:
        """The handover of an identity by the owner of its shard; None if it may be incomplete.

        An empty handover is complete if the identity leaves its shard for the first time. Later it
        may mean that another host had sessions of the identity, and is gone.
        """
        shard = self._shard_of(did)
        try:
            handover = await self._owner_of(shard).ask(HandOut(did, shard))
        except HostUnavailable:
            return None
        return handover if handover and (is_first or Handover(handover).holds_anything()) else None

    async def _ask(self, port: OwnerPort, did: str, partition: str, command: Command) -> Reply:
        """Have a host decide a command on the dedication of an identity, and keep the result."""
        key = command_key(did, new_id())
        batch = msgspec.msgpack.encode([Submission(partition, did, key, command=command)])
        with self._list.changing():
            (reply,) = _RESULTS.decode(await port.submit(batch)).replies
        if isinstance(reply, Dedication):
            self._list.keep(did, reply.reason)
        return reply
