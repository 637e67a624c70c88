"""Asks a running mediator for all that its hosts have in memory, a part at a time.

Of the identities that the export names, and of those that the hosts name themselves. A host that
cannot answer now, because it restarts or has just lost a partition, is asked again for a while.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Final, TypeAlias, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from actors.inspection import (
    Answer,
    DescribedState,
    DescribeNonces,
    DescribeStates,
    ListResidents,
    NoncesHeld,
    Question,
    Residents,
    StatesDescribed,
)
from actors.partitions import shard_name
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.errors import ExportUnavailable
from eventstore.parquet.files import ExportPlace
from http_edge.live.dump import DumpWriter
from http_edge.memory import STATE_BYTES_MAX, TARGETS_MAX

_PAUSES_S: Final = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0)
_ALONE_BYTES_MAX: Final = 1 << 40
_AHEAD: Final = 2
"""Questions under way: one is answered while the answer before it is written down."""
_ANSWERS: Final[msgspec.msgpack.Decoder[Answer]] = msgspec.msgpack.Decoder(Answer)
_A = TypeVar("_A")

Ask: TypeAlias = Callable[[bytes], bytes]
"""Msgpack of a ``Question`` to that of its ``Answer``; raises ``NotNow``."""
Progress: TypeAlias = Callable[[int, int], None]
"""Called with the identities that were asked for and how many there are."""


class NotNow(Exception):
    """The mediator cannot answer now, perhaps in a moment."""


class NotServed(Exception):
    """The mediator did not answer for too long; says for what."""


def exported_identities(place: ExportPlace) -> set[str]:
    """Every target that events of the export name.

    Raises:
        ExportError: as ``catalog_of``.
    """
    while True:
        catalog = catalog_of(place, None)
        try:
            return {name for file in catalog.files for name in _identities(place, file.path)}
        except FileNotFoundError as error:
            # A compaction has put files together since; others are damage.
            if catalog_of(place, None).files == catalog.files:
                raise ExportUnavailable(str(error.filename), "the file is gone") from error


def _identities(place: ExportPlace, path: str) -> Iterator[str]:
    with place.filesystem.open_input_file(place.full_path(path)) as opened:
        parquet = pq.ParquetFile(opened, read_dictionary=["identity"])
        for batch in parquet.iter_batches(columns=["identity"]):
            found = pc.unique(batch.column(0).cast(pa.string()))
            yield from (name for name in found.to_pylist() if name is not None)


class Collector:
    """Writes down what a mediator has in memory."""

    def __init__(self, ask: Ask, writer: DumpWriter) -> None:
        """A collector that asks by ``ask`` and writes to ``writer``."""
        self._ask = ask
        self._writer = writer

    def collect(self, exported: Iterable[str], shards: int, progress: Progress) -> None:
        """Ask for the identities, and for the nonces of every shard.

        Raises:
            NotServed: a host does not answer.
        """
        targets = set(exported)
        targets.update(self._said(ListResidents(), Residents).targets)
        asked = 0
        for answer in self._answers(sorted(targets)):
            for described in answer.states:
                self._writer.add_state(self._whole(described))
            self._writer.add_asleep(answer.asleep)
            asked += len(answer.states) + len(answer.asleep)
            progress(asked, len(targets))
        for index in range(shards):
            held = self._said(DescribeNonces(shard_name(index)), NoncesHeld)
            self._writer.add_nonces(held)

    def _answers(self, targets: Sequence[str]) -> Iterator[StatesDescribed]:
        parts = (targets[i : i + TARGETS_MAX] for i in range(0, len(targets), TARGETS_MAX))
        with ThreadPoolExecutor(_AHEAD) as asking:
            ahead: deque[Future[StatesDescribed]] = deque(
                asking.submit(self._states, part) for part in islice(parts, _AHEAD)
            )
            while ahead:
                answer = ahead.popleft().result()
                ahead.extend(asking.submit(self._states, part) for part in islice(parts, 1))
                yield answer

    def _states(self, targets: Sequence[str]) -> StatesDescribed:
        """The states of all of these, whoever owns them when."""
        states: list[DescribedState] = []
        asleep: list[str] = []
        left = list(targets)
        for pause_s in (*_PAUSES_S, None):
            answer = self._said(DescribeStates(left, STATE_BYTES_MAX), StatesDescribed)
            states += answer.states
            asleep += answer.asleep
            answered = {state.target for state in answer.states} | set(answer.asleep)
            left = [target for target in left if target not in answered]
            if not left:
                break
            _wait(pause_s, f"no host owns {left[0]}")
        return StatesDescribed(states, asleep)

    def _whole(self, described: DescribedState) -> DescribedState:
        """The state of an identity that was too large to come with others."""
        if described.state or not described.version:
            return described
        question = DescribeStates([described.target], _ALONE_BYTES_MAX)
        (whole,) = self._said(question, StatesDescribed).states
        return whole

    def _said(self, question: Question, kind: type[_A]) -> _A:
        encoded = msgspec.msgpack.encode(question)
        for pause_s in (*_PAUSES_S, None):
            try:
                answer = _ANSWERS.decode(self._ask(encoded))
            except NotNow as error:
                _wait(pause_s, str(error))
            else:
                if isinstance(answer, kind):
                    return answer
                _wait(pause_s, "a host does not own its partition")
        raise AssertionError("the last pause is none")


def _wait(pause_s: float | None, why: str) -> None:
    if pause_s is None:
        raise NotServed(why)
    threading.Event().wait(pause_s)
