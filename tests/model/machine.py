"""The machine that asks a system and the reference the same, and compares after every step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from eventsourcing.persistence import StoredEvent
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from actors.core import commands as c
from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from actors.core.replies import Reply
from actors.core.submissions import Submission
from eventstore.log.events import Event, Seconds
from eventstore.log.seal import command_key
from tests.histories import contract
from tests.log.faulty_log import ConflictNext, FailNext, Plan, StoredButFailed
from tests.model.reference import Box, Reference
from tests.model.systems import (
    EDGE,
    HOST_LIMITS,
    PLACEMENT,
    UNAVAILABLE,
    Stored,
    System,
    event_in,
)

START_S: Final = 1_700_000_000
WINDOW_MS: Final = HOST_LIMITS.timestamp_window_ms
MEDIATOR: Final = "did:example:mediator"
IDENTITIES: Final = ("did:example:alice", "did:example:zoe")  # in different shards
KEY_TARGETS: Final = ("key:sun", "key:moon")
INVITATION: Final = "invitation:once"
NAMES: Final = ("did:peer:4zNew", "did:peer:4zNewer")
"""DIDs that accounts are rotated to."""
TARGETS: Final = (*IDENTITIES, *KEY_TARGETS, INVITATION, *NAMES)
TAGS: Final = ("red", "blue")
CHANNELS: Final = ("news", "chess")

identities = st.sampled_from(IDENTITIES)
anyone = st.sampled_from((*IDENTITIES, "did:example:stranger"))
one_or_all = st.none() | identities
lives_s = st.sampled_from([100_000_000, 300])
expiries = st.sampled_from([0, 0.5, 60, 400, 1_000, 100_000_000]).map(lambda s: START_S + s)
picks = st.lists(st.integers(0, 4), min_size=1, max_size=4)
pages = st.builds(c.Page, st.integers(0, 2), st.sampled_from([1, 2, 10]))
clock_errors_ms = st.sampled_from([WINDOW_MS, 0, -100_000])
tags = st.lists(st.sampled_from(TAGS), max_size=2)
moments_s = st.sampled_from([0, 1, 1.5, 2])
channels = st.sampled_from(CHANNELS)
texts = st.text(max_size=2)
faults = st.sampled_from([FailNext(), StoredButFailed(), ConflictNext()])
payloads = st.sampled_from([b"", b"1", b"0123456789", bytes(40)])


def message_ids(box: Box) -> list[str]:
    """Of all that waits, in both protocols."""
    return [m.message_id for m in box.messages]


def friend_of(who: str) -> str:
    """The friend of one of the two."""
    return IDENTITIES[who == IDENTITIES[0]]


class IdentityMachine(RuleBasedStateMachine):
    """Commands, time and memory: all that the pure core alone can be asked."""

    make_system: Callable[[], System]

    def __init__(self) -> None:
        super().__init__()
        self.system = type(self).make_system()
        self.system.now_ms = START_S * 1000
        self.reference = Reference()
        self.waiting: list[Submission] = []
        self.requests: list[Submission] = []
        self.ids_made = 0
        self.room = 1
        self.is_checked = False
        self.seen: dict[str, Stored] = {}
        self.folds = {target: Identity() for target in TARGETS}

    # Asking ---------------------------------------------------------------------------------

    def ask(
        self,
        sender: str,
        target: str,
        command: c.Command | None,
        *,
        refusal: Refusal | None = None,
        ahead_ms: int = 0,
    ) -> None:
        """Send a command with a new nonce; it is answered when its batch is full."""
        key = command_key(sender, f"nonce-{len(self.requests)}")
        partition = PLACEMENT.partition_of(sender)
        claim = NonceClaim(partition, key, self.system.now_ms + ahead_ms)
        request = Submission(PLACEMENT.partition_of(target), target, key, claim, refusal, command)
        self.requests.append(request)
        self.send(request)

    def send(self, submission: Submission) -> None:
        """Add a submission to the batch, which is committed when it is full."""
        self.waiting.append(submission)
        if len(self.waiting) >= self.room:
            self.commit()

    def commit(self, fault: Plan | None = None) -> None:
        """Let system and reference answer what waits, and compare."""
        batch, self.waiting, self.room = self.waiting, [], 1
        self.is_checked = False
        if not batch:
            return
        ids, now_ms = self.fresh_ids(batch), self.system.now_ms
        expected: list[Reply] = [UNAVAILABLE] * len(batch)
        if fault is None:
            expected = self.reference.answer_all(batch, now_ms, ids)
        else:
            is_stored = isinstance(fault, StoredButFailed)
            self.reference.fail_all(batch, now_ms, ids, is_stored=is_stored)
        assert self.system.execute(batch, ids, fault) == expected

    def fresh_ids(self, batch: Sequence[Submission]) -> list[str]:
        """One id for each submission, unlike all others."""
        self.ids_made += len(batch)
        return [f"id-{self.ids_made - index}" for index in range(len(batch))]

    def chosen(self, picked: Sequence[int], who: str, ids: Callable[[Box], list[str]]) -> list[str]:
        """Ids of one's own, then foreign ones, then one that is unknown; as often as picked."""
        boxes = self.reference.boxes
        known = [*ids(boxes[who]), *ids(boxes[friend_of(who)]), "unknown"]
        return [known[pick % len(known)] for pick in picked]

    # Registration and contracts -------------------------------------------------------------

    @initialize(until_s=lives_s, friends_until_s=lives_s, commands=st.integers(1, 9))
    def settle(self, until_s: Seconds, friends_until_s: Seconds, commands: int) -> None:
        """Every history starts with two friends who have something of everything."""
        self.room = commands
        for one, other in (IDENTITIES, IDENTITIES[::-1]):
            self.ask(one, one, c.Register(contract(one, MEDIATOR, START_S + until_s)))
            self.ask(one, one, c.SaveContract(contract(one, other, START_S + friends_until_s)))
            self.ask(other, one, c.QueueMessage(other, b"welcome"))
            request = c.RequestContract(other, "again?", "key")
            self.ask(other, one, request, ahead_ms=WINDOW_MS)  # valid beyond its receipt
            self.ask(other, one, None, refusal=Refusal.INVALID_SIGNATURE, ahead_ms=WINDOW_MS)
            saved = c.NewSavedEvent(other, one, None, 1, "hello", ["red"])
            self.ask(one, one, c.SaveEvents([saved]))
            self.ask(one, one, c.PublishPublicEvent("news", "first", ["red"], 1, "sig", True))
        public = [e.event_id for one in IDENTITIES for e in self.reference.boxes[one].public]
        for one in IDENTITIES:
            self.ask(one, one, c.DeletePublicEvents(public, "none"))  # a channel without them

    @rule(who=identities, expires_at_s=expiries)
    def register(self, who: str, expires_at_s: Seconds) -> None:
        self.ask(who, who, c.Register(contract(who, MEDIATOR, expires_at_s)))

    @rule(
        owner=identities,
        other=anyone,
        expires_at_s=expiries,
        is_saved=st.booleans(),
        is_signed=st.sampled_from([True, True, True, False]),
    )
    def keep_contract(
        self, owner: str, other: str, expires_at_s: Seconds, is_saved: bool, is_signed: bool
    ) -> None:
        signed = contract(owner, other, expires_at_s) if is_signed else Refusal.INVALID_SIGNATURES
        if is_saved:
            self.ask(owner, owner, c.SaveContract(signed))
        else:
            self.ask(other, owner, c.StoreContract(signed))

    @rule(owner=identities, pick=st.integers(0, 3), is_saved=st.booleans())
    def keep_a_contract_again(self, owner: str, pick: int, is_saved: bool) -> None:
        known = [again for _, again in self.reference.boxes[owner].contracts]
        for again in known[pick : pick + 1]:
            self.ask(owner, owner, c.SaveContract(again) if is_saved else c.StoreContract(again))

    @rule(who=identities, page=pages, did=st.none() | anyone, pick=st.integers(0, 3))
    def query_contracts(self, who: str, page: c.Page, did: str | None, pick: int) -> None:
        self.ask(who, who, c.QueryContracts(page, did))
        known = [contract.expires_at_s for _, contract in self.reference.boxes[who].contracts]
        for edge in known[pick : pick + 1]:
            self.ask(who, who, c.QueryContracts(page, did, expires_before_s=edge))
            self.ask(who, who, c.QueryContracts(page, did, expires_after_s=edge))

    @rule(sender=anyone, to=identities)
    def request_contract(self, sender: str, to: str) -> None:
        self.ask(sender, to, c.RequestContract(sender, f"request {len(self.requests)}", "key"))

    @rule(who=identities, picked=picks)
    def acknowledge_requests(self, who: str, picked: list[int]) -> None:
        ids = self.chosen(picked, who, lambda box: [q.request_id for q in box.requests])
        self.ask(who, who, c.AcknowledgeContractRequests(ids))

    @rule(who=identities, page=pages)
    def query_requests(self, who: str, page: c.Page) -> None:
        self.ask(who, who, c.QueryContractRequests(page))

    # The queue ------------------------------------------------------------------------------

    @rule(
        to=identities,
        payloads=st.lists(payloads, min_size=1, max_size=3),
        ahead_ms=clock_errors_ms,
    )
    def queue_messages(self, to: str, payloads: list[bytes], ahead_ms: int) -> None:
        for payload in payloads:
            self.ask(friend_of(to), to, c.QueueMessage(friend_of(to), payload), ahead_ms=ahead_ms)

    @rule(sender=anyone, to=identities)
    def queue_a_message_from_anybody(self, sender: str, to: str) -> None:
        self.ask(sender, to, c.QueueMessage(sender, b"hello"))

    @rule(who=identities, picked=picks)
    def acknowledge_messages(self, who: str, picked: list[int]) -> None:
        self.ask(who, who, c.AcknowledgeMessages(self.chosen(picked, who, message_ids)))

    @rule(who=identities, page=pages, sender=one_or_all)
    def query_messages(self, who: str, page: c.Page, sender: str | None) -> None:
        self.ask(who, who, c.QueryMessages(page, sender))

    # Saved and public events ----------------------------------------------------------------

    @rule(
        owner=identities,
        events=st.lists(
            st.builds(c.NewSavedEvent, anyone, anyone, st.none() | texts, moments_s, texts, tags),
            min_size=1,
            max_size=3,
        ),
    )
    def save_events(self, owner: str, events: list[c.NewSavedEvent]) -> None:
        self.ask(owner, owner, c.SaveEvents(events))

    @rule(owner=identities, picked=picks, new_tags=tags)
    def update_tags(self, owner: str, picked: list[int], new_tags: list[str]) -> None:
        ids = self.chosen(picked, owner, lambda box: [s.event_id for s in box.saved])
        updates = [c.TagUpdate(id_, new_tags[index % 2 :]) for index, id_ in enumerate(ids)]
        self.ask(owner, owner, c.UpdateEventTags(updates))

    @rule(
        owner=identities,
        channel=channels,
        event=texts,
        new_tags=tags,
        timestamp_s=moments_s,
        signature_valid=st.sampled_from([True, True, True, False]),
    )
    def publish(
        self,
        owner: str,
        channel: str,
        event: str,
        new_tags: list[str],
        timestamp_s: Seconds,
        signature_valid: bool,
    ) -> None:
        self.ask(
            owner,
            owner,
            c.PublishPublicEvent(channel, event, new_tags, timestamp_s, "sig", signature_valid),
        )

    @rule(owner=identities, picked=picks, channel=st.none() | channels)
    def withdraw(self, owner: str, picked: list[int], channel: str | None) -> None:
        ids = self.chosen(picked, owner, lambda box: [e.event_id for e in box.public])
        for request in ("none", channel):
            self.ask(owner, owner, c.DeletePublicEvents(ids, request))

    # Sessions, refusals of the edge, replays ------------------------------------------------

    @rule(who=anyone)
    def open_and_close_a_socket(self, who: str) -> None:
        partition = PLACEMENT.partition_of(who)
        for command in (c.CheckRegistered(), c.OpenSession(EDGE), c.CloseSession(EDGE)):
            self.send(Submission(partition, who, b"", None, None, command))

    @rule(
        sender=anyone,
        to=identities,
        ahead_ms=clock_errors_ms,
        refusal=st.none() | st.just(Refusal.INVALID_SIGNATURE),
    )
    def use_up_a_nonce(self, sender: str, to: str, ahead_ms: int, refusal: Refusal | None) -> None:
        """Refused or without a command: nothing but the nonce is kept (DCTRL-0004 5.4)."""
        forged = None if refusal is None else c.QueueMessage(sender, b"forged")
        self.ask(sender, to, forged, refusal=refusal, ahead_ms=ahead_ms)

    @rule()
    def replay(self) -> None:
        """Send again, in one batch, what an edge would still let through by its timestamp."""
        self.commit()
        self.waiting = [
            request
            for request in self.requests
            if request.claim and self.system.now_ms <= request.claim.timestamp_ms + WINDOW_MS
        ]
        self.commit()

    # Batches, time, memory, faults ----------------------------------------------------------

    @rule(commands=st.integers(2, 5))
    def gather(self, commands: int) -> None:
        """Answer the next commands in one transaction."""
        self.room = commands

    @rule(ms=st.sampled_from([340_000, 59_500, 500, 340_000, 200_000_000]))
    def let_time_pass(self, ms: int) -> None:
        self.commit()
        self.system.now_ms += ms
        self.replay()

    @rule(off_ms=st.sampled_from([340_000, 0]))
    def restart(self, off_ms: int) -> None:
        self.commit()
        self.system.now_ms += off_ms
        self.system.restart()
        self.reference.restart()

    @rule()
    def save_snapshots(self) -> None:
        self.commit()
        self.system.save_snapshots()

    @rule(how=st.sampled_from(["missing", "of another fold", "damaged"]))
    def spoil_snapshots(self, how: str) -> None:
        self.commit()
        self.system.spoil_snapshots(how)

    @rule(fault=faults, who=identities)
    def fail_an_append(self, fault: Plan, who: str) -> None:
        """The outcome is unknown to all, and the log holds all of the batch or none."""
        self.room += 3
        self.ask(who, who, c.RequestContract(who, f"request {len(self.requests)}", "key"))
        # Of a request that is refused nothing is stored, but of what an identity asks itself.
        self.ask(who, who, c.QueryContractRequests(c.Page(0, 1)))
        self.commit(fault)

    # What holds after every step ------------------------------------------------------------

    @invariant()
    def all_is_well(self) -> None:
        if not self.is_checked:
            self.check()
            self.is_checked = True

    def check(self) -> None:
        self.check_what_everybody_is_shown()
        self.check_state_against_the_log()

    def check_what_everybody_is_shown(self) -> None:
        whole = c.Page(0, 100)
        queries = (
            c.QueryMessages(whole),
            c.QueryContractRequests(whole),
            c.QueryContracts(whole),
            c.QueryQueue(),
        )
        batch = [
            Submission(PLACEMENT.partition_of(person), person, b"", None, None, query)
            for person in IDENTITIES
            for query in queries
        ]
        ids = self.fresh_ids(batch)
        expected = self.reference.answer_all(batch, self.system.now_ms, ids)
        assert self.system.execute(batch, ids) == expected

    def folded_from_the_log(self, target: str) -> Identity:
        """The fold of all events, which loading has to come to with whatever is stored now."""
        seen, stored = self.seen.get(target), self.system.stored(target)
        if stored != seen:  # otherwise what is loaded is the same as well
            known: Sequence[Event | StoredEvent] = seen.rows if seen else []
            if stored.rows[: len(known)] != known:
                known, self.folds[target] = [], Identity()
            for row in stored.rows[len(known) :]:
                evolve(self.folds[target], event_in(row))
            self.seen[target] = stored
            assert self.system.reloaded(target) == self.folds[target]
        return self.folds[target]

    def check_state_against_the_log(self) -> None:
        in_memory = self.system.in_memory()
        for target in TARGETS:
            folded = self.folded_from_the_log(target)
            assert in_memory.get(target, folded) == folded
            box = self.reference.boxes[target]
            assert folded.version == len(self.seen[target].rows) == box.version
            assert folded.registered_until_s == box.until_s
            assert folded.saved_events == len(box.saved)
            assert folded.queue_bytes == box.queue_bytes
            assert list(folded.messages) == [m.message_id for m in box.messages]
            assert folded.keylist == box.keylist
            assert list(folded.keylist) == list(box.keylist)
            assert folded.owner_did + folded.used_by == box.taken_by
            assert (folded.speaker_did, folded.account_did) == (box.speaker, box.account)
            ending = {m.message_id: m.expires_s for m in box.messages if m.expires_s}
            assert folded.expiring == ending
            assert folded.expires_first_s == min(ending.values(), default=0)
            # Stored and made by messages of both generations.
            assert sum(m.is_v2 for m in folded.messages.values()) == sum(
                m.is_v2 for m in box.messages
            )
            assert list(folded.public_events) == [e.event_id for e in box.public]
