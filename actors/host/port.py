"""The ports to a host, as an edge and as the placer see it: one typed call for a closed family.

Batches of commands have a call of their own, ``submit``, since they are the hot path. Everything
else is a question of the family ``AnyQuestion``: its type says what the answer is,
``IdentityHost.ask`` answers all of them in one place, and a port carries each the same way. A
question that raised ``HostUnavailable`` may have been carried out: ``QueryHoldings`` shows it, and
for identities the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, get_args

import msgspec

from actors.core.commands import Read
from actors.core.placement_table import HostHoldings
from actors.host.inspection import InspectionAnswer, InspectionQuestion
from actors.host.measures import HostStats
from eventstore.log.event_log import DedicatedIdentity, WaitingQueue

A = TypeVar("A")


class HostUnavailable(Exception):
    """A host did not answer; what was asked of it may or may not have been done."""


class HostNotReached(HostUnavailable):
    """There was no way to a host; nothing was asked of it."""


class HostCutOff(HostUnavailable):
    """A host lives, by its row, and there is no way to it from here; nothing was asked of it."""


class HostQuestion(msgspec.Struct, Generic[A], frozen=True, array_like=True, tag=True):
    """Base of all questions; ``A`` is the type of the answer."""


class Ping(HostQuestion[str], frozen=True):
    """The incarnation of a host that owns its partitions and whose log takes writes."""


class QueryStats(HostQuestion[HostStats], frozen=True):
    """What the host has counted and what it holds."""


PAGE_TOO_LARGE: Final = msgspec.msgpack.encode(None)
"""Instead of a page whose records are more bytes than it may have."""


class ReadPages(HostQuestion[list[memoryview]], frozen=True):
    """The msgpack of each page, empty where it could not be read."""

    reads: list[Read]


class IsKnown(HostQuestion[bool], frozen=True):
    """Does the log hold any event of this identity?"""

    did: str


class ListQueues(HostQuestion[list[WaitingQueue]], frozen=True):
    """What waits in the whole log, longest waiting first; of one identity alone if it is named."""

    limit: int
    outbound_only: bool = False
    did: str | None = None


class Inspect(HostQuestion[InspectionAnswer], frozen=True):
    """What an operator asks about the memory of the host; nothing changes."""

    question: InspectionQuestion


class NoteSockets(HostQuestion[str], frozen=True):
    """An edge and how many sockets it has; the host's incarnation.

    Another one than before means that the host may have forgotten the edge's sessions. That of the
    edge is for hosts of earlier releases.
    """

    edge: str
    sockets: int
    incarnation: str


class QueryHoldings(HostQuestion[HostHoldings], frozen=True):
    """What the host owns; answered without waiting for a transaction or the log."""


class ListDedicated(HostQuestion[list[DedicatedIdentity]], frozen=True):
    """Which identities are dedicated, in the host's database."""


class ReleasePartitions(HostQuestion[bytes], frozen=True):
    """Own these no longer; the handover for ``AdoptPartitions`` of their next owner.

    The running transaction is finished first. A command for them is from then on refused with
    ``Refusal.NOT_OWNER`` before anything is done. What the host does not own is passed over.
    """

    names: list[str]


class AdoptPartitions(HostQuestion[dict[str, str]], frozen=True):
    """Own these: claim them in the log, whichever host owned them; the ids of their sessions.

    Sessions, live modes and leases come from the handover, with their ids. A handover is good for
    one attempt, at one host: after a failure, and when there is none, the partitions start without
    sessions and under new ids.
    """

    names: list[str]
    handover: bytes | None


class SetDraining(HostQuestion[None], frozen=True):
    """Set or clear the flag that says that the host is to be emptied."""

    draining: bool


class StartDedicated(HostQuestion[None], frozen=True):
    """Start a dedicated host of this identity on the node of this one, where none has a lease."""

    did: str


class EndHost(HostQuestion[None], frozen=True):
    """Answer what was taken, then end; for a dedicated host alone."""


class HandOut(HostQuestion[bytes], frozen=True):
    """What an identity had in its shard: a handover, empty if it is not dedicated."""

    did: str
    shard: str


class Expect(HostQuestion[None], frozen=True):
    """Do not serve an identity that comes back to its shard before ``TakeIn``, for a while."""

    did: str


class TakeIn(HostQuestion[bool], frozen=True):
    """Take what an identity had elsewhere that is of this shard again; is the shard owned here?"""

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
_ANSWERS: Final[Mapping[type, msgspec.msgpack.Decoder[Any]]] = {
    kind: msgspec.msgpack.Decoder(get_args(kind.__orig_bases__[0])[0])
    for kind in get_args(AnyQuestion)
}


def decode_answer(question: HostQuestion[A], answer: bytes | memoryview) -> A:
    """The answer to a question from its msgpack."""
    found: A = _ANSWERS[type(question)].decode(answer)
    return found


class OwnerPort(Protocol):
    """A way to one host for the placer: ``ConnectedHostPort``, or one in a test."""

    async def submit(self, batch: bytes) -> bytes:
        """Run msgpack of ``list[Submission]``; msgpack of ``BatchResult``.

        Raises:
            HostUnavailable: outcome unknown.
        """

    async def ask(self, question: HostQuestion[A]) -> A:
        """The answer to a question.

        Raises:
            HostUnavailable: the host did not answer.
        """


class HostPort(OwnerPort, Protocol):
    """A way from an edge to one host: ``ConnectedHostPort``, or a host in this process."""

    async def heartbeat(self, sockets: int, incarnation: str) -> str:
        """Report how many sockets this incarnation of the edge has; the host's incarnation.

        Another one than before, or none, means that it may have forgotten the edge's sessions.

        Raises:
            HostUnavailable: the host did not answer.
        """

    def close(self) -> None:
        """End what is under way, its outcome unknown; what is asked later begins anew."""
