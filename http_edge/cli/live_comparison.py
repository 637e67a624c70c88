"""``poste verify --live``: compares the memory of a running mediator with its exports.

Each database of the log has an export of its own. First the exports are brought up to the log's
end. Then the mediator reports, a part at a time, what its hosts have in memory: of the identities
that the exports name, and of those that the hosts themselves name. The answers go into a dump
(``http_edge.cli.live_dump``), which Spark compares with the tables of the exports.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actors.core.partitioning import shard_name
from actors.host.inspection import (
    CachedIdentities,
    DescribedState,
    DescribeNonces,
    DescribeStates,
    InspectionAnswer,
    InspectionQuestion,
    ListCachedIdentities,
    NoncesHeld,
    StatesDescribed,
)
from eventstore.log.event_log import LogReader
from eventstore.log.streams import is_erased_name, stream_of
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.errors import Damage, ExportDamaged, ExportRefused, ExportUnavailable
from eventstore.parquet.files import ExportPlace, FileMissing, open_place
from http_edge.admin.memory import STATE_BYTES_MAX, TARGETS_MAX
from http_edge.cli.keys import existing_keys
from http_edge.cli.live_dump import DumpWriter, OtherBuild
from http_edge.cli.output import progress_bar
from http_edge.cli.projections_program import answer_of_program, raised_if_terminated
from http_edge.cli.running_mediator import exchange, operators_access, refuse_unless_ok
from http_edge.cli.settings import require_existing
from http_edge.server.exits import Exit, Stop
from http_edge.server.exporting import OtherExporter, exporter_of
from http_edge.server.mediator_log import opened_to_export, opened_to_read
from http_edge.settings.settings import Settings

_ANSWER_S_MAX: Final = 60.0
_ANSWER_BYTES_MAX: Final = 1024 * 1024 * 1024
_LOOK_S: Final = 0.3
_GRACE_S: Final = 120.0
"""Time in addition to the exporter's allowed lag, to write the rows that have accumulated."""
_PAUSES_S: Final = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
_ALONE_BYTES_MAX: Final = 1 << 40
_ANSWERS: Final[msgspec.msgpack.Decoder[InspectionAnswer]] = msgspec.msgpack.Decoder(
    InspectionAnswer
)
_A = TypeVar("_A")

Ask: TypeAlias = Callable[[bytes], bytes]
"""Answers an ``InspectionQuestion`` by an ``InspectionAnswer``, in msgpack; raises ``NotNow``."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with two numbers of identities: answered, and in all."""


class _Database(NamedTuple):
    """One database of the log, and the place of its export."""

    settings: Settings
    log: LogReader
    place: ExportPlace

    def covered(self, position: int) -> Catalog:
        """The catalog of the export, once it reaches ``position``, the end of a transaction.

        Export the missing rows. If ``poste serve`` or ``poste export --watch`` exports already, no
        other process may: then wait for that process.

        Raises:
            ExportRefused: the export is of another mediator, or the other exporter does not reach
                the position.
            ExportError, LogError, KeyFileRefused: as ``exporter_of``.
        """
        give_up_s = time.monotonic() + self.settings.export.lag_s_max + _GRACE_S
        while True:
            catalog = catalog_of(self.place, None)
            if catalog.last >= position:
                return catalog
            try:
                with (
                    closing(opened_to_export(self.settings)) as log,
                    exporter_of(self.settings, log, self.place) as exporter,
                ):
                    while exporter.catalog.last < position and exporter.step() is not None:
                        pass
                    if exporter.catalog.last < position:
                        raise ExportRefused(f"the log has no seal at position {position}")
            except OtherExporter:
                if time.monotonic() > give_up_s:
                    raise ExportRefused(
                        f"another process exports to {self.place.address()} and has not"
                        f" reached position {position}"
                    ) from None
                threading.Event().wait(_LOOK_S)


def export_rest(each: Sequence[Settings]) -> None:
    """Export the missing rows of each database whose export is sound.

    A damaged export is left to the check that follows. Raises as ``_Database.covered``.
    """
    for settings in each:
        require_existing(settings.log_dsn)
    existing_keys(each[0])  # they sign what is written
    with ExitStack() as stack, progress_bar("Exporting"):
        for database in _opened(each, stack):
            try:
                database.covered(database.log.position())
            except ExportDamaged:
                continue


def compare_live(
    each: Sequence[Settings], target: str, url: str | None, spark: Sequence[str]
) -> dict[str, Any]:
    """Run ``projections compare``; return its result, see ``projections/compare.py``.

    ``target`` is the place of the export, or of the exports of all databases; ``url`` is the
    address for operators, None for the data directory's; ``spark`` are arguments for Spark.

    Raises:
        Stop: the mediator or Spark does not answer.
        NotServed: a host does not answer.
        OtherBuild: what it answers cannot be read.
        ExportError, LogError, KeyFileRefused: as ``exporter_of``.
        Exit: SIGTERM came. What hosts have in memory is on no disk afterwards.
    """
    with raised_if_terminated(), tempfile.TemporaryDirectory(prefix="poste-live-") as name:
        _dump(each, url, Path(name))
        with progress_bar("Comparing"):
            arguments = ["compare", "--from", target, "--live", name, *spark]
            code, answer = answer_of_program(arguments)
    try:
        compared = json.loads(answer)
    except ValueError:
        compared = None
    if not isinstance(compared, dict):
        raise Stop(Exit.INTERNAL, f"the comparison ended without an answer, exit code {code}")
    return compared


def _dump(each: Sequence[Settings], url: str | None, folder: Path) -> None:
    address, token = operators_access(each[0], url)

    def ask(question: bytes) -> bytes:
        status, answer = exchange(
            "POST",
            address,
            "/memory",
            token=token,
            body=question,
            seconds_max=_ANSWER_S_MAX,
            bytes_max=_ANSWER_BYTES_MAX,
        )
        if status in {http.client.SERVICE_UNAVAILABLE, http.client.TOO_MANY_REQUESTS}:
            raise NotNow(f"{address}/memory answered {status}")
        refuse_unless_ok(status, address, "/memory")
        return answer

    with ExitStack() as stack:
        databases = _opened(each, stack)
        after = [database.log.position() for database in databases]
        shards = 0
        for database, position in zip(databases, after, strict=True):
            catalog = database.covered(position)
            assert catalog.head is not None
            shards = catalog.head.shards
        with DumpWriter(folder) as writer, progress_bar("Asking the mediator") as progress:
            targets = {name for one in databases for name in exported_identities(one.place)}
            Collector(ask, writer).collect(targets, shards, progress)
        before = [database.log.position() for database in databases]
        with progress_bar("Exporting"):
            for database, position in zip(databases, before, strict=True):
                database.covered(position)
    writer.finish(after=after, before=before)


def _opened(each: Sequence[Settings], stack: ExitStack) -> list[_Database]:
    found = []
    for settings in each:
        assert settings.export.to is not None
        log = stack.enter_context(closing(opened_to_read(settings)))
        found.append(_Database(settings, log, open_place(settings.export.to)))
    return found


class NotNow(Exception):
    """The mediator cannot answer now, but perhaps soon."""


class NotServed(Exception):
    """The mediator did not answer for too long; the text says why."""


def exported_identities(place: ExportPlace) -> set[str]:
    """The identities that events of the export name.

    Raises:
        ExportError: as ``catalog_of``.
    """
    while True:
        catalog = catalog_of(place, None)
        try:
            return {name for file in catalog.files for name in _identities(place, file.path)}
        except FileMissing as error:
            # A compaction may have merged files meanwhile; otherwise the export is damaged.
            if catalog_of(place, None).files == catalog.files:
                raise ExportUnavailable(str(error), "the file is gone") from error


def _identities(place: ExportPlace, path: str) -> Iterator[str]:
    try:
        with place.opened(path) as opened:
            parquet = pq.ParquetFile(opened, read_dictionary=["identity"])
            for batch in parquet.iter_batches(columns=["identity"]):
                found = pc.unique(batch.column(0).cast(pa.string()))
                yield from (name for name in found.to_pylist() if name is not None)
    except pa.ArrowException as error:
        raise ExportDamaged(path, Damage.CHANGED, str(error)) from error


class Collector:
    """Writes what a mediator has in memory to a dump."""

    def __init__(self, ask: Ask, writer: DumpWriter) -> None:
        self._ask = ask
        self._writer = writer

    def collect(self, exported: Iterable[str], shards: int, progress: Progress) -> None:
        """Ask for the identities, and for the nonces of every shard.

        Raises:
            NotServed: a host does not answer.
            OtherBuild: what it answers cannot be read.
        """
        targets = set(exported)
        targets.update(self._answer_to(ListCachedIdentities(), CachedIdentities).targets)
        named = sorted(targets - self._note_nameless(targets))
        for first in range(0, len(named), TARGETS_MAX):
            part = named[first : first + TARGETS_MAX]
            for described in self._states(part):
                self._writer.add_state(self._whole(described))
            progress(first + len(part), len(named))
        for index in range(shards):
            held = self._answer_to(DescribeNonces(shard_name(index)), NoncesHeld)
            self._writer.add_nonces(held)

    def _note_nameless(self, targets: AbstractSet[str]) -> AbstractSet[str]:
        """Note and return the targets that are digests of erased names, which memory lacks as well.

        If memory still has the name, the name itself is another of the targets.
        """
        nameless = set(filter(is_erased_name, targets))
        if nameless:
            known = {stream_of(name) for name in targets - nameless}
            self._writer.add_not_in_memory(
                [n for n in sorted(nameless) if stream_of(n) not in known]
            )
        return nameless

    def _states(self, targets: Sequence[str]) -> list[DescribedState]:
        """The states of all targets, including those whose owner changes meanwhile."""
        states: list[DescribedState] = []
        left = list(targets)
        for pause_s in (*_PAUSES_S, None):
            answer = self._answer_to(DescribeStates(left, STATE_BYTES_MAX), StatesDescribed)
            states += answer.states
            done = {state.target for state in answer.states}
            left = [target for target in left if target not in done]
            if not left:
                break
            _wait(pause_s, f"no host owns {left[0]}")
        return states

    def _whole(self, described: DescribedState) -> DescribedState:
        """The state itself; ask for it alone if it was too large for an answer with others."""
        if described.state or not described.version:
            return described
        question = DescribeStates([described.target], _ALONE_BYTES_MAX)
        (whole,) = self._answer_to(question, StatesDescribed).states
        return whole

    def _answer_to(self, question: InspectionQuestion, kind: type[_A]) -> _A:
        encoded = msgspec.msgpack.encode(question)
        for pause_s in (*_PAUSES_S, None):
            try:
                answer = _ANSWERS.decode(self._ask(encoded))
            except NotNow as error:
                _wait(pause_s, str(error))
            except msgspec.DecodeError as error:
                raise OtherBuild(f"an answer cannot be read: {error}") from error
            else:
                if isinstance(answer, kind):
                    return answer
                _wait(pause_s, "a host does not own its partition")
        raise AssertionError("the last pause is none")


def _wait(pause_s: float | None, why: str) -> None:
    if pause_s is None:
        raise NotServed(why)
    threading.Event().wait(pause_s)
