"""The text that Prometheus reads, and what may become a label in it."""

from __future__ import annotations

import re
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from actors.host_report import HostReport
from actors.host_stats import HostStats
from actors.measures import OTHER, SECONDS, HostMeasures, ProcessUse, Tally, histogram
from eventstore.log import LogFigures
from http_edge.edge_report import EdgeMeasures, EdgeReport
from http_edge.exposition import Seen, exposition

_USE: Final = ProcessUse(1.5, 1_000)
EXPORT: Final = {
    "position": 5,
    "rows_behind": 2,
    "caught_up_age_s": 1.0,
    "trouble_age_s": None,
    "standby": False,
}
_NAME: Final = re.compile(r"poste_[a-z0-9_]+")


def host(*partitions: str, log: LogFigures | None = None) -> HostReport:
    stats = HostStats("host-0", partitions=list(partitions), leases=3)
    return HostReport(stats=stats, measures=HostMeasures(), use=_USE, log=log)


def edge() -> EdgeReport:
    report = EdgeReport(
        measures=EdgeMeasures(),
        refusals=Tally(),
        sockets={"decentrl": 2},
        listeners=1,
        in_flight=0,
        in_flight_bytes=0,
        outbox_items=0,
        outbound={"delivered": 4, "failed": 1, "agents": 1},
        use=_USE,
    )
    report.measures.commands.add("decentrl", "QUERY_EVENTS", "done")
    report.refusals.add("didcomm", "anonymous")
    return report


def seen(*hosts: HostReport | None) -> Seen:
    named = {f"host-{index}": report for index, report in enumerate(hosts)}
    return Seen(hosts=named, edges={"edge-0": edge()}, shards=16, exports=[EXPORT], now_ms=9_000)


def samples(shown: Seen) -> dict[str, float]:
    text, _ = exposition(shown, "")
    return {
        f"{sample.name}{sorted(sample.labels.items())}" if sample.labels else sample.name: (
            sample.value
        )
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_every_metric_is_named_by_the_conventions_and_says_what_it_is() -> None:
    log = LogFigures(
        log_position=7, identities=1, queue_messages=1, queue_bytes=1, queue_oldest_at_ms=1
    )
    text, content_type = exposition(seen(host("shard-1", log=log)), "")
    assert content_type.startswith("text/plain")
    families = list(text_string_to_metric_families(text.decode()))
    assert len(families) > 35
    for family in families:
        assert _NAME.fullmatch(family.name), family.name
        assert family.documentation.endswith(".")
        if family.type == "counter":
            assert all(sample.name.endswith("_total") for sample in family.samples)
        if "seconds" in family.documentation:
            assert "_seconds" in family.name


def test_a_scraper_that_reads_openmetrics_gets_it() -> None:
    text, content_type = exposition(seen(host()), "application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_a_process_that_told_nothing_is_down_and_the_others_are_shown() -> None:
    found = samples(seen(None, host("shard-1")))
    assert found["poste_up[('process', 'host-0')]"] == 0
    assert found["poste_up[('process', 'host-1')]"] == 1
    assert found["poste_leases[('process', 'host-1')]"] == 3
    assert found["poste_log_up"] == 0
    assert "poste_log_position" not in found
    assert found["poste_export_lag_rows"] == 2
    assert "poste_export_trouble_age_seconds" not in found


def test_each_database_has_figures_of_its_own_export() -> None:
    behind = EXPORT | {"position": 9, "rows_behind": None, "trouble_age_s": 4.0, "standby": True}
    found = samples(msgspec.structs.replace(seen(host()), exports=[EXPORT, behind]))
    told = {name: value for name, value in found.items() if name.startswith("poste_export")}
    assert told == {
        "poste_export_position[('database', '0')]": 5,
        "poste_export_position[('database', '1')]": 9,
        "poste_export_lag_rows[('database', '0')]": 2,
        "poste_export_caught_up_age_seconds[('database', '0')]": 1,
        "poste_export_caught_up_age_seconds[('database', '1')]": 1,
        "poste_export_trouble_age_seconds[('database', '1')]": 4,
        "poste_export_standby[('database', '0')]": 0,
        "poste_export_standby[('database', '1')]": 1,
    }


def test_the_age_of_the_oldest_message_is_0_where_nothing_waits() -> None:
    log = LogFigures(
        log_position=7, identities=1, queue_messages=0, queue_bytes=0, queue_oldest_at_ms=None
    )
    assert samples(seen(host(log=log)))["poste_queue_oldest_age_seconds"] == 0
    older = LogFigures(
        log_position=7, identities=1, queue_messages=1, queue_bytes=9, queue_oldest_at_ms=4_000
    )
    assert samples(seen(host(log=older)))["poste_queue_oldest_age_seconds"] == 5


def test_the_did_of_a_dedicated_identity_is_no_label() -> None:
    found = samples(seen(host("shard-0", "did:web:somebody")))
    owners = [name for name in found if name.startswith("poste_shard_owner")]
    assert owners == ["poste_shard_owner[('host', 'host-0'), ('shard', 'shard-0')]"]
    assert not [name for name in found if "did:" in name]


def test_kinds_beyond_the_bound_are_counted_as_others() -> None:
    tally = Tally(kinds_max=3)
    for number in range(10):
        tally.add("decentrl", f"COMMAND_{number}", "done")
        tally.add("decentrl", "COMMAND_0", "done")
    assert len(tally.counts) == 4
    assert tally.of("decentrl", "COMMAND_0", "done") == 11
    assert tally.of(OTHER, OTHER, OTHER) == 7
    assert sum(tally.counts.values()) == 20


def test_a_histogram_counts_its_bounds_as_below() -> None:
    times = histogram(SECONDS)
    for seconds in (0.0, SECONDS[0], SECONDS[0] * 1.01, SECONDS[-1], SECONDS[-1] + 1):
        times.observe(seconds)
    assert (times.counts[0], times.counts[1], times.counts[-2], times.counts[-1]) == (2, 1, 1, 1)
    assert times.count == 5
