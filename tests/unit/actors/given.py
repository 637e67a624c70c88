"""Short words for what the tests of the core are given: moments, contracts, agents, hosts."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from actors.core.commands import (
    Command,
    Connection,
    Contract,
    DeliverMessages,
    QueueEnvelopes,
    Register,
)
from actors.core.decision import DecisionContext
from actors.core.leases import Lease
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.nonces import NonceClaim, Proof
from actors.core.partitioning import shard_of
from actors.core.refusals import Refusal
from actors.core.replies import Push, Reply
from actors.core.sessions import LiveMode
from actors.core.submissions import Submission
from actors.host.clock import Ahead
from actors.host.host import Host
from eventstore.log.content import Content
from eventstore.log.event_log import EventLog
from eventstore.log.seal import command_key

NOW_MS: Final = 1_800_000_000_000
NOW_S: Final = NOW_MS // 1000
MEDIATOR: Final = "did:web:mediator.example"
SHARDS: Final = 2
EDGE: Final = "edge-0"
SECRET: Final = b"secret"

_nonces = itertools.count(1)


class HandClock:
    """Unix milliseconds that a test advances."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def context(  # noqa: PLR0913 - a context has many sides
    now_ms: int = NOW_MS,
    *,
    target: str = "did:x:me",
    limits: IdentityLimits | None = None,
    command: bytes = b"c" * 16,
    fresh_id: str = "fresh",
    leases: Mapping[str, Lease] | None = None,
    listening: bool = False,
    live: str | LiveMode = "",
    implicit: str = "",
    speaker: str = "",
    saved: Collection[str] = (),
) -> DecisionContext:
    """The context of a decision."""
    bounds = limits or IdentityLimits()
    mode = LiveMode("edge-0", live) if isinstance(live, str) else live
    return DecisionContext(
        target,
        now_ms,
        command,
        fresh_id,
        SECRET,
        bounds,
        leases or {},
        listening,
        mode,
        implicit,
        speaker,
        saved=saved,
    )


def content(data: bytes, fresh_id: str = "fresh", number: int = 0) -> Content:
    """The content that a command with this id brings."""
    return context(fresh_id=fresh_id).content(data, number)


def connection(endpoint: str = "", label: str = "Zoë phone 📱") -> Connection:
    """What an agent says of itself."""
    return Connection("did:peer:2.me", label, endpoint, [], "didexchange/1.1", "")


def delivery(session: str = "phone", **narrowed: Any) -> DeliverMessages:
    """Ask for all that waits, for a minute."""
    request = {"limit": 100, "bytes_max": 1_000_000, "lease_ms": 60_000} | narrowed
    return DeliverMessages(session, "pickup/2.0", **request)


def contract(requestor: str, recipient: str, expires_at_s: float = NOW_S + 60) -> Contract:
    """A contract that the edge has verified."""
    signed = f"{requestor} {recipient} {expires_at_s}".encode()
    return Contract(requestor, recipient, expires_at_s, hashlib.sha256(signed).digest(), signed)


def registration(did: str, expires_at_s: float = NOW_S + 60) -> Register:
    """A registration with the mediator."""
    return Register(contract(did, MEDIATOR, expires_at_s))


def submission(  # noqa: PLR0913 - each is a side of a command
    target: str,
    command: Command | None,
    *,
    sender: str | None = None,
    nonce: str | None = None,
    refusal: Refusal | None = None,
    proof: Proof = Proof.HOLDS,
    timestamp_ms: int = NOW_MS,
) -> Submission:
    """A command of ``sender`` (the target itself, if not said) with a nonce of its own."""
    by = sender or target
    key = command_key(by, nonce or f"nonce {next(_nonces)}")
    claim = NonceClaim(shard_of(by, SHARDS), key, timestamp_ms, proof)
    return Submission(shard_of(target, SHARDS), target, key, claim, refusal, command)


def unclaimed(target: str, command: Command) -> Submission:
    """A command whose nonce was claimed elsewhere; an envelope is known by what is in it."""
    said = b"".join(command.payloads) if isinstance(command, QueueEnvelopes) else b"k"
    key = hashlib.blake2b(said, digest_size=16).digest()
    return Submission(shard_of(target, SHARDS), target, key, None, None, command)


def host(
    log: EventLog,
    *,
    clock: HandClock | None = None,
    limits: HostLimits | None = None,
    name: str = "host-0",
    shards: Sequence[str] = ("shard-0", "shard-1"),
    ahead_ms: Ahead = lambda: 0,
) -> Host:
    """A host that owns all shards."""
    ids = itertools.count(1)
    made = Host(
        name,
        log,
        limits or HostLimits(),
        secret=SECRET,
        clock=clock or HandClock(),
        new_id=lambda: f"{name}-{next(ids)}",
        ahead_ms=ahead_ms,
    )
    made.ownership.assign(shards)
    return made


def run(by: Host, *submissions: Submission) -> list[Reply]:
    """Run submissions in one transaction; their replies."""
    return by.execute([(EDGE, item) for item in submissions])[0]


def pushed(by: Host, *submissions: Submission) -> list[tuple[str, Push]]:
    """Run submissions in one transaction; the pushes."""
    return by.execute([(EDGE, item) for item in submissions])[1]
