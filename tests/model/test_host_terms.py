"""No host serves when its lease is over for others: with pauses, cuts, lost answers and skew."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from typing_extensions import override

from actors.host.host_term import HostTerm, LeaseKeeper
from eventstore.log.errors import LogUnavailable
from eventstore.log.host_leases import HostLease
from eventstore.stores.host_lease_file import HostLeaseFile

LEASE_S = 4.0
SHORT_S = st.floats(0, 2 * LEASE_S)
NAMES = ("host-a", "host-b")


class World(RuleBasedStateMachine):
    """A database with a clock of its own, and two hosts with theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1_000.0
        self._folder = tempfile.TemporaryDirectory()
        self._hosts: dict[str, Simulated] = {}
        self.leases = TimedLeases(Path(self._folder.name) / "hosts", self)

    @override
    def teardown(self) -> None:
        self.leases.close()
        for host in self._hosts.values():
            host.leases.close()
        self._folder.cleanup()

    @precondition(lambda self: not self._hosts)
    @rule(
        rates=st.tuples(*[st.floats(0.97, 1.03)] * 2),
        skews=st.tuples(*[st.floats(-1e6, 1e6)] * 2),
        database_s=st.floats(-1e3, 1e9),
    )
    def start(
        self, rates: tuple[float, float], skews: tuple[float, float], database_s: float
    ) -> None:
        """Monotonic clocks begin anywhere and run almost alike; the database's shows anything."""
        TimedLeases.ahead_s = database_s
        for name, rate, skew in zip(NAMES, rates, skews, strict=True):
            self._hosts[name] = Simulated(name, self, rate, skew)

    @rule(seconds=SHORT_S)
    def wait(self, seconds: float) -> None:
        self.now_s += seconds

    @precondition(lambda self: self._hosts)
    @rule(
        name=st.sampled_from(NAMES),
        paused_s=SHORT_S,
        under_way_s=SHORT_S,
        answer_s=SHORT_S,
        lost=st.sampled_from(("nothing", "request", "answer")),
    )
    def renew(
        self, name: str, paused_s: float, under_way_s: float, answer_s: float, lost: str
    ) -> None:
        """A host renews; it may be paused on the way, and what it sends and hears may be lost."""
        host = self._hosts[name]
        host.leases.fate = (paused_s + under_way_s, answer_s, lost)
        host.keeper.renew()

    @precondition(lambda self: self._hosts)
    @rule(name=st.sampled_from(NAMES))
    def renew_in_time(self, name: str) -> None:
        """A host that is well and asks a database that is well may serve."""
        host = self._hosts[name]
        host.leases.fate = (0.0, 0.0, "nothing")
        host.keeper.renew()
        assert host.term.is_running()

    @invariant()
    def who_serves_lives_for_others(self) -> None:
        living = {lease.name for lease in self.leases.living()} if self._hosts else set()
        serving = {name for name, host in self._hosts.items() if host.term.is_running()}
        assert serving <= living, "a host serves without a lease"


class Simulated:
    """One host: its term and its keeper are the real ones."""

    def __init__(self, name: str, world: World, rate: float, skew_s: float) -> None:
        def monotonic() -> float:
            return world.now_s * rate + skew_s

        self.leases = TimedLeases(world.leases.path, world)
        self.term = HostTerm(LEASE_S, monotonic)
        self.keeper = LeaseKeeper(
            HostLease(name, "node", "first", "127.0.0.1", 1, b""),
            self.leases,
            self.term,
            on_over=lambda: None,
        )


class TimedLeases(HostLeaseFile):
    """The leases in a file, with the time of the world and a network in between."""

    ahead_s = 0.0

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path, lambda: world.now_s + self.ahead_s)
        self.path = path
        self._world = world
        self.fate: tuple[float, float, str] | None = None

    @contextmanager
    @override
    def _living(self) -> Iterator[tuple[dict[str, tuple[float, HostLease]], float]]:
        request_s, answer_s, lost = self.fate or (0.0, 0.0, "nothing")
        self._world.now_s += request_s
        if lost == "request":
            raise LogUnavailable(lost)
        with super()._living() as rows:
            yield rows
        self._world.now_s += answer_s
        if lost == "answer":
            raise LogUnavailable(lost)


def test_no_host_serves_when_its_lease_is_over_for_others() -> None:
    run_state_machine_as_test(
        World, settings=settings(max_examples=60, stateful_step_count=25, deadline=None)
    )


def count_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = HostTerm.renewed

    def renewed(self: HostTerm, asked_s: float) -> None:
        counted(self, self.monotonic())

    monkeypatch.setattr(HostTerm, "renewed", renewed)


def believe_a_renewal_that_was_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    renew = HostLeaseFile.renew

    def renewed(self: HostLeaseFile, lease: HostLease, seconds: float) -> bool:
        try:
            return renew(self, lease, seconds)
        except LogUnavailable:
            return True

    monkeypatch.setattr(HostLeaseFile, "renew", renewed)


@pytest.mark.parametrize(
    "sabotage",
    [count_from_the_answer, believe_a_renewal_that_was_not_answered],
    ids=lambda sabotage: sabotage.__name__,
)
def test_the_model_notices(
    sabotage: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sabotage(monkeypatch)
    with pytest.raises(AssertionError, match="serves without a lease"):
        run_state_machine_as_test(
            World,
            settings=settings(
                max_examples=200,
                stateful_step_count=25,
                deadline=None,
                phases=[Phase.generate],
                derandomize=True,
                database=None,
            ),
        )
