"""What Prometheus reads, what may become a label in it, and how often the processes report."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import msgspec
import pytest
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from actors.core.partitioning import Placement
from actors.host.measures import (
    OTHER,
    SECONDS,
    Counts,
    HostMeasures,
    HostReport,
    HostStats,
    MetricFamily,
    families,
)
from eventstore.log.event_log import LogFigures, StorageFigures
from http_edge.dispatch.whole_log import storage, total
from http_edge.server.export_metrics import export_shown
from http_edge.server.metrics import AskReport, Scrape, Seen, exposition
from http_edge.server.status_files import ArchiveReporter, ExportReporter
from http_edge.settings.sections import Archive, Export
from http_edge.settings.settings import Settings
from http_edge.telemetry.edge_measures import EdgeMeasures, outbound_measures

EXPORT: Final = {
    "position": 5,
    "rows_behind": 2,
    "caught_up_age_s": 1.0,
    "fault_age_s": None,
    "standby": False,
}
ARCHIVE: Final = {
    "position": 90,
    "rows_left": 60,
    "rows_stayed": 30,
    "last_round_age_s": 7.0,
    "fault_age_s": None,
}
_NAME: Final = re.compile(r"poste_[a-z0-9_]+")


def host(*partitions: str, log: LogFigures | None = None) -> HostReport:
    stats = HostStats("host-0", partitions=list(partitions), leases=3, log=log)
    return HostReport(stats=stats, families=families(HostMeasures().registry))


def edge() -> list[MetricFamily]:
    measures = EdgeMeasures()
    outbound = {"delivered": 4, "failed": 1, "agents": 1}
    measures.registry.register(outbound_measures(lambda: outbound))
    measures.sockets.labels("decentrl").set_function(lambda: 2)
    measures.subscribers.set_function(lambda: 1)
    measures.commands.add("decentrl", "QUERY_EVENTS", "done")
    measures.refusals.add("didcomm", "anonymous")
    measures.misaddressed.add("trust-ping/2.0/ping")
    return families(measures.registry)


def seen(*hosts: HostReport | None) -> Seen:
    named = {f"host-{index}": report for index, report in enumerate(hosts)}
    return Seen(
        hosts=named,
        edges={"edge-0": edge()},
        shards=16,
        logs=[total(report.stats.log for report in hosts if report is not None)],
        exports=[EXPORT],
        now_ms=9_000,
        archives=[ARCHIVE],
    )


def samples(shown: Collector) -> dict[str, float]:
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


def test_a_process_that_reports_nothing_is_down_and_the_others_are_shown() -> None:
    found = samples(seen(None, host("shard-1")))
    assert found["poste_up[('process', 'host-0')]"] == 0
    assert found["poste_up[('process', 'host-1')]"] == 1
    assert found["poste_leases[('process', 'host-1')]"] == 3
    assert found["poste_log_up"] == 0
    assert "poste_log_position" not in found
    assert found["poste_export_lag_rows"] == 2
    assert "poste_export_fault_age_seconds" not in found


def test_each_database_has_figures_of_its_own_export() -> None:
    behind = EXPORT | {"position": 9, "rows_behind": None, "fault_age_s": 4.0, "standby": True}
    found = samples(msgspec.structs.replace(seen(host()), exports=[EXPORT, behind]))
    shown = {name: value for name, value in found.items() if name.startswith("poste_export")}
    assert shown == {
        "poste_export_position[('database', '0')]": 5,
        "poste_export_position[('database', '1')]": 9,
        "poste_export_lag_rows[('database', '0')]": 2,
        "poste_export_caught_up_age_seconds[('database', '0')]": 1,
        "poste_export_caught_up_age_seconds[('database', '1')]": 1,
        "poste_export_fault_age_seconds[('database', '1')]": 4,
        "poste_export_standby[('database', '0')]": 0,
        "poste_export_standby[('database', '1')]": 1,
    }


def test_what_left_for_the_archive_is_shown_where_rows_leave() -> None:
    page = seen(host())
    shown = {name: value for name, value in samples(page).items() if "archive" in name}
    assert shown == {
        "poste_archive_position": 90,
        "poste_archive_rows_left": 60,
        "poste_archive_rows_stayed": 30,
        "poste_archive_last_round_age_seconds": 7,
    }
    assert "archive" not in str(samples(msgspec.structs.replace(page, archives=[])))


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
    found = samples(seen(host("shard-0", "did:web:agent.example")))
    owners = [name for name in found if name.startswith("poste_shard_owner")]
    assert owners == ["poste_shard_owner[('host', 'host-0'), ('shard', 'shard-0')]"]
    assert not [name for name in found if "did:" in name]


def test_measures_of_the_same_name_are_one_metric_of_several_processes() -> None:
    both = msgspec.structs.replace(seen(host(), host()), edges={"edge-0": edge(), "edge-1": edge()})
    text, _ = exposition(both, "")
    assert text.count(b"# HELP poste_commands_total ") == 1
    assert text.count(b"# HELP poste_process_cpu_seconds_total ") == 1
    found = samples(both)
    for process in ("edge-0", "edge-1"):
        kind = f"('command', 'QUERY_EVENTS'), ('process', '{process}')"
        assert found[f"poste_commands_total[{kind}, ('protocol', 'decentrl'), ('result', 'done')]"]
        assert found[f"poste_sockets[('process', '{process}'), ('protocol', 'decentrl')]"] == 2
    for process in ("host-0", "host-1", "edge-0", "edge-1"):
        assert found[f"poste_process_resident_memory_bytes[('process', '{process}')]"] > 0


def test_kinds_beyond_the_bound_are_counted_as_others() -> None:
    registry = CollectorRegistry()
    counts = Counts("n", "Commands.", ("protocol", "command", "result"), registry, kinds_max=3)

    def count(*kind: str) -> float | None:
        labels = dict(zip(("protocol", "command", "result"), kind, strict=True))
        return registry.get_sample_value("n_total", labels)

    for number in range(10):
        counts.add("decentrl", f"COMMAND_{number}", "done")
        counts.add("decentrl", "COMMAND_0", "done")
    (metric,) = families(registry)
    assert len(metric.samples) == 4
    assert count("decentrl", "COMMAND_0", "done") == 11
    assert count(OTHER, OTHER, OTHER) == 7
    assert sum(value for _, _, value in metric.samples) == 20


def test_a_time_at_a_bound_is_counted_below_it_and_none_is_lost() -> None:
    measures = HostMeasures()
    for seconds in (0.0, SECONDS[0], SECONDS[0] * 1.01, SECONDS[-1], SECONDS[-1] + 1):
        measures.commit.observe(seconds)

    def below(bound: str) -> float | None:
        labels = {"stage": "commit", "le": bound}
        return measures.registry.get_sample_value("poste_host_stage_seconds_bucket", labels)

    bounds = (SECONDS[0], SECONDS[1], SECONDS[-1])
    assert [below(str(bound)) for bound in bounds] == [2, 3, 4]
    assert below("+Inf") == 5


class Host:
    """A host that reports something, unless it is made to fail, and counts the questions."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails
        self.with_log: list[bool] = []

    async def __call__(self, with_log: bool) -> bytes:
        self.with_log.append(with_log)
        if self.fails:
            raise RuntimeError("whatever Ray says")
        return msgspec.msgpack.encode(host())


def scrape(*hosts: AskReport) -> Scrape:
    named = {f"host-{index}": host for index, host in enumerate(hosts)}
    return Scrape(Settings(), named, {}, clock=lambda: 0)


async def test_a_client_that_asks_often_makes_no_process_work_more() -> None:
    host = Host()
    page = scrape(host)
    seen = await asyncio.gather(*[page.seen() for _ in range(20)])
    assert host.with_log == [True]
    assert all(one is seen[0] for one in seen)


async def test_a_process_that_fails_is_none_and_another_is_asked_for_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("http_edge.server.metrics._FRESH_S", 0.0)
    failing, working = Host(fails=True), Host()
    page = scrape(failing, working)
    first = await page.seen()
    assert [report is None for report in first.hosts.values()] == [True, False]
    await page.seen()
    assert failing.with_log == [True, False]
    assert working.with_log == [False, True]


def with_log(position: int | None) -> AskReport:
    """A host whose database ends at ``position``; it has no figures of it if that is None."""

    async def report(*, with_log: bool) -> bytes:
        log = None
        if position is not None:
            log = LogFigures(
                log_position=position,
                identities=1,
                queue_messages=0,
                queue_bytes=0,
                queue_oldest_at_ms=None,
            )
        return msgspec.msgpack.encode(host(log=log))

    return report


async def test_one_of_several_databases_that_does_not_answer_is_down(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, log="postgresql://one/a postgresql://one/b")
    hosts: dict[str, AskReport] = {
        "host-0-0": with_log(47),
        "host-1-0": with_log(None),
        "host-1-1": Host(fails=True),
    }
    found = samples(await Scrape(settings, hosts, {}, clock=lambda: 3_500).seen())
    assert found["poste_log_up[('database', '0')]"] == 1
    assert found["poste_log_up[('database', '1')]"] == 0
    assert found["poste_log_position"] == 47


def test_the_storage_of_all_databases_is_shown_by_part_with_its_growth_and_the_time_left() -> None:
    placement = Placement(shards=4, hosts=1, databases=2)
    parts = StorageFigures(
        facts_bytes=1,
        contents_bytes=2,
        read_models_bytes=3,
        wal_bytes=None,
        free_bytes=50,
        used_bytes=6,
    )
    first, second = (
        HostStats(name, storage=parts, free_bytes=1_000, growth_bytes_per_day=15.0)
        for name in placement.host_names
    )
    empty = Seen(hosts={}, edges={}, shards=4, logs=[], exports=[], now_ms=0)
    found = samples(msgspec.structs.replace(empty, storage=storage(placement, [first, second])))
    assert {name: value for name, value in found.items() if name.startswith("poste_log_b")} == {
        "poste_log_bytes[('part', 'facts')]": 2,
        "poste_log_bytes[('part', 'contents')]": 4,
        "poste_log_bytes[('part', 'read_models')]": 6,
        "poste_log_bytes[('part', 'free')]": 100,  # the WAL is not known
    }
    assert found["poste_log_growth_bytes_per_day"] == 30
    assert found["poste_log_days_until_full"] == (2_000 + 100) / 30


async def test_the_export_of_each_database_is_behind_its_own_log(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        log="postgresql://one/a postgresql://one/b",
        export=Export(to=str(tmp_path / "export")),
    )
    for number in (0, 1):
        ExportReporter(tmp_path, lambda: 1_000, number).on_caught_up(40)
    hosts = {"host-0-0": with_log(47), "host-1-0": with_log(1_042)}
    seen = await Scrape(settings, hosts, {}, clock=lambda: 3_500).seen()
    assert samples(seen)["poste_log_position"] == 1_089
    behind = [(export["rows_behind"], export["caught_up_age_s"]) for export in seen.exports]
    assert behind == [(7, 2.5), (1_002, 2.5)]


def test_the_start_of_a_process_that_only_exports_stays_when_the_clock_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start() -> float:
        found = samples(export_shown([ExportReporter(None, lambda: 0)]))
        return found["poste_process_start_time_seconds[('process', 'export')]"]

    before = start()
    monkeypatch.setattr(ProcessCollector, "_boot_time", lambda _self: 1.0)
    assert start() == before


def test_a_process_that_only_exports_shows_itself_and_how_long_it_is_behind_from_its_start() -> (
    None
):
    now_ms = 1_000
    reporter = ExportReporter(None, lambda: now_ms)

    def shown() -> dict[str, float]:
        found = samples(export_shown([reporter]))
        assert found["poste_process_start_time_seconds[('process', 'export')]"] > 0
        return {name: value for name, value in found.items() if name.startswith("poste_export")}

    now_ms += 4_000
    began = {"poste_export_caught_up_age_seconds": 4, "poste_export_standby": 0}
    assert shown() == began
    reporter.on_log(9)
    reporter.on_step(5)
    assert shown() == began | {"poste_export_position": 5, "poste_export_lag_rows": 4}
    reporter.on_standby()
    assert shown() == {"poste_export_standby": 1}
    reporter.on_fault(OSError("the place is gone"))
    now_ms += 2_000
    assert shown() == {
        "poste_export_caught_up_age_seconds": 2,
        "poste_export_fault_age_seconds": 2,
        "poste_export_standby": 0,
    }
    reporter.on_caught_up(9)
    assert shown()["poste_export_caught_up_age_seconds"] == 0


def test_a_process_that_archives_for_others_shows_a_first_round_that_hangs(tmp_path: Path) -> None:
    now_ms = [1_000]
    archiving = [ArchiveReporter(tmp_path, lambda: now_ms[0], number) for number in (0, 1)]
    for each in archiving:
        each.on_begin()
    now_ms[0] += 90_000_000
    archiving[1].on_fault(OSError("the place is gone"))
    found = samples(export_shown([ExportReporter(None, lambda: 0)] * 2, archiving))
    shown = {name: age_s for name, age_s in found.items() if name.startswith("poste_archive")}
    assert shown == {
        "poste_archive_last_round_age_seconds[('database', '0')]": 90_000,
        "poste_archive_last_round_age_seconds[('database', '1')]": 90_000,
        "poste_archive_fault_age_seconds[('database', '1')]": 0,
    }


async def test_the_archive_of_each_database_has_figures_of_its_own(tmp_path: Path) -> None:
    log = "postgresql://one/a postgresql://one/b"
    settings = Settings(data_dir=tmp_path, log=log, export=Export(to="s3://bucket/export"))
    settings = settings.model_copy(update={"archive": Archive(enabled=True)})
    for number, position in enumerate((40, 50)):
        reporter = ArchiveReporter(tmp_path, lambda: 1_000, number)
        reporter.on_seam(position, 30, 10)
        reporter.on_end()
    found = samples(await Scrape(settings, {}, {}, clock=lambda: 3_500).seen())
    for number, position in enumerate((40, 50)):
        labels = f"[('database', '{number}')]"
        assert found[f"poste_archive_position{labels}"] == position
        assert found[f"poste_archive_last_round_age_seconds{labels}"] == 2.5


@pytest.mark.parametrize(
    ("log", "to", "enabled", "expected"),
    [
        (None, None, None, True),
        (None, "/export", None, True),
        (None, None, False, False),
        ("postgresql://one/a", None, True, False),
        ("postgresql://one/a", "s3://bucket/export", None, False),
        ("postgresql://one/a", "s3://bucket/export", False, False),
        ("postgresql://one/a", "s3://bucket/export", True, True),
    ],
)
def test_rows_leave_a_cluster_only_when_an_operator_says_so_and_where_to(
    log: str | None, to: str | None, enabled: bool | None, expected: bool
) -> None:
    settings = Settings(log=log, export=Export(to=to), archive=Archive(enabled=enabled))
    assert settings.lets_rows_leave is expected
