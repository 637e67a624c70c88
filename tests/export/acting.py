"""A host that acts alone, so slowly that no nonce keeps a seal in the log."""

from __future__ import annotations

from itertools import count
from typing import Any, Final

from actors.core import commands as c
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim
from actors.core.submissions import Submission
from actors.host.host import Host
from eventstore.log.event_log import EventLog
from eventstore.log.seal import command_key
from tests.histories import EDGE, MEDIATOR, PLACEMENT, START_MS, contract

ME: Final = "did:example:alice"


class Acting:
    """A host whose commands are an hour apart, so that no nonce keeps a seal in the log."""

    def __init__(self, log: EventLog) -> None:
        self.now_ms = START_MS
        self._numbers = count(1)
        self._host = Host(
            "host-0",
            log,
            HostLimits(timestamp_window_ms=60_000),
            secret=b"secret",
            clock=lambda: self.now_ms,
            new_id=lambda: f"id-{next(self._numbers)}",
        )
        self._host.ownership.assign([f"shard-{n}" for n in range(PLACEMENT.shards)])

    def ask(self, sender: str, target: str, command: c.Command) -> Any:
        """Run one command; return the reply."""
        self.now_ms += 3_600_000
        key = command_key(sender, f"nonce-{next(self._numbers)}")
        claim = NonceClaim(PLACEMENT.partition_of(sender), key, self.now_ms)
        submission = Submission(PLACEMENT.partition_of(target), target, key, claim, None, command)
        replies, _ = self._host.execute([(EDGE, submission)])
        return replies[0]

    def register(self, until_s: float) -> None:
        """Register ``ME`` until this time, in Unix seconds."""
        self.ask(ME, ME, c.Register(contract(ME, MEDIATOR, until_s)))

    def connect(self, did: str) -> None:
        connection = c.Connection("did:peer:2.me", "phone", "", ["key9"], "didexchange/1.1", "")
        self.ask(did, did, c.Connect(connection))
        self.ask(did, did, c.GrantMediation())
