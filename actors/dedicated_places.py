"""Where dedicated identities are: each on a host of its own, as the log and the load want it.

Which identities are dedicated stands in the log. Everything else is found out as for shards: who
lives from Ray's names, who owns what from the hosts. So a placer may die between any two steps:
the next one reads who is dedicated, asks the hosts and does what is left to do. An identity that
is dedicated and has no host gets one; a host of an identity that is not dedicated gives it back and
is ended.

A host is started, and edges have heard of it, before an identity moves to it: what waits meanwhile
waits for two commits, not for a process.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import msgspec

from actors.clock import NewId
from actors.commands import Command, DedicateIdentity, ReleaseIdentity, Submission, Wish
from actors.dedication_list import DedicationList
from actors.dedication_rules import DedicationLoad, Rules
from actors.host_port import HostUnavailable, OwnerPort
from actors.partitions import database_of_host, database_of_shard, of_own_host, shard_of
from actors.placement_table import HostHolds, Owner
from actors.placer_port import IdentityPlace, Placed
from actors.presence import Handover
from actors.refusals import Refusal
from actors.replies import BatchResult, Dedication, Refused, Reply
from actors.roster import Hosts, Roster
from eventstore.seal import command_key

_T = TypeVar("_T")
_LOG = logging.getLogger(__name__)
_LATE_S: Final = 2.0
"""A host that is not needed any more answers for so long, so that what is on its way to it is sent
to the next owner."""
_ORDER_S_MAX: Final = 30.0
_RETURNED_MAX: Final = 1_000
_RESULTS: Final = msgspec.msgpack.Decoder(BatchResult)


class OwnHosts(Hosts, Protocol):
    """Where hosts of single identities are found, started and ended."""

    async def start(self, did: str, beside: str) -> None:
        """Start one for an identity on the node of the host ``beside``, if there is none there.

        Raises:
            HostUnavailable: it may be started all the same.
        """

    async def end(self, name: str) -> None:
        """End it; one that is not there is ended already."""


class Shards(NamedTuple):
    """Where shards are, at any moment: their hosts and owners.

    A shard does not move while its lock is held.
    """

    roster: Roster
    owners: Mapping[str, Owner]
    locks: Mapping[str, asyncio.Lock]


class _Order(msgspec.Struct):
    by: Wish
    since_s: float
    done: asyncio.Future[Placed]


class DedicatedPlaces:
    """Places the dedicated identities of a cluster."""

    def __init__(
        self,
        shards: Shards,
        hosts: OwnHosts,
        rules: Rules,
        *,
        new_id: NewId,
        on_change: Callable[[], None],
    ) -> None:
        """Nothing is known yet.

        Args:
            shards: where shards are.
            hosts: where hosts of single identities are found.
            rules: when identities are dedicated.
            new_id: makes the ids of commands.
            on_change: called when edges have to hear of something.
        """
        self._shard_hosts = shards.roster
        self._shard_owners = shards.owners
        self._locks = shards.locks
        self._hosts = hosts
        self._rules = rules
        self._load = DedicationLoad(rules)
        self._new_id = new_id
        self._on_change = on_change
        self._roster = Roster(hosts, self._heed, silent_s_max=rules.silent_s_max)
        self._list = DedicationList(shards.roster, rules.databases)
        self._owners: dict[str, Owner] = {}
        self._returned: dict[str, str] = {}
        self._orders: dict[str, _Order] = {}
        self._moving: set[str] = set()
        self._homeless: set[str] = set()
        self._announced: frozenset[str] = frozenset()
        self._unwanted_since: dict[str, float] = {}
        self._now_s = float("-inf")
        self._looking: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def ask(self, now_s: float) -> None:
        """Ask every host of a single identity what it owns. Raises: HostUnavailable."""
        self._now_s = now_s
        await self._roster.ask(now_s)

    def act(self) -> None:
        """Begin whatever is due, now that everybody was asked."""
        for did in [d for d, o in self._owners.items() if not self._roster.lives(o.host)]:
            if did not in self._moving:
                del self._owners[did]
        self._look()
        self._homeless = set()
        for did, order in list(self._orders.items()):
            if self._now_s - order.since_s > _ORDER_S_MAX:
                self._answer(did, Placed.DID_NOT_ANSWER)
        if self._known is not None and not self._shard_hosts.is_empty:
            self._heed_load(self._known)
            held = Counter(of_own_host(name)[1] for name in self._roster.names())
            for did in sorted({*self._known, *self._orders} - self._moving):
                self._place(did, held)
        self._clear_away()

    def announced(self) -> Mapping[str, str]:
        """The hosts that live, with their nodes: whoever asks tells the edges."""
        living = {host.name: host.node for host in self._roster.living()}
        self._announced = frozenset(living)
        return living

    def owners(self) -> dict[str, Owner | None] | None:
        """The dedicated identities and their owners; None as long as nobody has looked."""
        if self._known is None:
            return None
        return {did: self._owners.get(did) for did in sorted(self._known)}

    def returned(self) -> dict[str, str]:
        """The ids of the sessions of identities that went back to their shards."""
        return dict(self._returned)

    def places(self) -> list[IdentityPlace]:
        """Where every dedicated identity is."""
        found = []
        for did, reason in sorted((self._known or {}).items()):
            owner = self._owners.get(did)
            host = None if owner is None else owner.host
            node = None if host is None else of_own_host(host)[1]
            found.append(IdentityPlace(did, reason, host, node))
        return found

    async def dedicate(self, did: str) -> Placed:
        """Give an identity a host of its own, as an operator wishes; wait for it."""
        if self._known is None:
            return Placed.DID_NOT_ANSWER
        if did in self._orders or did in self._moving:
            return Placed.MOVING_NOW
        if self._known.get(did) == Wish.OPERATOR:
            return Placed.ALREADY_SO
        if did not in self._known and not self._has_room:
            return Placed.TOO_MANY
        try:
            if not await self._owner_of(self._shard_of(did)).knows(did):
                return Placed.NO_SUCH_IDENTITY
        except HostUnavailable:
            return Placed.DID_NOT_ANSWER
        return await self._order(did, Wish.OPERATOR).done

    async def release(self, did: str) -> Placed:
        """Give an identity back to its shard, as an operator wishes; wait for it."""
        if self._known is None:
            return Placed.DID_NOT_ANSWER
        if did in self._orders or did in self._moving:
            return Placed.MOVING_NOW
        if did not in self._known:
            return Placed.ALREADY_SO
        owner = self._owners.get(did)
        if owner is None:
            return Placed.MOVING_NOW
        return await self._begin(did, self._release(did, owner.host, Wish.OPERATOR))

    async def close(self) -> None:
        """Wait for what is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    @property
    def _has_room(self) -> bool:
        return len({*(self._known or ()), *self._orders}) < self._rules.identities_max

    def _owner_of(self, shard: str) -> OwnerPort:
        """The way to the owner of a shard. Raises: HostUnavailable."""
        owner = self._shard_owners.get(shard)
        if owner is None:
            raise HostUnavailable(shard)
        return self._shard_hosts.port(owner.host)

    def _shard_of(self, did: str) -> str:
        return shard_of(did, self._rules.shards)

    def _heed(self, said: HostHolds) -> None:
        """Take over what a host says that it owns."""
        did, _ = of_own_host(said.name)
        if did in self._moving:
            return
        owner, sessions = self._owners.get(did), said.shards.get(did)
        is_its_own = owner is not None and owner.host == said.name
        if sessions is None:
            if is_its_own:
                del self._owners[did]
        elif owner is None or is_its_own or not self._roster.lives(owner.host):
            self._owners[did] = Owner(said.name, sessions)
        else:
            _LOG.warning("a host has lost its identity and does not know it")
            _ = self._begin(did, self._forget(said.name, did))

    def _look(self) -> None:
        is_looking = self._looking is not None and not self._looking.done()
        if not is_looking and self._list.is_due(self._now_s):
            self._looking = self._do(self._read_list())

    async def _read_list(self) -> None:
        if await self._list.read(self._now_s):
            self._on_change()

    @property
    def _known(self) -> dict[str, str] | None:
        """Who is dedicated and why, as the log says; None as long as nobody has looked."""
        return self._list.known

    def _heed_load(self, known: Mapping[str, str]) -> None:
        """Order what the rates of commands call for."""
        for did in self._load.busy(self._shard_hosts.said(), self._now_s):
            is_new = did not in known and did not in self._orders and did not in self._moving
            if is_new and self._has_room:
                self._order(did, Wish.LOAD)
        placed = {did: reason for did, reason in known.items() if did in self._owners}
        for did in self._load.quiet(placed, self._roster.said(), self._now_s):
            if did not in self._moving and did not in self._orders:
                host = self._owners[did].host
                _ = self._begin(did, self._release(did, host, Wish.LOAD))

    def _place(self, did: str, held: Counter[str]) -> None:
        """Begin the next step towards a host for this identity, if there is any to be done.

        ``held`` counts the hosts of identities by node, and is kept up.
        """
        takers = self._takers(did)
        owner = self._owners.get(did)
        if owner is not None and (of_own_host(owner.host)[1] in takers or not takers):
            if did in self._orders:
                _ = self._begin(did, self._confirm(did, owner.host))
            return
        self._homeless.add(did)
        mine = [name for name in self._roster.names() if of_own_host(name)[0] == did]
        there = [name for name in mine if of_own_host(name)[1] in takers]
        ready = [n for n in there if self._roster.lives(n) and n in self._announced]
        if ready:
            _ = self._begin(did, self._carry(did, ready[0]))
        elif takers and all(map(self._roster.is_silent, there)):
            silent = {of_own_host(name)[1] for name in there}
            node = min(takers, key=lambda name: (name in silent, held[name], name))
            held[node] += 1
            _ = self._begin(did, self._start(did, takers[node]))

    def _takers(self, did: str) -> dict[str, str]:
        """The nodes that can take an identity, each with a host there that works on its log."""
        database = database_of_shard(self._shard_of(did), self._rules.databases)
        hosts = [h for h in self._shard_hosts.living() if self._database_of(h.name) == database]
        hosts = [host for host in hosts if not host.draining] or hosts
        return {host.node: host.name for host in hosts}

    def _database_of(self, host: str) -> int:
        return database_of_host(host, self._rules.databases)

    def _clear_away(self) -> None:
        """Give back what is not dedicated, and end hosts that nobody needs."""
        for name in list(self._unwanted_since):
            if name not in self._roster.names():
                del self._unwanted_since[name]
        for name in self._roster.names():
            did, _ = of_own_host(name)
            owner = self._owners.get(did)
            if did in self._moving or did in self._homeless:
                self._unwanted_since.pop(name, None)
            elif self._shard_hosts.is_empty:
                _ = self._begin(did, self._end(name))
            elif self._known is None or did in self._orders:
                continue
            elif did in self._known and (owner is None or owner.host == name):
                self._unwanted_since.pop(name, None)
            elif did not in self._known and owner is not None and owner.host == name:
                _ = self._begin(did, self._return(did, name, None))
            elif self._now_s - self._unwanted_since.setdefault(name, self._now_s) >= _LATE_S:
                _ = self._begin(did, self._end(name))

    def _order(self, did: str, by: Wish) -> _Order:
        done: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        order = self._orders[did] = _Order(by, self._now_s, done)
        return order

    def _answer(self, did: str, placed: Placed) -> None:
        order = self._orders.pop(did, None)
        if order is not None and not order.done.done():
            order.done.set_result(placed)

    async def _start(self, did: str, beside: str) -> None:
        try:
            await self._hosts.start(did, beside)
        except HostUnavailable as error:
            _LOG.warning("no host started beside %s: %s", beside, error)

    async def _carry(self, did: str, to: str) -> None:
        """Move an identity to a host; whatever fails is looked at afresh in the next tick."""
        placed = Placed.DID_NOT_ANSWER
        owner = self._owners.get(did)
        try:
            if owner is None:
                async with self._locks[self._shard_of(did)]:
                    placed = await self._leave_shard(did, to)
            else:
                handover = await self._roster.step(owner.host).release([did])
                del self._owners[did]
                await self._adopt(did, to, handover)
                placed = Placed.DONE
        except HostUnavailable as error:
            _LOG.warning("an identity has not moved to a host of its own: %s", error)
        finally:
            self._roster.stepped([None if owner is None else owner.host, to])
            self._answer(did, placed)

    async def _leave_shard(self, did: str, to: str) -> Placed:
        """Move an identity from its shard to a host. Raises: HostUnavailable."""
        is_first = self._known is not None and did not in self._known
        refused = await self._refused(did)
        if refused is not None:
            return refused
        await self._adopt(did, to, await self._handed_out(did, is_first=is_first))
        return Placed.DONE

    async def _adopt(self, did: str, to: str, handover: bytes | None) -> None:
        sessions = await self._roster.step(to).adopt([did], handover)
        self._owners[did] = Owner(to, sessions[did])
        self._returned.pop(did, None)
        _LOG.info("an identity is now on a host of its own on %s", of_own_host(to)[1])

    async def _refused(self, did: str) -> Placed | None:
        """Let the log say that an identity is dedicated, if it does not yet; why it does not."""
        assert self._known is not None
        if did in self._known:
            return None
        by, shard = self._orders[did].by, self._shard_of(did)
        port = self._owner_of(shard)
        reply = await self._ask(port, did, shard, DedicateIdentity(by))
        if isinstance(reply, Dedication):
            self._known[did] = reply.reason
            return None
        self._list.look_again()
        is_unknown = reply == Refused(Refusal.RECIPIENT_NOT_REGISTERED)
        return Placed.NO_SUCH_IDENTITY if is_unknown else Placed.DID_NOT_ANSWER

    async def _confirm(self, did: str, host: str) -> None:
        """Tell an identity that is dedicated already who wants it, too."""
        placed, by = Placed.DID_NOT_ANSWER, self._orders[did].by
        try:
            reply = await self._ask(self._roster.step(host), did, did, DedicateIdentity(by))
            if isinstance(reply, Dedication) and self._known is not None:
                self._known[did] = reply.reason
                placed = Placed.DONE if reply.changed else Placed.ALREADY_SO
        except HostUnavailable as error:
            _LOG.warning("an identity was not told to stay on its own: %s", error)
        finally:
            self._answer(did, placed)

    async def _release(self, did: str, host: str, by: Wish) -> Placed:
        """Let the log say that an identity is of its shard again, and give it back.

        The owner of the shard serves it only when it has what the identity had on its own host:
        what came before would be pushed to nobody.
        """
        shard = self._shard_of(did)
        async with self._locks[shard]:
            try:
                to = self._owner_of(shard)
                await to.expect(did)
                reply = await self._ask(self._roster.step(host), did, did, ReleaseIdentity(by))
            except HostUnavailable:
                return Placed.DID_NOT_ANSWER
            if not isinstance(reply, Dedication) or self._known is None:
                return Placed.DID_NOT_ANSWER
            if reply.reason:
                self._known[did] = reply.reason
                return Placed.ALREADY_SO
            self._known.pop(did, None)
            await self._return(did, host, to)
            return Placed.DONE

    async def _return(self, did: str, host: str, to: OwnerPort | None) -> None:
        """Take an identity from its own host; hand what it had there to the one that expects it.

        Where nobody does, something may have come already that was not pushed: it starts anew.
        """
        returned = ""
        self._owners.pop(did, None)
        try:
            handover = await self._roster.step(host).release([did])
            if to is not None and await to.take_in(did, self._shard_of(did), handover):
                returned = Handover(handover).ids().get(did, "")
            _LOG.info("an identity is with its shard again")
        except HostUnavailable as error:
            _LOG.warning("the sessions of an identity are lost: %s", error)
        finally:
            self._roster.stepped([host])
            self._returned[did] = returned
            self._load.released(did, self._now_s)
            if len(self._returned) > _RETURNED_MAX:
                del self._returned[next(iter(self._returned))]

    async def _handed_out(self, did: str, *, is_first: bool) -> bytes | None:
        """What the owner of the shard has of the identity; None if that cannot be all.

        Where it has just left its shard, nothing means that there was nothing. Later it means that
        another host may have had something, and is gone.
        """
        shard = self._shard_of(did)
        try:
            handover = await self._owner_of(shard).hand_out(did, shard)
        except HostUnavailable:
            return None
        return handover if handover and (is_first or Handover(handover).holds_anything()) else None

    async def _forget(self, name: str, did: str) -> None:
        try:
            await self._roster.step(name).release([did])
        except HostUnavailable as error:
            _LOG.warning("a host was not told what it has lost: %s", error)
        self._roster.stepped([name])

    async def _end(self, name: str) -> None:
        await self._hosts.end(name)

    async def _ask(self, port: OwnerPort, did: str, partition: str, command: Command) -> Reply:
        key = command_key(did, self._new_id())
        batch = msgspec.msgpack.encode([Submission(partition, did, key, command=command)])
        self._list.changes()
        try:
            result = _RESULTS.decode(await port.submit(batch))
        finally:
            self._list.changes()
        return result.replies[0]

    def _begin(self, did: str, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        """Begin a step for an identity; until it is over nothing else is done with it."""
        self._moving.add(did)
        self._list.changes()

        async def step() -> _T:
            try:
                return await work
            finally:
                self._moving.discard(did)
                self._list.changes()
                self._on_change()

        return self._do(step())

    def _do(self, work: Coroutine[Any, Any, _T]) -> asyncio.Task[_T]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
