"""DIDComm agents and their envelopes in the plainest form: what every answer has to be.

Decentrl's messages wait in the same list: one order, one set of caps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from actors.core import commands as c
from actors.core import replies as r
from actors.core.limits import IdentityLimits
from actors.core.refusals import Refusal
from actors.core.submissions import Submission

HELD_BACK: Final = "held back"
LIMITS: Final = IdentityLimits(
    queue_messages_max=4,
    queue_bytes_max=50,
    queue_sender_share_max=0.6,
    contract_requests_max=3,
    contracts_max=4,
    saved_events_max=6,
    public_events_max=3,
    message_bytes_max=30,
    queue_age_s_max=680,
    contract_requests_age_s_max=690,
    expired_contracts_age_s_max=250,
    unregistered_age_s_max=350,
    idle_agents_age_s_max=600,
    public_events_age_s_max=680,
    keylist_keys_max=2,
    live_in_flight_max=2,
    leased_max=3,
)
ON_AGENTS: Final = (
    c.Connect
    | c.QueryConnection
    | c.UpdateKeylist
    | c.QueryKeylist
    | c.CheckKeys
    | c.QueueEnvelopes
    | c.QueryQueue
    | c.SetQueuePolicy
    | c.SetPushDevice
    | c.QueryPushDevice
    | c.DeliverMessages
    | c.RemoveMessages
    | c.StartLive
    | c.EndLive
    | c.Listen
)
NO_RULES: Final = r.QueuePolicy(True, 0, 0, 0, 0)


@dataclass
class Message:
    """A waiting message; ``key`` is None for one of Decentrl's."""

    message_id: str
    sender_did: str
    key: str | None
    payload: bytes
    at_ms: int
    version: int
    expires_s: float = 0
    is_v2: bool = False


@dataclass
class Agent:
    """What one identity has here as an agent; of a key or an invitation only who has it.

    ``speaker`` and ``account``: who speaks for it, and whose account it speaks for.
    """

    connection: c.Connection | None = None
    mediated: bool = False
    keylist: dict[str, int] = field(default_factory=dict)
    own_rules: r.QueuePolicy = NO_RULES
    device: c.PushDevice | None = None
    refusing: bool = False
    taken_by: str = ""
    claim: int = 0
    former: str = ""
    speaker: str = ""
    account: str = ""
    rotated_s: float = 0
    ended_s: float = 0
    given_up: list[str] = field(default_factory=list)
    spoke: list[str] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    version: int = 0
    added_ms: int = 0
    delivered_ms: int = 0
    removed_ms: int = 0
    seen_ms: int = 0

    @property
    def queue_bytes(self) -> int:
        return sum(len(m.payload) for m in self.messages)

    def has_room(
        self, size_bytes: int, rules: r.QueuePolicy, sender: str, key: str | None, others: int = 0
    ) -> bool:
        """Is there room for one more message, or for ``others`` with it, of so many bytes?"""
        fits = self.queue_bytes + size_bytes <= rules.bytes_max
        alike = [
            len(m.payload)
            for m in self.messages
            if m.key == key and (key is not None or m.sender_did == sender)
        ]
        share = LIMITS.queue_sender_share_max
        within = not (alike or others) or (
            len(alike) + others < share * LIMITS.queue_messages_max
            and sum(alike) + size_bytes <= share * LIMITS.queue_bytes_max
        )
        return fits and within and len(self.messages) + others < rules.messages_max

    def rules(self) -> r.QueuePolicy:
        """The owner's rules within the operator's bounds."""
        own = self.own_rules
        return r.QueuePolicy(
            own.will_queue,
            min(own.age_s_max or LIMITS.queue_age_s_max, LIMITS.queue_age_s_max),
            min(own.messages_max or LIMITS.queue_messages_max, LIMITS.queue_messages_max),
            min(own.message_bytes_max or LIMITS.message_bytes_max, LIMITS.message_bytes_max),
            min(own.bytes_max or LIMITS.queue_bytes_max, LIMITS.queue_bytes_max),
        )

    def add(self, message: Message) -> None:
        self.version += 1
        self.messages.append(message)
        self.added_ms = message.at_ms

    def remove(self, ids: list[str], now_ms: int) -> None:
        if ids:
            self.version += 1
            self.messages = [m for m in self.messages if m.message_id not in ids]
            self.removed_ms, self.refusing = now_ms, False

    def lapse(self, now_ms: int) -> None:
        """Remove what waited too long."""
        self.remove([m.message_id for m in self.lapsed(now_ms)], now_ms)

    def lapsed(self, now_ms: int) -> list[Message]:
        """What waited too long: the owner's rule is for envelopes alone."""
        bound_ms, own_ms = LIMITS.queue_age_s_max * 1000, self.rules().age_s_max * 1000
        old = [
            m
            for m in self.messages
            if now_ms - m.at_ms > (bound_ms if m.key is None else min(bound_ms, own_ms))
        ]
        over = [m for m in self.messages if 0 < m.expires_s <= now_ms / 1000]
        return [*old, *(m for m in over if m not in old)]


class Live(NamedTuple):
    """Who is live, since which version and with what out; how much is leased as it is queued."""

    session: str
    since: int
    lease_ms: int = 0
    bytes_max: int = 0
    leased: frozenset[str] = frozenset()


@dataclass
class HostMemory:
    """What a host keeps in memory: leases by message, who is live or to be, and who listens."""

    leases: dict[str, tuple[str, int]] = field(default_factory=dict)
    live: dict[str, Live] = field(default_factory=dict)
    starting: dict[str, Live] = field(default_factory=dict)
    implicit: dict[str, str] = field(default_factory=dict)
    listening: set[str] = field(default_factory=set)
    granted: set[str] = field(default_factory=set)

    def end_leases(self, now_ms: int) -> None:
        self.leases = {i: held for i, held in self.leases.items() if held[1] > now_ms}

    def follow(  # noqa: C901 - one arm per command
        self, request: Submission, reply: r.Reply, envelopes: list[Message]
    ) -> None:
        """What an accepted command about sessions does after its transaction."""
        did, own = request.target_did, {m.message_id for m in envelopes}
        match request.command:
            case c.CloseSession():
                self.listening.discard(did)
                self.end_handing_out(did)
            case _ if isinstance(reply, r.Refused):
                pass
            case c.OpenSession():
                self.listening.add(did)
            case c.Listen(_, session):
                self.listening.add(did)
                if session:
                    self._release(self.implicit.get(did, session), own, but=session)
                    self.implicit[did] = session
            case c.StartLive(_, session) if isinstance(reply, r.QueueState):
                self.listening.add(did)
                self._ask_live(did, session, reply.version)
            case c.RotateAccount() | c.EndAccount():
                self.end_handing_out(did)
            case c.ExpireRecords() if isinstance(reply, r.Expired) and reply.agents:
                self.end_handing_out(did)
            case c.EndLive(session) | c.ReleaseLeases(session):
                self._end_live(did, session)
                if isinstance(request.command, c.ReleaseLeases):
                    if self.implicit.get(did) == session:
                        del self.implicit[did]
                    self._release(session, own)
            case c.DeliverMessages(session) as fetch if not fetch.implicit:
                if self.implicit.get(did) == session:
                    del self.implicit[did]
            case _:
                pass

    def end_handing_out(self, did: str) -> None:
        for sessions in (self.live, self.starting, self.implicit):
            sessions.pop(did, None)

    def _ask_live(self, did: str, session: str, version: int) -> None:
        others = self._others(did, session)
        out = {i for i, held in self.leases.items() if held[0] not in others}
        self.starting[did] = Live(session, version, leased=frozenset(out))
        if self.live_of(did) == session:
            self.starting[did] = self.live[did]

    def hand_out(self, did: str, fetch: c.DeliverMessages, ids: set[str], now_ms: int) -> None:
        self.leases |= dict.fromkeys(ids, (fetch.session, now_ms + fetch.lease_ms))
        self.granted |= ids
        for modes in () if fetch.live else (self.live, self.starting):
            if did in modes:
                modes[did] = modes[did]._replace(leased=modes[did].leased | ids)

    def _end_live(self, did: str, session: str) -> None:
        for modes in (self.live, self.starting):
            if did in modes and modes[did].session == session:
                del modes[did]

    def start_live(self, did: str, fetch: c.DeliverMessages, envelopes: list[Message]) -> None:
        """The first fetch of the session that asked for live mode takes it."""
        mode = self.starting.get(did)
        if mode is not None and mode.session == fetch.session:
            self.replace(did, envelopes)
            del self.starting[did]
            self.live[did] = mode._replace(lease_ms=fetch.lease_ms, bytes_max=fetch.bytes_max)

    def replace(self, did: str, envelopes: list[Message]) -> None:
        """Who hands out beside the session that asked for live mode loses what it holds."""
        for other in self._others(did, self.starting[did].session):
            self._release(other, {m.message_id for m in envelopes})
        self.live.pop(did, None)
        self.implicit.pop(did, None)

    def _others(self, did: str, session: str) -> set[str]:
        return {self.live_of(did), self.implicit.get(did, "")} - {session, ""}

    def has_moved(self, did: str, command: c.DeliverMessages) -> bool:
        """Does another session hold what the one that fetches thinks to hold?"""
        is_elsewhere = command.live and self.live_of(did) != command.session
        others = self._others(did, command.session) if command.implicit else set()
        return is_elsewhere or (bool(others) and self.implicit.get(did) != command.session)

    def live_of(self, did: str) -> str:
        return self.live[did].session if did in self.live else ""

    def _release(self, session: str, own: set[str], *, but: str = "") -> None:
        ended = {i for i in own if session != but and self.leases.get(i, ("", 0))[0] == session}
        self.leases = {i: held for i, held in self.leases.items() if i not in ended}


def on_a_key_or_a_queue(  # noqa: C901 - one arm per command
    agent: Agent, command: c.Command, now_ms: int
) -> r.Reply | Refusal | None:
    """What needs no connection; None for another command."""
    match command:
        case c.UseInvitation(by):
            if agent.taken_by not in ("", by):
                return Refusal.INVITATION_USED
            agent.version += not agent.taken_by
            agent.taken_by = by
        case c.ClaimKey(by, holds_key):
            if agent.taken_by not in ("", by):
                if not holds_key:
                    return Refusal.KEY_TAKEN
                agent.former = agent.taken_by
            agent.version += 1
            before, agent.taken_by, agent.claim = agent.taken_by, by, agent.version
            return r.KeyClaim(agent.claim, agent.former, before == by)
        case c.ReleaseKey(by, claim) if by == agent.taken_by:
            if claim != agent.claim:
                return Refusal.KEY_TAKEN
            agent.version, agent.taken_by, agent.former = agent.version + 1, "", ""
        case c.FindKeyOwner():
            owner = r.KeyOwner(agent.taken_by, agent.claim)
            return owner if owner.owner_did else Refusal.KEY_UNKNOWN
        case c.PurgeQueue():
            agent.remove(gone := [m.message_id for m in agent.messages], now_ms)
            return r.Purged(len(gone))
        case c.ReleaseKey() | c.ReleaseLeases():
            pass
        case _:
            return None
    return r.Done()


def on_an_agent(  # noqa: C901 - one arm per command
    did: str, agent: Agent, held: HostMemory, command: c.Command, now_ms: int, new: str
) -> r.Reply | Refusal:
    """The commands of ``ON_AGENTS``."""
    if isinstance(command, c.Connect):
        agent.version += command.connection != agent.connection
        agent.connection = command.connection
        return r.Done()
    if agent.connection is None:
        is_forward = isinstance(command, c.QueueEnvelopes) and command.recipient_key != ""
        return Refusal.KEY_UNKNOWN if is_forward else Refusal.NOT_CONNECTED
    match command:
        case c.QueryConnection():
            return r.Connected(agent.connection, agent.mediated, list(agent.given_up[-4:]))
        case c.UpdateKeylist() | c.QueryKeylist() | c.CheckKeys():
            return _keylist(agent, command) if agent.mediated else Refusal.NOT_MEDIATED
        case c.QueueEnvelopes():
            return _queue(did, agent, held, command, now_ms, new)
        case c.QueryQueue(key):
            return _standing(did, agent, held, key)
        case c.SetQueuePolicy():
            own = agent.own_rules
            agent.own_rules = r.QueuePolicy(
                *[
                    getattr(own if getattr(command, name) is None else command, name)
                    for name in own.__struct_fields__
                ]
            )
            if agent.own_rules != own:
                agent.version += 1
                agent.refusing = False
            return _standing(did, agent, held)
        case c.SetPushDevice() | c.QueryPushDevice():
            return _device(agent, command)
        case c.DeliverMessages():
            return _deliver(did, agent, held, command, now_ms)
        case c.RemoveMessages(ids):
            own_ids = [m.message_id for m in agent.messages if m.key is not None]
            agent.remove([i for i in own_ids if i in ids], now_ms)
            return _standing(did, agent, held)
        case c.StartLive():
            return _standing(did, agent, held, is_live=True)
        case c.EndLive(session):
            is_live = held.live_of(did) not in ("", session)
            return _standing(did, agent, held, is_live=is_live)
        case c.Listen():
            pass
        case _:
            raise AssertionError(command)
    return r.Done()


def _device(agent: Agent, command: c.SetPushDevice | c.QueryPushDevice) -> r.Reply:
    token = agent.device.token if agent.device else ""
    if isinstance(command, c.SetPushDevice) and command.instead_of in (None, token):
        agent.version += command.device != agent.device
        agent.device = command.device
    return r.PushDeviceFound(agent.device)


def _keylist(
    agent: Agent, command: c.UpdateKeylist | c.QueryKeylist | c.CheckKeys
) -> r.Reply | Refusal:
    keys = agent.keylist
    if isinstance(command, c.QueryKeylist):
        return r.KeylistPart([*keys][command.offset :][: command.limit], len(keys))
    if isinstance(command, c.CheckKeys):
        known = [key for key in command.keys if key in keys]
        return r.KeysKnown(known, len(keys), [keys[key] for key in known])
    removed = {k: claim for k, claim in keys.items() if k in command.remove}
    newer = {k.key: k.claim for k in command.add if k.claim > keys.get(k.key, 0)}
    added = [k for k in newer if k not in keys]
    if added and len(keys) - len(removed) + len(added) > LIMITS.keylist_keys_max:
        return Refusal.QUOTA_EXCEEDED
    agent.version += bool(newer or removed)
    agent.keylist = {k: claim for k, claim in keys.items() if k not in removed} | newer
    gone = [c.ClaimedKey(k, removed[k]) for k in dict.fromkeys(command.remove) if k in removed]
    return r.KeylistChanged(added, gone)


def _queue(
    did: str, agent: Agent, held: HostMemory, command: c.QueueEnvelopes, now_ms: int, new: str
) -> r.Reply | Refusal:
    key, payloads, rules = command.recipient_key, command.payloads, agent.rules()
    if key and key not in agent.keylist:
        return Refusal.KEY_UNKNOWN
    if 0 < command.expires_at_s <= now_ms / 1000:
        return Refusal.MESSAGE_EXPIRED
    sizes = [len(payload) for payload in payloads]
    refusal = None
    if not rules.will_queue and did not in held.listening:
        refusal = Refusal.NOT_QUEUING
    if not agent.has_room(sum(sizes), rules, "", key, len(sizes) - 1):
        refusal = Refusal.RECIPIENT_QUEUE_FULL
    if max(sizes) > rules.message_bytes_max:
        refusal = Refusal.MESSAGE_TOO_LARGE
    if refusal is not None:
        agent.version += not agent.refusing
        agent.refusing = True
        return refusal
    assert agent.connection is not None
    live = held.live.get(did)
    goes_live = live is not None and _is_next(agent, held, live, sizes[0])
    ids = [f"{new}.{number}" for number in range(len(sizes))] if len(sizes) > 1 else [new]
    for message_id, payload in zip(ids, payloads, strict=True):
        queued = Message(message_id, "", key, payload, now_ms, agent.version + 1)
        queued.expires_s, queued.is_v2 = command.expires_at_s, command.generation == 2
        agent.add(queued)
    agent.version += command.expires_at_s > 0
    lease = (HELD_BACK, now_ms + command.delay_ms) if command.delay_ms else None
    if live is not None and goes_live and lease is None and len(ids) == 1:
        agent.version += 1
        agent.delivered_ms = now_ms
        lease = (live.session, now_ms + live.lease_ms)
    if lease is not None:
        held.leases |= dict.fromkeys(ids, lease)
        held.granted |= set(ids)
    return r.EnvelopeQueued(ids[-1], bool(agent.connection.endpoint), agent.device is not None)


def _is_next(agent: Agent, held: HostMemory, live: Live, size_bytes: int) -> bool:
    """Has the live session nothing else to fetch first, and room for one more?"""
    envelopes = [m for m in agent.messages if m.key is not None]
    leased = [m for m in envelopes if m.message_id in held.leases]
    own = [m for m in leased if held.leases[m.message_id][0] == live.session]
    handed_out = [m for m in leased if held.leases[m.message_id][0] != HELD_BACK]
    is_behind = [m for m in envelopes[-1:] if m not in leased and m.version > live.since]
    is_many = len(own) >= LIMITS.live_in_flight_max or len(handed_out) >= LIMITS.leased_max
    is_large = sum(len(m.payload) for m in own) + size_bytes > live.bytes_max
    return bool(live.lease_ms) and not (is_behind or is_many or (own and is_large))


def _deliver(
    did: str, agent: Agent, held: HostMemory, command: c.DeliverMessages, now_ms: int
) -> r.Reply | Refusal:
    limit, key = command.limit, command.recipient_key
    waiting = {m.message_id: m for m in agent.messages if m.key is not None}
    if held.has_moved(did, command):
        return Refusal.LIVE_ELSEWHERE
    if command.live:
        in_flight = [i for i in waiting if held.leases.get(i, ("", 0))[0] == command.session]
        limit = min(limit, LIMITS.live_in_flight_max - len(in_flight))
    if command.lease_ms and command.message_ids is None:
        handed_out = [i for i in waiting if held.leases.get(i, (HELD_BACK, 0))[0] != HELD_BACK]
        limit = min(limit, LIMITS.leased_max - len(handed_out))
    if command.message_ids is None:
        out = held.live[did].leased if command.live else frozenset()
        offered = [
            m
            for i, m in waiting.items()
            if i not in held.leases and (m.version > command.after_version or i in out)
        ]
    else:
        named = [i for i in dict.fromkeys(command.message_ids) if i in waiting]
        own = {i for i in named if held.leases.get(i, (command.session, 0))[0] == command.session}
        offered = [waiting[i] for i in named if not command.lease_ms or i in own]
    offered = [m for m in offered if key in (None, m.key)]
    taken: list[Message] = []
    for message in offered[: max(0, limit)]:
        size_bytes = sum(len(m.payload) for m in [*taken, message])
        if taken and size_bytes > command.bytes_max:
            break
        taken.append(message)
    if len(taken) == len(offered) < command.at_least:
        taken = []
    if taken and command.lease_ms:
        agent.version += 1
        agent.delivered_ms = now_ms
        held.hand_out(did, command, {m.message_id for m in taken}, now_ms)
    delivered = [r.DeliveredMessage(m.message_id, m.key or "", m.payload, m.at_ms) for m in taken]
    return r.Delivery(delivered, _standing(did, agent, held, key))


def _standing(
    did: str, agent: Agent, held: HostMemory, key: str | None = None, *, is_live: bool | None = None
) -> r.QueueState:
    counted = [m for m in agent.messages if m.key is not None and key in (None, m.key)]
    return r.QueueState(
        messages=len(counted),
        bytes=sum(len(m.payload) for m in counted),
        available=sum(m.message_id not in held.leases for m in counted),
        oldest_ms=counted[0].at_ms if counted else 0,
        newest_ms=counted[-1].at_ms if counted else 0,
        last_added_ms=agent.added_ms,
        last_delivered_ms=agent.delivered_ms,
        last_removed_ms=agent.removed_ms,
        policy=agent.rules(),
        live=did in held.live if is_live is None else is_live,
        version=agent.version,
        held_back=sum(held.leases.get(m.message_id, ("", 0))[0] == HELD_BACK for m in counted),
    )
