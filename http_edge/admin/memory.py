"""What the hosts have in memory, for operators: passes each question to the hosts concerned.

Answers are bounded: in the number of identities and in the bytes of each; a larger identity comes
alone. One edge answers one question at a time.
"""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec

from actors.core.partitioning import is_shard
from actors.host.inspection import (
    CachedIdentities,
    DescribeNonces,
    DescribeStates,
    InspectionAnswer,
    InspectionQuestion,
    ListCachedIdentities,
    NoncesHeld,
    StatesDescribed,
)
from actors.host.port import HostUnavailable, Inspect
from http_edge.dispatch.gateway import Gateway

TARGETS_MAX: Final = 256
"""Identities in one answer: more would delay the commands of a host for longer."""
STATE_BYTES_MAX: Final = 64 * 1024
"""Bytes of one state in an answer with several: 16 MiB in all."""
_CALLS_MAX: Final = 16
_QUESTIONS: Final[msgspec.msgpack.Decoder[InspectionQuestion]] = msgspec.msgpack.Decoder(
    InspectionQuestion
)
_A = TypeVar("_A")


class QuestionRefused(Exception):
    """The text is no question, or its answer would have no bound."""


class Memory:
    """Asks the hosts of one mediator, one question at a time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._alone = asyncio.Lock()
        self._calls = asyncio.Semaphore(_CALLS_MAX)

    async def answer(self, question: bytes) -> bytes:
        """Answer an ``InspectionQuestion`` in msgpack with an ``InspectionAnswer`` in msgpack.

        Raises:
            QuestionRefused: it is no question, or asks for too much at once.
            HostUnavailable: a host did not answer.
        """
        try:
            decoded = _QUESTIONS.decode(question)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise QuestionRefused from error
        async with self._alone:
            return msgspec.msgpack.encode(await self._ask(decoded))

    async def knows(self, did: str) -> bool:
        """Does the log have this identity: has it ever registered or connected here?

        Raises:
            HostUnavailable: its host does not answer or has just lost its shard.
        """
        async with self._alone:
            found = await self._states(DescribeStates([did], 0))
        if not found.states:
            raise HostUnavailable(did)
        return any(state.version or state.fault for state in found.states)

    async def _ask(self, question: InspectionQuestion) -> InspectionAnswer:
        match question:
            case DescribeStates():
                return await self._states(question)
            case ListCachedIdentities():
                hosts = self._gateway.routes.hosts()
                asking = [self._call(host, question, CachedIdentities) for host in hosts]
                answers = await asyncio.gather(*asking)
                return CachedIdentities([target for found in answers for target in found.targets])
            case DescribeNonces():
                if not is_shard(question.partition):
                    raise QuestionRefused
                return await self._call(self._owner(question.partition), question, NoncesHeld)

    async def _states(self, question: DescribeStates) -> StatesDescribed:
        targets = question.targets
        many = len(targets) > 1
        if len(targets) > TARGETS_MAX or (many and question.bytes_max > STATE_BYTES_MAX):
            raise QuestionRefused
        by_host: dict[str, list[tuple[str, str]]] = {}
        for target in targets:
            partition = self._gateway.routes.partition_of(target)
            by_host.setdefault(self._owner(partition), []).append((target, partition))
        answers = await asyncio.gather(
            *[self._describe(host, pairs, question) for host, pairs in by_host.items()]
        )
        return StatesDescribed([state for answer in answers for state in answer.states])

    async def _describe(
        self, host: str, pairs: list[tuple[str, str]], question: DescribeStates
    ) -> StatesDescribed:
        part = DescribeStates([t for t, _ in pairs], question.bytes_max, [p for _, p in pairs])
        return await self._call(host, part, StatesDescribed)

    def _owner(self, partition: str) -> str:
        host = self._gateway.routes.host_of(partition)
        if host is None:
            raise HostUnavailable(partition)
        return host

    async def _call(self, host: str, question: InspectionQuestion, kind: type[_A]) -> _A:
        async with self._calls:
            answer = await self._gateway.port(host).ask(Inspect(question))
        if not isinstance(answer, kind):
            raise HostUnavailable(host)
        return answer
