"""An edge is ready as long as it reaches a host that has identities to serve."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import override

from actors.core.partitioning import Placement
from actors.host.port import HostNotReached
from http_edge.admin.health import Health
from http_edge.dispatch.gateway import Gateway
from http_edge.dispatch.routes import Routes
from tests.unit.dispatch.recording_host import RecordingHost
from tests.unit.dispatch.test_gateway import LIMITS


def reached(*shards: str) -> RecordingHost:
    return RecordingHost(shards=shards)


class PlacerRoutes(Routes):
    """Routes of a placer that says nothing for as long as a test wants."""

    silent_for_s = 0.0
    joining = ""
    """A host that joins once the others are known."""

    @override
    def hosts(self) -> Sequence[str]:
        joining, self.joining = self.joining, ""
        return [host for host in super().hosts() if host != joining]

    @override
    def silent_s(self) -> float:
        return self.silent_for_s


class Setting:
    """Two hosts, and what an edge says of them a second later each time."""

    def __init__(self, *hosts: RecordingHost, databases: int = 1) -> None:
        self.hosts = hosts
        placement = Placement(shards=16, hosts=len(hosts) // databases, databases=databases)
        self.routes = PlacerRoutes.fixed(placement)
        self._now_ms = 0
        ports = dict(zip(placement.host_names, hosts, strict=True))
        gateway = Gateway(
            self.routes,
            lambda name: ports[name],
            LIMITS,
            on_push=lambda _: None,
            on_new_incarnation=lambda _: None,
        )
        self._health = Health(gateway, clock=lambda: self._now_ms, silent_s_max=4)

    async def is_ready(self) -> bool:
        self._now_ms += 2_000
        return await self._health.unready() is None

    async def silent_hosts(self) -> object:
        return (await self._health.figures())["silent_hosts"]

    async def problems(self) -> str | None:
        self._now_ms += 2_000
        return await self._health.detail()


async def test_one_host_with_a_shard_is_enough() -> None:
    setting = Setting(reached("shard-0"), reached("shard-1"))
    assert await setting.is_ready()
    setting.hosts[0].fails = HostNotReached
    assert await setting.is_ready()
    setting.hosts[1].fails = HostNotReached
    assert not await setting.is_ready()
    setting.hosts[1].fails, setting.hosts[1].shards = None, ("shard-1",)
    assert await setting.is_ready()


async def test_an_edge_that_reaches_no_host_but_those_without_a_shard_is_not_ready() -> None:
    setting = Setting(reached("shard-0", "shard-1"), reached())
    assert await setting.is_ready()
    setting.hosts[0].fails = HostNotReached
    assert not await setting.is_ready()
    setting.hosts[1].fails, setting.hosts[1].shards = None, ("shard-0", "shard-1")
    assert await setting.is_ready()
    setting.hosts[1].fails, setting.hosts[1].shards = None, ()
    assert not await setting.is_ready()


async def test_an_edge_that_hears_neither_the_placer_nor_a_host_is_cut_off_and_not_ready() -> None:
    setting = Setting(reached("shard-0"), reached("shard-1"))
    setting.routes.silent_for_s = 5
    assert await setting.is_ready()  # the placer alone is away
    setting.hosts[0].fails = HostNotReached
    assert not await setting.is_ready()
    setting.routes.silent_for_s = 0
    assert await setting.is_ready()


async def test_an_edge_is_ready_while_one_database_is_away_and_with_it_the_placer() -> None:
    shards = (f"shard-{number}" for number in range(4))
    setting = Setting(*[reached(shard) for shard in shards], databases=2)
    setting.routes.silent_for_s = 5
    for host in setting.hosts[:2]:
        host.fails = HostNotReached
    assert await setting.is_ready()
    setting.hosts[2].fails = HostNotReached  # of the other database, of which one is there: a cut
    assert not await setting.is_ready()
    setting.hosts[3].fails = HostNotReached
    assert not await setting.is_ready()


async def test_a_host_whose_log_fails_is_a_problem_and_leaves_its_edge_ready() -> None:
    setting = Setting(reached("shard-0"), reached("shard-1"))
    assert await setting.problems() is None
    setting.hosts[1].log_fails = True
    assert await setting.problems() == "the log of host-1 fails: its lines on stderr say why"
    assert await setting.is_ready()
    setting.hosts[1].shards = ()  # nothing that it serves would show that its log works again
    assert await setting.problems() is None
    setting.hosts[1].shards = ("shard-1",)
    setting.hosts[1].log_fails = False
    assert await setting.problems() is None


async def test_the_figures_name_the_hosts_that_do_not_answer() -> None:
    setting = Setting(reached("shard-0"), reached("shard-1"))
    for host in setting.hosts:
        host.fails = HostNotReached
    assert await setting.silent_hosts() == ["host-0", "host-1"]


async def test_a_host_that_joins_while_the_others_are_asked_is_not_called_silent() -> None:
    setting = Setting(reached("shard-0"), reached("shard-1"))
    for host in setting.hosts:
        host.fails = HostNotReached
    setting.routes.joining = "host-1"
    assert await setting.silent_hosts() == ["host-0"]
