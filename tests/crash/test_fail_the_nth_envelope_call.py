"""Writes and syncs fail under forwards, deliveries and acknowledgements: no false answer."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from actors.core.commands import (
    ClaimedKey,
    ClaimKey,
    Command,
    Connect,
    Connection,
    DeliverMessages,
    GrantMediation,
    QueueEnvelopes,
    RemoveMessages,
    UpdateKeylist,
)
from actors.core.refusals import Refusal
from actors.core.replies import Delivery, EnvelopeQueued, QueueState, Refused
from actors.core.submissions import Submission
from eventstore.log.seal import command_key
from eventstore.stores.open_log import open_log
from tests.crash.commands import UNAVAILABLE
from tests.crash.conftest import Report
from tests.crash.disk import STRACE
from tests.crash.owner import PARTITION, Owner, ask, here
from tests.crash.storage import stored_texts

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]
AT_ONCE: Final = 2
RUNS: Final = 8
"""In each another call is the first to fail."""
AGENT: Final = "did:key:agent"
KEY: Final = "recipientKey"
BEFORE: Final = ["one", "two", "three"]
AFTER: Final = ["four", "five"]
_COMMAND: Final = b"c" * 16


class Run(NamedTuple):
    """What one run with failing calls came to."""

    failed: bool
    accepted: int
    unknown: int
    acknowledged: int


def submission(command: Command, target: str = AGENT) -> Submission:
    return Submission(PARTITION, target, _COMMAND, command=command)


def registered() -> list[Submission]:
    """An agent connects, is mediated and has a key."""
    connection = Connection("did:peer:agent", "agent", "", [], "didexchange/1.1", "")
    return [
        submission(Connect(connection)),
        submission(GrantMediation()),
        submission(ClaimKey(AGENT), f"key:{KEY}"),
        submission(UpdateKeylist([ClaimedKey(KEY, claim=1)], [])),
    ]


def forwarded(text: str) -> Submission:
    """A forward of its own: the same command again would be the same message."""
    key = command_key("sender", text)
    return Submission(PARTITION, AGENT, key, command=QueueEnvelopes(KEY, [text.encode()]))


def delivery(limit: int) -> Submission:
    return submission(DeliverMessages("session", "pickup/2.0", limit, 1_000_000, 60_000))


@dataclass(slots=True)
class Agent:
    """What an agent and its senders know after asking an owner whose calls fail."""

    owner: Owner
    accepted: list[str] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    unknown: int = 0

    def forward(self, texts: Sequence[str]) -> None:
        """Each is accepted or unknown, never anything else."""
        for text in texts:
            match self.owner.ask(forwarded(text)):
                case [EnvelopeQueued()]:
                    self.accepted.append(text)
                case other:
                    self._is_unknown(other)

    def pick_up(self) -> None:
        """Take one message and acknowledge it."""
        match self.owner.ask(delivery(1)):
            case [Delivery(messages=[message])]:
                removal = RemoveMessages([message.message_id], "acknowledged")
                match self.owner.ask(submission(removal)):
                    case [QueueState()]:
                        self.acknowledged.append(message.payload.decode())
                    case other:
                        self._is_unknown(other)
            case [Delivery(messages=[])]:
                assert not set(self.accepted) - set(self.acknowledged), "nothing is offered"
            case other:
                self._is_unknown(other)

    def _is_unknown(self, replies: object) -> None:
        assert replies in (None, [UNAVAILABLE]), replies
        self.unknown += 1


@pytest.mark.parametrize(
    ("call", "error", "every", "killed"),
    [("fdatasync", "EIO", 8, True), ("pwrite64", "ENOSPC", 48, False)],
)
def test_no_failing_call_makes_a_false_answer_to_an_agent(
    tmp_path: Path, report: Report, call: str, error: str, every: int, killed: bool
) -> None:
    firsts = range(1, every + 1, every // RUNS)
    faults = [f"{call}:error={error}:when={first}+{every}" for first in firsts]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = list(pool.map(partial(fail, tmp_path, killed=killed), faults))
    report(
        f"calls failed in {sum(run.failed for run in runs)} of {len(runs)} runs,"
        f" {sum(run.accepted for run in runs)} forwards accepted, 0 of them lost,"
        f" {sum(run.acknowledged for run in runs)} acknowledged, 0 of them undone,"
        f" {sum(run.unknown for run in runs)} answers unknown"
    )
    assert sum(run.unknown for run in runs) > 0
    assert sum(run.accepted for run in runs) > 0


def fail(tmp_path: Path, fault: str, *, killed: bool) -> Run:
    """One run of a fresh process on a fresh log, and the check of what it has left."""
    directory = tmp_path / fault.rpartition("=")[2]
    directory.mkdir()
    dsn, trace = f"sqlite:{directory / 'log.db'}", directory / "trace"
    with closing(open_log(dsn)):
        pass  # the log is made: what may fail is the work on it
    call = fault.partition(":")[0]
    strace = [*STRACE, f"-o{trace}", f"-etrace={call}", f"-einject={fault}"]
    with Owner.traced(dsn, strace) as owner:
        agent = Agent(owner)
        replies = owner.ask(*registered()) or [UNAVAILABLE]
        known = not any(isinstance(reply, Refused) for reply in replies)
        if known:
            agent.forward(BEFORE)
            agent.pick_up()
            agent.pick_up()
            agent.forward(AFTER)
        if killed:
            owner.signal(signal.SIGKILL)
        else:
            owner.stop()
    check(dsn, agent, known=known)
    failed = "(INJECTED)" in trace.read_text()
    return Run(failed, len(agent.accepted), agent.unknown, len(agent.acknowledged))


def check(dsn: str, agent: Agent, *, known: bool) -> None:
    """Accepted forwards are there, acknowledged ones gone, a claimed key is still the agent's."""
    with closing(open_log(dsn)) as log:
        stored = stored_texts(log)
    assert stored == [text for text in BEFORE + AFTER if text in set(stored)], "order, or twice"
    erased = set(agent.accepted) - set(stored)
    assert len(erased) <= len(agent.acknowledged) + agent.unknown, "an accepted forward is lost"
    assert not set(agent.acknowledged) & set(stored), "what was erased came back"
    with here(dsn) as host:
        stranger = ask(host, submission(ClaimKey("did:key:stranger"), f"key:{KEY}"))
        if known:
            assert stranger == [Refused(Refusal.KEY_TAKEN)]
            (offered,) = ask(host, delivery(100))
            assert isinstance(offered, Delivery)
            texts = [message.payload.decode() for message in offered.messages]
            assert not set(texts) & set(agent.acknowledged), "a removal is undone"
            assert texts == [text for text in stored if text in set(texts)]
            gone = set(agent.accepted) - set(texts)
            assert len(gone) <= len(agent.acknowledged) + agent.unknown
            assert isinstance(ask(host, forwarded("after"))[0], EnvelopeQueued)
