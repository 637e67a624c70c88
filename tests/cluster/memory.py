"""What the hosts of a running mediator have in memory of identities, to compare it."""

from __future__ import annotations

import http.client
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from actors.core.evolve import from_snapshot
from actors.core.state_rows import state_rows
from actors.host.inspection import (
    DescribeStates,
    InspectionAnswer,
    StatesDescribed,
)
from http_edge.admin.memory import STATE_BYTES_MAX
from http_edge.cli.running_mediator import exchange

_ANSWERS: Final[msgspec.msgpack.Decoder[InspectionAnswer]] = msgspec.msgpack.Decoder(
    InspectionAnswer
)

State: TypeAlias = tuple[int, list[str]]
"""The version of an identity, and the rows of its state."""


class Memory:
    """Asks as an operator does; ``url`` is on loopback."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._token = token

    def states(self, targets: Sequence[str]) -> Mapping[str, State]:
        """The states of those of these identities that are in memory."""
        answer = self._ask(DescribeStates(list(targets), STATE_BYTES_MAX))
        assert isinstance(answer, StatesDescribed), answer
        found: dict[str, State] = {}
        for described in answer.states:
            state = from_snapshot(described.state)
            assert state is not None, described.target
            found[described.target] = (described.version, sorted(map(repr, state_rows(state))))
        return found

    def _ask(self, question: DescribeStates) -> InspectionAnswer:
        body = msgspec.msgpack.encode(question)
        status, answer = exchange("POST", self._url, "/memory", token=self._token, body=body)
        assert status == http.client.OK, (status, answer)
        return _ANSWERS.decode(answer)
