"""Random histories of a real host: commands of both protocols, time, transactions.

Tests play short ones of few identities; ``write_history`` makes a log of any length of them.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from actors.core import commands as c
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.nonces import NonceClaim
from actors.core.partitioning import Placement
from actors.core.refusals import Refusal
from actors.core.replies import Refused
from actors.core.submissions import Submission
from actors.host.host import Host
from eventstore.log.codec import decode
from eventstore.log.event_log import EventLog
from eventstore.log.events import (
    ContractRequested,
    Event,
    EventSaved,
    MessageQueued,
    PublicEventPublished,
    RefusedCommands,
)
from eventstore.log.seal import command_key

START_MS: Final = 1_700_000_000_000
MEDIATOR: Final = "did:example:mediator"
PLACEMENT: Final = Placement(shards=3, hosts=1)
_DEDICATED: Final = "did:key:dora"
PARTITIONS: Final = ("shard-0", "shard-1", "shard-2", _DEDICATED)
LIMITS: Final = HostLimits(
    timestamp_window_ms=60_000,
    identity=IdentityLimits(
        queue_messages_max=8,
        queue_age_s_max=700,
        public_events_age_s_max=20_000,
        keylist_keys_max=4,
        idle_agents_age_s_max=3_600,
    ),
)
IDENTITIES: Final = ("did:example:alice", "did:example:zoë")
AGENTS: Final = ("did:key:carl", "did:key:dora")
KEYS: Final = (
    "8HH5gYEeNc3z7PYXmd54d4x6qAfCNrqQqEB3nS7Zfu7K",
    "GjZWsBLgZCR18aL468JAT7w9CZRiBnpxUPPgyQxh4voa",
    "key3",
)
TAGS: Final = ((), ("red",), ("blue", "red"), ("red", "red", "ü"))
CHANNELS: Final = ("news", "chess")
EDGE: Final = "edge-0"
_ACTS_OF_A_CROWD, _MEAN_PICK = 500, 20


class Crowd(NamedTuple):
    """Who acts in a history: two Decentrl identities, two DIDComm agents, three keys.

    ``name`` makes its nonces and ids differ from those of other crowds of the same log;
    ``payload_bytes`` is what each number of an act stands for in payloads.
    """

    identities: tuple[str, str] = IDENTITIES
    agents: tuple[str, str] = AGENTS
    keys: tuple[str, str, str] = KEYS
    name: str = ""
    payload_bytes: int = 1

    @classmethod
    def of(cls, number: int, payload_bytes: int) -> Crowd:
        """One of many crowds."""
        one, two = (f"{number}-{each}" for each in "ab")
        return cls(
            (f"did:example:{one}", f"did:example:{two}"),
            (f"did:key:{one}", f"did:key:{two}"),
            (f"{one}-key", f"{two}-key", f"{number}-c-key"),
            f"{number}.",
            payload_bytes,
        )


def partition_of(did: str) -> str:
    """The partition of an identity in these histories, one of which is dedicated."""
    return did if did == _DEDICATED else PLACEMENT.partition_of(did)


IDS: Final[dict[type[Event], str]] = {
    MessageQueued: "message_id",
    ContractRequested: "request_id",
    EventSaved: "event_id",
    PublicEventPublished: "event_id",
}
"""What gives out an id, and its name."""


class Act(NamedTuple):
    """One thing that happens; numbers choose who, whom, and of what."""

    what: int
    who: int
    pick: int
    more: int


def random_script(seed: int, acts: int) -> list[Act]:
    """So many acts, by chance; the same ones for the same seed."""
    chance = random.Random(seed)  # noqa: S311 - not for secrets
    return [Act(*[chance.randint(0, bound) for bound in (10_000, 1, 40, 40)]) for _ in range(acts)]


CROWD: Final = Crowd()


class Written(NamedTuple):
    """How far a history is.

    Attributes:
        events: In the log.
        crowds: That have acted, one after the other.
        now_ms: When the last of them ended, Unix milliseconds.
    """

    events: int = 0
    crowds: int = 0
    now_ms: int = START_MS


NOTHING: Final = Written()


def write_history(
    log: EventLog,
    events: int,
    *,
    payload_bytes: int,
    seed: int = 0,
    after: Written = NOTHING,
    progress: Callable[[int], None] = lambda _: None,
) -> Written:
    """Have one crowd after the other act until a log has so many events; from ``after`` on.

    The same arguments make the same log, whether at once or one part after the other.
    """
    start_ms = after.now_ms
    for number in itertools.count(after.crowds):
        position = log.position()
        progress(min(position, events))
        if position >= events:
            return Written(position, number, start_ms)
        crowd = Crowd.of(number, payload_bytes // _MEAN_PICK)
        history = History(log, crowd=crowd, start_ms=start_ms, after=position)
        # Each crowd has a host of its own: more restarts would only read the same seals again.
        script = random_script(seed + number, _ACTS_OF_A_CROWD)
        history.play([act for act in script if _act(act) is not History.restart])
        start_ms = history.now_ms
    raise AssertionError("unreachable")


class History:
    """A host on a log, and the ids that it has given out."""

    def __init__(
        self,
        log: EventLog,
        *,
        crowd: Crowd = CROWD,
        start_ms: int = START_MS,
        after: int = 0,
    ) -> None:
        self.log = log
        self.now_ms = start_ms
        self.refusals: set[Refusal] = set()
        self._crowd = crowd
        self._start_ms = start_ms
        self._ids = (f"{crowd.name}id-{number}" for number in itertools.count(1))
        self._nonces = itertools.count(1)
        self._known: dict[type[Event], list[str]] = {}
        self._read_to = after
        self._waiting: list[Submission] = []
        self._room = 1
        self._host = self._new_host()
        until_s, both = start_ms // 1000 + 9_000, crowd.identities
        for one, other in (both, both[::-1]):
            self._ask(one, one, c.Register(contract(one, MEDIATOR, until_s)))
            self._ask(one, one, c.SaveContract(contract(one, other, until_s)))
        for agent in crowd.agents:
            self._ask(agent, agent, c.Connect(_connection("", agent)))
            self._ask(agent, agent, c.GrantMediation())

    def play(self, script: Sequence[Act]) -> None:
        """Let it all happen, in this order."""
        for act in script:
            _act(act)(self, act)
        self.commit()

    def commit(self) -> None:
        """Run the commands that wait in one transaction."""
        batch, self._waiting, self._room = self._waiting, [], 1
        if batch:
            replies, _ = self._host.execute([(EDGE, request) for request in batch])
            self.refusals |= {reply.code for reply in replies if isinstance(reply, Refused)}

    # Decentrl -------------------------------------------------------------------------------

    def register(self, act: Act) -> None:
        who = self._crowd.identities[act.who]
        until_s = self.now_ms / 1000 + (1, 60.5, 5_000, 90_000)[act.pick % 4]
        self._ask(who, who, c.Register(contract(who, MEDIATOR, until_s)))

    def keep_contract(self, act: Act) -> None:
        one, other = (
            self._crowd.identities[act.who],
            (*self._crowd.identities, "did:example:unknown")[act.more % 3],
        )
        until_s = self._start_ms // 1000 + 1_000 * (act.pick % 5)
        command = (c.SaveContract, c.StoreContract)[act.more % 2]
        self._ask(one, one, command(contract(one, other, until_s)))

    def request_contract(self, act: Act) -> None:
        self._ask(
            self._crowd.identities[1 - act.who],
            self._crowd.identities[act.who],
            c.RequestContract("did:x:y", "ö" * act.pick, "key"),
        )

    def acknowledge_requests(self, act: Act) -> None:
        who = self._crowd.identities[act.who]
        self._ask(who, who, c.AcknowledgeContractRequests(self._some(ContractRequested, act)))

    def queue_message(self, act: Act) -> None:
        to, sender = self._crowd.identities[act.who], self._crowd.identities[1 - act.who]
        self._ask(sender, to, c.QueueMessage(sender, self._payload(act)))

    def acknowledge_messages(self, act: Act) -> None:
        who = self._crowd.identities[act.who]
        self._ask(who, who, c.AcknowledgeMessages(self._some(MessageQueued, act)))

    def save_events(self, act: Act) -> None:
        who, other = self._crowd.identities[act.who], self._crowd.identities[act.pick % 2]
        saved = [
            c.NewSavedEvent(
                other,
                who,
                (None, "c-1")[act.more % 2],
                act.more / 4,
                "é" * (n * self._crowd.payload_bytes),
                list(TAGS[(act.more + n) % 4]),
            )
            for n in range(act.pick % 3 + 1)
        ]
        self._ask(who, who, c.SaveEvents(saved))

    def update_tags(self, act: Act) -> None:
        who = self._crowd.identities[act.who]
        # Also an id that is only given out later: the update must have changed nothing.
        ids = [*self._some(EventSaved, act), f"id-{act.pick * 10}.0"]
        updates = [c.TagUpdate(i, list(TAGS[(act.more + n) % 4])) for n, i in enumerate(ids)]
        self._ask(who, who, c.UpdateEventTags(updates))

    def publish(self, act: Act) -> None:
        who = self._crowd.identities[act.who]
        said = c.PublishPublicEvent(
            CHANNELS[act.pick % 2],
            "ß" * (act.more * self._crowd.payload_bytes),
            list(TAGS[act.more % 4]),
            act.pick,
            "sig",
            True,
        )
        self._ask(who, who, said)

    def withdraw(self, act: Act) -> None:
        who, channel = self._crowd.identities[act.who], (None, *CHANNELS)[act.more % 3]
        self._ask(who, who, c.DeletePublicEvents(self._some(PublicEventPublished, act), channel))

    def use_up_a_nonce(self, act: Act) -> None:
        """Refused or without a command, stamped early or late: only the nonce is kept."""
        who = (*self._crowd.identities, "did:example:unknown")[act.pick % 3]
        ahead_ms = (60_000, 0, -30_000)[act.more % 3]
        refusal = (None, Refusal.INVALID_SIGNATURE)[act.who]
        self._ask(who, self._crowd.identities[act.who], None, refusal=refusal, ahead_ms=ahead_ms)

    # DIDComm --------------------------------------------------------------------------------

    def connect(self, act: Act) -> None:
        agent = self._crowd.agents[act.who]
        endpoint = ("", "https://agent.example/in")[act.pick % 2]
        self._ask(agent, agent, c.Connect(_connection(endpoint, f"phone {act.more % 3}")))

    def update_keylist(self, act: Act) -> None:
        agent = self._crowd.agents[act.who]
        add = [
            c.ClaimedKey(key, act.more + n)
            for n, key in enumerate(self._crowd.keys)
            if act.pick >> n & 1
        ]
        remove = [key for n, key in enumerate(self._crowd.keys) if act.more >> n & 1]
        self._ask(agent, agent, c.UpdateKeylist(add, remove))

    def claim_key(self, act: Act) -> None:
        agent, key = self._crowd.agents[act.who], self._crowd.keys[act.pick % 3]
        self._ask(agent, f"key:{key}", c.ClaimKey(agent))

    def release_key(self, act: Act) -> None:
        agent, key = self._crowd.agents[act.who], self._crowd.keys[act.pick % 3]
        self._ask(agent, f"key:{key}", c.ReleaseKey(agent, act.more % 8))

    def use_invitation(self, act: Act) -> None:
        """Now and then an account is rotated, or ends."""
        if act.more % 4 == 0:
            self.rotate(act)
        elif act.more % 8 == 1:
            self.end_account(act)
        self._ask(
            self._crowd.agents[act.who],
            f"invitation:{self._crowd.name}once-{act.pick % 6}",
            c.UseInvitation(self._crowd.agents[act.who]),
        )

    def queue_envelope(self, act: Act) -> None:
        """Every third is of DIDComm v2, some of these several at once or with an expiry."""
        key, payload = ("", *self._crowd.keys)[act.more % 4], self._payload(act)
        command = c.QueueEnvelopes(key, [payload])
        if act.pick % 3 == 0:
            expires_at_s = self.now_ms // 1000 + act.pick * 100 if act.pick % 4 else 0
            command = c.QueueEnvelopes(key, [payload] * (act.more % 2 + 1), 2, expires_at_s)
        self._ask(MEDIATOR, self._crowd.agents[act.who], command)

    def rotate(self, act: Act) -> None:
        """Another DID is to speak for an agent; it does where the prior one did."""
        agent = self._crowd.agents[act.who]
        names = [agent, f"{agent}/new", f"{agent}/newer"]
        prior, new = names[act.pick % 3], names[act.more % 3]
        self._ask(MEDIATOR, new, c.NameSpeaker(agent))
        own = [c.ClaimedKey(self._crowd.keys[act.pick % 3], act.more)]
        rotation = c.RotateAccount(prior, new, self.now_ms // 1000, None, own)
        self._ask(MEDIATOR, agent, rotation)

    def end_account(self, act: Act) -> None:
        """An agent goes, by the word of who may or may not speak for it."""
        agent = self._crowd.agents[act.who]
        speaker = (agent, f"{agent}/new", f"{agent}/newer")[act.pick % 3]
        self._ask(MEDIATOR, agent, c.EndAccount(speaker, self.now_ms // 1000))

    def deliver(self, act: Act) -> None:
        agent, lease_ms = self._crowd.agents[act.who], 1 + act.more * 100
        request = c.DeliverMessages(
            "phone", ("pickup/1.0", "pickup/2.0")[act.more % 2], act.pick % 5 + 1, 100_000, lease_ms
        )
        self._ask(agent, agent, request)

    def remove(self, act: Act) -> None:
        agent = self._crowd.agents[act.who]
        self._ask(agent, agent, c.RemoveMessages(self._some(MessageQueued, act), "acknowledged"))

    def set_policy(self, act: Act) -> None:
        """Every time another device is notified, or none."""
        agent = self._crowd.agents[act.who]
        rules = c.SetQueuePolicy(act.pick % 4 > 0, 300 * (act.pick % 3), 5 * (act.more % 3))
        device = c.PushDevice(("fcm", "apns")[act.pick % 2], f"token {act.more}", "")
        self._ask(agent, agent, rules)
        self._ask(agent, agent, c.SetPushDevice(device if act.more % 3 else None))

    def order(self, act: Act) -> None:
        """What operators order now and then."""
        by = tuple(c.DedicationReason)[act.who]
        orders: list[c.Command] = [
            c.PurgeQueue(),
            *(c.DedicateIdentity(by), c.DedicateIdentity(by), c.ReleaseIdentity(by)),
        ]
        if act.pick % 8 < len(orders):
            self._ask(
                MEDIATOR,
                (*self._crowd.identities, *self._crowd.agents)[act.more % 4],
                orders[act.pick % 8],
            )
        elif act.pick % 8 == len(orders):
            self.erase(act)

    def erase(self, act: Act) -> None:
        """Some steps of an erasure, or all of it; an agent comes back after it."""
        who = (*self._crowd.identities, *self._crowd.agents)[act.more % 4]
        for _ in range((3, 40)[act.who]):
            self._ask(MEDIATOR, who, c.EraseIdentity("operator", 4))
        if who in self._crowd.agents:
            self._ask(who, who, c.GrantMediation(_connection("", "back")))

    def count_refusals(self, act: Act) -> None:
        refused = RefusedCommands("decentrl", "", "DUPLICATE_NONCE", "", act.more + 1, 1, 2)
        counted = c.CountRefusals(EDGE, self.now_ms - 60_000, self.now_ms, [refused])
        self._ask(EDGE, f"edge:{EDGE}", counted)

    # Time and memory ------------------------------------------------------------------------

    def gather(self, act: Act) -> None:
        """Run the next commands in one transaction."""
        self._room = act.pick % 6 + 2

    def let_time_pass(self, act: Act) -> None:
        self.commit()
        self.now_ms += (1, 500, 30_000, 61_000, 119_000, 400_000, -700, 5_000)[act.pick % 8]

    def restart(self, act: Act) -> None:
        self.commit()
        self._host = self._new_host()

    # ----------------------------------------------------------------------------------------

    def _ask(
        self,
        sender: str,
        target: str,
        command: c.Command | None,
        *,
        refusal: Refusal | None = None,
        ahead_ms: int = 0,
    ) -> None:
        key = command_key(sender, f"{self._crowd.name}nonce-{next(self._nonces)}")
        claim = NonceClaim(PLACEMENT.partition_of(sender), key, self.now_ms + ahead_ms)
        part = partition_of(target)
        self._waiting.append(Submission(part, target, key, claim, refusal, command))
        if len(self._waiting) >= self._room:
            self.commit()

    def _some(self, kind: type[Event], act: Act) -> list[str]:
        """The newest ids that an event type has given out, and one that was never given out."""
        self.commit()
        for row in self.log.read_log(after=self._read_to, limit=100_000):
            self._read_to = row.id
            event = decode(row.topic, row.state)
            for kind_of_id, name in IDS.items():
                if isinstance(event, kind_of_id):
                    self._known.setdefault(kind_of_id, []).append(getattr(event, name))
        newest = self._known.get(kind, [])[-12:]
        step = act.pick % 3 + 1
        return [*newest[act.more % 4 :: step], "unknown"]

    def _payload(self, act: Act) -> bytes:
        return bytes(act.pick * self._crowd.payload_bytes)

    def _new_host(self) -> Host:
        host = Host(
            "host-0",
            self.log,
            LIMITS,
            secret=b"secret",
            clock=lambda: self.now_ms,
            new_id=lambda: next(self._ids),
        )
        host.ownership.assign(PARTITIONS)
        return host


def _act(act: Act) -> Callable[[History, Act], None]:
    return ACTS[act.what % len(ACTS)]


def contract(requestor: str, recipient: str, expires_at_s: float) -> c.Contract:
    signed = f"{requestor} {recipient} {expires_at_s}".encode()
    return c.Contract(requestor, recipient, expires_at_s, hashlib.sha256(signed).digest(), signed)


def _connection(endpoint: str, label: str) -> c.Connection:
    return c.Connection("did:peer:2.me", label, endpoint, ["key9"], "didexchange/1.1", "")


ACTS: Final[Sequence[Callable[[History, Act], None]]] = (
    History.register,
    History.keep_contract,
    History.request_contract,
    History.request_contract,
    History.acknowledge_requests,
    *(History.queue_message,) * 4,
    History.acknowledge_messages,
    *(History.save_events,) * 2,
    History.update_tags,
    *(History.publish,) * 2,
    History.withdraw,
    History.use_up_a_nonce,
    History.connect,
    *(History.update_keylist,) * 2,
    *(History.claim_key,) * 2,
    History.release_key,
    History.use_invitation,
    *(History.queue_envelope,) * 4,
    *(History.deliver,) * 3,
    History.remove,
    History.set_policy,
    History.order,
    History.count_refusals,
    *(History.gather,) * 2,
    *(History.let_time_pass,) * 2,
    History.restart,
)
