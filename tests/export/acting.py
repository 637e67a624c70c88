"""A host that acts alone, so slowly that no nonce keeps a seal in the log."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Final, TypeAlias

from actors.core import commands as c
from actors.core.identity import Identity
from actors.core.limits import HostLimits, IdentityLimits
from actors.core.nonces import NonceClaim
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.stored_states import read_identity
from eventstore.log.event_log import EventLog
from eventstore.log.seal import command_key
from eventstore.log.streams import identity_stream
from tests.histories import EDGE, MEDIATOR, PLACEMENT, START_MS, contract

ME: Final = "did:example:alice"
AGENT: Final = "did:key:carl"
FRIEND: Final = "did:example:friend"
HOUR_S: Final = 3_600
_LIMITS: Final = IdentityLimits(expired_contracts_age_s_max=1)


class Acting:
    """A host whose commands are an hour apart, so that no nonce keeps a seal in the log."""

    def __init__(self, log: EventLog, limits: IdentityLimits = _LIMITS) -> None:
        self.now_ms = START_MS
        self._limits = HostLimits(timestamp_window_ms=60_000, identity=limits)
        self._log = log
        self._numbers = count(1)
        self.restart()

    def restart(self) -> None:
        """Act on a new host, which reads all states from the log."""
        self._host = Host(
            "host-0",
            self._log,
            self._limits,
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

    def state(self) -> Identity:
        """What the log knows of ``ME``."""
        return read_identity(self._log, identity_stream(ME))[0]

    def register(self, until_s: float) -> None:
        """Register ``ME`` until this time, in Unix seconds."""
        self.ask(ME, ME, c.Register(contract(ME, MEDIATOR, until_s)))

    def connect(self, did: str) -> None:
        connection = c.Connection("did:peer:2.me", "phone", "", ["key9"], "didexchange/1.1", "")
        self.ask(did, did, c.Connect(connection))
        self.ask(did, did, c.GrantMediation())


Act: TypeAlias = Callable[[Acting, int], None]
"""Something that is done; the number says to how many, or with what."""


def keep_contract(acting: Acting, number: int) -> None:
    """Keep a contract that is over two hours later."""
    kept = contract(ME, f"{FRIEND}/{number}", acting.now_ms / 1000 + 2 * HOUR_S)
    acting.ask(ME, ME, c.SaveContract(kept))


def request_contract(acting: Acting, _: int) -> None:
    acting.ask(FRIEND, ME, c.RequestContract(FRIEND, "contract?", "key"))


def publish(acting: Acting, number: int) -> None:
    said = c.PublishPublicEvent("news", f"text {number}", ["red"], number, "sig", True)
    acting.ask(ME, ME, said)


def set_device(acting: Acting, number: int) -> None:
    device = c.PushDevice("fcm", f"token {number}", "")
    acting.ask(AGENT, AGENT, c.SetPushDevice(device if number % 5 else None))


def set_rules(acting: Acting, number: int) -> None:
    acting.ask(AGENT, AGENT, c.SetQueuePolicy(messages_max=10 + number))


def connect_again(acting: Acting, number: int) -> None:
    endpoint = f"https://agent.test/{number}" if number % 2 else ""
    stated = c.Connection(
        f"did:peer:2.{number}", "phone", endpoint, ["key9"], "didexchange/1.1", ""
    )
    acting.ask(AGENT, AGENT, c.Connect(stated))


def acknowledge(acting: Acting, number: int) -> None:
    acting.ask(ME, ME, c.AcknowledgeContractRequests([*acting.state().requests][:number]))


def withdraw(acting: Acting, number: int) -> None:
    acting.ask(ME, ME, c.DeletePublicEvents([*acting.state().public_events][:number], None))


def expire(acting: Acting, _: int = 0) -> None:
    acting.ask(MEDIATOR, ME, c.ExpireRecords(100))


def register(acting: Acting, number: int = 900) -> None:
    acting.register(acting.now_ms / 1000 + (1_000 + number) * HOUR_S)


def erase(acting: Acting, _: int = 0) -> None:
    for _step in range(5):
        acting.ask(MEDIATOR, ME, c.EraseIdentity("operator", 1_000))


def restart(acting: Acting, _: int) -> None:
    acting.restart()
