"""The lease of a host: it serves nothing more once it cannot renew, and again when it can."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from actors.core.limits import HostLimits
from actors.core.refusals import Refusal
from actors.core.replies import BatchResult, Refused
from actors.core.submissions import Submission
from actors.host.host_term import HostTerm, LeaseKeeper
from actors.host.identity_host import HostOptions
from eventstore.log.host_leases import HostLease, HostLeases
from eventstore.log.log_format import FORMAT, FORMAT_NAME
from eventstore.stores.open_log import open_host_leases
from tests.called_host import CalledHost

LEASE_S = 4.0
MINE = HostLease("host-a", "a", "first", "127.0.0.1", 7001, b"token")
RESULTS = msgspec.msgpack.Decoder(BatchResult)


class Keeping:
    """A keeper whose renewals are made by hand, at times that a test chooses."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 0.0
        self.said = 0
        self.folder = folder
        self.folder.mkdir()
        self.leases: HostLeases = open_host_leases(f"sqlite:{folder}/log.db")
        self.term = HostTerm(LEASE_S, lambda: self.now_s)
        self.keeper = LeaseKeeper(MINE, self.leases, self.term, on_over=self._over)

    def _over(self) -> None:
        self.said += 1

    def cut(self) -> None:
        """The database is not there any more."""
        self.leases.close()
        self.folder.rename(f"{self.folder}-away")

    def mend(self) -> None:
        Path(f"{self.folder}-away").rename(self.folder)


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Keeping]:
    keeping = Keeping(tmp_path / "database")
    yield keeping
    keeping.leases.close()


def test_who_cannot_renew_stops_in_time_says_so_once_and_serves_again_after(
    keeping: Keeping,
) -> None:
    assert not keeping.term.is_running()
    keeping.keeper.renew()
    assert keeping.term.is_running()
    keeping.cut()
    for keeping.now_s in (1, 2, 3):
        keeping.keeper.renew()
        assert keeping.term.is_running()
        assert keeping.term.left_s > 0
    assert keeping.said == 0
    for keeping.now_s in (LEASE_S, LEASE_S + 1):
        keeping.keeper.renew()
        assert not keeping.term.is_running()
        assert keeping.term.left_s == 0
    assert keeping.said == 1
    keeping.mend()
    keeping.keeper.renew()
    assert keeping.term.is_running()
    assert keeping.said == 1


def test_a_host_stops_before_its_lease_is_over_although_its_clock_is_a_little_slow(
    keeping: Keeping,
) -> None:
    keeping.keeper.renew()
    for part, is_running in ((0.94, True), (0.96, False)):
        keeping.now_s = LEASE_S * part
        assert keeping.term.is_running() is is_running


def test_who_stops_gives_its_lease_back_at_once(keeping: Keeping) -> None:
    keeping.keeper.renew()
    assert [lease.name for lease in keeping.leases.living()] == [MINE.name]
    keeping.keeper.start()
    keeping.keeper.stop()
    assert not keeping.term.is_running()
    with closing(open_host_leases(f"sqlite:{keeping.folder}/log.db")) as leases:
        assert leases.living() == []


def test_who_was_paused_for_too_long_says_so_before_it_serves_again(keeping: Keeping) -> None:
    keeping.keeper.renew()
    keeping.now_s = 60
    assert not keeping.term.is_running()
    keeping.keeper.renew()
    assert (keeping.said, keeping.term.is_running()) == (1, True)


def test_who_finds_another_under_its_name_serves_nothing_more(keeping: Keeping) -> None:
    keeping.keeper.renew()
    keeping.leases.take(msgspec.structs.replace(MINE, incarnation="second"), 600)
    keeping.keeper.renew()
    assert (keeping.said, keeping.term.is_running()) == (1, False)


def test_a_host_that_may_not_serve_sends_edges_to_the_next_owner_and_stores_nothing(
    tmp_path: Path,
) -> None:
    options = HostOptions("host", f"sqlite:{tmp_path / 'log.db'}", ["shard-0"], HostLimits())
    serving = [True]
    host = CalledHost(options, lambda *_: None, may_serve=lambda: serving[0])
    batch = msgspec.msgpack.encode([Submission("shard-0", "did:x:me", b"key" * 8)] * 2)
    before = host.holdings()
    serving[0] = False
    refused = [Refused(Refusal.NOT_OWNER)] * 2
    assert RESULTS.decode(host.submit("edge-0", batch)).replies == refused
    # What was taken while it might serve and has its turn only now is refused as well.
    answers = iter([True])
    host._writer._may_serve = lambda: next(answers, False)
    assert RESULTS.decode(host.submit("edge-0", batch)).replies == refused
    assert host.holdings() == before
    host.stop()


def test_a_host_records_the_format_of_its_log_before_it_serves(tmp_path: Path) -> None:
    options = HostOptions("host", f"sqlite:{tmp_path / 'log.db'}", ["shard-0"], HostLimits())
    host = CalledHost(options, lambda *_: None)
    with closing(options.open_log()) as log:
        assert log.settings()[FORMAT_NAME] == str(FORMAT)
    host.stop()
