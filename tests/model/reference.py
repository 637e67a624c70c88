"""A mediator of a few identities in its plainest form: what every answer has to be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from actors.core import commands as c
from actors.core import replies as r
from actors.core.refusals import Refusal
from actors.core.submissions import Submission
from eventstore.log.event_log import PublicEvent, PublicEventsFilter, SavedEvent, SavedEventsFilter
from eventstore.log.events import Seconds
from tests.model import idle_reference as idle
from tests.model.accounts_reference import (
    ON_ACCOUNTS,
    against_the_speaker,
    grant,
    on_an_account,
)
from tests.model.agents_reference import (
    LIMITS,
    ON_AGENTS,
    Agent,
    HostMemory,
    Message,
    on_a_key_or_a_queue,
    on_an_agent,
)

BY_SPEAKERS = (
    c.Connect
    | c.QueryConnection
    | c.GrantMediation
    | c.UpdateKeylist
    | c.QueryKeylist
    | c.CheckKeys
    | c.QueryQueue
    | c.SetQueuePolicy
    | c.SetPushDevice
    | c.QueryPushDevice
    | c.DeliverMessages
    | c.RemoveMessages
    | c.StartLive
    | c.EndLive
    | c.Listen
    | c.SeeAgent
)
_ASKED_BY_OTHERS = c.QueueMessage | c.RequestContract | c.StoreContract | c.CheckRegistered
_ADDED_BY_ITSELF = c.SaveContract | c.SaveEvents | c.UpdateEventTags | c.PublishPublicEvent


@dataclass
class Saved:
    event_id: str
    event: c.NewSavedEvent
    tags: list[str]
    processed: bool


@dataclass
class Box(Agent):
    """What one identity has here, in arrival order."""

    until_s: Seconds = 0
    requests: list[r.WaitingContractRequest] = field(default_factory=list)
    requested_ms: dict[str, int] = field(default_factory=dict)
    contracts: list[tuple[str, c.Contract]] = field(default_factory=list)
    saved: list[Saved] = field(default_factory=list)
    public: list[PublicEvent] = field(default_factory=list)
    published_ms: dict[str, int] = field(default_factory=dict)

    def lapse(self, now_ms: int) -> None:
        super().lapse(now_ms)
        self.drop_requests(self.old_requests(now_ms))

    def old_requests(self, now_ms: int) -> list[r.WaitingContractRequest]:
        """Contract requests that were not answered in time."""
        before_ms = now_ms - LIMITS.contract_requests_age_s_max * 1000
        return [q for q in self.requests if self.requested_ms[q.request_id] < before_ms]

    def drop_requests(self, gone: list[r.WaitingContractRequest]) -> None:
        self.version += bool(gone)
        self.requests = [q for q in self.requests if q not in gone]

    def expire(self, most: int, now_ms: int) -> r.Expired:
        """Remove so many records that are due: messages, then contract requests, then contracts."""
        now_s = now_ms / 1000
        if idle.is_idle(self, self.until_s, now_ms):
            return idle.end(self)
        is_over = bool(self.until_s) and self.connection is None
        is_over = is_over and self.until_s + LIMITS.unregistered_age_s_max <= now_s
        if (left := idle.left_behind(self)[:most]) and not is_over:
            self.remove(left, now_ms)
            return r.Expired(len(left), 0, 0)
        messages = (self.messages if is_over else self.lapsed(now_ms))[:most]
        most -= len(messages)
        requests = (self.requests if is_over else self.old_requests(now_ms))[:most]
        most -= len(requests)
        until_s = now_s - LIMITS.expired_contracts_age_s_max
        contracts = [kept for kept in self.contracts if is_over or kept[1].expires_at_s <= until_s]
        contracts = contracts[:most]
        self.remove([m.message_id for m in messages], now_ms)
        self.drop_requests(requests)
        self.version += len(contracts)
        self.contracts = [kept for kept in self.contracts if kept not in contracts]
        before_ms = now_ms - LIMITS.public_events_age_s_max * 1000
        old = [e for e in self.public if self.published_ms[e.event_id] < before_ms]
        public = old[: min(most - len(contracts), 16)]
        self.version += bool(public)
        self.public = [e for e in self.public if e not in public]
        return r.Expired(len(messages), len(requests), len(contracts), len(public))


OF_OTHERS = (
    c.Register,
    c.CheckRegistered,
    c.RequestContract,
    c.StoreContract,
    c.QueueMessage,
    c.UseInvitation,
    c.QueueEnvelopes,
)
"""What others ask of an identity, also those who are made for one command."""


class Reference:
    def __init__(self) -> None:
        self.nonces: set[bytes] = set()
        self.without_effect: set[bytes] = set()
        self.boxes: defaultdict[str, Box] = defaultdict(Box)
        self.held = HostMemory()

    def restart(self) -> None:
        """Lose what a host keeps in memory."""
        self.held = HostMemory()
        self.without_effect = set()

    def hand_over(self) -> None:
        """Lose what a host does not hand to the next one."""
        self.without_effect = set()
        for did in self.held.starting:
            self.held.replace(did, self.boxes[did].messages)

    def answer_all(self, batch: Sequence[Submission], now_ms: int, ids: list[str]) -> list[r.Reply]:
        """The answers to one transaction."""
        self.held.end_leases(now_ms)
        fresh = iter(ids)
        replies = [self._answer(request, now_ms, fresh) for request in batch]
        for request, reply in zip(batch, replies, strict=True):
            self.held.follow(request, reply, self.boxes[request.target_did].messages)
        return replies

    def fail_all(
        self, batch: Sequence[Submission], now_ms: int, ids: list[str], *, is_stored: bool
    ) -> None:
        """This transaction is answered to no client, and what it would have handed out is free.

        So are nonces without effect: clients send such commands again.
        """
        self.held.end_leases(now_ms)
        tried, fresh = deepcopy(self), iter(ids)
        tried.held.granted.clear()
        for request in batch:
            tried._answer(request, now_ms, fresh)
        for message_id in tried.held.granted:
            tried.held.leases.pop(message_id, None)
        self.held = tried.held
        if is_stored:
            self.nonces, self.boxes = tried.nonces, tried.boxes

    def _answer(self, request: Submission, now_ms: int, ids: Iterator[str]) -> r.Reply:
        """The answer to one submission; every command that is decided takes a fresh id."""
        claim = request.claim
        if claim is not None and claim.key in self.nonces | self.without_effect:
            return r.Refused(Refusal.DUPLICATE_NONCE)
        if request.refusal is not None or request.command is None:
            if claim is not None:
                (self.without_effect if request.refusal else self.nonces).add(claim.key)
            return r.Done() if request.refusal is None else r.Refused(request.refusal)
        did, box = request.target_did, self.boxes[request.target_did]
        if not isinstance(request.command, c.ExpireRecords):
            box.lapse(now_ms)
        if isinstance(request.command, c.DeliverMessages) and request.command.live:
            self.held.start_live(did, request.command, box.messages)
        said = self._decide(did, box, request, now_ms, next(ids))
        if claim is not None:
            is_stranger = not box.version or isinstance(request.command, OF_OTHERS)
            is_forgotten = isinstance(said, Refusal) and is_stranger
            (self.without_effect if is_forgotten else self.nonces).add(claim.key)
        return r.Refused(said) if isinstance(said, Refusal) else said

    def _decide(
        self, did: str, box: Box, request: Submission, now_ms: int, new: str
    ) -> r.Reply | Refusal:
        command, before, keys = request.command, box.version, dict(box.keylist)
        assert command is not None
        said = self._decide_on(did, box, request, command, now_ms, new)
        is_own = idle.is_traffic(
            command,
            has_changed=box.version > before,
            has_new_key=any(keys.get(key) != claim for key, claim in box.keylist.items()),
        )
        if box.connection is not None and is_own:
            box.seen_ms = now_ms
        return said

    def _decide_on(
        self,
        did: str,
        box: Box,
        request: Submission,
        command: c.Command,
        now_ms: int,
        new: str,
    ) -> r.Reply | Refusal:
        if isinstance(command, c.ExpireRecords):
            return box.expire(command.records_max, now_ms)
        if isinstance(command, ON_ACCOUNTS):
            return on_an_account(did, box, command, now_ms)
        if isinstance(command, BY_SPEAKERS):
            refusal = against_the_speaker(did, box, request.speaker)
            if refusal is not None:
                return refusal
        is_answer = isinstance(command, c.QueueEnvelopes) and not command.recipient_key
        if is_answer and box.connection and against_the_speaker(did, box, request.speaker):
            return Refusal.NOT_SPEAKING
        if isinstance(command, c.SeeAgent):
            return idle.see(box, now_ms)
        if isinstance(command, c.GrantMediation):
            return grant(box, command)
        if isinstance(command, ON_AGENTS):
            return on_an_agent(did, box, self.held, command, now_ms, new)
        said = on_a_key_or_a_queue(box, command, now_ms)
        return _on_decentrl(did, box, command, now_ms, new) if said is None else said


def _on_decentrl(  # noqa: C901 - one arm per command
    did: str, box: Box, command: c.Command, now_ms: int, new: str
) -> r.Reply | Refusal:
    now_s, is_given_up = now_ms / 1000, box.speaker not in ("", did)
    if isinstance(command, c.Register):
        if is_given_up:
            return Refusal.UNAUTHORIZED_COMMAND
        if command.contract.expires_at_s <= now_s:
            return Refusal.INVALID_COMMAND
        box.version += 1
        box.until_s = max(box.until_s, command.contract.expires_at_s)
        return r.Registered(command.contract.expires_at_s)
    is_shut = is_given_up and isinstance(command, _ASKED_BY_OTHERS | _ADDED_BY_ITSELF)
    if is_shut or (box.until_s <= now_s and not isinstance(command, c.CloseSession)):
        asked_by_others = isinstance(command, _ASKED_BY_OTHERS)
        by_others, own = Refusal.RECIPIENT_NOT_REGISTERED, Refusal.UNAUTHORIZED_COMMAND
        return by_others if asked_by_others else own
    match command:
        case c.QueueMessage(sender, payload):
            if not any(_allows(k, did, sender, now_s) for _, k in box.contracts):
                return Refusal.COMMUNICATION_CONTRACT_NOT_FOUND
            if not box.has_room(len(payload), Agent().rules(), sender, None):
                return Refusal.RECIPIENT_QUEUE_FULL
            box.add(Message(new, sender, None, payload, now_ms, box.version + 1))
            return r.MessageAccepted(new)
        case c.RequestContract(sender, request, key):
            of_sender = sum(waiting.sender_did == sender for waiting in box.requests)
            share = LIMITS.queue_sender_share_max * LIMITS.contract_requests_max
            if len(box.requests) == LIMITS.contract_requests_max or of_sender >= share:
                return Refusal.RECIPIENT_QUEUE_FULL
            box.version += 1
            box.requests.append(r.WaitingContractRequest(new, sender, request, key))
            box.requested_ms[new] = now_ms
        case c.StoreContract(contract) | c.SaveContract(contract):
            return _keep(did, box, contract, command, now_s, new)
        case c.AcknowledgeMessages(ids):
            shown = [m.message_id for m in box.messages if m.key is None]
            box.remove([i for i in shown if i in ids], now_ms)
        case c.AcknowledgeContractRequests(ids):
            left = [q for q in box.requests if q.request_id not in ids]
            box.version += left != box.requests
            box.requests = left
        case c.QueryMessages() | c.QueryContractRequests() | c.QueryContracts():
            return _page(box, command)
        case c.CheckRegistered() | c.OpenSession():
            return r.Registered(box.until_s)
        case c.CloseSession():
            pass
        case _:
            return _archive(did, box, command, now_ms, new)
    return r.Done()


def _allows(contract: c.Contract, did: str, sender: str, now_s: float) -> bool:
    parties = {contract.requestor_did, contract.recipient_did}
    return parties == {did, sender} and did != sender and contract.expires_at_s > now_s


def _keep(
    did: str,
    box: Box,
    contract: c.Contract | Refusal,
    command: c.Command,
    now_s: float,
    new: str,
) -> r.Reply | Refusal:
    if isinstance(contract, Refusal):
        return contract
    if contract.expires_at_s <= now_s:
        return Refusal.INVALID_COMMAND
    if contract not in [known for _, known in box.contracts]:
        own = isinstance(command, c.SaveContract)
        if len(box.contracts) == LIMITS.contracts_max:
            return Refusal.QUOTA_EXCEEDED if own else Refusal.RECIPIENT_QUEUE_FULL
        partner = contract.requestor_did
        if contract.recipient_did != did:
            partner = contract.recipient_did
        alike = sum(partner in {k.requestor_did, k.recipient_did} for _, k in box.contracts)
        if not own and alike >= LIMITS.queue_sender_share_max * LIMITS.contracts_max:
            return Refusal.RECIPIENT_QUEUE_FULL
        box.version += 1
        box.contracts.append((new, contract))
    return r.Done()


def _page(box: Box, query: c.QueryMessages | c.QueryContractRequests | c.QueryContracts) -> r.Reply:
    page = slice(query.page.number * query.page.size, (query.page.number + 1) * query.page.size)
    match query:
        case c.QueryMessages(_, sender):
            messages = [
                r.WaitingMessage(m.message_id, m.sender_did, m.payload)
                for m in box.messages
                if m.key is None and sender in (None, m.sender_did)
            ]
            return r.MessagesPage(messages[page], len(messages))
        case c.QueryContractRequests():
            return r.ContractRequestsPage(box.requests[page], len(box.requests))
        case c.QueryContracts(_, did, before, after):
            contracts = [
                r.OwnedContract(contract_id, k.signed)
                for contract_id, k in box.contracts
                if did in (None, k.requestor_did, k.recipient_did)
                and _between(k.expires_at_s, after, before)
            ]
            return r.ContractsPage(contracts[page], len(contracts))


def _archive(  # noqa: C901 - one arm per command
    did: str, box: Box, command: c.Command, now_ms: int, new: str
) -> r.Reply | Refusal:
    match command:
        case c.SaveEvents(events):
            if len(box.saved) + len(events) > LIMITS.saved_events_max:
                return Refusal.QUOTA_EXCEEDED
            box.version += len(events)
            for index, e in enumerate(events):
                own = e.sender_did == did
                box.saved.append(Saved(f"{new}.{index}", e, e.encrypted_tags, own))
        case c.QuerySavedEvents():
            return r.ReadAllowed()
        case c.UpdateEventTags(updates):
            named, known = {u.event_id for u in updates}, {s.event_id for s in box.saved}
            box.version += len(named & known)
            for update in updates:
                for saved in box.saved:
                    if saved.event_id == update.event_id:
                        saved.tags, saved.processed = update.encrypted_tags, True
        case c.PublishPublicEvent(channel, event, tags, timestamp_s, signature, valid):
            if not valid or len(box.public) == LIMITS.public_events_max:
                return Refusal.QUOTA_EXCEEDED if valid else Refusal.INVALID_SIGNATURE
            box.version += 1
            box.published_ms[new] = now_ms
            box.public.append(PublicEvent(new, channel, event, tags, timestamp_s, signature))
            return r.PublicEventAccepted(new)
        case c.DeletePublicEvents(ids, channel):
            left = [
                e
                for e in box.public
                if e.event_id not in ids or channel not in (None, e.channel_id)
            ]
            box.version += left != box.public
            box.public = left
        case _:
            raise AssertionError(command)
    return r.Done()


def saved_events(box: Box, where: SavedEventsFilter) -> list[SavedEvent]:
    """All saved events that a filter lets through, in the order of QUERY_EVENTS."""
    return [
        SavedEvent(s.event_id, s.event.payload, s.tags, s.event.timestamp_s)
        for s in sorted(box.saved, key=lambda saved: saved.event.timestamp_s)
        if _between(s.event.timestamp_s, where.after_timestamp_s, where.before_timestamp_s)
        and where.participant_did in (None, s.event.sender_did, s.event.recipient_did)
        and (not where.encrypted_tags or set(where.encrypted_tags) & set(s.tags))
        and not (where.unprocessed_only and s.processed)
    ]


def public_events(box: Box, where: PublicEventsFilter) -> list[PublicEvent]:
    """All public events that a filter lets through, in the order of GET /public/:did."""
    found = sorted(box.public, key=lambda event: event.timestamp_s)[::-1]
    return [
        e
        for e in found
        if _between(e.timestamp_s, where.after_timestamp_s, where.before_timestamp_s)
        and where.channel_id in (None, e.channel_id)
        and (not where.tags or set(where.tags) & set(e.tags))
    ]


def _between(value: Seconds, after: Seconds | None, before: Seconds | None) -> bool:
    return (after is None or value > after) and (before is None or value < before)
