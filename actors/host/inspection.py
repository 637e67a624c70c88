"""Inspection of a host's memory by operators: questions, answers, and the ``Inspector``.

An inspection changes nothing: it makes no event and no seal, and keeps no identity in memory. The
writer's thread describes cached identities, between transactions; the caller's thread reads the
others from the log, as the first command for each would.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

import msgspec

from actors.core.evolve import to_snapshot
from actors.core.identity import Identity
from actors.core.nonces import BUCKET_MS
from actors.host.host import Host
from actors.host.stored_states import read_identity
from eventstore.log.errors import CorruptRow, UnknownTopic
from eventstore.log.event_log import LogReader
from eventstore.log.streams import identity_stream

_AT_ONCE: Final = 32
"""Identities described without a command between them."""
_T = TypeVar("_T")
OnWriter: TypeAlias = Callable[[Callable[[], _T]], _T]


class _Said(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of questions and answers: a tagged array on the wire."""


class DescribeStates(_Said, frozen=True):
    """Ask for states of identities; one larger than ``bytes_max`` comes as its version alone.

    ``partitions`` has the partition of each target by the edge's placement.
    """

    targets: list[str]
    bytes_max: int
    partitions: list[str] = []


class ListCachedIdentities(_Said, frozen=True):
    """Ask for the identities that are in memory."""


class DescribeNonces(_Said, frozen=True):
    """Ask a partition's owner for the newest seal and the nonces in force."""

    partition: str


InspectionQuestion: TypeAlias = DescribeStates | ListCachedIdentities | DescribeNonces


class DescribedState(msgspec.Struct, frozen=True, array_like=True):
    """One identity: its version (0 if it does not exist) and the snapshot of its state.

    ``state`` is empty if it exceeds the requested bytes; ``actors.core.evolve`` decodes it.
    ``fault`` says why the identity cannot be served; it is empty if it can.
    """

    target: str
    version: int
    state: bytes
    fault: str = ""


class StatesDescribed(_Said, frozen=True):
    """The states of the targets that this host owns."""

    states: list[DescribedState]


class CachedIdentities(_Said, frozen=True):
    """The identities that are in memory."""

    targets: list[str]


class NoncesHeld(_Said, frozen=True):
    """A partition as its owner knows it at ``at_ms``, Unix milliseconds.

    ``version``, ``epoch`` and ``digest`` are of its newest seal. ``packed`` holds the 16-byte keys
    of nonces, joined, by bucket; a nonce's bucket is its expiry divided by ``bucket_ms``.
    """

    partition: str
    version: int
    epoch: int
    digest: bytes
    at_ms: int
    window_ms: int
    bucket_ms: int
    packed: dict[int, bytes]


class NotOwned(_Said, frozen=True):
    """This host does not own the requested partition."""


InspectionAnswer: TypeAlias = StatesDescribed | CachedIdentities | NoncesHeld | NotOwned


class Inspector:
    """Answers questions about one host; called on any thread but the writer's."""

    def __init__(self, host: Host, log: LogReader, on_writer: OnWriter[InspectionAnswer]) -> None:
        """An inspector of ``host``, which only ``on_writer`` may touch."""
        self._host = host
        self._log = log
        self._on_writer = on_writer

    def answer(self, question: InspectionQuestion) -> InspectionAnswer:
        """Answer a question.

        Raises:
            LogUnavailable: the log cannot be read.
        """
        match question:
            case DescribeStates():
                return self._states(question)
            case ListCachedIdentities():
                return self._on_writer(lambda: CachedIdentities(self._host.cache.dids()))
            case DescribeNonces():
                return self._on_writer(lambda: self._nonces(question.partition))

    def _states(self, question: DescribeStates) -> StatesDescribed:
        described: list[DescribedState] = []
        pairs = list(zip(question.targets, question.partitions, strict=True))
        for start in range(0, len(pairs), _AT_ONCE):
            described += self._described(pairs[start : start + _AT_ONCE], question.bytes_max)
        return StatesDescribed(described)

    def _described(self, pairs: list[tuple[str, str]], bytes_max: int) -> list[DescribedState]:
        passive: list[str] = []

        def in_memory() -> StatesDescribed:
            found: list[DescribedState] = []
            for target, partition in pairs:
                state = self._host.cache.peek(target)
                if state is not None:
                    found.append(describe(target, state, bytes_max))
                elif partition in self._host.ownership.owned:
                    passive.append(target)
            return StatesDescribed(found)

        answer = self._on_writer(in_memory)
        assert isinstance(answer, StatesDescribed)
        return answer.states + [self._read(target, bytes_max) for target in passive]

    def _read(self, target: str, bytes_max: int) -> DescribedState:
        try:
            state, _ = read_identity(self._log, identity_stream(target))
        except (CorruptRow, UnknownTopic) as error:
            return DescribedState(target, 0, b"", f"{type(error).__name__}: {error}")
        return describe(target, state, bytes_max)

    def _nonces(self, name: str) -> InspectionAnswer:
        partition = self._host.ownership.owned.get(name)
        if partition is None:
            return NotOwned()
        return NoncesHeld(
            name,
            partition.version,
            partition.epoch,
            partition.digest,
            self._host.now_ms(),
            self._host.ownership.window_ms,
            BUCKET_MS,
            partition.nonces.packed(),
        )


def describe(target: str, state: Identity, bytes_max: int) -> DescribedState:
    """Describe the state of an identity, or its version alone if it exceeds ``bytes_max``."""
    fits = state.weight_bytes() + state.name_bytes() <= bytes_max
    return DescribedState(target, state.version, to_snapshot(state) if fits else b"")
