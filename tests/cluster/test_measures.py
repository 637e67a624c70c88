"""What a real ``poste serve`` shows of itself: measures, and requests in lines of the log."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, TypeAlias

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from http_edge.clients.decentrl import Account, MediatorClient
from tests.cluster.accounts import (
    Socket,
    befriend,
    client,
    healthy,
    message,
    newcomer,
    post,
    until,
)
from tests.cluster.server import HOST, Server, send
from tests.cluster.wallets import MediatedAgent
from tests.tidy.modules import ROOT

pytestmark = pytest.mark.cluster

Labels: TypeAlias = tuple[tuple[str, str], ...]
HOSTS: Final = ["host-0", "host-1"]
EDGES: Final = ["edge-0", "edge-1"]
STRANGE: Final = "GIVE_ME_A_LABEL"
MESSAGES: Final = 7
SHOWING: Final = [
    ROOT / "deploy/prometheus/poste.rules.yml",
    ROOT / "deploy/grafana/poste.dashboard.json",
]
METRIC: Final = re.compile(r"\bposte_[a-z_]+")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("watched")
    settings = {
        "metrics_listen": "127.0.0.1:0",
        "log_level": "debug",
        "hosts": "2",
        "edges": "2",
        "export.to": str(folder / "export"),
        "export.lag_s_max": "0.1",
        "push.webhook_url": "http://127.0.0.1:9/",
    }
    with Server(folder / "data", **settings) as server:
        yield server


@pytest.fixture
async def mediator(watched: Server) -> AsyncIterator[MediatorClient]:
    async with client(watched.url) as mediator:
        yield mediator


class Page:
    """One answer of ``/metrics``."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples: dict[tuple[str, Labels], float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples of this name that have these labels."""
        return sum(
            value
            for (found, has), value in self.samples.items()
            if found == name and labels.items() <= dict(has).items()
        )

    def labels(self, label: str) -> set[str]:
        """Every value of a label."""
        return {value for _, has in self.samples for name, value in has if name == label}


async def scraped(server: Server) -> Page:
    (url,) = [line["url"] for line in lines(server) if line["event"] == "metrics are served"]
    headers = {"Authorization": f"Bearer {server.operators()[1]}"}
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/plain"
        return Page(await response.text())


def lines(server: Server) -> list[dict[str, Any]]:
    # Of the last line there may be a part alone, while it is written.
    *written, _ = (server.data_dir / "stderr").read_text().split("\n")
    return [json.loads(line) for line in written if line.startswith("{")]


async def after(server: Server, before: Page) -> Page:
    """A page that is newer than the one from before."""

    async def newer() -> Page | None:
        page = await scraped(server)
        cpu = "poste_process_cpu_seconds_total"
        return (
            page
            if page.total(cpu, process="edge-0") > before.total(cpu, process="edge-0")
            else None
        )

    page = await until(newer)
    assert page is not None
    return page


async def test_the_measures_count_what_both_protocols_have_done(
    watched: Server, mediator: MediatorClient
) -> None:
    before = await scraped(watched)
    writer, reader = [await newcomer(mediator, alias) for alias in ("writer", "reader")]
    await befriend(writer, reader)
    for number in range(MESSAGES):
        assert await writer.send(reader.identity.did, f"{number}")
    refused = message(writer, reader, "once")
    assert [(await post(mediator, refused))[0] for _ in range(3)] == [200, 401, 401]
    socket = await Socket.open(reader)
    async with aiohttp.ClientSession() as session:
        agent = await MediatedAgent.arrive(session, watched.url)
        await agent.write("a", "b", "c")
        assert await agent.drained() == ["a", "b", "c"]
        page = await after(watched, before)
    await socket.close()

    def grew(name: str, **labels: str) -> float:
        return page.total(name, **labels) - before.total(name, **labels)

    commands = "poste_commands_total"
    stored = grew(commands, protocol="decentrl", command="TWO_WAY_PRIVATE", result="done")
    assert stored == MESSAGES + 1
    assert grew(commands, command="TWO_WAY_PRIVATE", result="DUPLICATE_NONCE") == 2
    assert grew("poste_refusals_total", protocol="decentrl", reason="DUPLICATE_NONCE") == 2
    assert grew(commands, command="routing/1.0/forward", result="done") == 3
    assert grew("poste_host_commands_total", command="QueueMessage", result="done") == MESSAGES + 1
    assert grew("poste_host_commands_total", command="QueueEnvelopes", result="done") >= 3
    assert page.total("poste_sockets", protocol="decentrl") == 1
    assert page.total("poste_sessions") == 1
    assert page.total("poste_queue_messages") == MESSAGES + 1
    assert page.total("poste_queue_bytes") > 0
    assert page.total("poste_log_position") > before.total("poste_log_position")
    assert grew("poste_host_stage_seconds_count", stage="commit") >= grew("poste_commits_total") > 0
    decoded = grew("poste_edge_stage_seconds_count", stage="decode")
    assert decoded >= grew("poste_request_seconds_count") > MESSAGES
    assert grew("poste_call_items_sum") == grew("poste_edge_stage_seconds_count", stage="outbox")

    async def exported() -> float:
        return (await scraped(watched)).total("poste_export_position")

    assert await until(exported) > 0


async def test_every_process_is_up_and_every_shard_has_one_owner(watched: Server) -> None:
    page = await scraped(watched)
    ups = {name: page.total("poste_up", process=name) for name in [*HOSTS, *EDGES]}
    assert set(ups.values()) == {1}
    owners = [dict(has) for name, has in page.samples if name == "poste_shard_owner"]
    assert {o["shard"]: o["host"] for o in owners} == {
        f"shard-{n}": HOSTS[n % 2] for n in range(16)
    }
    assert len(owners) == 16
    assert all(family.documentation for family in page.families.values())


def _expressions(file: Path) -> list[str]:
    """Every query in a dashboard or in a file of rules."""
    found: list[str] = []

    def look(at: Any) -> None:
        if isinstance(at, dict):
            found.extend([at["expr"]] if "expr" in at else [])
            look(list(at.values()))
        elif isinstance(at, list):
            for inner in at:
                look(inner)

    look(yaml.safe_load(file.read_text()))  # JSON is YAML
    return found


@pytest.mark.parametrize("file", SHOWING, ids=lambda file: file.name)
async def test_what_is_alerted_on_and_drawn_is_shown(watched: Server, file: Path) -> None:
    page = await scraped(watched)
    shown = set(page.families) | {
        name + suffix
        for name, family in page.families.items()
        for suffix in {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(
            family.type, []
        )
    }
    named = {name for text in _expressions(file) for name in METRIC.findall(text)}
    assert len(named) > 8
    assert named <= shown


async def test_a_stranger_makes_no_label(watched: Server, mediator: MediatorClient) -> None:
    writer = await newcomer(mediator, "stranger")
    before = await scraped(watched)
    bodies = [
        b"nothing",
        message(writer, writer, "x").replace(b"TWO_WAY_PRIVATE", STRANGE.encode()),
        json.dumps({"type": STRANGE}).encode(),
    ]
    for body in bodies:
        assert (await post(mediator, body))[0] >= 400
    async with aiohttp.ClientSession() as session:
        for path in (f"/{STRANGE}", f"/public/did:web:{STRANGE}", f"/didcomm?{STRANGE}"):
            async with session.post(watched.url + path, data=STRANGE) as response:
                assert response.status >= 400
    page = await after(watched, before)
    assert page.total("poste_commands_total", command="unknown") >= 3
    values = {value for _, has in page.samples for _, value in has}
    assert not [value for value in values if STRANGE in value or "did:" in value]
    # What one process shows is bounded, whatever clients do.
    assert len(page.samples) < 2_000


async def test_a_host_that_does_not_answer_is_down_and_the_rest_is_shown(
    watched: Server, mediator: MediatorClient
) -> None:
    host = watched.pids(HOST)[0]
    send(host, signal.SIGSTOP)

    async def down() -> list[str]:
        page = await scraped(watched)
        return [name for name in [*HOSTS, *EDGES] if not page.total("poste_up", process=name)]

    (name,) = await until(down)
    assert name in HOSTS
    page = await scraped(watched)
    assert page.total("poste_resident_memory_bytes", process=name) == 0
    assert page.total("poste_process_resident_memory_bytes", process="edge-0") > 0
    send(host, signal.SIGKILL)

    async def up() -> bool:
        return not await down()

    assert await until(up)
    assert await until(lambda: healthy(mediator))
    assert (await scraped(watched)).total("poste_log_up") == 1


async def test_a_request_is_found_by_its_id_from_the_edge_to_the_log(
    watched: Server, mediator: MediatorClient
) -> None:
    writer: Account = await newcomer(mediator, "named")
    session = mediator.transport.session
    body = message(writer, writer, "to myself")
    headers = {"X-Request-Id": "from-a.proxy_0123456789abcdef0123456789abcdef"}
    async with session.post(watched.url + "/", data=body, headers=headers) as response:
        assert response.headers["X-Request-Id"] == headers["X-Request-Id"]

    async def logged() -> list[dict[str, Any]]:
        found = [
            line for line in lines(watched) if line.get("request_id") == headers["X-Request-Id"]
        ]
        return found if len(found) >= 2 else []

    found = await until(logged)
    by_process = {line["process"].split("-")[0]: line for line in found}
    assert by_process["edge"]["event"] == "request answered"
    assert by_process["edge"]["path"] == "/"
    assert by_process["host"]["event"] == "command answered"
    assert len(by_process["host"]["command_key"]) == len("01234567-01234567-01234567-01234567")


@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "did:web:agent.example", "ä"])
async def test_an_id_that_is_not_well_formed_is_replaced(watched: Server, given: str) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(watched.url + "/livez", headers={"X-Request-Id": given}) as response,
    ):
        assert response.status == 200
        made = response.headers["X-Request-Id"]
    assert made != given
    assert re.fullmatch("[A-Za-z0-9_-]{22}", made)


def test_an_address_for_measures_that_is_taken_stops_the_start(
    watched: Server, tmp_path: Path
) -> None:
    taken = watched.url.removeprefix("http://")
    another = Server(tmp_path / "data", metrics_listen=taken)
    with pytest.raises(AssertionError, match="metrics_listen"):
        another.start()
    another.kill_everything()
