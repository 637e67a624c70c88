"""Names become what HMAC-SHA256 says of them, everywhere and for the same key the same."""

from __future__ import annotations

import hashlib
import hmac
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, StringType, StructType

from eventstore.log.event_log import EventLog
from eventstore.log.pseudonyms import (
    KEY_BYTES_MAX,
    NAMING,
    KeyRefused,
    fingerprint,
    pseudonym_of,
    read_key,
)
from eventstore.stores.open_log import open_log
from http_edge.cli.main import poste
from projections.program import projections
from projections.rebuild.rebuild import RebuildRefused, rebuild
from projections.spark.export import SCHEMA, open_export
from projections.spark.pseudonyms import pseudonym
from projections.tables import PROJECTIONS
from tests.histories import AGENTS, IDENTITIES, KEYS, History, random_script
from tests.projections.exports import export_log, read_tables
from tests.projections.folding import fold

KEY: Final = bytes(range(48))
NAMES_NO_ONE: Final = {
    "type", "protocol", "reason", "channel", "handshake",
    "message_id", "message_ids", "request_id", "request_ids", "event_id",
    "event_ids", "digest", "nonces", "edge", "command",
}  # fmt: skip
"""Text and bytes that are words of ours, ids that the mediator made, or digests."""

STAYS: Final = {(p.name, c) for p in PROJECTIONS for c in p.columns if c not in NAMING} | {
    ("nonces", "key")
}


def expected(name: str, key: bytes = KEY) -> str:
    digest = hmac.new(key, name.encode(), hashlib.sha256).hexdigest()
    return f"p:{digest[:32]}" if name else ""


def replaced(column: str, value: Any) -> Any:
    """What is expected of a value of a table."""
    match value:
        case bytes():
            return hmac.new(KEY, value, hashlib.sha256).digest()[:16]
        case tuple():
            return tuple(map(expected, value))
        case str() if column in ("identity", "partition"):
            if value.startswith(("shard-", "edge:")):
                return value
            kind = next((k for k in ("key:", "invitation:") if value.startswith(k)), "")
            return kind + expected(value.removeprefix(kind))
        case str():
            return expected(value)
        case _:
            return value


@pytest.mark.spark
@given(
    key=st.binary(min_size=32, max_size=100),
    names=st.lists(st.text(st.characters(codec="utf-8")), min_size=30),
)
@settings(derandomize=True, database=None, deadline=None, max_examples=4, phases=[Phase.generate])
def test_spark_computes_the_hmac_of_python(
    spark: SparkSession, key: bytes, names: list[str]
) -> None:
    frame = spark.createDataFrame([(name,) for name in [*names, None, ""]], "name string")
    found = [row[0] for row in frame.select(pseudonym(F.col("name"), key)).collect()]
    assert found == [*[expected(name, key) for name in names], None, ""]
    assert [pseudonym_of(name, key) for name in names] == found[:-2]


def texts_of(kind: DataType, name: str) -> set[str]:
    """The columns and members below this one that hold text or bytes."""
    match kind:
        case StringType() | BinaryType():
            return {name}
        case ArrayType(elementType=element):
            return texts_of(element, name)
        case StructType():
            return {found for field in kind for found in texts_of(field.dataType, field.name)}
        case _:
            return set()


def test_of_every_column_it_is_decided_whether_it_names_an_identity() -> None:
    texts = texts_of(SCHEMA, "")
    assert texts - NAMING.keys() == NAMES_NO_ONE
    # Of tables alone, or no text themselves.
    assert NAMING.keys() - texts == {"account_did", "refusals", "speaker_did"}


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        History(log).play(random_script(5, 200))
        export_log(log, tmp_path / "export", rows_max=100)
        yield log


@pytest.mark.spark
def test_rebuilt_tables_have_pseudonyms_that_join_and_no_name(
    spark: SparkSession, log: EventLog, tmp_path: Path
) -> None:
    export, target = open_export(str(tmp_path / "export"), key=KEY), tmp_path / "tables"
    rebuild(spark, export, str(target), as_of=log.position() // 2)
    tables = rebuild(spark, export, str(target), incremental=True)
    found = read_tables(target, tables)
    folded = fold(log)
    for projection in PROJECTIONS:
        assert found[projection.name] == {
            tuple(
                value if (projection.name, column) in STAYS else replaced(column, value)
                for column, value in zip(projection.columns, row, strict=True)
            )
            for row in folded.get(projection.name, set())
        }, projection.name
    for file in target.glob("*/*/*/*.parquet"):
        content = str(pq.read_table(file).to_pydict())
        assert not [name for name in (*IDENTITIES, *AGENTS, *KEYS, "phone") if name in content]


@pytest.mark.spark
def test_tables_of_one_key_are_not_continued_with_another_or_none(
    spark: SparkSession, log: EventLog, tmp_path: Path
) -> None:
    source, target = str(tmp_path / "export"), str(tmp_path / "tables")
    plain, named = open_export(source), open_export(source, key=KEY)
    assert rebuild(spark, named, target, as_of=0).pseudonyms == fingerprint(KEY)
    other = open_export(source, key=bytes(32))
    for export, why in ((plain, "have pseudonyms:"), (other, "by another key")):
        with pytest.raises(RebuildRefused, match=why):
            rebuild(spark, export, target, incremental=True)
    assert rebuild(spark, plain, target, as_of=0).pseudonyms == ""
    with pytest.raises(RebuildRefused, match="no pseudonyms"):
        rebuild(spark, named, target, incremental=True)
    assert KEY.hex() not in repr(named) + str(named)
    assert str(KEY) not in repr(named)


def test_a_key_is_a_file_of_ones_own_with_enough_bytes(tmp_path: Path) -> None:
    path = tmp_path / "key"
    for content, mode, why in (
        (KEY[:31], 0o600, "head -c 32"),
        (bytes(KEY_BYTES_MAX + 1), 0o600, "32 to 4096 bytes"),
        (KEY, 0o640, "chmod 600"),
    ):
        path.write_bytes(content)
        path.chmod(mode)
        with pytest.raises(KeyRefused, match=why):
            read_key(path)
    path.chmod(0o600)
    assert read_key(path) == KEY
    for missing in (tmp_path, tmp_path / "nothing"):
        for program, command in (
            (projections, ["rebuild", "--to", "y"]),
            (poste, ["audit", "stuck"]),
        ):
            arguments = [*command, "--from", "x", "--pseudonymise", str(missing)]
            done = CliRunner().invoke(program, arguments)
            assert (done.exit_code, "cannot be read" in done.stderr) == (2, True)


def test_a_fingerprint_is_no_pseudonym_and_differs_for_each_key() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(KEY)
        file.flush()
        assert fingerprint(read_key(file.name)) == fingerprint(KEY)
    assert fingerprint(None) == ""
    assert fingerprint(KEY) != fingerprint(bytes(32))
