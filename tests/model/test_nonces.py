"""Each command takes effect once, whatever is sent, forgotten, restarted and wound.

Two hosts take turns with one log, and two edges ask them; each of the four has a clock of its own
that jumps. Commands are sent, forged, and sent again; the model knows only which were accepted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actors.core.commands import Command, Page, QueryMessages, Register, RequestContract
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim, NonceWindow, Proof
from actors.core.refusals import Refusal
from actors.core.replies import Done, Refused, Reply
from actors.core.submissions import Submission
from actors.host import owned_partition
from actors.host.host import Host
from actors.host.owned_partition import OwnedPartition
from actors.host.transaction import Transaction
from eventstore.stores.open_log import open_log
from tests.log.raw_sql import run_sql
from tests.unit.actors.given import NOW_MS, contract

SHARD: Final = "shard-0"
WINDOW_MS: Final = 300_000
ALICE, STRANGER = "did:x:alice", "did:x:stranger"
FAR_S: Final = NOW_MS // 1000 + 10**9

drifts_ms = st.sampled_from([0, -WINDOW_MS, WINDOW_MS, 1_000, -100_000])
jumps_ms = st.sampled_from(
    [1_000, 61_000, -61_000, 301_000, -301_000, 700_000, 3_600_000, -3_600_000]
)
pairs = st.integers(0, 1)
picks = st.integers(0, 30)


class NonceMachine(RuleBasedStateMachine):
    """Replays under every order of junk, restarts, take-overs and clocks."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = TemporaryDirectory()
        self.url = f"sqlite:///{Path(self._folder.name)}/log.db"
        self.log = open_log(self.url)
        self.host_ms = [NOW_MS, NOW_MS]
        self.edge_ms = [NOW_MS, NOW_MS]
        self.owner = 0
        self.window_ms = WINDOW_MS
        self.commands: list[Submission] = []
        self.accepted: dict[bytes, int] = {}
        self.ids = map(str, itertools.count())
        self.host = self.new_host()

    def new_host(self) -> Host:
        """A host with nothing in memory, at the clock of the owner."""
        which = self.owner
        made = Host(
            f"host-{which}",
            self.log,
            HostLimits(timestamp_window_ms=self.window_ms, unproven_nonces_max=6),
            secret=b"secret",
            clock=lambda: self.host_ms[which],
            uptime_s=lambda: self.host_ms[which] / 1_000,
            new_id=lambda: next(self.ids),
        )
        made.ownership.assign([SHARD])
        return made

    @initialize()
    def register(self) -> None:
        register = Register(contract(ALICE, "did:x:mediator", FAR_S))
        self.send_new(ALICE, ALICE, register, 0, 0)

    def claim(self, submission: Submission, proof: Proof) -> Submission:
        """The same command at another stage of its validation."""
        assert submission.claim is not None
        claim = NonceClaim(SHARD, submission.claim.key, submission.claim.timestamp_ms, proof)
        command = None if proof is Proof.NOT_YET else submission.command
        return Submission(SHARD, submission.target_did, b"", claim, None, command)

    def send_new(
        self, sender: str, target: str, command: Command | None, edge: int, drift_ms: int
    ) -> None:
        key = len(self.commands).to_bytes(16, "big")
        claim = NonceClaim(SHARD, key, self.edge_ms[edge] + drift_ms)
        self.commands.append(Submission(SHARD, target, key, claim, None, command))
        self.send(self.commands[-1], edge)

    def send(self, submission: Submission, edge: int) -> Reply | None:
        """What an edge does with a command, and what the model says to its answer."""
        assert submission.claim is not None
        if abs(self.edge_ms[edge] - submission.claim.timestamp_ms) > self.window_ms:
            return None
        ((reply,), _) = self.host.execute([(f"edge-{edge}", submission)])
        is_done = not isinstance(reply, Refused) and submission.command is not None
        if is_done:
            key = submission.claim.key
            self.accepted[key] = self.accepted.get(key, 0) + 1
            assert self.accepted[key] == 1, "a command took effect twice"
        return reply

    @rule(edge=pairs, drift_ms=drifts_ms, is_stranger=st.booleans(), is_query=st.booleans())
    def command(self, edge: int, drift_ms: int, is_stranger: bool, is_query: bool) -> None:
        if is_query:
            who = STRANGER if is_stranger else ALICE
            self.send_new(who, who, QueryMessages(Page(0, 10)), edge, drift_ms)
        else:
            self.send_new(STRANGER, ALICE, RequestContract(STRANGER, "r", "k"), edge, drift_ms)

    @rule(pick=picks, edge=pairs)
    @precondition(lambda self: self.commands)
    def replay(self, pick: int, edge: int) -> None:
        self.send(self.commands[pick % len(self.commands)], edge)

    @rule(pick=picks, edge=pairs)
    @precondition(lambda self: self.commands)
    def replay_in_two_steps(self, pick: int, edge: int) -> None:
        """As an edge does that has to fetch a document before it can check the signature."""
        submission = self.commands[pick % len(self.commands)]
        if self.send(self.claim(submission, Proof.NOT_YET), edge) == Done():
            self.send(self.claim(submission, Proof.HOLDS_NOW), edge)

    @rule(pick=picks, edge=pairs, is_copy=st.booleans())
    @precondition(lambda self: self.commands)
    def junk(self, pick: int, edge: int, is_copy: bool) -> None:
        """Without a signature: with a nonce of its own, or with one that was seen."""
        submission = self.commands[pick % len(self.commands)]
        assert submission.claim is not None
        key = submission.claim.key if is_copy else b"junk" + pick.to_bytes(12, "big")
        claim = NonceClaim(SHARD, key, self.edge_ms[edge])
        before = self.log.position()
        self.send(Submission(SHARD, ALICE, key, claim, Refusal.INVALID_SIGNATURE), edge)
        assert self.log.position() == before, "junk left a row"

    @rule(which=pairs, jump_ms=jumps_ms)
    def wind_the_clock_of_a_host(self, which: int, jump_ms: int) -> None:
        self.host_ms[which] += jump_ms

    @rule(which=pairs, jump_ms=jumps_ms)
    def wind_the_clock_of_an_edge(self, which: int, jump_ms: int) -> None:
        self.edge_ms[which] += jump_ms

    @rule()
    def set_all_clocks_right(self) -> None:
        self.edge_ms = [NOW_MS, NOW_MS]
        self.host_ms = [NOW_MS, NOW_MS]

    @rule(off_ms=st.just(0) | jumps_ms)
    def sweep(self, off_ms: int) -> None:
        """Do the housekeeping, perhaps while the owner's clock is off for a moment."""
        self.host_ms[self.owner] += off_ms
        due = self.host.run_housekeeping()
        self.log.save_snapshots(due)
        self.host_ms[self.owner] -= off_ms

    @rule()
    def restart(self) -> None:
        self.host = self.new_host()

    @rule()
    def let_the_other_host_take_over(self) -> None:
        self.owner = 1 - self.owner
        self.host = self.new_host()

    @rule()
    def lose_the_snapshot(self) -> None:
        run_sql(self.url, "DELETE FROM snapshots")

    def teardown(self) -> None:
        self.log.close()
        self._folder.cleanup()


@pytest.fixture(autouse=True)
def _snapshots_and_sweeps_come_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_partition, "_SEALS_TO_READ_MIN", 2)
    monkeypatch.setattr("actors.host.host._SWEEP_MS", -(10**9))


SMALL = settings(
    max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None
)
LARGE = settings(SMALL, max_examples=300)


def test_no_command_takes_effect_twice_and_junk_leaves_no_row() -> None:
    run_state_machine_as_test(NonceMachine, settings=SMALL)


@pytest.mark.thorough
def test_no_command_takes_effect_twice_in_many_more_histories() -> None:
    run_state_machine_as_test(NonceMachine, settings=LARGE)


def start_another_node(machine: NonceMachine) -> None:
    """With other partitions, under the narrower window, and once more after the wider one ended."""
    for at_ms in (NOW_MS, NOW_MS + 2 * WINDOW_MS + 1):
        machine.host_ms = machine.edge_ms = [at_ms, at_ms]
        node = Host(
            "other",
            machine.log,
            HostLimits(timestamp_window_ms=WINDOW_MS // 10),
            secret=b"secret",
            clock=lambda: machine.host_ms[1],
            uptime_s=lambda: machine.host_ms[1] / 1_000,
            new_id=lambda: next(machine.ids),
        )
        node.ownership.assign(["shard-1"])


@pytest.mark.parametrize(
    "before",
    [
        lambda _: None,
        lambda machine: machine.log.mark("nonce_window", None),
        start_another_node,
    ],
    ids=["one node", "a log without marks, as from an export", "a node before the others"],
)
def test_a_nonce_outlives_any_number_of_starts_under_a_narrower_window(
    before: Callable[[NonceMachine], None],
) -> None:
    machine = NonceMachine()
    machine.register()
    before(machine)
    now_ms = machine.host_ms[0]
    machine.command(0, WINDOW_MS, is_stranger=False, is_query=True)
    machine.window_ms = WINDOW_MS // 10
    for ahead_ms in (0, WINDOW_MS, WINDOW_MS, WINDOW_MS + 1):
        machine.host_ms[0] = machine.edge_ms[0] = now_ms + ahead_ms
        machine.restart()
        refused = machine.send(machine.commands[-1], 0)
        assert refused in {None, Refused(Refusal.DUPLICATE_NONCE)}
    assert machine.log.settings()["nonce_window"] == f"{WINDOW_MS} {now_ms + 2 * WINDOW_MS}"
    machine.teardown()


def test_a_nonce_outlives_a_window_that_became_narrower_twice() -> None:
    machine = NonceMachine()
    machine.register()
    machine.command(0, WINDOW_MS, is_stranger=False, is_query=True)
    for part, ahead_ms in ((2, 0), (10, 1_000), (10, WINDOW_MS + 2_000), (10, WINDOW_MS + 3_000)):
        machine.window_ms = WINDOW_MS // part
        machine.host_ms[0] = machine.edge_ms[0] = NOW_MS + ahead_ms
        machine.restart()
    assert machine.send(machine.commands[-1], 0) == Refused(Refusal.DUPLICATE_NONCE)
    machine.teardown()


def test_a_nonce_outlives_a_window_that_became_narrower_and_then_wider_than_before() -> None:
    machine = NonceMachine()
    machine.register()
    machine.command(0, 0, is_stranger=False, is_query=True)
    for window_ms, passed_ms in ((WINDOW_MS // 10, 0), (2 * WINDOW_MS, WINDOW_MS + 60_000)):
        machine.window_ms = window_ms
        machine.host_ms[0] = machine.edge_ms[0] = NOW_MS + passed_ms
        machine.restart()
    assert machine.send(machine.commands[-1], 0) == Refused(Refusal.DUPLICATE_NONCE)
    machine.teardown()


def test_the_nonces_of_a_wider_window_are_not_read_for_ever() -> None:
    machine = NonceMachine()
    machine.register()
    machine.command(0, 0, is_stranger=False, is_query=True)
    machine.window_ms = WINDOW_MS // 10
    for ahead_ms, is_kept in ((0, True), (2 * WINDOW_MS, True), (2 * WINDOW_MS + 1, False)):
        machine.host_ms[0] = NOW_MS + ahead_ms
        machine.restart()
        partition = machine.host.ownership.owned.get(SHARD)
        assert partition is not None
        assert (len(partition.nonces) > 0) is is_kept
    machine.teardown()


def never_remember_what_was_forgotten(patch: pytest.MonkeyPatch) -> None:
    sweep = NonceWindow.sweep

    def careless(self: NonceWindow, now_ms: int, window_ms: int) -> None:
        sweep(self, now_ms, window_ms)
        self.forgotten_before_ms = 0

    patch.setattr(NonceWindow, "sweep", careless)


def take_a_claim_without_proof_for_a_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NonceWindow, "holds", lambda _self, _key, _now_ms: False)


def keep_what_had_an_effect_in_memory_alone(patch: pytest.MonkeyPatch) -> None:
    def forgetful(
        self: Transaction, partition: OwnedPartition, claim: NonceClaim, *, counted_for: bytes
    ) -> None:
        partition.nonces.add(claim.key, self.expiry_ms(claim), counted_for)

    patch.setattr(Transaction, "claim_nonce", forgetful)


@pytest.mark.parametrize(
    "sabotage",
    [
        pytest.param(never_remember_what_was_forgotten, marks=pytest.mark.thorough),
        take_a_claim_without_proof_for_a_proof,
        keep_what_had_an_effect_in_memory_alone,
    ],
    ids=lambda sabotage: sabotage.__name__,
)
def test_the_model_notices(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(AssertionError, match="took effect twice"):
        run_state_machine_as_test(NonceMachine, settings=settings(LARGE, phases=[Phase.generate]))
