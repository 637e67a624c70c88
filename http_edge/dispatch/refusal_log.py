"""Record in the log how often an edge refused, once per period and once at the end.

The counts of a period are one command. If its outcome is unknown, the edge sends the same command
with the same key until a host answers; the log takes it once (``actors.core.system_commands``).
Meanwhile new refusals count in memory, which is bounded (``http_edge.telemetry.refusal_counts``),
and go into the next command. So no refusal counts twice, and an edge process that dies loses only
the counts that it had not recorded yet.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Final

from actors.core.commands import CountRefusals
from actors.core.replies import Done
from actors.core.submissions import Submission
from eventstore.log.seal import command_key
from http_edge.dispatch.gateway import Gateway
from http_edge.telemetry.refusal_counts import RefusalCounts

_LOG = logging.getLogger(__name__)
_EDGE: Final = "edge:"
_ENTRY_BYTES: Final = 256
"""Approximate size of an entry in a call to the host."""


class RefusalLog:
    """Records the counts of one edge."""

    def __init__(
        self, edge: str, incarnation: str, counts: RefusalCounts, gateway: Gateway
    ) -> None:
        """The log of an edge; ``incarnation`` differs between its runs."""
        self._edge = edge
        self._target = _EDGE + edge
        self._incarnation = incarnation
        self.counts = counts
        self._gateway = gateway
        self._numbers = itertools.count(1)
        self._unanswered: Submission | None = None

    async def run(self, period_s: float) -> None:
        """Record once in a period, until cancelled."""
        while True:
            await asyncio.sleep(period_s)
            await self.record()

    async def record(self) -> None:
        """Record the counts; write nothing if nothing was refused."""
        if self._unanswered is not None and not await self._send(self._unanswered):
            return
        command = self.counts.take(self._edge)
        if command is not None:
            key = command_key(self._target, f"{self._incarnation} {next(self._numbers)}")
            partition = self._gateway.routes.partition_of(self._target)
            await self._send(Submission(partition, self._target, key, command=command))

    async def _send(self, submission: Submission) -> bool:
        # Set before the call: a call that is cancelled has an unknown outcome, too.
        self._unanswered = submission
        assert isinstance(submission.command, CountRefusals)
        size_bytes = _ENTRY_BYTES * len(submission.command.refusals)
        reply = await self._gateway.submit(submission, size_bytes)
        if not isinstance(reply, Done):
            _LOG.warning("counts of refused commands are not recorded yet: the log does not answer")
            return False
        self._unanswered = None
        return True
