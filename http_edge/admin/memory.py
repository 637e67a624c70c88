"""What the hosts have in memory, for operators: one question to the hosts that it concerns.

An answer is bounded: so many identities at most, of each so many bytes, a larger one alone; and
one edge answers one question at a time.
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
"""Identities in one answer. More would hold up the commands of one host for longer."""
STATE_BYTES_MAX: Final = 64 * 1024
"""A state in an answer with others: 16 MiB for all of them."""
_CALLS_MAX: Final = 16
_QUESTIONS: Final[msgspec.msgpack.Decoder[InspectionQuestion]] = msgspec.msgpack.Decoder(
    InspectionQuestion
)
_ANSWERS: Final[msgspec.msgpack.Decoder[InspectionAnswer]] = msgspec.msgpack.Decoder(
    InspectionAnswer
)
_A = TypeVar("_A")


class QuestionRefused(Exception):
    """No question, or one whose answer would have no bound."""


class Memory:
    """Asks the hosts of one mediator, one question at a time."""

    def __init__(self, gateway: Gateway) -> None:
        """The memory of the hosts of shards, and of those with one identity each."""
        self._gateway = gateway
        self._alone = asyncio.Lock()
        self._calls = asyncio.Semaphore(_CALLS_MAX)

    async def answer(self, question: bytes) -> bytes:
        """The msgpack of an ``InspectionAnswer`` to that of an ``InspectionQuestion``.

        Raises:
            QuestionRefused: it is none, or asks for too much at once.
            HostUnavailable: a host did not answer.
        """
        try:
            decoded = _QUESTIONS.decode(question)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise QuestionRefused from error
        async with self._alone:
            return msgspec.msgpack.encode(await self._ask(decoded))

    async def knows(self, did: str) -> bool:
        """Does the log have an identity of this name: has it ever registered or connected here?

        Raises:
            HostUnavailable: its host does not answer or has just lost its shard.
        """
        async with self._alone:
            found = await self._states(DescribeStates([did], 0))
        if not found.states and not found.asleep:
            raise HostUnavailable(did)
        return bool(found.asleep) or any(state.version or state.fault for state in found.states)

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
            partition = self._gateway.partition_of(target)
            by_host.setdefault(self._owner(partition), []).append((target, partition))
        answers = await asyncio.gather(
            *[self._describe(host, pairs, question) for host, pairs in by_host.items()]
        )
        return StatesDescribed(
            [state for answer in answers for state in answer.states],
            [target for answer in answers for target in answer.asleep],
        )

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
