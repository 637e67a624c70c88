"""What the hosts of a running mediator have in memory of identities, to compare it."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from actors.core.evolve import from_snapshot
from actors.core.state_rows import state_rows
from actors.host.inspection import (
    DescribedState,
    DescribeStates,
    InspectionAnswer,
    StatesDescribed,
)
from http_edge.admin.memory import STATE_BYTES_MAX
from http_edge.cli.running_mediator import exchange

_ANSWERS: Final[msgspec.msgpack.Decoder[InspectionAnswer]] = msgspec.msgpack.Decoder(
    InspectionAnswer
)

_ALONE_BYTES_MAX: Final = 1 << 40

State: TypeAlias = tuple[int, list[str]]
"""The version of an identity, and the rows of its state."""


class Memory:
    """Asks as an operator does; ``url`` is on loopback."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def states(self, targets: Sequence[str]) -> Mapping[str, State]:
        """The states of those of these identities whose hosts can say them now."""
        found: dict[str, State] = {}
        for described in map(self._whole, self._described(targets, STATE_BYTES_MAX)):
            assert not described.fault, described
            state = from_snapshot(described.state)
            if state is not None:
                rows = sorted(map(repr, state_rows(state)))
                found[described.target] = (described.version, rows)
        return found

    def _whole(self, described: DescribedState) -> DescribedState:
        """The state itself; one that is too large for an answer with others comes alone."""
        if described.state:
            return described
        return next(iter(self._described([described.target], _ALONE_BYTES_MAX)), described)

    def _described(self, targets: Sequence[str], bytes_max: int) -> Sequence[DescribedState]:
        body = msgspec.msgpack.encode(DescribeStates(list(targets), bytes_max))
        status, answer = exchange("POST", self._url, "/memory", token=self._token, body=body)
        if status == http.client.SERVICE_UNAVAILABLE:
            return []
        assert status == http.client.OK, (status, answer)
        said = _ANSWERS.decode(answer)
        assert isinstance(said, StatesDescribed), said
        return said.states
