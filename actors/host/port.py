"""The ports to a host, for an edge and for the placer: one typed call for a closed family.

Batches of commands have a call of their own, ``submit``, because they are the hot path. Everything
else is a question of the family ``AnyQuestion``: its type determines the type of the answer,
``IdentityHost.answer`` answers all of them in one place, and a port carries them all the same way.
A question that raised ``HostUnavailable`` may have been carried out: ``QueryHoldings`` shows
whether it was, and for identities the log does.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from actors.core.placement_table import HostHoldings
from actors.core.submissions import Read
from actors.host.inspection import InspectionAnswer, InspectionQuestion
from actors.host.measures import HostStats
from eventstore.log.event_log import DedicatedIdentity, WaitingQueue

A = TypeVar("A")


class HostUnavailable(Exception):
    """A host did not answer; it may or may not have done what was asked."""


class HostNotReached(HostUnavailable):
    """A host could not be reached; nothing was asked of it."""


class HostCutOff(HostUnavailable):
    """A host is alive by its row but unreachable from here; nothing was asked of it."""


class HostQuestion(msgspec.Struct, Generic[A], frozen=True, array_like=True, tag=True):
    """Base of all questions; ``A`` is the type of the answer."""


class Ping(HostQuestion[str], frozen=True):
    """Ask for the incarnation of a host that owns its partitions and whose log takes writes."""


class QueryStats(HostQuestion[HostStats], frozen=True):
    """Ask what the host has counted and what it holds."""


PAGE_TOO_LARGE: Final = msgspec.msgpack.encode(None)
"""The answer in place of a page whose records exceed its bytes."""


class ReadPages(HostQuestion[list[memoryview]], frozen=True):
    """Ask for the msgpack of each page, empty where it cannot be read."""

    reads: list[Read]


class IsKnown(HostQuestion[bool], frozen=True):
    """Does the log hold any event of this identity?"""

    did: str


class ListQueues(HostQuestion[list[WaitingQueue]], frozen=True):
    """Ask for the waiting queues of the log, oldest first, from one on, or of one identity."""

    limit: int
    outbound_only: bool = False
    did: str | None = None
    after: WaitingQueue | None = None


class Inspect(HostQuestion[InspectionAnswer], frozen=True):
    """An operator's question about the memory of the host; it changes nothing."""

    question: InspectionQuestion


class NoteSockets(HostQuestion[str], frozen=True):
    """Report an edge and how many sockets it has; the answer is the host's incarnation.

    Another incarnation than before means that the host may have lost the edge's sessions. The
    edge's own ``incarnation`` is for hosts of earlier releases, which need the field.
    """

    edge: str
    sockets: int
    incarnation: str = ""


class QueryHoldings(HostQuestion[HostHoldings], frozen=True):
    """Ask what the host owns; it answers without waiting for a transaction or the log."""


class ListDedicated(HostQuestion[list[DedicatedIdentity]], frozen=True):
    """Ask which identities of the host's database are dedicated."""


class ReleasePartitions(HostQuestion[bytes], frozen=True):
    """Give up these partitions; the answer is the handover for their next owner.

    The host finishes the running transaction first. From then on it refuses commands for them with
    ``Refusal.NOT_OWNER`` before doing anything. It skips partitions that it does not own.
    """

    names: list[str]


class AdoptPartitions(HostQuestion[dict[str, str]], frozen=True):
    """Claim these partitions in the log, whichever host owned them; the answer: session ids.

    Sessions, live modes and leases come from the handover, with their ids. A handover is valid for
    one attempt at one host: after a failure, or without a handover, the partitions start without
    sessions and under new ids.
    """

    names: list[str]
    handover: bytes | None


class SetDraining(HostQuestion[None], frozen=True):
    """Set or clear the flag by which the placer empties the host."""

    draining: bool


class StartDedicated(HostQuestion[None], frozen=True):
    """Start this identity's dedicated host on the node of this host, where none has a lease."""

    did: str


class EndHost(HostQuestion[None], frozen=True):
    """Answer the batches already taken, then end; for a dedicated host alone."""


class HandOut(HostQuestion[bytes], frozen=True):
    """Hand out an identity's sessions in its shard: a handover, empty if it is not dedicated."""

    did: str
    shard: str


class Expect(HostQuestion[None], frozen=True):
    """Refuse to serve an identity that returns to its shard until ``TakeIn``, for a while."""

    did: str


class TakeIn(HostQuestion[bool], frozen=True):
    """Continue the sessions of an identity that returns to this shard.

    False if the host does not own it, or does not expect the identity any more (``Expect``): then
    messages may have come that were pushed to none of these sessions.
    """

    did: str
    shard: str
    handover: bytes


AnyQuestion: TypeAlias = (
    Ping
    | QueryStats
    | ReadPages
    | IsKnown
    | ListQueues
    | Inspect
    | NoteSockets
    | QueryHoldings
    | ListDedicated
    | ReleasePartitions
    | AdoptPartitions
    | SetDraining
    | StartDedicated
    | EndHost
    | HandOut
    | Expect
    | TakeIn
)

QUESTIONS: Final = msgspec.msgpack.Decoder[AnyQuestion](AnyQuestion)


@cache
def _answers_to(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    return msgspec.msgpack.Decoder(get_args(kind.__orig_bases__[0])[0])


def decode_answer(question: HostQuestion[A], answer: bytes | memoryview) -> A:
    """Decode the answer to a question."""
    found: A = _answers_to(type(question)).decode(answer)
    return found


class OwnerPort(Protocol):
    """The placer's port to one host: ``ConnectedHostPort``, or one in a test."""

    async def submit(self, batch: bytes) -> bytes:
        """Run a batch (msgpack of ``list[Submission]``); return the msgpack of ``BatchResult``.

        Raises:
            HostUnavailable: outcome unknown.
        """

    async def ask(self, question: HostQuestion[A]) -> A:
        """Ask a question and return its answer.

        Raises:
            HostUnavailable: the host did not answer.
        """


class HostPort(OwnerPort, Protocol):
    """An edge's port to one host: ``ConnectedHostPort``, or a host in this process."""

    async def heartbeat(self, sockets: int) -> str:
        """Report how many sockets the edge has; return the host's incarnation.

        Another incarnation than before, or none, means that the host may have lost the edge's
        sessions.

        Raises:
            HostUnavailable: the host did not answer.
        """

    def close(self) -> None:
        """End pending calls, their outcome unknown; later calls connect again."""
