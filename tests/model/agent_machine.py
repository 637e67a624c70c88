"""The machine with DIDComm agents: connections, keys, and envelopes in the one queue."""

from __future__ import annotations

from typing import Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from actors.core import commands as c
from actors.core.submissions import Submission
from tests.log.faulty_log import Plan
from tests.model.agents_reference import LIMITS
from tests.model.machine import (
    IDENTITIES,
    INVITATION,
    KEY_TARGETS,
    NAMES,
    IdentityMachine,
    anyone,
    faults,
    friend_of,
    identities,
    message_ids,
    payloads,
    picks,
)
from tests.model.systems import EDGE, PLACEMENT

KEYS: Final = tuple(target.partition(":")[2] for target in KEY_TARGETS)
SESSIONS: Final = ("phone", "laptop")

sessions = st.sampled_from(SESSIONS)
keys = st.sampled_from(["", *KEYS])
key_names = st.sampled_from([*KEYS, "star"])
claims = st.integers(1, 4)
speakers = st.sampled_from(["", "", *NAMES])
"""Who speaks: the account's own DID, or a rotated one."""
leases_ms = st.sampled_from([340_000, 500, 0])
to_queue = st.sampled_from(["", "", *KEYS])
envelopes_v1 = st.builds(c.QueueEnvelopes, to_queue, st.tuples(payloads).map(list))
envelopes_v2 = st.builds(
    c.QueueEnvelopes,
    to_queue,
    st.lists(payloads, min_size=1, max_size=2),
    generation=st.just(2),
    # Seconds from now; 0 is never.
    expires_at_s=st.sampled_from([0, 0, 60, 340, -1]),
    delay_ms=st.sampled_from([0, 0, 0, 59_500]),
)
envelopes = envelopes_v1 | envelopes_v2
deliveries = st.builds(
    c.DeliverMessages,
    session=sessions,
    channel=st.just("pickup/2.0"),
    limit=st.sampled_from([3, 1, 10]),
    bytes_max=st.sampled_from([1_000, 10]),
    lease_ms=leases_ms,
    recipient_key=st.sampled_from([*[None] * 7, *KEYS]),
    message_ids=st.sampled_from([None, None, None, []]),
    at_least=st.sampled_from([0] * 5 + [2]),
    after_version=st.sampled_from([0] * 5 + [12]),
    live=st.sampled_from([False, False, True]),
    implicit=st.sampled_from([False, False, True]),
)
plain_deliveries = st.builds(
    c.DeliverMessages, sessions, st.just("pickup/2.0"), st.just(10), st.just(1_000), leases_ms
)
removals = st.builds(c.RemoveMessages, st.just([]), st.sampled_from(["acknowledged", "delivered"]))
policies = st.builds(
    c.SetQueuePolicy,
    will_queue=st.sampled_from([None, True, True, False]),
    age_s_max=st.sampled_from([None, 0, 60, 340, 900]),
    messages_max=st.sampled_from([None, 0, 2, 9]),
    message_bytes_max=st.sampled_from([None, 0, 5, 99]),
    bytes_max=st.sampled_from([None, 0, 15, 99]),
)
tokens = st.sampled_from(["one", "two"])
devices = st.one_of(st.none(), st.builds(c.PushDevice, st.just("fcm"), tokens, st.just("ios")))
listens = [c.Listen(EDGE, session) for session in ("", *SESSIONS)]
ends = st.sampled_from([*listens, c.CloseSession(EDGE), *map(c.EndLive, SESSIONS)])
queue_commands = st.one_of(
    *[envelopes] * 3,
    *[deliveries] * 4,
    *[removals] * 2,
    policies,
    st.builds(c.StartLive, st.just(EDGE), sessions),
    st.builds(c.ReleaseLeases, sessions),
    ends,
    st.builds(c.QueryQueue, keys),
    st.builds(c.SetPushDevice, devices),
    st.just(c.QueryPushDevice()),
    st.just(c.PurgeQueue()),
    st.builds(c.ExpireRecords, st.sampled_from([1, 2, 99])),
    st.just(c.SeeAgent()),
)


def connection(endpoint: str, peer_did: str = "did:peer:2.agent") -> c.Connection:
    """What an agent says of itself."""
    return c.Connection(peer_did, "Zoë", endpoint, [], "didexchange/1.1", "")


class AgentMachine(IdentityMachine):
    """Every identity is a DIDComm agent as well: both protocols share each queue."""

    def put(self, target: str, *commands: c.Command, speaker: str = "") -> None:
        """Send commands in one transaction, without a nonce, as DIDComm's are."""
        partition = PLACEMENT.partition_of(target)
        self.room = max(self.room, len(self.waiting) + len(commands))
        for command in commands:
            request = Submission(partition, target, b"", None, None, command, speaker=speaker)
            self.send(request)

    # Agents and keys ------------------------------------------------------------------------

    @initialize(mediated=st.sampled_from([True, True, True, False]))
    def settle_agents(self, mediated: bool) -> None:
        """Two agents, each with a key and something that waits, once they have mediation."""
        for person, target, key in zip(IDENTITIES, KEY_TARGETS, KEYS, strict=True):
            self.put(person, c.Connect(connection("")))
            if mediated:
                self.put(person, c.GrantMediation())
                self.put(target, c.ClaimKey(person))
                self.put(
                    person,
                    c.UpdateKeylist([c.ClaimedKey(key, 1)], []),
                    c.QueueEnvelopes(key, [b"welcome"]),
                )
            self.put(person, c.QueueEnvelopes("", [b"hello"]))

    @rule(who=identities, endpoint=st.sampled_from(["", "https://agent.example"]))
    def connect(self, who: str, endpoint: str) -> None:
        self.put(who, c.Connect(connection(endpoint)), c.QueryConnection())

    @rule(
        who=anyone,
        add=st.lists(st.builds(c.ClaimedKey, key_names, claims), max_size=3),
        remove=st.lists(key_names, max_size=2),
        offset=st.integers(0, 2),
    )
    def update_the_keylist(
        self, who: str, add: list[c.ClaimedKey], remove: list[str], offset: int
    ) -> None:
        checked = c.CheckKeys([*remove, *KEYS])
        self.put(who, c.UpdateKeylist(add, remove), c.QueryKeylist(offset, 2), checked)
        if not add:
            self.put(who, c.GrantMediation())

    @rule(
        key_target=st.sampled_from(KEY_TARGETS),
        steps=st.lists(
            st.tuples(identities, st.booleans(), st.sampled_from([0, 0, 1])), max_size=4
        ),
    )
    def claim_and_release_a_key(self, key_target: str, steps: list[tuple[str, bool, int]]) -> None:
        """A release names the newest claim, or the one before it."""
        for who, is_claimed, age in steps:
            claim = self.reference.boxes[key_target].claim - age
            command = c.ClaimKey(who) if is_claimed else c.ReleaseKey(who, claim)
            self.put(key_target, command, c.FindKeyOwner())
            self.put(INVITATION, c.UseInvitation(who))

    # Envelopes ------------------------------------------------------------------------------

    @rule(
        who=identities,
        transactions=st.lists(
            st.lists(queue_commands, min_size=1, max_size=3), min_size=1, max_size=4
        ),
        picked=picks,
    )
    def use_the_queue(
        self, who: str, transactions: list[list[c.Command]], picked: list[int]
    ) -> None:
        for commands in transactions:
            self.put(who, *[self.named(command, who, picked) for command in commands])

    @rule(
        who=identities,
        pair=st.tuples(sessions, sessions),
        queued=st.lists(envelopes, max_size=3),
        picked=picks,
        is_late=st.booleans(),
        is_waiting=st.booleans(),
        lease_ms=leases_ms,
        ms=st.sampled_from([0, 59_500, 0]),
    )
    def be_live(  # noqa: PLR0913, PLR0917 - drawn one by one
        self,
        who: str,
        pair: tuple[str, str],
        queued: list[c.QueueEnvelopes],
        picked: list[int],
        is_late: bool,
        is_waiting: bool,
        lease_ms: int,
        ms: int,
    ) -> None:
        """One session is live, another fetches beside it and may take over."""
        first, second = pair
        live = c.DeliverMessages(first, "live", 3, 99, 59_500, live=True)
        begin = c.DeliverMessages(first, "live", 3, 20, lease_ms, live=True)
        self.put(who, c.StartLive(EDGE, first))
        if is_waiting:
            self.commit()
            self.put(who, begin)
            self.commit()
        self.put(who, *[self.named(command, who, []) for command in queued])
        beside = c.DeliverMessages(second, "pickup/2.0", 1, 99, 59_500)
        self.put(who, *([beside, live] if is_late else [live, beside]))
        self.put(who, self.named(c.RemoveMessages([], "acknowledged"), who, picked), live)
        self.put(who, c.StartLive(EDGE, second))
        self.commit()
        self.system.now_ms += ms

    @rule(
        who=identities,
        pair=st.tuples(sessions, sessions),
        queued=st.lists(envelopes, min_size=1, max_size=3),
        is_explicit=st.booleans(),
    )
    def be_taken_over(
        self,
        who: str,
        pair: tuple[str, str],
        queued: list[c.QueueEnvelopes],
        is_explicit: bool,
    ) -> None:
        """One session picks up implicitly, another takes over; the first may ask explicitly.

        Then it also takes the live mode, beside which nothing is handed out implicitly.
        """
        first, second = pair
        taken = c.DeliverMessages(first, "implicit", 3, 99, 59_500, implicit=True)
        self.put(who, *[self.named(command, who, []) for command in queued])
        self.commit()
        self.put(who, c.Listen(EDGE, first), taken)
        if is_explicit:
            self.put(who, msgspec.structs.replace(taken, implicit=False))
        self.put(who, c.Listen(EDGE, second), msgspec.structs.replace(taken, session=second))
        self.put(who, taken, c.QueryQueue())
        self.commit()
        if is_explicit:
            self.put(who, c.StartLive(EDGE, first), c.QueueEnvelopes("", [b"1", b"2"]))
            self.commit()
            self.put(who, c.DeliverMessages(first, "live", 1, 99, 59_500, live=True))
            self.put(who, msgspec.structs.replace(taken, session=second))
            self.commit()

    @rule(
        who=identities,
        rules=policies,
        queued=st.lists(envelopes, min_size=1, max_size=3),
        is_listening=st.booleans(),
        ms=st.sampled_from([60_500, 60_000, 0]),
    )
    def keep_to_the_owners_rules(
        self,
        who: str,
        rules: c.SetQueuePolicy,
        queued: list[c.QueueEnvelopes],
        is_listening: bool,
        ms: int,
    ) -> None:
        self.put(who, c.Listen(EDGE) if is_listening else c.CloseSession(EDGE), rules)
        self.commit()
        self.ask(friend_of(who), who, c.QueueMessage(friend_of(who), b"1"))
        self.put(who, *[self.named(command, who, []) for command in queued])
        self.commit()
        self.system.now_ms += ms

    @rule(
        who=identities,
        changes=st.lists(
            st.builds(c.SetPushDevice, devices, st.sampled_from([None, "one", ""])),
            min_size=2,
            max_size=4,
        ),
    )
    def change_the_device(self, who: str, changes: list[c.SetPushDevice]) -> None:
        for change in changes:
            self.put(who, change, c.QueryPushDevice())

    def named(self, command: c.Command, who: str, picked: list[int]) -> c.Command:
        """The command, with some ids where it has a place for them."""
        ids = self.chosen(picked, who, message_ids)
        match command:
            case c.RemoveMessages(_, reason):
                return c.RemoveMessages(ids, reason)
            case c.QueueEnvelopes(expires_at_s=seconds) if seconds:
                expires_at_s = self.system.now_ms // 1000 + seconds
                return msgspec.structs.replace(command, expires_at_s=expires_at_s)
            case c.DeliverMessages(message_ids=[]):
                return msgspec.structs.replace(command, message_ids=ids)
            case _:
                return command

    @rule(who=anyone, command=queue_commands)
    def use_anybodys_queue(self, who: str, command: c.Command) -> None:
        self.put(who, self.named(command, who, []))

    @rule(
        who=anyone,
        silent_ms=st.sampled_from([4_200_000, 7_800_000, 3_000_000, 200_000_000]),
        is_asking=st.sampled_from([False, False, True]),
        own=queue_commands,
        of_others=st.lists(envelopes, max_size=3),
        steps=st.lists(st.sampled_from([1, 2, 99]), min_size=1, max_size=4),
        is_back=st.booleans(),
    )
    def be_silent(  # noqa: PLR0913, PLR0917 - drawn one by one
        self,
        who: str,
        silent_ms: int,
        is_asking: bool,
        own: c.Command,
        of_others: list[c.QueueEnvelopes],
        steps: list[int],
        is_back: bool,
    ) -> None:
        """Nothing comes from an agent, or one thing; it may come back before all is gone.

        One of them never registered.
        """
        self.put(who, c.GrantMediation(connection(""), []))
        self.commit()
        self.system.now_ms += silent_ms // 2
        if is_asking:
            self.put(who, self.named(own, who, []))
        self.commit()
        self.system.now_ms += silent_ms // 2
        self.put(who, *[self.named(command, who, []) for command in of_others])
        self.put(who, *map(c.ExpireRecords, steps))
        if is_back:
            self.put(who, c.GrantMediation(connection(""), []), c.SeeAgent(), c.QueryConnection())
            self.put(who, c.ExpireRecords(1), c.QueryQueue())

    @rule(who=identities, is_over=st.booleans(), most=st.sampled_from([99, 1]))
    def let_a_public_event_get_old(self, who: str, is_over: bool, most: int) -> None:
        """Until the last moment at which the oldest one is kept, or the first when it is not."""
        self.commit()
        age_ms = LIMITS.public_events_age_s_max * 1000
        published_ms = self.reference.boxes[who].published_ms.values()
        ends_ms = [at_ms + age_ms for at_ms in published_ms if at_ms + age_ms > self.system.now_ms]
        self.system.now_ms = min(ends_ms, default=self.system.now_ms) + is_over
        self.put(who, c.ExpireRecords(most))

    # Accounts -------------------------------------------------------------------------------

    @rule(
        who=identities,
        prior=speakers,
        new=speakers,
        off_s=st.sampled_from([0, 0, 1, -400]),
        own=st.lists(st.builds(c.ClaimedKey, key_names, claims), max_size=2),
        is_named=st.sampled_from([True, True, False]),
        endpoint=st.sampled_from([None, "", "https://new.example"]),
    )
    def rotate_the_account(  # noqa: PLR0913, PLR0917 - drawn one by one
        self,
        who: str,
        prior: str,
        new: str,
        off_s: int,
        own: list[c.ClaimedKey],
        is_named: bool,
        endpoint: str | None,
    ) -> None:
        """Another DID speaks from now on, if the prior one did; the same once more."""
        prior, new = prior or who, new or who
        if new != who and is_named:
            self.put(new, c.NameSpeaker(who), c.UnnameSpeaker(f"not {who}"), c.FindAccount())
        stated = None if endpoint is None else connection(endpoint, new)
        at_s = self.system.now_ms // 1000 + off_s
        rotation = c.RotateAccount(prior, new, at_s, stated, own)
        older = c.RotateAccount(new, prior, at_s - 1, None, [])  # comes late and changes nothing
        found = [c.FindAccount([*KEYS], did) for did in (new, prior, f"not {who}")]
        self.put(who, rotation, rotation, older, *found, c.QueryConnection())

    @rule(who=identities, speaker=speakers, command=queue_commands, picked=picks)
    def speak_for_an_account(
        self, who: str, speaker: str, command: c.Command, picked: list[int]
    ) -> None:
        """Some DID asks, in any order of the two generations, and only who speaks is answered."""
        by = speaker or who
        self.put(who, self.named(command, who, picked), c.QueryConnection(), speaker=by)
        self.put(by, c.QueryQueue(), speaker=by)

    @rule(
        who=identities,
        speaker=speakers,
        own=st.lists(st.builds(c.ClaimedKey, key_names, claims), max_size=2),
        is_stated=st.booleans(),
    )
    def be_granted_mediation(
        self, who: str, speaker: str, own: list[c.ClaimedKey], is_stated: bool
    ) -> None:
        stated = connection("") if is_stated else None
        self.put(who, c.GrantMediation(stated, own), speaker=speaker)

    @rule(who=identities, speaker=speakers, off_s=st.sampled_from([0, -400]), is_anew=st.booleans())
    def end_the_account(self, who: str, speaker: str, off_s: int, is_anew: bool) -> None:
        """The relationship ends, and may begin anew, which the same message does not end."""
        end = c.EndAccount(speaker or who, self.system.now_ms // 1000 + off_s)
        self.put(who, end)
        if is_anew:
            self.put(who, c.GrantMediation(connection(""), []), end, c.QueryConnection())
            if speaker:  # the account's own end, too
                end = c.EndAccount(who, end.issued_at_s)
                self.put(who, end, c.GrantMediation(connection(""), []), end, c.QueryConnection())

    @rule(key_target=st.sampled_from(KEY_TARGETS), who=identities)
    def take_over_a_key(self, key_target: str, who: str) -> None:
        """Its holder gets a key from another, and learns from whom until it is released."""
        self.put(key_target, c.ClaimKey(who, holds_key=True), c.ClaimKey(who))

    @rule(fault=faults, who=identities, request=plain_deliveries | deliveries)
    def fail_a_delivery(self, fault: Plan, who: str, request: c.DeliverMessages) -> None:
        """What was not handed out is leased to no session."""
        self.put(who, c.QueueEnvelopes("", [b"to fail"]))
        self.commit()
        self.room = 3  # the fault comes with the commit below
        self.ask(who, who, None)  # its nonce is stored, whatever there is to deliver
        self.put(who, request)
        self.commit(fault)
        self.put(who, c.DeliverMessages("tablet", "pickup/2.0", 10, 1_000, 500))
        self.put(who, c.ReleaseLeases("tablet"))
