"""Registering recipients: handshake, mediation and the first key of many wallets.

All that a wallet says is packed before the clock runs, and all that it hears is opened and checked
after the clock has stopped: every answer must be the mediator's, and grant what was asked. In
between each wallet says one thing after the other, as wallets do.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from http_edge.bench.connection import Connection as HttpConnection
from http_edge.bench.measurement import Measurement, measured
from http_edge.bench.mediator import Mailbox, Mediator
from http_edge.didcomm.keys import KeyPair, did_key
from http_edge.didcomm.messages import NEW_PREFIX, Json
from http_edge.wallet import Connection, Handshake, Heard, Recipient
from http_edge.wallet.connection import open_for
from http_edge.wallet.conversation import prepared
from http_edge.wallet.mediation import SpeaksMediation

WALLETS: Final = 16
_SUCCESS: Final = range(200, 300)
_MEDIATION: Final = NEW_PREFIX + "coordinate-mediation/1.0/"
_NS_PER_S: Final = 1_000_000_000
_MICRO: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class _Applicant:
    """A wallet to be, and the four envelopes that it sends, in their order."""

    handshake: Handshake
    key: KeyPair
    envelopes: Sequence[bytes]


async def register(
    mediator: Mediator, count: int, *, progress: Callable[[int], None] = lambda _: None
) -> tuple[list[Mailbox], Measurement]:
    """Register ``count`` new wallets with a key each, 16 at a time.

    Raises:
        RuntimeError: a message was refused.
        WalletError: an answer is not the mediator's, or does not grant what was asked.
    """
    applicants = [_applicant(mediator) for _ in range(count)]
    answers: list[Sequence[bytes]] = [()] * count
    latencies, shared = array("Q"), iter(enumerate(applicants))
    opened = [await HttpConnection.open(mediator.target) for _ in range(min(WALLETS, count))]

    async def apply(connection: HttpConnection) -> None:
        for number, applicant in shared:
            began = time.perf_counter_ns()
            answers[number] = [await _posted(connection, body) for body in applicant.envelopes]
            latencies.append(time.perf_counter_ns() - began)
            progress(len(latencies))

    try:
        with mediator.costs() as spent:
            started, cpu_started_s = time.perf_counter_ns(), time.process_time()
            await asyncio.gather(*map(apply, opened))
            cpu_s = time.process_time() - cpu_started_s
            seconds = (time.perf_counter_ns() - started) / _NS_PER_S
    finally:
        for connection in opened:
            connection.close()
    line = measured(
        f"register a recipient, {len(opened)} wallets",
        latencies,
        seconds,
        generator_cpu_us=cpu_s / max(1, count) * _MICRO,
        **spent.per(count, seconds),
    )
    return [await _checked(*both) for both in zip(applicants, answers, strict=True)], line


def _applicant(mediator: Mediator) -> _Applicant:
    handshake, key = Handshake(mediator.invitation, KeyPair.new()), KeyPair.new()
    # The mediator's one key is known from its invitation; the answer to the request confirms it.
    expected = Connection(
        key=handshake.key,
        did="",
        mediator_did="",
        mediator_key=mediator.invitation.key,
        http_url="",
        ws_url="",
    )
    update = {"recipient_key": did_key(key.public), "action": "add"}
    said: list[Json] = [
        handshake.completion(),
        prepared({"@type": _MEDIATION + "mediate-request"}, "all"),
        prepared({"@type": _MEDIATION + "keylist-update", "updates": [update]}, "all"),
    ]
    return _Applicant(handshake, key, [handshake.packed_request(), *map(expected.pack, said)])


async def _posted(connection: HttpConnection, body: bytes) -> bytes:
    status, answer = await connection.post(body)
    if status not in _SUCCESS:
        raise RuntimeError(f"registration refused: {status} {answer[:80]!r}")
    return answer


async def _checked(applicant: _Applicant, answers: Sequence[bytes]) -> Mailbox:
    """What the answers say.

    Raises:
        RuntimeError: the key was not registered.
        WalletError: an answer is not the mediator's, or not what was asked for.
    """
    response, _, *rest = answers
    opened = open_for(applicant.handshake.key, response)
    if opened is None:
        raise RuntimeError("an answer to another wallet")
    connection = applicant.handshake.accept(opened)
    wallet = SpeaksMediation(connection, _Answered(connection, iter(rest)))
    mediation = await wallet.request_mediation()
    (changed,) = await wallet.update_keylist(add=[applicant.key.public])
    if changed.result != "success":
        raise RuntimeError(f"the key was not registered: {changed.result}")
    return Mailbox(connection, Recipient(applicant.key, mediation))


class _Answered:
    """A transport whose questions were asked and answered before."""

    def __init__(self, connection: Connection, answers: Iterator[bytes]) -> None:
        self._connection = connection
        self._answers = answers

    async def exchange(self, message: Json, *, raw: bool = False) -> Heard | None:  # noqa: ARG002
        """See ``http_edge.wallet.transport.Transport``."""
        return self._connection.open(next(self._answers))
