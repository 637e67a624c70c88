"""What the processes of mediators have counted, from their ``/metrics``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from http_edge.cli.running_mediator import exchange, refuse_unless_ok
from http_edge.server.metrics import PATH
from tests.cluster.server import Server

Counts: TypeAlias = Mapping[str, float]
SETTINGS: Final = {"metrics_listen": "127.0.0.1:0"}
"""Of mediators that are asked."""
FRESH_S: Final = 1.1
"""A mediator asks its processes at most once a second: so long after the last question it does."""
COMMITS: Final = "commits"
COMMIT_S: Final = "commit_s"
CALLS: Final = "calls"
"""Batches that edges have sent to hosts."""
VISITS: Final = "visits"
"""Commands that hosts have run: twice one whose sender and target have different hosts."""
_SAMPLES: Final[Mapping[tuple[str, str], str]] = {
    ("poste_commits_total", ""): COMMITS,
    ("poste_host_stage_seconds_sum", "commit"): COMMIT_S,
    ("poste_call_items_count", ""): CALLS,
    ("poste_transaction_items_sum", ""): VISITS,
}


def scraped(servers: Iterable[Server]) -> Counts:
    """The sums over all processes of these mediators. Raises: Stop: one does not answer."""
    sums: Counts = {}
    for server in servers:
        address, (_, token) = _metrics_url(server), server.operators()
        status, body = exchange("GET", address, PATH, token=token)
        refuse_unless_ok(status, address, PATH)
        sums = plus(sums, counted(body.decode()))
    return sums


def _metrics_url(server: Server) -> str:
    """Where a mediator that was set to ``SETTINGS`` has said that it shows its measures."""
    said = (server.data_dir / "stderr").read_text().splitlines()
    lines = [msgspec.json.decode(line) for line in said if line.startswith("{")]
    *_, url = [line["url"] for line in lines if line["event"] == "metrics are served"]
    return str(url).removesuffix(PATH)


def counted(text: str) -> Counts:
    """The sums over all processes of one mediator, from what it shows."""
    sums: Counts = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = _SAMPLES.get((sample.name, sample.labels.get("stage", "")))
            if name is not None:
                sums = plus(sums, {name: sample.value})
    return sums


def plus(these: Counts, those: Counts, times: float = 1) -> dict[str, float]:
    """The sums of both, of the other ones so many times."""
    names = these.keys() | those.keys()
    return {name: these.get(name, 0.0) + times * those.get(name, 0.0) for name in names}
