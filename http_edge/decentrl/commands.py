"""From a request body to an answer: the order of checks of DCTRL-0004 sections 5 to 7.

Envelope → timestamp → nonce → resolve → key → signature → payload → authorization → rules. All
that needs no state is judged here, before the host is asked; the host claims the nonce first and
only then gives the edge's verdict, so a replay with a bad signature is still DUPLICATE_NONCE. What
needs the network (a foreign did:web) is fetched only after the nonce was claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Final, TypeVar

import msgspec

from actors.clock import Clock
from actors.commands import CheckRegistered, NonceClaim, QuerySavedEvents, Read, Submission
from actors.refusals import Refusal
from actors.replies import Done, Refused, Registered
from eventstore.seal import command_key
from http_edge.config import Settings
from http_edge.decentrl import answers, envelope, payloads
from http_edge.decentrl.envelope import Envelope
from http_edge.decentrl.errors import Answer, refuse
from http_edge.decentrl.judgement import Judge, Verdict
from http_edge.dids.document import Fetch
from http_edge.dids.resolver import Resolver
from http_edge.edge_report import DONE, UNKNOWN, EdgeMeasures
from http_edge.gateway import Gateway
from http_edge.rate_limits import RateLimit
from http_edge.refusal_counts import DECENTRL, RefusalCounts
from http_edge.request_id import current

_LARGE_BYTES: Final = 65_536
"""A body of 1 MiB made of small numbers takes half a second to read and to verify."""
_T = TypeVar("_T")
_REPLAYED: Final = refuse(Refusal.DUPLICATE_NONCE)
_NOBODY_PROVEN: Final = frozenset(
    {
        Refusal.SENDER_NOT_FOUND,
        Refusal.SENDER_SIGNING_KEY_NOT_FOUND,
        Refusal.INVALID_SIGNATURE,
    }
)
"""Verdicts that come before the signature of a command has been found to hold."""


class CommandFront:
    """Answers ``POST /``."""

    def __init__(  # noqa: PLR0913 - the composition root hands over each part
        self,
        settings: Settings,
        judge: Judge,
        resolver: Resolver,
        gateway: Gateway,
        *,
        clock: Clock,
        senders: RateLimit,
        refusals: RefusalCounts,
        measures: EdgeMeasures,
    ) -> None:
        """A front for one mediator.

        ``senders`` limits verified commands by sender; ``refusals`` counts what is refused.
        """
        self._did_bytes_max = settings.limits.did_bytes_max
        self._window_ms = settings.protocol.timestamp_window_ms
        self._judge = judge
        self._resolver = resolver
        self._gateway = gateway
        self._clock = clock
        self._senders = senders
        self._refusals = refusals
        self._measures = measures

    async def handle(self, body: bytes) -> Answer:
        """The answer to a request body, whatever it holds."""
        started_s = perf_counter()
        command = await _apart(
            len(body), partial(envelope.read, body, did_bytes_max=self._did_bytes_max)
        )
        if command is None:
            self._refusals.count(DECENTRL, "", Refusal.INVALID_COMMAND.value)
            self._measures.commands.add(DECENTRL, UNKNOWN, Refusal.INVALID_COMMAND.value)
            return refuse(Refusal.INVALID_COMMAND)
        read_s = perf_counter() - started_s
        now_ms = self._clock()
        if abs(now_ms - command.timestamp_ms) > self._window_ms:
            return self._counted(refuse(Refusal.TIMESTAMP_OUT_OF_RANGE), command)
        key = command_key(command.sender_did, command.nonce)
        partition = self._gateway.placement.nonce_partition_of(command.sender_did)
        claim = NonceClaim(partition, key, command.timestamp_ms)
        submission = Submission(partition, command.sender_did, key, claim, request_id=current())
        fetch = [did for did in self._judge.dids_to_resolve(command) if self._needs_network(did)]
        if fetch:
            reply = await self._gateway.submit(submission)
            if not isinstance(reply, Done):
                return self._counted(answers.answer(reply, None), command)
            submission = msgspec.structs.replace(submission, claim=None)
            for did in fetch:
                await self._resolver.resolve(did)
        started_s = perf_counter()
        verdict = await _apart(len(body), partial(self._judge.judge, command, now_ms / 1000))
        # Without what the network took in between.
        self._measures.decode.observe(read_s + perf_counter() - started_s)
        if isinstance(verdict, Refusal):
            refused = msgspec.structs.replace(submission, refusal=verdict)
            answer = answers.answer(await self._gateway.submit(refused), None)
            by = "" if verdict in _NOBODY_PROVEN else command.sender_did
            return self._counted(answer, command, by)
        wait_s = self._senders.take(command.sender_did, now_ms / 1000)
        if wait_s is not None:
            limited = refuse(Refusal.RATE_LIMITED, wait_s)
            return self._counted(limited, command, command.sender_did)
        answer = await self._submit(submission, verdict, len(body))
        if answer is _REPLAYED:
            # Whoever replays somebody's commands must not spend that sender's rate.
            self._senders.give_back(command.sender_did)
        return self._counted(answer, command, command.sender_did)

    def _counted(self, answer: Answer, command: Envelope, sender_did: str = "") -> Answer:
        """The answer; if it refuses, it is counted, for a sender whose signature holds alone."""
        refusal, name = answer.refusal, _name_of(command)
        self._measures.commands.add(
            DECENTRL, name or UNKNOWN, DONE if refusal is None else refusal.value
        )
        # Of an unknown outcome the command may have been stored: that is no refusal.
        if refusal is not None and refusal is not Refusal.TEMPORARILY_UNAVAILABLE:
            self._refusals.count(DECENTRL, name, refusal.value, sender_did)
        return answer

    def _needs_network(self, did: str) -> bool:
        return isinstance(self._resolver.resolve_now(did), Fetch)

    async def _submit(self, submission: Submission, verdict: Verdict, size_bytes: int) -> Answer:
        if verdict.registered_first is not None:
            check = self._aimed(submission, verdict.registered_first)
            check = msgspec.structs.replace(check, command=CheckRegistered())
            reply = await self._gateway.submit(check)
            if not isinstance(reply, Registered):
                return answers.answer(reply, None)
            submission = msgspec.structs.replace(submission, claim=None)
        aimed = self._aimed(submission, verdict.target_did)
        reply = await self._gateway.submit(
            msgspec.structs.replace(aimed, command=verdict.command), size_bytes
        )
        if isinstance(reply, Refused):
            return refuse(reply.code)
        if verdict.done is not None:
            return verdict.done
        if isinstance(verdict.command, QuerySavedEvents):
            query = verdict.command
            page = await self._gateway.read(Read(verdict.target_did, query.page, query.where))
            return answers.answer(page, query.page)
        return answers.answer(reply, verdict.page)

    def _aimed(self, submission: Submission, target_did: str) -> Submission:
        partition = self._gateway.partition_of(target_did)
        return msgspec.structs.replace(submission, partition=partition, target_did=target_did)


def _name_of(command: Envelope) -> str:
    """What was asked, with no text of the sender's own."""
    if command.channel == "TWO_WAY_PRIVATE":
        return command.channel
    kind = command.payload.get("type") if isinstance(command.payload, dict) else None
    return kind if isinstance(kind, str) and kind in payloads.TYPES else ""


async def _apart(size_bytes: int, work: Callable[[], _T]) -> _T:
    """Do the work here, or beside the event loop when it may take long."""
    return work() if size_bytes <= _LARGE_BYTES else await asyncio.to_thread(work)
