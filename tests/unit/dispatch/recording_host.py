"""A host that a test plays: it answers what, and when, the test says.

Its own tests hold it to what a real host does (test_recording_host.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

import msgspec
from typing_extensions import override

from actors.core.placement_table import HostHoldings
from actors.core.replies import BatchResult, Done, Push, Reply
from actors.core.submissions import Submission
from actors.host.port import (
    A,
    HostPort,
    HostQuestion,
    HostUnavailable,
    ListQueues,
    Ping,
    ReadPages,
)
from actors.host.writer import SUBMISSIONS_DECODER
from eventstore.log.event_log import WaitingQueue


class RecordingHost(HostPort):
    """Remembers every batch; answers at once unless it is held."""

    def __init__(
        self, reply: Callable[[Submission], Reply] = lambda _: Done(), *, shards: Sequence[str] = ()
    ) -> None:
        self.batches: list[list[Submission]] = []
        self.reading: list[str] = []
        """Whose pages were asked for."""
        self.called = asyncio.Event()
        self.fails: type[HostUnavailable] | None = None
        self.is_cut = False
        self.incarnation_name = "first"
        self.pushes: list[Push] = []
        self.shards = shards
        self.log_fails = False
        self.queues: list[WaitingQueue] = []
        self.page = b""
        self.held: list[tuple[list[Submission], asyncio.Future[None]]] = []
        self._is_held = False
        self._reply = reply

    def hold(self) -> None:
        """Answer nothing from now on."""
        self._is_held = True

    def answer_all(self) -> None:
        """Answer all that waits, and what comes at once."""
        self._is_held = False
        while self.held:
            self.held.pop()[1].set_result(None)

    def answer(self, sources: bytes) -> None:
        """Answer the call that carries exactly these, and hold the others."""
        for call in self.held:
            if b"".join(item.source for item in call[0]) == sources:
                self.held.remove(call)
                return call[1].set_result(None)
        raise AssertionError([item.source for call in self.held for item in call[0]])

    @override
    async def submit(self, batch: bytes) -> bytes:
        submissions = SUBMISSIONS_DECODER.decode(batch)
        self.batches.append(submissions)
        await self._turn(submissions)
        if self.is_cut:
            self.is_cut = False
            raise HostUnavailable("host-0")
        replies = [self._reply(submission) for submission in submissions]
        result = BatchResult(self.incarnation_name, replies, self.pushes)
        return msgspec.msgpack.encode(result)

    @override
    async def ask(self, question: HostQuestion[A]) -> A:
        if isinstance(question, ReadPages):
            self.reading += [read.owner_did for read in question.reads]
            await self._turn([])
            return cast("A", [self.page for _ in question.reads])
        await self._turn([])
        if isinstance(question, ListQueues):
            after = question.after
            later = [queue for queue in self.queues if after is None or queue.place > after.place]
            return cast("A", later[: question.limit])
        shards = dict.fromkeys(self.shards, "1")
        name = self.incarnation_name
        fails = self.log_fails
        holdings = HostHoldings(
            "host-0", "node", name, draining=False, shards=shards, log_fails=fails
        )
        return cast("A", name if isinstance(question, Ping) else holdings)

    @override
    async def heartbeat(self, sockets: int) -> str:
        await self._turn([])
        return self.incarnation_name

    @override
    def close(self) -> None:
        self.is_cut = True
        self.answer_all()

    async def _turn(self, submissions: list[Submission]) -> None:
        """Wait as long as the host is held. Raises: HostUnavailable."""
        self.called.set()
        if self._is_held:
            self.held.append((submissions, asyncio.get_running_loop().create_future()))
            await self.held[-1][1]
        if self.fails is not None and not self.is_cut:
            raise self.fails("host-0")
