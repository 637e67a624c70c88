"""A log of very many registered identities, written by a real host.

What acts in ``tests.histories`` does everything, a few agents at a time. Here each identity does
what nearly all of a mediator do: it registers, and some have a contract and a message that waits.
All of it is decided, sealed and appended by the mediator's own host, a thousand identities in a
transaction, so rows, seals, nonces and read models are those of a log that came to be by itself.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
from eventsourcing.persistence import StoredEvent
from typing_extensions import override

from actors.core.commands import Command, Contract, QueueMessage, Register, SaveContract
from actors.core.limits import HostLimits
from actors.core.nonces import NonceClaim
from actors.core.partitioning import Placement, shard_name
from actors.core.replies import Refused
from actors.core.submissions import Submission
from actors.host.host import Host
from eventstore.log.event_log import EventLog, Snapshot
from eventstore.log.seal import command_key
from eventstore.log.streams import partition_stream
from eventstore.stores.open_log import open_store
from eventstore.stores.recorder_log import RecorderLog
from http_edge.clients.decentrl import Identity
from http_edge.clients.load.closed_loop import no_progress
from http_edge.crypto.canonical_json import canonical
from http_edge.crypto.encoding import b64encode
from http_edge.dids.decentrl import PREFIX, make_did
from tests.cluster.server import MEDIATOR_DID

SHARDS: Final = 16
REGISTERED_S: Final = 30 * 86_400
_PAYLOAD_BYTES: Final = 1_024
_AT_ONCE: Final = 1_000
_PER_S: Final = 100
"""Registrations in a second of the log's own time: its nonces must be gone when it is served."""
_LATER: Final = 8
"""Transactions until a message comes: no row of it stands beside those of its recipient."""
_AGO_S: Final = 3_600
"""Nothing of it is younger when it is served."""
_KEY_BYTES: Final = 32
_SIGNATURE: Final = b64encode(bytes(64))


class Population(msgspec.Struct, frozen=True):
    """So many registered identities; for some of them a message waits."""

    identities: int
    waiting: int

    def is_waiting(self, number: int) -> bool:
        """Does a message wait for this one? They are spread evenly over all."""
        return number * self.waiting % self.identities < self.waiting


class Known(NamedTuple):
    """Who of a log has keys, so that commands can be signed: recipients, and who writes to them.

    All messages of the log are of ``sender``.
    """

    sender: Identity
    recipients: Sequence[Identity]

    @classmethod
    def create(cls, count: int) -> Known:
        """So many recipients with fresh keys."""
        names = (f"recipient-{number}" for number in range(count))
        recipients = [Identity.create(name, MEDIATOR_DID) for name in names]
        return cls(Identity.create("sender", MEDIATOR_DID), recipients)


def write_population(
    dsn: str,
    population: Population,
    known: Known,
    *,
    progress: Callable[[int], None] = no_progress,
) -> None:
    """Have all register, in an empty log; a message waits for each of ``known.recipients``.

    Raises:
        ValueError: fewer wait than are known.
        AssertionError: the host refused one, or the log was not empty.
        LogUnavailable: the log cannot be opened.
    """
    if population.waiting < len(known.recipients):
        raise ValueError(f"{len(known.recipients)} are known and {population.waiting} wait")
    with closing(_NewLog(open_store(dsn))) as log:
        log.setting("mediator_did", MEDIATOR_DID)
        log.setting("shards", str(SHARDS))
        crowd = _Crowd(log, population, known)
        dids = enumerate(_dids(population, known))
        while some := list(itertools.islice(dids, _AT_ONCE)):
            crowd.register(some)
            progress(some[-1][0] + 1)
        crowd.end()


def _dids(population: Population, known: Known) -> Iterator[str]:
    """The DID of each; those that are known have places far from each other."""
    apart = max(1, population.waiting // max(1, len(known.recipients)))
    waiting = itertools.count()
    recipients, strangers = iter(known.recipients), _Strangers()
    for number in range(population.identities):
        found = None
        if population.is_waiting(number) and next(waiting) % apart == 0:
            found = next(recipients, None)
        yield strangers.did(number) if found is None else found.did


class _Strangers:
    """DIDs whose private keys are unknown: the same keys under other names."""

    def __init__(self) -> None:
        made = make_did("x", os.urandom(_KEY_BYTES), os.urandom(_KEY_BYTES), MEDIATOR_DID)
        self._keys = made.removeprefix(PREFIX).partition(":")[2]

    def did(self, number: int) -> str:
        """That of the stranger with this number."""
        return f"{PREFIX}{b64encode(b'agent-%d' % number)}:{self._keys}"


class _NewLog(RecorderLog):
    """A log in which nothing stands but what this process has in memory: no need to look.

    Two questions for each identity that registers would take most of the time. Should a host ever
    not have one in memory any more, it would store a version that is there, and be refused.
    """

    _PARTITIONS: Final = frozenset(partition_stream(shard_name(n)) for n in range(SHARDS))

    @override
    def read_stream(
        self,
        stream: UUID,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Sequence[StoredEvent]:
        if stream not in self._PARTITIONS:
            return []
        return super().read_stream(
            stream, after=after, before=before, limit=limit, newest_first=newest_first
        )

    @override
    def load_snapshot(self, stream: UUID) -> Snapshot | None:
        return super().load_snapshot(stream) if stream in self._PARTITIONS else None

    @override
    def load_archived_state(self, stream: UUID) -> Snapshot | None:
        return super().load_archived_state(stream) if stream in self._PARTITIONS else None


class _Crowd:
    """A host on an empty log, and a clock that goes on with those who register."""

    def __init__(self, log: EventLog, population: Population, known: Known) -> None:
        self._log, self._population, self._sender = log, population, known.sender.did
        self._placement = Placement(shards=SHARDS, hosts=1)
        self._started_ms = int((time.time() - _AGO_S - population.identities / _PER_S) * 1000)
        self._now_ms = self._started_ms
        self._until_s = int(time.time()) + REGISTERED_S
        self._nonces = itertools.count()
        self._ids = itertools.count()
        self._later: deque[Sequence[str]] = deque()
        limits = HostLimits(per_sender_per_s=0)
        self._host = Host(
            "host-0",
            log,
            limits,
            secret=os.urandom(_KEY_BYTES),
            clock=lambda: self._now_ms,
            new_id=lambda: f"00000000-0000-7000-8000-{next(self._ids):012x}",
        )
        self._host.ownership.assign([shard_name(number) for number in range(SHARDS)])

    def register(self, some: Sequence[tuple[int, str]]) -> None:
        """Have these register, by number, and those write whose turn it is."""
        self._now_ms = self._started_ms + some[-1][0] * 1000 // _PER_S
        waiting = [did for number, did in some if self._population.is_waiting(number)]
        self._do(self._registration(did) for _, did in some)
        self._do(self._friendship(did) for did in waiting)
        self._later.append(waiting)
        if len(self._later) > _LATER:
            self._do(map(self._message, self._later.popleft()))
        if due := self._host.run_housekeeping():
            self._log.save_snapshots(due)

    def end(self) -> None:
        """Have the last ones write."""
        for waiting in self._later:
            self._do(map(self._message, waiting))
        self._later.clear()

    def _registration(self, did: str) -> Submission:
        return self._submission(did, did, Register(self._contract(did, MEDIATOR_DID)))

    def _friendship(self, did: str) -> Submission:
        return self._submission(did, did, SaveContract(self._contract(self._sender, did)))

    def _message(self, did: str) -> Submission:
        payload = os.urandom(_PAYLOAD_BYTES // 2).hex().encode()  # of Decentrl it is text
        return self._submission(self._sender, did, QueueMessage(self._sender, payload))

    def _submission(self, sender: str, target: str, command: Command) -> Submission:
        key = command_key(sender, f"{next(self._nonces)}")
        nonces_at = self._placement.partition_of(sender)
        claim = NonceClaim(nonces_at, key, self._now_ms)
        at = self._placement.partition_of(target)
        return Submission(at, target, key, claim, None, command)

    def _contract(self, requestor: str, recipient: str) -> Contract:
        """As long as a real one. Who checks signatures does so before a host is asked."""
        signed = canonical({
            "communication_contract": {
                "expires_at": self._until_s,
                "recipient_did": recipient,
                "recipient_ephemeral_public_key": _SIGNATURE[:44],
                "requestor_did": requestor,
                "requestor_ephemeral_public_key": _SIGNATURE[:44],
            },
            "recipient_signature": _SIGNATURE,
            "requestor_signature": _SIGNATURE,
        })  # fmt: skip
        digest = hashlib.sha256(signed).digest()
        return Contract(requestor, recipient, self._until_s, digest, signed)

    def _do(self, submissions: Iterable[Submission]) -> None:
        items = [("edge-0", submission) for submission in submissions]
        if items:
            replies, _ = self._host.execute(items)
            refused = [reply for reply in replies if isinstance(reply, Refused)]
            assert not refused, refused[0]
