"""Alert rules and the dashboard: what they ask for is shown, with these labels and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml
from msgspec import structs
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from actors.core.refusals import Refusal
from eventstore.log.event_log import LogFigures
from http_edge.didcomm.push import notifier as push_notifier
from http_edge.didcomm.rejections import RejectionReason
from http_edge.server.export_metrics import export_shown
from http_edge.server.metrics import exposition
from http_edge.server.status_files import ExportReporter
from tests.deploy.manifests import DEPLOY
from tests.unit.test_metrics import ARCHIVE, EXPORT, host, seen

RULES: Final = [
    rule
    for group in yaml.safe_load((DEPLOY / "prometheus/poste.rules.yml").read_text())["groups"]
    for rule in group["rules"]
]
BOARD: Final = json.loads((DEPLOY / "grafana/poste.dashboard.json").read_text())
QUERIES: Final = [rule["expr"] for rule in RULES] + [
    target["expr"] for panel in BOARD["panels"] for target in panel.get("targets", [])
]
OF_PROMETHEUS: Final = {"instance", "job"}
RESULTS: Final = {each.value for kind in (Refusal, RejectionReason) for each in kind}
_SELECTOR: Final = re.compile(r"\b(poste_\w+)(?:\{([^}]*)\})?")
_MATCHER: Final = re.compile(r'(\w+)=~?"([^"]*)"')
_GROUPED: Final = re.compile(r"\bby \(([^)]*)\)")


def _of_an_export() -> Collector:
    reporter = ExportReporter(None, lambda: 0)
    reporter.on_log(9)
    reporter.on_step(5)
    reporter.on_fault(OSError("the place is gone"))
    return export_shown([reporter])


def _shown() -> dict[str, dict[str, set[str]]]:
    """The values of every label of every metric: of a mediator whose log is in one database, of one
    with several, and of a process that only exports.
    """
    log = LogFigures(
        log_position=7, identities=1, queue_messages=1, queue_bytes=1, queue_oldest_at_ms=1
    )
    one = seen(host("shard-1", log=log))
    two = structs.replace(one, logs=[log, log], exports=[EXPORT] * 2, archives=[ARCHIVE] * 2)
    found: dict[str, dict[str, set[str]]] = {}
    for page in (one, two, _of_an_export()):
        text, _ = exposition(page, "")
        for family in text_string_to_metric_families(text.decode()):
            found.setdefault(family.name, {})
            for sample in family.samples:
                labels = found.setdefault(sample.name, {})
                for name, value in sample.labels.items():
                    labels.setdefault(name, set()).add(value)
    return found


UNCOUNTED: Final[dict[str, dict[str, set[str]]]] = {
    "poste_connections_cut_total": {"cause": set()},
    "poste_damaged_records_left_out_total": {},
    "poste_log_bytes": {"part": set()},
    "poste_push_notifications_total": {"result": set(push_notifier.RESULTS)},
}
"""Shown once there is something to show, with these labels."""
SHOWN: Final = _shown() | UNCOUNTED


def _matchers(query: str) -> Iterator[tuple[str, str, str]]:
    """Metric, label and value of each comparison in a query."""
    for metric, inner in _SELECTOR.findall(query):
        for label, pattern in _MATCHER.findall(inner):
            for value in pattern.split("|"):
                yield metric, label, value


@pytest.mark.parametrize("query", QUERIES)
def test_what_is_asked_for_is_shown_with_these_labels(query: str) -> None:
    metrics = {metric for metric, _ in _SELECTOR.findall(query)}
    assert metrics <= set(SHOWN)
    for metric, label, value in _matchers(query):
        if label not in OF_PROMETHEUS:
            known = SHOWN[metric][label] | (RESULTS if label == "result" else set())
            assert value in known, f"{metric}: {label}"
    labels = {label for metric in metrics for label in SHOWN.get(metric, {})}
    for names in _GROUPED.findall(query):
        wanted = {name.strip() for name in names.split(",")}
        assert wanted <= labels | OF_PROMETHEUS, query


def test_a_process_that_only_exports_shows_all_that_is_asked_of_an_export() -> None:
    text, _ = exposition(_of_an_export(), "")
    families = text_string_to_metric_families(text.decode())
    shown = {sample.name for family in families for sample in family.samples}
    used = {metric for query in QUERIES for metric, _ in _SELECTOR.findall(query)}
    assert {name for name in used if name.startswith(("poste_export_", "poste_process_"))} <= shown


def test_every_fault_that_a_mediator_shows_is_alerted_on() -> None:
    alerted = {metric for rule in RULES for metric, _ in _SELECTOR.findall(rule["expr"])}
    assert alerted >= {
        "poste_up",
        "poste_log_up",
        "poste_short_of_disk",
        "poste_damaged_records_left_out_total",
        "poste_append_failures_total",
        "poste_partitions_lost_total",
        *(name for name in SHOWN if name.endswith(("_fault_age_seconds", "_until_full"))),
        "poste_archive_last_round_age_seconds",
        "poste_export_caught_up_age_seconds",
    }


def test_a_mediator_that_shows_nothing_and_shards_that_none_has_are_alerted_on() -> None:
    by_name = {rule["alert"]: rule["expr"] for rule in RULES}
    assert "absent(up" in by_name["PosteNotScraped"]
    # Where no host has a shard a count of them is no series, and less than nothing.
    assert " unless" in by_name["PosteShardWithoutOwner"]


def test_what_an_alert_says_names_labels_that_its_query_leaves() -> None:
    for rule in RULES:
        grouped = {n.strip() for names in _GROUPED.findall(rule["expr"]) for n in names.split(",")}
        labels = {n for metric, _ in _SELECTOR.findall(rule["expr"]) for n in SHOWN[metric]}
        is_ungrouped = not re.match(r"\(?(sum|max|min|count|histogram_quantile)", rule["expr"])
        left = grouped | OF_PROMETHEUS | (labels if is_ungrouped else set())
        texts: dict[str, Any] = rule["annotations"]
        used = {n for text in texts.values() for n in re.findall(r"\$labels\.(\w+)", text)}
        assert used <= left, rule["alert"]
