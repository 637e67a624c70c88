"""Short words for what the tests of the core are given: moments, contracts, hosts, submissions."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from typing import Final

from actors.commands import Command, Contract, NonceClaim, Register, Submission
from actors.decision import Moment
from actors.host import Host
from actors.limits import HostLimits, IdentityLimits
from actors.partitions import shard_of
from actors.refusals import Refusal
from actors.replies import Push, Reply
from eventstore.log import EventLog
from eventstore.seal import command_key

NOW_MS: Final = 1_800_000_000_000
NOW_S: Final = NOW_MS // 1000
MEDIATOR: Final = "did:web:mediator.example"
SHARDS: Final = 2
EDGE: Final = "edge-0"

_nonces = itertools.count(1)


class HandClock:
    """Unix milliseconds that pass only when told."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


def moment(
    now_ms: int = NOW_MS, *, limits: IdentityLimits | None = None, fresh_id: str = "fresh"
) -> Moment:
    """A moment of decision."""
    return Moment(now_ms, b"c" * 16, fresh_id, limits or IdentityLimits())


def contract(requestor: str, recipient: str, expires_at_s: float = NOW_S + 60) -> Contract:
    """A contract that the edge has verified."""
    signed = f"{requestor} {recipient} {expires_at_s}".encode()
    return Contract(requestor, recipient, expires_at_s, hashlib.sha256(signed).digest(), signed)


def registration(did: str, expires_at_s: float = NOW_S + 60) -> Register:
    """A registration with the mediator."""
    return Register(contract(did, MEDIATOR, expires_at_s))


def submission(
    target: str,
    command: Command | None,
    *,
    sender: str | None = None,
    nonce: str | None = None,
    refusal: Refusal | None = None,
) -> Submission:
    """A command of ``sender`` (the target itself, if not said) with a nonce of its own."""
    by = sender or target
    key = command_key(by, nonce or f"nonce {next(_nonces)}")
    claim = NonceClaim(shard_of(by, SHARDS), key, NOW_MS)
    return Submission(shard_of(target, SHARDS), target, key, claim, refusal, command)


def unclaimed(target: str, command: Command) -> Submission:
    """A command whose nonce was claimed elsewhere."""
    return Submission(shard_of(target, SHARDS), target, b"k" * 16, None, None, command)


def host(
    log: EventLog,
    *,
    clock: HandClock | None = None,
    limits: HostLimits | None = None,
    name: str = "host-0",
    shards: Sequence[str] = ("shard-0", "shard-1"),
) -> Host:
    """A host that owns all shards."""
    ids = itertools.count(1)
    made = Host(
        name,
        log,
        limits or HostLimits(),
        clock=clock or HandClock(),
        new_id=lambda: f"{name}-{next(ids)}",
    )
    made.assign(shards)
    return made


def run(by: Host, *submissions: Submission) -> list[Reply]:
    """Run submissions in one transaction; their replies."""
    return by.execute([(EDGE, item) for item in submissions])[0]


def pushed(by: Host, *submissions: Submission) -> list[tuple[str, Push]]:
    """Run submissions in one transaction; the pushes."""
    return by.execute([(EDGE, item) for item in submissions])[1]
