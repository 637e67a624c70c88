"""The check of a log names every change that was made to it behind its back."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import msgspec
import pytest

from eventstore.log.codec import decode, encode
from eventstore.log.event_log import EventLog
from eventstore.log.events import BatchSealed, Event
from eventstore.log.faults import Fault, Finding, Head
from eventstore.log.seal import GENESIS
from eventstore.log.streams import identity_stream, partition_stream
from eventstore.log.verify import Summary, verify
from eventstore.stores.open_log import open_log
from eventstore.stores.sqlite_contents import keep
from tests.log.samples import OWNER, SealedWriter, append, message, published, saved, tagged

PARTITIONS = ("shard-0", "shard-1", "did:example:dedicated")


@dataclass(frozen=True)
class Row:
    """One row of the table as SQLite holds it."""

    stream: Any
    version: Any
    topic: Any
    state: Any
    content: Any = None

    @property
    def sealed(self) -> BatchSealed | None:
        event = decode(self.topic, self.state)
        return event if isinstance(event, BatchSealed) else None


Rows: TypeAlias = list[Row]


class TamperedLog:
    """A log whose file can be rewritten row by row."""

    def __init__(self, path: Path, fill: Callable[[EventLog], None] | None = None) -> None:
        self.log = open_log(f"sqlite:{path}")
        (fill or _fill)(self.log)
        self._raw = sqlite3.connect(path)
        self._raw.execute("PRAGMA synchronous = OFF")
        contents = self.log.read_contents(after=0, until=10_000)
        self.rows: Rows = [
            Row(stream, version, topic, state, contents.get(position))
            for position, stream, version, topic, state in self._raw.execute(
                "SELECT rowid, * FROM stored_events ORDER BY rowid"
            )
        ]

    def rewrite(self, rows: Iterable[Row], positions: Iterable[int] | None = None) -> None:
        """Put these rows in the place of all that are there."""
        numbered = list(zip(positions or range(1, 10_000), rows, strict=False))
        with self._raw:
            self._raw.execute("DELETE FROM contents")
            self._raw.execute("DELETE FROM content_keys")
            keep(self._raw.cursor(), [(p, r.content) for p, r in numbered if r.content is not None])
            self._raw.execute("DELETE FROM stored_events")
            self._raw.executemany(
                "INSERT INTO stored_events (rowid, originator_id, originator_version, topic, state)"
                " VALUES (?, CAST(? AS TEXT), ?, CAST(? AS TEXT), ?)",
                [(p, r.stream, r.version, r.topic, r.state) for p, r in numbered],
            )

    def findings(self, **known: Head) -> list[Finding]:
        *findings, summary = verify(self.log, known_heads=known)
        assert isinstance(summary, Summary)
        assert summary.findings == len(findings)
        return [finding for finding in findings if isinstance(finding, Finding)]

    def close(self) -> None:
        self._raw.close()
        self.log.close()


def _fill(log: EventLog) -> None:
    """About 200 rows: transactions of one to three partitions, some with nothing but a seal."""
    chance = random.Random(7)  # noqa: S311 - repeatable on purpose
    writer = SealedWriter(log)
    events: list[Callable[[str], Event]] = [
        lambda name: message(name.encode(), name),
        saved,
        lambda name: tagged(name, "tag"),
        published,
    ]
    number = 0
    for _ in range(45):
        parts: dict[str, Sequence[tuple[UUID, Event]]] = {}
        for partition in chance.sample(PARTITIONS, chance.choice([1, 1, 2, 3])):
            part = []
            for _ in range(chance.choice([0, 1, 1, 2, 3, 5])):
                number += 1
                stream = identity_stream(f"{partition} {chance.randrange(4)}")
                part.append((stream, chance.choice(events)(f"event {number}")))
            parts[partition] = part
        writer.commit(parts)


@pytest.fixture
def tampered(tmp_path: Path) -> Iterator[TamperedLog]:
    with closing(TamperedLog(tmp_path / "log.db")) as log:
        yield log


def _flip(value: Any, bit: int) -> Any:
    if isinstance(value, int):
        return value ^ (1 << bit)
    raw = bytearray(value.encode() if isinstance(value, str) else value)
    raw[bit // 8 % len(raw)] ^= 1 << bit % 8
    return bytes(raw)


def _is_named(findings: Sequence[Finding], position: int, *rows: Row) -> bool:
    """Whether a finding covers or adjoins the position, or is about the stream of a row."""
    streams = {UUID(row.stream) for row in rows}
    return any(
        finding.first_position - 1 <= position <= finding.last_position + 1
        or finding.stream in streams
        for finding in findings
    )


def test_the_sample_is_a_log_of_several_partitions_that_verifies(tampered: TamperedLog) -> None:
    assert 180 <= len(tampered.rows) <= 260
    *findings, summary = verify(tampered.log)
    assert findings == []
    assert isinstance(summary, Summary)
    assert summary.rows == summary.position == len(tampered.rows)
    assert set(summary.heads) == set(PARTITIONS)
    seals = [row.sealed for row in tampered.rows if row.sealed]
    assert summary.seals == len(seals)
    assert summary.streams == len({row.stream for row in tampered.rows})
    for partition, head in summary.heads.items():
        newest = [seal for seal in seals if seal.partition == partition][-1]
        assert head.digest == newest.digest
        assert head.version == len([s for s in seals if s.partition == partition])
    assert any(seal.rows == 0 for seal in seals)


@pytest.mark.parametrize("column", ["stream", "version", "topic", "state"])
def test_a_flipped_bit_is_named_in_every_row(tampered: TamperedLog, column: str) -> None:
    chance = random.Random(column)  # noqa: S311 - repeatable on purpose
    taken = {(row.stream, row.version) for row in tampered.rows}
    for index, row in enumerate(tampered.rows):
        value = getattr(row, column)
        bits = 16 if column == "version" else 8 * len(value)
        flipped = replace(row, **{column: _flip(value, chance.randrange(bits))})
        while (flipped.stream, flipped.version) in taken and column in ("stream", "version"):
            flipped = replace(row, **{column: _flip(value, chance.randrange(bits))})
        tampered.rewrite([*tampered.rows[:index], flipped, *tampered.rows[index + 1 :]])
        findings = tampered.findings()
        covering = [f for f in findings if f.first_position <= index + 1 <= f.last_position]
        assert covering, f"{column} of row {index + 1}"


def test_every_bit_of_a_seal_is_covered(tampered: TamperedLog) -> None:
    index = next(i for i, row in enumerate(tampered.rows) if row.sealed and row.sealed.rows == 2)
    row = tampered.rows[index]
    assert row.sealed
    partition = row.sealed.partition
    # Up to the seal that follows in its chain: thousands of checks, each of few rows.
    following = enumerate(tampered.rows[index + 1 :], index + 2)
    end = next(end for end, r in following if r.sealed and r.sealed.partition == partition)
    tampered.rewrite(tampered.rows[:end])
    assert tampered.findings() == []
    for bit in range(8 * len(row.state)):
        flipped = replace(row, state=_flip(row.state, bit))
        tampered.rewrite([*tampered.rows[:index], flipped, *tampered.rows[index + 1 : end]])
        assert any(f.last_position == index + 1 for f in tampered.findings()), bit


def test_a_deleted_row_is_named_unless_it_ends_its_partition(tampered: TamperedLog) -> None:
    undetected = []
    positions = range(1, len(tampered.rows) + 1)
    for index, row in enumerate(tampered.rows):
        kept = [*tampered.rows[:index], *tampered.rows[index + 1 :]]
        tampered.rewrite(kept, [p for p in positions if p != index + 1])
        findings = tampered.findings()
        if not findings:
            undetected.append(index)
            continue
        assert _is_named(findings, index + 1, row), f"row {index + 1}"
    for index in undetected:
        gone = tampered.rows[index].sealed
        assert gone is not None
        assert gone.rows == 0
        assert not [
            row
            for row in tampered.rows[index + 1 :]
            if row.sealed and row.sealed.partition == gone.partition
        ]


def test_a_transaction_that_was_cut_out_and_closed_up_is_named(tampered: TamperedLog) -> None:
    # The versions of seals are not in their digests: here only the chain shows it.
    for index, row in enumerate(tampered.rows[:-60]):
        if row.sealed is None or row.sealed.rows:
            continue
        later = [
            replace(r, version=r.version - 1) if r.stream == row.stream else r
            for r in tampered.rows[index + 1 :]
        ]
        tampered.rewrite([*tampered.rows[:index], *later])
        (finding,) = tampered.findings()
        assert finding.fault is Fault.BROKEN_CHAIN
        assert finding.stream == UUID(row.stream)
        assert finding.version == row.version


def test_a_cut_end_of_a_partition_is_named_if_a_stream_goes_on_in_another(tmp_path: Path) -> None:
    def fill(log: EventLog) -> None:
        writer = SealedWriter(log)
        for partition in ("shard-0", "shard-0", "did:example:dedicated"):
            writer.commit({partition: [(OWNER, message())]})

    with closing(TamperedLog(tmp_path / "log.db", fill)) as tampered:
        assert tampered.findings() == []
        tampered.rewrite([*tampered.rows[:2], *tampered.rows[4:]])
        (finding,) = tampered.findings()
    assert (finding.fault, finding.last_position, finding.version) == (Fault.VERSION_BREAK, 3, 3)


def test_the_only_seal_of_a_partition_in_another_stream_is_named(tampered: TamperedLog) -> None:
    index, seal = next((i, row) for i, row in enumerate(tampered.rows) if row.sealed)
    moved = replace(seal, stream=partition_stream("shard-9").hex)
    tampered.rewrite([*tampered.rows[:index], moved])
    (finding,) = tampered.findings()
    assert (finding.fault, finding.last_position) == (Fault.FOREIGN_SEAL, index + 1)


def test_rows_swapped_with_their_neighbour_are_named(tampered: TamperedLog) -> None:
    swapped = 0
    for index, (row, following) in enumerate(zip(tampered.rows, tampered.rows[1:], strict=False)):
        if row.sealed and following.sealed and following.sealed.rows == 0:
            continue  # two whole transactions of two partitions: their order is not sealed
        rest = tampered.rows[index + 2 :]
        tampered.rewrite([*tampered.rows[:index], following, row, *rest])
        assert _is_named(tampered.findings(), index + 1, row, following), f"row {index + 1}"
        swapped += 1
    assert swapped > 150


def test_rows_swapped_far_apart_are_named_at_both_ends(tampered: TamperedLog) -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable on purpose
    for _ in range(100):
        low, high = sorted(chance.sample(range(len(tampered.rows)), 2))
        if high - low < 20:
            continue
        rows = list(tampered.rows)
        rows[low], rows[high] = rows[high], rows[low]
        tampered.rewrite(rows)
        findings = tampered.findings()
        for end in (low, high):
            assert _is_named(findings, end + 1), (low, high)


@pytest.mark.parametrize("forged", ["new stream", "next version", "seal of nothing"])
def test_an_inserted_row_is_named_wherever_it_is(tampered: TamperedLog, forged: str) -> None:
    stream = identity_stream("shard-0 1")
    following = 1 + max(r.version for r in tampered.rows if r.stream == stream.hex)
    partition = partition_stream("shard-9")
    rows: dict[str, tuple[UUID, int, Event]] = {
        "new stream": (identity_stream("forged"), 1, message()),
        "next version": (stream, following, message()),
        "seal of nothing": (
            partition,
            1,
            BatchSealed(
                at_ms=1,
                command=b"",
                partition="shard-9",
                epoch=1,
                window_ms=1,
                nonces=b"",
                rows=0,
                previous=GENESIS,
                digest=bytes(32),
            ),
        ),
    }
    stored = encode(*rows[forged])
    row = Row(rows[forged][0].hex, stored.originator_version, stored.topic, stored.state)
    for index in range(len(tampered.rows) + 1):
        tampered.rewrite([*tampered.rows[:index], row, *tampered.rows[index:]])
        findings = tampered.findings()
        covering = [f for f in findings if f.first_position <= index + 1 <= f.last_position]
        assert covering, f"inserted at {index + 1}"
        if forged == "new stream" and (index == 0 or tampered.rows[index - 1].sealed):
            assert Fault.BROKEN_SEAL not in {f.fault for f in findings}  # the others are sealed


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("stream", None),
        ("version", None),
        ("version", 1.5),
        ("topic", None),
        ("state", None),
        ("state", "text"),
        ("state", 7),
        ("version", "one"),
    ],
)
def test_a_column_of_another_type_is_named(
    tampered: TamperedLog, column: str, value: object
) -> None:
    for index in (0, 5, len(tampered.rows) - 1):
        changed = replace(tampered.rows[index], **{column: value})
        tampered.rewrite([*tampered.rows[:index], changed, *tampered.rows[index + 1 :]])
        assert any(f.first_position <= index + 1 <= f.last_position for f in tampered.findings())


def test_a_stream_id_written_in_another_way_is_named(tampered: TamperedLog) -> None:
    row = tampered.rows[0]
    for text in (row.stream.upper(), str(UUID(row.stream)), "{" + row.stream + "}"):
        assert text != row.stream
        tampered.rewrite([replace(row, stream=text), *tampered.rows[1:]])
        assert tampered.findings()[0].fault is Fault.MALFORMED_ROW


def test_a_cut_between_transactions_is_seen_only_by_a_known_head(tampered: TamperedLog) -> None:
    *_, summary = verify(tampered.log)
    assert isinstance(summary, Summary)
    ends = [index + 1 for index, row in enumerate(tampered.rows) if row.sealed][:-1]
    for end in (*ends[-3:], ends[0]):
        tampered.rewrite(tampered.rows[:end])
        assert tampered.findings() == []
        known = tampered.findings(**summary.heads)
        assert known
        assert {finding.fault for finding in known} == {Fault.MISSING_HEAD}


def test_a_cut_within_a_transaction_is_seen(tampered: TamperedLog) -> None:
    ends = {index + 1 for index, row in enumerate(tampered.rows) if row.sealed}
    for end in range(1, len(tampered.rows)):
        if end not in ends:
            tampered.rewrite(tampered.rows[:end])
            assert {finding.fault for finding in tampered.findings()} == {Fault.UNSEALED_ROWS}


def test_an_earlier_head_is_found_on_the_way(tampered: TamperedLog) -> None:
    early = next(row.sealed for row in tampered.rows if row.sealed)
    head = Head(1, early.digest)
    assert tampered.findings(**{early.partition: head}) == []
    forged = tampered.findings(**{early.partition: head._replace(digest=bytes(32))})
    assert [finding.fault for finding in forged] == [Fault.MISSING_HEAD]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("epoch", -1), ("rows", -1), ("rows", 10**6), ("window_ms", 2**64 - 1), ("at_ms", -1)),
        ("command", b"x"),  # which is always empty: no digest covers it
    ],
)
def test_a_seal_with_an_impossible_field_is_a_finding(
    tampered: TamperedLog, field: str, value: object
) -> None:
    index = next(i for i, row in enumerate(tampered.rows) if row.sealed)
    row = tampered.rows[index]
    assert row.sealed
    forged = msgspec.structs.replace(row.sealed, **{field: value})
    state = encode(OWNER, 1, forged).state
    rest = tampered.rows[index + 1 :]
    tampered.rewrite([*tampered.rows[:index], replace(row, state=state), *rest])
    assert {Fault.BROKEN_SEAL, Fault.MISSING_ROWS} & {f.fault for f in tampered.findings()}


def test_a_seal_in_another_encoding_is_a_finding(tampered: TamperedLog) -> None:
    index, seal = next((i, row) for i, row in enumerate(tampered.rows) if row.sealed)
    assert seal.sealed
    digest = seal.sealed.digest
    longer = replace(seal, state=seal.state.replace(b"\xc4 " + digest, b"\xc5\x00 " + digest))
    assert (longer.sealed, longer.state == seal.state) == (seal.sealed, False)
    tampered.rewrite([*tampered.rows[:index], longer])
    assert [finding.fault for finding in tampered.findings()] == [Fault.BROKEN_SEAL]


def test_rows_without_any_seal_are_named_one_by_one(tmp_path: Path) -> None:
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        append(log, OWNER, message(), message())
        *findings, summary = verify(log)
        assert [f.fault for f in findings if isinstance(f, Finding)] == [Fault.UNSEALED_ROWS] * 2
        assert isinstance(summary, Summary)
        assert summary.heads == {}


def test_memory_for_unsealed_rows_is_bounded(
    tampered: TamperedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.log.row_check.BATCH_BYTES_MAX", 400)
    faults = [finding.fault for finding in tampered.findings()]
    assert Fault.UNSEALED_ROWS in faults
    assert Fault.MISSING_ROWS in faults


def test_a_transaction_of_the_largest_size_is_checked_against_its_seal(
    tampered: TamperedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = [0]
    for row in tampered.rows:
        if row.sealed:
            sizes.append(0)
        else:
            sizes[-1] += len(row.state)
    for bytes_max, is_found in ((max(sizes), False), (max(sizes) - 1, True)):
        monkeypatch.setattr("eventstore.log.row_check.BATCH_BYTES_MAX", bytes_max)
        assert bool(tampered.findings()) == is_found


@pytest.mark.parametrize("state", ["", 0])
def test_memory_for_malformed_rows_is_bounded(
    tampered: TamperedLog, monkeypatch: pytest.MonkeyPatch, state: object
) -> None:
    monkeypatch.setattr("eventstore.log.row_check.BATCH_BYTES_MAX", 400)
    tampered.rewrite([replace(row, state=state) for row in tampered.rows])
    unsealed = [f for f in tampered.findings() if f.fault is Fault.UNSEALED_ROWS]
    assert unsealed[0].first_position == 1
    last_malformed = [f.fault for f in tampered.findings()][::-1].index(Fault.MALFORMED_ROW)
    assert last_malformed < len(unsealed) - 1  # reported while later rows are still read


def test_progress_runs_to_the_end_of_the_log(
    tampered: TamperedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.log.verify.PAGE_ROWS", 100)
    steps: list[tuple[int, int]] = []
    end = len(tampered.rows)
    for _ in verify(tampered.log, progress=lambda reached, total: steps.append((reached, total))):
        pass
    assert steps == [(100, end), (200, end), (end, end)]


def test_rows_that_are_appended_during_a_check_are_not_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.log.verify.PAGE_ROWS", 4)
    with closing(open_log(f"sqlite:{tmp_path / 'log.db'}")) as log:
        writer = SealedWriter(log)

        def commit(*_: int) -> None:
            writer.commit({"shard-0": [(OWNER, message()), (OWNER, saved("x"))]})

        commit()
        commit()
        (summary,) = verify(log, progress=commit)
        assert isinstance(summary, Summary)
        assert summary.rows == summary.position == 6
        assert (summary.seam, summary.left, summary.older_heads) == (0, 0, 0)


def test_a_check_ends_where_rows_vanish_during_it(
    tampered: TamperedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eventstore.log.verify.PAGE_ROWS", 100)
    end, kept, steps = len(tampered.rows), tampered.rows[:100], list[int]()

    def vanish(reached: int, _end: int) -> None:
        steps.append(reached)
        tampered.rewrite(kept)

    *_, summary = verify(tampered.log, progress=vanish)
    assert isinstance(summary, Summary)
    assert (summary.rows, steps) == (len(kept), [len(kept), end])
