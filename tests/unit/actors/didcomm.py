"""Every DIDComm command once, and a way to put commands to one identity."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from actors.core.commands import (
    CheckKeys,
    ClaimedKey,
    ClaimKey,
    Command,
    Connect,
    EndAccount,
    EndLive,
    ExpireRecords,
    FindAccount,
    FindKeyOwner,
    GrantMediation,
    Listen,
    NameSpeaker,
    PurgeQueue,
    PushDevice,
    QueryConnection,
    QueryKeylist,
    QueryPushDevice,
    QueryQueue,
    QueueEnvelopes,
    ReleaseKey,
    ReleaseLeases,
    RemoveMessages,
    RotateAccount,
    SaveContract,
    SeeAgent,
    SetPushDevice,
    SetQueuePolicy,
    StartLive,
    UnnameSpeaker,
    UpdateKeylist,
    UseInvitation,
)
from actors.core.decide import decide
from actors.core.decision import Accepted, Decision, DeliveryRefs
from actors.core.evolve import evolve
from actors.core.identity import Identity
from actors.core.leases import Lease
from actors.core.replies import Delivery, QueueState
from actors.host.host import Host
from eventstore.log.events import Event, MessagesRemoved
from tests.unit.actors.given import (
    NOW_MS,
    connection,
    context,
    contract,
    delivery,
    registration,
    run,
    unclaimed,
)

FRIEND: Final = "did:x:friend"
ME: Final = "did:key:z6MkMe"
KEY: Final = "8HH5gYEeNc3z7PYXmd54d4x6qAfCNrqQqEB3nS7Zfu7K"
KEY_TARGET: Final = f"key:{KEY}"
INVITATION_TARGET: Final = "invitation:once"
DEVICE: Final = PushDevice("fcm", "token of a phone", "android")

BY_AGENTS: Final[list[Command]] = [
    QueryConnection(),
    GrantMediation(),
    UpdateKeylist([ClaimedKey(KEY, 1)], []),
    CheckKeys([KEY]),
    QueryKeylist(0, 10),
    QueueEnvelopes("", [b"sealed"]),
    QueueEnvelopes("", [b"sealed", b"too"]),
    QueryQueue(),
    SetQueuePolicy(will_queue=False),
    SetPushDevice(DEVICE),
    QueryPushDevice(),
    delivery(),
    RemoveMessages(["x"], "acknowledged"),
    Listen("edge-0"),
    StartLive("edge-0", "phone"),
    EndLive("phone"),
    SeeAgent(),
]
"""What only a connected agent can do, or have done for it."""
ON_KEYS: Final[list[Command]] = [
    ClaimKey(ME),
    ReleaseKey(ME, 1),
    FindKeyOwner(),
    UseInvitation(ME),
]
NEW_DID: Final = "did:peer:4zQmNew"
ON_ACCOUNTS: Final[list[Command]] = [
    FindAccount([KEY]),
    NameSpeaker(NEW_DID),
    UnnameSpeaker(NEW_DID),
    RotateAccount(ME, NEW_DID, NOW_MS // 1000, own=[ClaimedKey(NEW_DID, 1)]),
    EndAccount(ME, NOW_MS // 1000),
]
"""What a rotated DID is about."""
ON_QUEUES: Final[list[Command]] = [
    Connect(connection()),
    PurgeQueue(),
    ExpireRecords(9),
    ReleaseLeases("phone"),
]
"""What needs no connection."""


class Agent:
    """The state of one identity, with the leases that a host keeps for it."""

    def __init__(self, did: str = ME) -> None:
        self.did = did
        self.state = Identity()
        self.now_ms = NOW_MS
        self.leases: dict[str, Lease] = {}
        self._ids = 0

    def do(self, command: Command, /, **at: Any) -> Decision:
        """Decide, evolve with what was decided, and lease what is to be leased."""
        self._ids += 1
        at = {"leases": self.leases, "fresh_id": f"m{self._ids}"} | at
        decision = decide(self.state, command, context(self.now_ms, target=self.did, **at))
        if isinstance(decision, Accepted):
            self.record(*decision.events)
            if decision.leasing is not None:
                lease = decision.leasing.lease
                self.leases |= dict.fromkeys(decision.leasing.message_ids, lease)
        return decision

    def record(self, *events: Event) -> None:
        """Let events happen."""
        for event in events:
            evolve(self.state, event)

    def queue(self, *payloads: bytes, key: str = "", **at: Any) -> list[str]:
        """Queue envelopes; their ids."""
        before = set(self.state.messages)
        for payload in payloads:
            command = hashlib.blake2b(b"%d" % self._ids, digest_size=16).digest()
            known = {"command": command} | at
            assert isinstance(self.do(QueueEnvelopes(key, [payload]), **known), Accepted)
        return [i for i in self.state.messages if i not in before]

    def take(
        self, session: str = "phone", *, at: dict[str, Any] | None = None, **how: Any
    ) -> list[str]:
        """Ids of what is handed out to a session, in order."""
        decision = self.do(delivery(session, **how), **(at or {}))
        assert isinstance(decision, Accepted)
        assert isinstance(decision.reply, DeliveryRefs)
        ids = {message.version: i for i, message in self.state.messages.items()}
        taken = [ids[version] for version in decision.reply.versions]
        leasing = decision.leasing
        assert taken == ([] if leasing is None else list(leasing.message_ids))
        return taken

    def standing(self, command: Command, **at: Any) -> QueueState:
        """How the queue stands, by the answer to a command."""
        decision = self.do(command, **at)
        assert isinstance(decision, Accepted)
        assert isinstance(decision.reply, QueueState)
        return decision.reply


def claimed(*keys: str, claim: int = 1) -> list[ClaimedKey]:
    """Keys with the number of their claims."""
    return [ClaimedKey(key, claim) for key in keys]


def agent(endpoint: str = "", keys: tuple[str, ...] = (KEY,)) -> Agent:
    """An agent that connected, was granted mediation, and registered keys."""
    made = Agent()
    for command in (
        Connect(connection(endpoint)),
        GrantMediation(),
        UpdateKeylist(claimed(*keys), []),
    ):
        assert isinstance(made.do(command), Accepted)
    return made


def on_both_protocols() -> Agent:
    """An agent that has a Decentrl registration and a friend there, too."""
    both = agent()
    both.do(registration(ME))
    both.do(SaveContract(contract(FRIEND, ME)))
    return both


def removal(*ids: str, reason: str = "acknowledged") -> RemoveMessages:
    """Remove these."""
    return RemoveMessages([*ids], reason)


def removed(versions: Sequence[int], *ids: str, reason: str = "acknowledged") -> MessagesRemoved:
    """These, which were queued at these versions, were removed."""
    return MessagesRemoved(
        at_ms=NOW_MS,
        command=b"c" * 16,
        message_ids=[*ids],
        reason=reason,
        versions=[*versions],
    )


def go_live(owner: Host, edge: str, *, lease_ms: int, bytes_max: int) -> None:
    """A session gets the live mode and fetches once, as it does when its edge has the answer."""
    (begun,) = run(owner, unclaimed(ME, StartLive(edge, "phone")))
    assert isinstance(begun, QueueState)
    bounds = {"lease_ms": lease_ms, "bytes_max": bytes_max, "after_version": begun.version}
    (fetched,) = run(owner, unclaimed(ME, delivery("phone", live=True, **bounds)))
    assert isinstance(fetched, Delivery)
    assert fetched.messages == []
