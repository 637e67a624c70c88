"""What an edge relies on at its port to a host: the played host keeps to it as a real one does."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
import pytest

from actors.core.commands import CheckRegistered, Page
from actors.core.partitioning import shard_name
from actors.core.replies import BatchResult
from actors.core.submissions import Read, Submission
from actors.host.port import HostPort, HostUnavailable, Ping, QueryHoldings, ReadPages
from eventstore.log.event_log import PublicEventsFilter
from http_edge.settings.settings import Settings
from tests.edge.local_host import LocalHosts
from tests.unit.dispatch.recording_host import RecordingHost

Cut: TypeAlias = Callable[[bool], None]
SHARDS = [shard_name(index) for index in range(4)]
DID = "did:a:0"


@pytest.fixture(params=["played", "real"])
async def host(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[HostPort, Cut]]:
    """A host, and what cuts it off and makes it answer again."""
    if request.param == "played":
        played = RecordingHost(shards=SHARDS)

        def cut_played(is_cut: bool) -> None:
            played.fails = HostUnavailable if is_cut else None

        yield played, cut_played
        return
    settings = Settings.model_validate({"data_dir": tmp_path, "shards": len(SHARDS)})
    ids = itertools.count(1)
    hosts = LocalHosts(settings, clock=lambda: 1_800_000_000_000, new_id=lambda: f"{next(ids)}")
    hosts.start()

    def cut_real(is_cut: bool) -> None:
        (hosts.cut if is_cut else hosts.mend)("host-0")

    yield hosts.ports_of("edge-0")("host-0"), cut_real
    await hosts.stop()


def batch(number: int) -> bytes:
    submissions = [
        Submission(SHARDS[0], DID, bytes([n]) * 16, None, command=CheckRegistered())
        for n in range(number)
    ]
    return msgspec.msgpack.encode(submissions)


async def test_a_batch_has_a_reply_to_each_command_and_the_incarnation_that_gave_it(
    host: tuple[HostPort, Cut],
) -> None:
    port, _ = host
    result = msgspec.msgpack.decode(await port.submit(batch(3)), type=BatchResult)
    assert (len(result.replies), result.pushes) == (3, [])
    assert result.incarnation == await port.ask(Ping()) != ""
    assert result.incarnation == await port.heartbeat(0)
    assert msgspec.msgpack.decode(await port.submit(batch(0)), type=BatchResult).replies == []


async def test_a_host_says_what_it_holds_and_gives_a_page_for_each_read(
    host: tuple[HostPort, Cut],
) -> None:
    port, _ = host
    holdings = await port.ask(QueryHoldings())
    assert (holdings.name, set(holdings.shards)) == ("host-0", set(SHARDS))
    assert holdings.incarnation == await port.ask(Ping())
    reads = [Read(DID, Page(0, 1), PublicEventsFilter())] * 2
    pages = await port.ask(ReadPages(reads))
    assert len(pages) == 2


async def test_a_host_that_is_cut_off_is_unavailable_to_all_until_it_is_there_again(
    host: tuple[HostPort, Cut],
) -> None:
    port, cut = host
    cut(True)
    for call in (port.submit(batch(1)), port.ask(Ping()), port.heartbeat(0)):
        with pytest.raises(HostUnavailable):
            await call
    cut(False)
    assert await port.submit(batch(1))
