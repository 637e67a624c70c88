"""Views: one text, the same rows in Spark and in DuckDB, as they are declared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from actors.core import commands as c
from eventstore.log.streams import erased_name
from eventstore.parquet.schema import SCHEMA
from eventstore.stores.open_log import open_log
from projections.analysis.dictionary import type_of
from projections.generations.generation import arrow_type
from projections.spark.export import ExportedLog, open_export
from projections.views import VIEWS
from projections.views.engines import event_rows, recorded_ms, views_in_duckdb, views_in_spark
from projections.views.span import (
    BINS_MAX,
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    NoSuchTime,
    Span,
)
from projections.views.view import View
from tests.histories import IDENTITIES, MEDIATOR, START_MS, History, contract
from tests.projections.exports import export_log, take_out_erased
from tests.projections.logs import fill

TENANTS: Final = {IDENTITIES[0]: "acme"}


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> ExportedLog:
    folder = tmp_path_factory.mktemp("views")
    with closing(open_log(f"sqlite:{folder / 'log.db'}")) as log:
        fill(log)
        export_log(log, folder / "export", rows_max=400)
    return open_export(str(folder / "export"))


@pytest.fixture(scope="module")
def span(export: ExportedLog) -> Span:
    """A range that begins and ends in the midst of the lives of messages."""
    first_ms, last_ms = recorded_ms(export, export.last)
    assert first_ms is not None
    assert last_ms is not None
    length_ms = last_ms - first_ms
    return Span.over(
        first_ms + length_ms // 5,
        last_ms - length_ms // 10,
        last_ms - length_ms // 8,
        within_ms=2 * MINUTE_MS,
    )


@pytest.fixture(scope="module")
def in_spark(export: ExportedLog, spark: SparkSession, span: Span) -> SparkSession:
    computed: list[str] = []
    session = views_in_spark(spark, export.events, span, TENANTS, computed=computed.append)
    assert computed == [view.name for view in VIEWS if view.is_basis]
    return session


@pytest.fixture(scope="module")
def in_duckdb(export: ExportedLog, span: Span) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        parts = zip(export.parts, export.last, strict=True)
        rows = [(event_rows(part, last), last) for part, last in parts]
        views_in_duckdb(connection, rows, span, TENANTS)
        yield connection


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows in an order of their own, without what engines compute in another order of terms."""
    rows = [tuple(_comparable(value) for value in row.values()) for row in table.to_pylist()]
    return sorted(rows, key=repr)


def _comparable(value: Any) -> Any:
    match value:
        case float():
            return round(value, 9)
        case datetime():
            return value.timestamp()
        case _:
            return value


@pytest.mark.spark
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
def test_spark_and_duckdb_give_the_same_rows_of_every_view(
    view: View, in_spark: SparkSession, in_duckdb: duckdb.DuckDBPyConnection
) -> None:
    spark_rows = in_spark.table(view.name).toArrow()
    duckdb_rows = in_duckdb.table(view.name).to_arrow_table()
    assert rows_of(spark_rows) == rows_of(duckdb_rows)
    assert spark_rows.num_rows
    assert spark_rows.schema.names == duckdb_rows.schema.names == list(view.columns)
    types = [arrow_type(type_of(view.name, name)) for name in view.columns]
    assert [field.type for field in duckdb_rows.schema] == types


@pytest.mark.spark
def test_a_view_shows_its_rows_in_an_order_that_distinguishes_them(
    in_duckdb: duckdb.DuckDBPyConnection,
) -> None:
    for view in VIEWS:
        names = [name.removeprefix("-") for name in view.order]
        assert set(names) <= set(view.columns)
        if names:
            rows = in_duckdb.table(view.name).to_arrow_table().select(names).to_pylist()
            assert len({tuple(row.values()) for row in rows}) == len(rows), view.name


def test_a_bin_of_which_the_export_does_not_have_all_says_so(
    in_duckdb: duckdb.DuckDBPyConnection, span: Span
) -> None:
    bins = in_duckdb.table("bins").order("bin_start").to_arrow_table().to_pylist()
    found = [row["is_complete"] for row in bins]
    assert found == sorted(found, reverse=True)
    assert found[0]
    assert not found[-1]
    for row in bins:
        ends_ms = row["bin_end"].timestamp() * 1000
        assert row["is_complete"] == (ends_ms <= span.complete_ms)


def event(at_ms: int, kind: str, **columns: Any) -> dict[str, Any]:
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return {
        "position": 1,
        "recorded_at": at,
        "type": kind,
        "stream": bytes(16),
        "identity": "did:x:y",
    } | columns


def test_what_is_not_picked_up_yet_is_no_breach_before_its_time_is_over() -> None:
    events = [
        *(
            event(at_ms, "message-queued", message_id=name, protocol="decentrl", sender_did="")
            for name, at_ms in (("soon", 0), ("late", 1), ("never", 2), ("open", 70_000))
        ),
        event(30_000, "messages-removed", message_ids=["soon"], reason="acknowledged"),
        event(80_000, "messages-removed", message_ids=["late"], reason="acknowledged"),
    ]
    with duckdb.connect() as connection:
        span = Span.over(0, 120_000, 120_000, within_ms=MINUTE_MS)
        views_in_duckdb(connection, [(pa.Table.from_pylist(events, SCHEMA), 1)], span, {})
        columns = "messages, picked_up, p50_s, in_time, decided, is_complete"
        query = f"SELECT {columns} FROM service_level ORDER BY bin_start"
        found = connection.sql(query).fetchall()
    assert found == [(3, 2, 30.0, 1, 3, True), (1, 0, None, 0, 0, False)]


def test_who_does_something_itself_is_active_and_who_is_sent_something_is_not() -> None:
    """As the mediator decides which agents are idle."""
    of_two = {"requestor_did": "requestor", "recipient_did": "answers"}
    did: dict[str, tuple[str, dict[str, Any]]] = {
        "names a device": ("push-device-set", {"channel": "fcm"}),
        "fetches": ("messages-delivered", {"channel": "pickup/3.0", "message_ids": ["1"]}),
        "accepts": ("messages-removed", {"reason": "delivered", "message_ids": ["2"]}),
        "adds a key": ("keylist-updated", {"keys_added": ["k"], "keys_removed": []}),
        "answers": ("contract-stored", of_two),
    }
    had_done: dict[str, tuple[str, dict[str, Any]]] = {
        "loses its device": ("push-device-set", {"channel": ""}),
        "is sent to": ("messages-delivered", {"channel": "outbound", "message_ids": ["3"]}),
        "is pushed to": ("messages-delivered", {"channel": "live", "message_ids": ["4"]}),
        "is late": ("messages-removed", {"reason": "expired", "message_ids": ["5"]}),
        "loses a key": ("keylist-updated", {"keys_added": [], "keys_removed": ["k"]}),
        "requestor": ("contract-stored", of_two),
    }
    events = [
        event(at_ms, kind, identity=name, **columns)
        for at_ms, (name, (kind, columns)) in enumerate((did | had_done).items())
    ]
    with duckdb.connect() as connection:
        span = Span.over(0, 120_000, 120_000)
        views_in_duckdb(connection, [(pa.Table.from_pylist(events, SCHEMA), 1)], span, {})
        active = connection.sql("SELECT identity FROM activity ORDER BY identity").fetchall()
        visits = connection.sql("SELECT identity FROM visits ORDER BY identity").fetchall()
    assert active == [(name,) for name in sorted(did)]
    assert visits == [("accepts",), ("fetches",)]


WEEK_MS: Final = 7 * DAY_MS


def views_of(
    events: list[dict[str, Any]], span: Span, tenants: dict[str, str], *queries: str
) -> list[list[tuple[Any, ...]]]:
    with duckdb.connect() as connection:
        views_in_duckdb(connection, [(pa.Table.from_pylist(events, SCHEMA), 1)], span, tenants)
        return [connection.sql(query).fetchall() for query in queries]


def test_weeks_say_who_came_who_came_back_and_who_stayed_away() -> None:
    monday_ms = 4 * DAY_MS
    weeks = {"always": (0, 1, 2, 3), "every other": (0, 2), "once": (1,)}
    events = [
        event(monday_ms + week * WEEK_MS, "agent-seen", identity=name)
        for name, numbers in weeks.items()
        for week in numbers
    ]
    # The last millisecond of a week; who is sent a message is not active.
    events += [
        event(monday_ms + (week + 1) * WEEK_MS - 1, "message-queued", sender_did=sender)
        for week in (1, 3)
        for sender in ("sender", "")
    ]
    end_ms = monday_ms + 4 * WEEK_MS
    columns = f"(epoch_ms(week) - {monday_ms}) / {WEEK_MS}"
    cohort = columns.replace("week)", "cohort)")
    active, churn, cohorts = views_of(
        events,
        Span.over(0, end_ms, end_ms - 1),
        {},
        "SELECT DISTINCT identity FROM activity ORDER BY identity",
        f"SELECT {columns}, active, first_time, returned, lapsed, churn, is_complete"
        " FROM churn ORDER BY week",
        f"SELECT {cohort}, {columns}, weeks_since, identities, active, share"
        " FROM cohorts ORDER BY cohort, week",
    )
    assert active == [("always",), ("every other",), ("once",), ("sender",)]
    assert churn == [
        (0, 2, 2, 0, 0, None, True),
        (1, 3, 2, 0, 1, 1 / 2, True),
        (2, 2, 0, 1, 2, 2 / 3, True),
        (3, 2, 0, 1, 1, 1 / 2, False),
    ]
    assert cohorts == [
        (0, 0, 0, 2, 2, 1.0),
        (0, 1, 1, 2, 1, 0.5),
        (0, 2, 2, 2, 2, 1.0),
        (0, 3, 3, 2, 1, 0.5),
        (1, 1, 0, 2, 2, 1.0),
        (1, 3, 2, 2, 1, 0.5),
    ]


@pytest.mark.spark
def test_an_identity_counts_once_when_names_have_left_where_it_wrote_to(
    tmp_path: Path, spark: SparkSession
) -> None:
    gone, stays = IDENTITIES
    span = Span.over(START_MS - WEEK_MS, START_MS + 2 * WEEK_MS, START_MS + 2 * WEEK_MS)

    def counted() -> list[list[tuple[Any, ...]]]:
        export_log(log, tmp_path / "export")
        take_out_erased(log, tmp_path / "export")
        return in_both(
            open_export(str(tmp_path / "export")),
            spark,
            span,
            "SELECT DISTINCT identity FROM activity",
            "SELECT identity, messages FROM senders",
            "SELECT active, lapsed FROM churn",
            "SELECT sum(messages), count(DISTINCT sender_did) FROM pairs",
        )

    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = History(log)
        other, until_s = "did:example:other", START_MS // 1000 + 9_000
        history._ask(other, other, c.Register(contract(other, MEDIATOR, until_s)))
        history._ask(other, other, c.SaveContract(contract(other, stays, until_s)))
        for to in (gone, gone, other):
            history._ask(stays, to, c.QueueMessage(stays, b"payload"))
        history.commit()
        before = counted()
        for _ in range(20):
            history._ask(gone, gone, c.EraseIdentity("operator", 8))
        history.commit()
        after = counted()
    active, senders, churn, pairs = before
    assert {(gone,), (stays,)} <= set(active)
    assert (senders, pairs) == ([(stays, 3)], [(3, 1)])
    left = [(erased_name(gone),) if row == (gone,) else row for row in active]
    assert after == [sorted(left), [(stays, 1)], churn, [(3, 2)]]


@pytest.mark.spark
def test_weeks_begin_in_utc_whatever_the_time_zone_of_the_spark_that_is_used(
    export: ExportedLog, spark: SparkSession, span: Span
) -> None:
    name, context = "spark.sql.session.timeZone", spark.sparkContext
    new = context._jvm.org.apache.spark.sql.classic.SparkSession
    elsewhere = SparkSession(context, new(context._jsc.sc(), {name: "Europe/Berlin"}))
    assert elsewhere.newSession().conf.get(name) == "Europe/Berlin"
    (weeks,) = in_both(export, elsewhere, span, "SELECT unix_millis(week), active FROM churn")
    assert weeks


def in_both(
    export: ExportedLog, spark: SparkSession, span: Span, *queries: str
) -> list[list[tuple[Any, ...]]]:
    """The sorted rows of queries, which both engines give alike."""
    session = views_in_spark(spark, export.events, span, {})
    found = [sorted(tuple(row) for row in session.sql(query).collect()) for query in queries]
    with duckdb.connect() as connection:
        parts = zip(export.parts, export.last, strict=True)
        rows = [(event_rows(part, last), last) for part, last in parts]
        views_in_duckdb(connection, rows, span, {})
        assert found == [sorted(connection.sql(query).fetchall()) for query in queries]
    return found


def of(name: str, minutes: float, kind: str, **columns: Any) -> dict[str, Any]:
    streams = {name: bytes([at]) * 16 for at, name in enumerate(("anna", "bert", "carl", "dora"))}
    at_ms = round(minutes * MINUTE_MS)
    stream = streams.get(name, bytes(15) + b"1")
    return event(at_ms, kind, identity=name, stream=stream, **columns)


def history() -> list[dict[str, Any]]:
    """What six identities and an edge did, by the minute."""

    def queued(name: str, minutes: float, message_id: str, size_bytes: int) -> dict[str, Any]:
        columns = {"message_id": message_id, "size_bytes": size_bytes, "protocol": "didcomm"}
        return of(name, minutes, "message-queued", sender_did="", **columns)

    def connected(name: str, version: int, label: str, endpoint: str) -> dict[str, Any]:
        columns = {"version": version, "label": label, "endpoint": endpoint}
        return of(name, 1, "connection-established", **columns)

    def delivered(name: str, minutes: float, channel: str, *ids: str) -> dict[str, Any]:
        return of(name, minutes, "messages-delivered", channel=channel, message_ids=ids)

    def removed(name: str, minutes: float, reason: str, *ids: str) -> dict[str, Any]:
        return of(name, minutes, "messages-removed", reason=reason, message_ids=ids)

    def refused(minutes: float, count: int) -> dict[str, Any]:
        one = {"protocol": "didcomm", "command": "c", "reason": "R", "sender_did": "anna"}
        return of("edge:e", minutes, "refusals-counted", refusals=[one | {"count": count}])

    ms = 1 / MINUTE_MS
    return [
        # The newest version counts, whatever the order of rows and letters.
        connected("anna", 2, "New", "https://a.example"),
        connected("anna", 1, "Old", "https://z.example"),
        connected("bert", 1, "Bert", "https://b.example"),
        connected("bert", 2, "", ""),
        connected("dora", 1, "Dora", ""),
        # Before the span: gone, and still waiting.
        *(queued("anna", 2, "gone", 1), removed("anna", 3, "delivered", "gone")),
        *(queued("anna", 2, "early", 1), delivered("anna", 10 - ms, "outbound", "early")),
        queued("anna", 11, "twice", 10),
        delivered("anna", 11, "outbound", "twice"),
        delivered("anna", 12, "outbound", "early", "twice"),
        removed("anna", 12, "delivered", "early"),
        removed("anna", 13, "delivered", "twice"),
        *(queued("anna", 20, "waits", 20), queued("anna", 21, "late", 30)),
        removed("anna", 22, "expired", "late"),
        *(queued("bert", 30, "b", 5), queued("carl", 31, "c", 6)),
        *(queued("dora", 32, "d", 7), queued("emil", 33, "e", 9)),
        delivered("bert", 10 - ms, "pickup/2.0", "b"),
        *(delivered("bert", 40, "pickup/2.0", "b", "x"), delivered("bert", 41 - ms, "pickup/2.0")),
        *(delivered("carl", 50, "pickup/1.0", "c"), removed("bert", 71 - 2 * ms, "acknowledged")),
        removed("bert", 101 - 2 * ms, "acknowledged", "x"),
        *(refused(10 - ms, 9), refused(20, 3), refused(50, 2)),
        of("anna", 20.5, "queue-refused", reason="FULL"),
    ]


def test_endpoints_channels_tenants_visits_and_refusals_are_what_counting_by_hand_gives() -> None:
    span = Span.over(10 * MINUTE_MS, 200 * MINUTE_MS, 41 * MINUTE_MS - 1)
    minute = f"epoch_ms(bin_start) / {MINUTE_MS}"
    endpoints, deliveries, tenants, visits, acceptance, kinds = views_of(
        history(),
        span,
        {"carl": "acme", "dora": "acme"},
        "FROM endpoints",
        f"SELECT {minute}, channel, messages, batches, is_complete FROM deliveries ORDER BY 1, 2",
        "FROM tenant_volumes ORDER BY tenant",
        "SELECT identity, number, epoch_ms(began_at), epoch_ms(ended_at), pickups"
        " FROM visits ORDER BY 1, 2",
        f"SELECT {minute}, accepted, commands_refused, queues_refusing, share_refused, is_complete"
        f" FROM acceptance WHERE {minute} IN (10, 20, 33, 40, 50) ORDER BY 1",
        "SELECT refused, reason, refusals FROM refusals_by_kind ORDER BY 1",
    )
    assert endpoints == [("anna", "https://a.example", 4, 3, 2, 1, 120.0, 600.0)]
    assert deliveries == [
        (11, "outbound", 1, 1, True),
        (12, "outbound", 2, 1, True),
        (40, "pickup/2.0", 2, 2, False),
        (50, "pickup/1.0", 1, 1, False),
    ]
    assert tenants == [("(none)", 2, 2, 14), ("New", 1, 3, 60), ("acme", 2, 2, 13)]
    assert [
        (name, number, round(began / MINUTE_MS, 3), round(ended / MINUTE_MS, 3), pickups)
        for name, number, began, ended, pickups in visits
    ] == [
        ("anna", 1, 12.0, 13.0, 2),
        ("bert", 1, 40.0, 71.0, 3),
        ("bert", 2, 101.0, 101.0, 1),
        ("carl", 1, 50.0, 50.0, 1),
    ]
    assert acceptance == [
        (10, 0, 0, 0, None, True),
        (20, 1, 3, 1, 3 / 4, True),
        (33, 1, 0, 0, 0.0, True),
        (40, 0, 0, 0, None, False),
        (50, 0, 2, 0, 1.0, False),
    ]
    assert kinds == [("command", "R", 5), ("queue", "FULL", 1)]


@given(since_ms=st.integers(0, 2**42), length_ms=st.integers(1, 2**43))
def test_a_range_of_any_length_has_few_bins_that_cover_it(since_ms: int, length_ms: int) -> None:
    span = Span.over(since_ms, since_ms + length_ms, since_ms + length_ms // 2)
    edges = span.edges_ms
    assert 2 <= len(edges) <= BINS_MAX + 1
    assert edges[0] == span.since_ms <= since_ms
    assert edges[-2] < span.until_ms <= edges[-1]


def test_a_span_that_ends_with_the_log_has_whole_bins_where_the_export_is_complete() -> None:
    log = (MINUTE_MS + 1, 3 * MINUTE_MS + 2)
    whole = Span.of_log(*log, complete_until_ms=9 * MINUTE_MS)
    cut = Span.of_log(*log, complete_until_ms=3 * MINUTE_MS + 30_000)
    unknown = Span.of_log(*log, complete_until_ms=None)
    assert whole == Span(MINUTE_MS, 4 * MINUTE_MS, 4 * MINUTE_MS, MINUTE_MS)
    assert cut == Span(MINUTE_MS, 3 * MINUTE_MS + 30_000, 3 * MINUTE_MS + 30_000, MINUTE_MS)
    assert unknown == Span(MINUTE_MS, log[1] + 1, log[1], MINUTE_MS)
    given = Span.of_log(*log, complete_until_ms=9 * MINUTE_MS, since_ms=0, until_ms=1)
    assert given == Span(0, 1, 1, MINUTE_MS)
    assert Span.of_log(None, None, 5) is None
    with pytest.raises(NoSuchTime, match="is empty"):
        Span.of_log(*log, None, since_ms=MINUTE_MS, until_ms=MINUTE_MS)


def test_a_time_that_no_log_reaches_means_its_beginning_or_end() -> None:
    log = (MINUTE_MS + 1, 3 * MINUTE_MS + 2, 9 * MINUTE_MS)
    ends = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
    first, last = (round(at.timestamp() * 1000) for at in ends)
    assert Span.of_log(*log, since_ms=first, until_ms=last) == Span.of_log(*log)


def test_people_count_in_minutes_hours_and_days() -> None:
    lengths = [(45 * MINUTE_MS, MINUTE_MS), (DAY_MS, 10 * MINUTE_MS), (14 * DAY_MS, HOUR_MS)]
    for length_ms, bin_ms in [*lengths, (60 * DAY_MS, 6 * HOUR_MS), (300 * DAY_MS, DAY_MS)]:
        assert Span.over(0, length_ms, length_ms).bin_ms == bin_ms
