"""``IdentityHost``: the actor that owns identities, in the form that Ray runs.

The class itself is plain asyncio and knows nothing of Ray: ``actors.ray_cluster`` makes it a Ray
actor, tests run it in their own process. Both placements run this class: a host of shards owns
many identities, a dedicated one owns a single identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import msgspec

from actors.clock import Clock, NewId, new_id, system_clock
from actors.commands import Read
from actors.host import Host
from actors.limits import HostLimits
from actors.writer import PushOut, Writer
from eventstore.codec import identity_stream
from eventstore.errors import LogError
from eventstore.log import EventLog, PublicEventsFilter, PublicEventsPage, SavedEventsPage
from eventstore.open_log import open_log

_T = TypeVar("_T")
_READERS: Final = 2

ReadsDecoder: Final = msgspec.msgpack.Decoder(list[Read])


class HostOptions(msgspec.Struct, frozen=True):
    """What a host needs to start, as plain data."""

    name: str
    dsn: str
    partitions: Sequence[str]
    limits: HostLimits


class IdentityHost:
    """Owner of partitions: runs batches on its writer thread and reads on its reader threads."""

    def __init__(
        self,
        options: HostOptions,
        push_out: PushOut,
        *,
        clock: Clock = system_clock,
        new_id: NewId = new_id,
        log: EventLog | None = None,
    ) -> None:
        """Open the log, claim the partitions and start.

        Raises:
            LogError: the log cannot be opened or is not safe.
        """
        self._log = log or open_log(options.dsn)
        self._incarnation = new_id()
        self._host = Host(options.name, self._log, options.limits, clock=clock, new_id=new_id)
        self._host.assign(options.partitions)
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="reader")
        self._writer = Writer(
            self._host,
            self._log,
            incarnation=self._incarnation,
            push_out=push_out,
            items_max=options.limits.transaction_items_max,
        )
        self._writer.start()

    async def submit(self, edge: str, batch: bytes) -> bytes:
        """Run a batch of submissions for an edge.

        Args:
            edge: name of the edge; its pushes come back with the answer.
            batch: msgpack of ``list[actors.commands.Submission]``.

        Returns:
            msgpack of ``actors.replies.BatchResult``, after the commit.
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[bytes] = loop.create_future()

        def answer(result: bytes) -> None:
            loop.call_soon_threadsafe(_settle, answered, result)

        self._writer.submit(edge, batch, answer)
        return await answered

    async def read(self, batch: bytes) -> list[bytes]:
        """Answer reads of read models, beside the writer: a slow read delays no command.

        Args:
            batch: msgpack of ``list[actors.commands.Read]``.

        Returns:
            For each read the msgpack of its page, or ``b""`` when it could not be read.
        """
        loop = asyncio.get_running_loop()
        reads = ReadsDecoder.decode(batch)
        pages = [loop.run_in_executor(self._readers, self._page, read) for read in reads]
        return list(await asyncio.gather(*pages))

    async def ping(self) -> str:
        """Prove that the host lives and its log takes writes; the host's incarnation.

        Raises:
            LogUnavailable: the log cannot be written.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._readers, self._log.check_writable)
        return self._incarnation

    async def incarnation(self) -> str:
        """Changes whenever the host starts anew: sessions must then be opened again."""
        return self._incarnation

    async def knows(self, did: str) -> bool:
        """Does the log hold any event of this identity?

        Raises:
            LogUnavailable: the log cannot be read.
        """
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(
            self._readers, lambda: self._log.read_stream(identity_stream(did), limit=1)
        )
        return bool(rows)

    @property
    def has_sessions(self) -> bool:
        """Does any edge hold a socket of an identity here?"""
        return bool(self._host.sessions)

    async def stats(self) -> bytes:
        """msgpack of ``actors.host.HostStats``."""
        return msgspec.msgpack.encode(await self._on_writer(self._host.snapshot_stats))

    async def assign(self, partitions: Sequence[str]) -> None:
        """Own these partitions from now on.

        Raises:
            LogError: they could not be claimed.
        """
        await self._on_writer(lambda: self._host.assign(partitions))

    async def stop(self) -> None:
        """Answer what was taken, then release everything."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._writer.stop)
        self._readers.shutdown(wait=True)
        self._log.close()

    def _page(self, read: Read) -> bytes:
        stream = identity_stream(read.owner_did)
        page: SavedEventsPage | PublicEventsPage
        try:
            if isinstance(read.where, PublicEventsFilter):
                page = self._log.query_public_events(
                    stream, read.where, offset=read.page.offset, limit=read.page.size
                )
            else:
                page = self._log.query_saved_events(
                    stream, read.where, offset=read.page.offset, limit=read.page.size
                )
        except LogError:
            return b""
        return msgspec.msgpack.encode(page)

    async def _on_writer(self, run: Callable[[], _T]) -> _T:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_T] = loop.create_future()

        def call() -> None:
            try:
                result = run()
            except Exception as error:  # noqa: BLE001 - carried to the caller, whatever it is
                loop.call_soon_threadsafe(_fail, done, error)
            else:
                loop.call_soon_threadsafe(_settle, done, result)

        self._writer.call(call)
        return await done


def _settle(future: asyncio.Future[_T], result: _T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: asyncio.Future[_T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
