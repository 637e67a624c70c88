"""The memory of a host against its exported log: equal, and every difference is listed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from actors.core.evolve import to_snapshot
from actors.core.identity import FOLD
from actors.host.stored_states import read_identity
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.streams import erased_name, identity_stream
from eventstore.parquet.opening import NotExported
from eventstore.stores.open_log import open_log
from projections.compare import Difference, Dump, DumpDamaged, compare
from projections.spark.export import open_export
from tests.histories import AGENTS, CROWD, IDENTITIES, History, random_script
from tests.log.samples import save
from tests.projections.dumps import dump_host, rewrite
from tests.projections.exports import export_log, take_out_erased
from tests.projections.test_rebuild import erase

ALICE, ZOE = IDENTITIES
Row = dict[str, Any]


def changed(name: str, value: Any) -> Callable[[list[Row]], list[Row]]:
    """The same rows but for one value of the first."""
    return lambda rows: [{**rows[0], name: value}, *rows[1:]]


@pytest.mark.spark
def test_a_host_knows_what_its_log_says_while_it_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = History(log)
        history.play(random_script(19, 300))
        export_log(log, tmp_path / "export", rows_max=300)
        # Later than what was exported before, and before what comes afterwards.
        history.play(random_script(4, 60))
        dumped = dump_host(history._host, log, tmp_path / "export", tmp_path / "dump")
        assert (tmp_path / "dump" / "dump.json").exists()
        with pytest.raises(NotExported, match="the export ends"):
            compare(spark, open_export(str(tmp_path / "export")), str(tmp_path / "dump"))
        history.play(random_script(5, 60))
        export_log(log, tmp_path / "export", rows_max=300)
        found = compare(spark, open_export(str(tmp_path / "export")), str(tmp_path / "dump"))
    assert found.listed == []
    assert (found.differences, found.identities) == (0, dumped.identities)
    rows = {table.name: table.rows for table in found.tables}
    assert rows == dumped.rows
    assert [name for name, count in rows.items() if not count] == []


@pytest.mark.spark
def test_who_was_erased_is_the_same_in_memory_and_in_an_export_that_has_lost_the_name(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also when memory does not know it, as after a restart; a difference of it is found."""
    export, gone = tmp_path / "export", CROWD.identities[0]
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = History(log)
        history.play(random_script(19, 300))
        erase(history, gone)
        history.commit()
        export_log(log, export, rows_max=300)
        assert take_out_erased(log, export).names > 10
        dump_host(history._host, log, export, tmp_path / "before")
        rewrite(tmp_path / "before", "identities", lambda rows: changed_of(rows, gone))
        knowing = compare(spark, open_export(str(export)), str(tmp_path / "before"))
        history._host = history._new_host()
        dump_host(history._host, log, export, tmp_path / "after")
        export_log(log, export)
        nameless = compare(spark, open_export(str(export)), str(tmp_path / "after"))
    # What was spoiled, and nothing else.
    assert [(d.identity, d.column, d.live) for d in knowing.listed] == [
        (erased_name(gone), "erased", "false")
    ]
    assert nameless.listed == []
    assert knowing.identities > nameless.identities > 0


def changed_of(rows: list[Row], did: str) -> list[Row]:
    """The same rows, but the one of this identity says that it was not erased."""
    return [{**row, "erased": row["erased"] and row["identity"] != did} for row in rows]


@pytest.mark.spark
def test_every_forged_missing_added_and_changed_row_is_listed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        history = History(log)
        history.play(random_script(32, 300))
        history._host = history._new_host()  # no identity is in memory now
        forget_a_message(log, ALICE)
        export_log(log, tmp_path / "export", rows_max=1_000)
        folder = tmp_path / "dump"
        dump_host(history._host, log, tmp_path / "export", folder)
    version_of = {}

    def versions(rows: list[Row]) -> list[Row]:
        version_of.update({row["identity"]: row["version"] for row in rows})
        kept = [row for row in rows if row["identity"] != AGENTS[0]]
        unknown = {"stream": bytes(16), "identity": "did:example:unknown", "version": 3}
        return [
            *({**row, "version": row["version"] - (row["identity"] == ZOE)} for row in kept),
            unknown,
        ]

    rewrite(folder, "watermarks", versions)
    rewrite(folder, "contracts", changed("expires_at_s", 1.0))
    rewrite(folder, "key_owners", lambda rows: [*rows, {**rows[0], "identity": "key:forged"}])
    rewrite(folder, "invitations", lambda rows: rows[1:])
    rewrite(folder, "connections", lambda rows: changed("routing_keys", ["new"])(rows[::-1]))
    rewrite(folder, "nonces", changed("key", b"0123456789abcdef"))
    rewrite(folder, "seals", changed("digest", b"\x07" * 32))
    found = compare(spark, open_export(str(tmp_path / "export")), str(folder))
    assert found.differences == len(found.listed) > 10

    def of(table: str) -> list[Difference]:
        return [each for each in found.listed if each.table == table]

    identities = {(d.identity, d.column, d.live, d.rebuilt) for d in of("identities")}
    assert ("did:example:unknown", "version", "3", None) in identities
    assert (AGENTS[0], "version", None, str(version_of[AGENTS[0]])) in identities
    behind = str(version_of[ZOE] - 1), str(version_of[ZOE])
    assert (ZOE, "version", *behind) in identities
    (lost,) = [each for each in of("queues") if (each.identity, each.column) == (ALICE, "")]
    assert (lost.live, '"protocol":"decentrl"' in str(lost.rebuilt)) == (None, True)
    assert ("messages", ALICE) in {(d.column, d.identity) for d in of("queue_totals")}
    assert [(d.column, d.live) for d in of("contracts")] == [("expires_at_s", "1.0")]
    assert [(d.identity, d.column, d.rebuilt) for d in of("key_owners")] == [
        ("key:forged", "", None)
    ]
    assert [(d.column, d.live) for d in of("invitations")] == [("", None)]
    assert ("routing_keys", '["new"]') in {(d.column, d.live) for d in of("connections")}
    assert len(of("nonces")) == 2
    assert [(d.column, d.live) for d in of("seals")] == [("digest", "07" * 32)]


def forget_a_message(log: EventLog, did: str) -> None:
    """Spoil the snapshot that the host wakes an identity from: the first message is not in it."""
    state, _ = read_identity(log, identity_stream(did))
    lost = state.messages.pop(next(iter(state.messages)))
    state.queue_bytes -= lost.size_bytes
    stream = identity_stream(did)
    save(log, (stream, Snapshot(state.version, FOLD, to_snapshot(state))))


@pytest.mark.spark
def test_a_dump_that_is_none_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log)
        export_log(log, tmp_path / "export")
    for content in (None, b"{", b"{}"):
        if content is not None:
            (tmp_path / "dump.json").write_bytes(content)
        with pytest.raises(DumpDamaged, match=r"dump\.json"):
            compare(spark, open_export(str(tmp_path / "export")), str(tmp_path))
    empty = Dump((0,), (0,), 0, 0, {})
    (tmp_path / "dump.json").write_bytes(msgspec.json.encode(empty))
    for reason in ("No such file", "Parquet"):
        with pytest.raises(DumpDamaged, match=reason) as said:
            compare(spark, open_export(str(tmp_path / "export")), str(tmp_path))
        Path(str(said.value).partition(": ")[0]).write_bytes(b"no file of rows")
