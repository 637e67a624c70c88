"""Whichever host owns what and fails when: an identity has one owner, in its shard or alone.

Hosts claim a shard and an identity of it at will, edges ask whichever they believe in, and appends
go wrong. What was accepted is there once and in its order; whatever is answered is true at
that time; what is refused as another's can be sent again as it is.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.core.commands import (
    AcknowledgeMessages,
    Command,
    Contract,
    DedicateIdentity,
    DedicationReason,
    Page,
    QueryMessages,
    QueueMessage,
    Register,
    ReleaseIdentity,
    StoreContract,
)
from actors.core.identity import Identity
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from actors.core.replies import (
    Dedication,
    Done,
    MessageAccepted,
    MessagesPage,
    Refused,
    Registered,
    Reply,
)
from actors.core.submissions import Submission
from actors.host.host import Host
from actors.host.stored_states import read_identity
from eventstore.log.codec import decode
from eventstore.log.errors import LogError
from eventstore.log.event_log import DedicatedIdentity
from eventstore.log.events import MessageQueued
from eventstore.log.streams import identity_stream
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from tests.log.faulty_log import ConflictNext, FailNext, FaultyLog, StoredButFailed

SHARD, ME, FRIEND = "shard-0", "did:x:me", "did:x:friend"
NOW_MS = 1_700_000_000_000
UNTIL_S = 2_000_000_000
HOSTS = 3
FAULTS = (FailNext(), StoredButFailed(), ConflictNext())
NOT_OWNER = Refused(Refusal.NOT_OWNER)
UNAVAILABLE = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            [*["write"] * 5, *["read"] * 4, "drop", "dedicate", "dedicate", "release", "release",
             "own shard", "own alone", "own alone", "start anew", "fault", "hand on", "batch"]
        ),
        st.integers(0, HOSTS - 1),
        st.booleans(),
    ),
    min_size=20,
    max_size=70,
)  # fmt: skip


class Owners:
    """Some hosts on one log, and what they were asked and said."""

    def __init__(self, dsn: str) -> None:
        self.real = open_log(dsn)
        self.log = FaultyLog(self.real)
        self._numbers = iter(range(1_000_000))
        self.hosts = [self._host(number) for number in range(HOSTS)]
        self.accepted: list[bytes] = []
        self.unknown: set[bytes] = set()
        self.hosts[0].moves.adopt([SHARD], None)
        contract = Contract(ME, FRIEND, UNTIL_S, bytes(32), b"")
        registration: tuple[Command, ...] = (Register(contract), StoreContract(contract))
        for command in registration:
            reply = self.ask(0, SHARD, command)
            assert isinstance(reply, Registered | Done), reply

    def _host(self, number: int) -> Host:
        return Host(
            f"host-{number}",
            self.log,
            HostLimits(snapshot_after_events=3),
            secret=b"secret",
            clock=lambda: NOW_MS,
            uptime_s=lambda: NOW_MS / 1_000,
            new_id=lambda: f"id-{next(self._numbers)}",
            is_placed=True,
        )

    def ask(self, number: int, partition: str, *commands: Command) -> Reply:
        """What a host says to the first of these commands, all in one transaction."""
        request = [self._submission(partition, command) for command in commands]
        replies, _ = self.hosts[number].execute([("edge", submission) for submission in request])
        for submission, reply in zip(request, replies, strict=True):
            self._note(submission, reply)
        return replies[0]

    def _submission(self, partition: str, command: Command) -> Submission:
        key = next(self._numbers).to_bytes(16, "big")
        claim = NonceClaim(SHARD, key, NOW_MS) if partition == SHARD else None
        return Submission(partition, ME, key, claim, command=command)

    def _note(self, submission: Submission, reply: Reply) -> None:
        command = submission.command
        assert reply != Refused(Refusal.DUPLICATE_NONCE)
        if isinstance(command, QueueMessage):
            if isinstance(reply, MessageAccepted):
                self.accepted.append(submission.command_key)
            elif reply == UNAVAILABLE:
                self.unknown.add(submission.command_key)
            else:
                assert reply == NOT_OWNER
        elif isinstance(reply, MessagesPage):
            # No other host has written since: the answer has to be what is there now.
            assert [m.message_id for m in reply.messages] == list(self.truth().messages)

    def truth(self) -> Identity:
        """The identity as the log has it."""
        state, _ = read_identity(self.real, identity_stream(ME))
        return state

    def write(self) -> QueueMessage:
        """A message that says which one it is."""
        return QueueMessage(FRIEND, str(next(self._numbers)).encode())

    def step(self, what: str, number: int, *, alone: bool) -> None:
        """Let one thing happen at one host, which is asked for the shard or for the identity."""
        partition = ME if alone else SHARD
        match what:
            case "write":
                self.ask(number, partition, self.write())
            case "read":
                self.ask(number, partition, QueryMessages(Page(0, 1_000)))
            case "drop":
                self._drop(number, partition)
            case "dedicate":
                self._placed(
                    self.ask(number, partition, DedicateIdentity(DedicationReason.OPERATOR))
                )
            case "release":
                self._placed(
                    self.ask(number, partition, ReleaseIdentity(DedicationReason.OPERATOR))
                )
            case "batch":
                change = ReleaseIdentity if alone else DedicateIdentity
                self.ask(
                    number, partition, self.write(), change(DedicationReason.OPERATOR), self.write()
                )
            case "own shard" | "own alone":
                with contextlib.suppress(LogError):
                    self.hosts[number].moves.adopt([SHARD if what == "own shard" else ME], None)
            case "hand on":
                other = (number + 1) % HOSTS
                with contextlib.suppress(LogError):
                    handover = self.hosts[number].moves.release([partition])
                    self.hosts[other].moves.adopt([partition], handover)
            case "start anew":
                self.hosts[number] = self._host(number)
            case _:
                self.log.plan(FAULTS[number])

    def _drop(self, number: int, partition: str) -> None:
        first = next(iter(self.truth().messages), None)
        if first is not None and isinstance(
            self.ask(number, partition, AcknowledgeMessages([first])), Done
        ):
            assert first not in self.truth().messages

    def _placed(self, reply: Reply) -> None:
        if isinstance(reply, Dedication):
            assert self.truth().dedicated_by == reply.reason
        else:
            assert reply in {NOT_OWNER, UNAVAILABLE}, reply

    def check(self) -> None:
        """Everything that was accepted was stored once, in its order."""
        rows = self.real.read_stream(identity_stream(ME))
        events = [decode(row.topic, row.state) for row in rows]
        stored = [event.command for event in events if isinstance(event, MessageQueued)]
        assert len(set(stored)) == len(stored)
        assert [command for command in stored if command not in self.unknown] == self.accepted
        *findings, summary = verify(self.real)
        assert isinstance(summary, Summary)
        assert findings == []
        reason = self.truth().dedicated_by
        assert self.real.dedicated() == ([DedicatedIdentity(ME, reason)] if reason else [])


@settings(derandomize=True, database=None, deadline=None, max_examples=120)
@given(STEPS)
@pytest.mark.thorough
def test_an_identity_has_one_owner_whatever_hosts_and_edges_believe(
    steps: list[tuple[str, int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        owners = Owners(f"sqlite:{Path(directory) / uuid4().hex}.db")
        try:
            for what, number, alone in steps:
                owners.step(what, number, alone=alone)
            owners.check()
        finally:
            owners.real.close()
