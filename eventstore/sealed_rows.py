"""Takes rows in the order of the log and gives them back as soon as a seal covers them.

Stricter and faster than ``eventstore.verify``, which goes on to name all that is wrong: the first
row that is not as it was sealed ends it.

Memory: one integer for each stream, one head for each partition, the rows of one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from eventstore.batch import BATCH_BYTES_MAX
from eventstore.codec import decode, encode, partition_stream
from eventstore.errors import NotAsSealed
from eventstore.events import TOPIC_BY_TYPE, BatchSealed
from eventstore.log import LogRow
from eventstore.seal import GENESIS, digest_by
from eventstore.verify import Head

SEAL_TOPIC: Final = TOPIC_BY_TYPE[BatchSealed]


class SealedRows:
    """One pass over a log from its first row.

    ``position`` is that of the newest seal, ``rows`` and ``seals`` count what is covered, and
    ``heads`` has the newest seal of each partition.
    """

    def __init__(self) -> None:
        """Before the first row."""
        self.position = self.rows = self.seals = 0
        self.heads: dict[str, Head] = {}
        self._reached = 0
        self._versions: dict[bytes, int] = {}
        self._unsealed: list[LogRow] = []
        self._unsealed_bytes = 0

    @property
    def streams(self) -> int:
        """How many streams there are."""
        return len(self._versions)

    @property
    def unsealed(self) -> int:
        """How many rows wait for their seal."""
        return len(self._unsealed)

    def take(self, rows: Iterable[LogRow]) -> list[LogRow]:
        """The rows that are covered now, each transaction whole.

        Raises:
            NotAsSealed: a row or seal is not as it was sealed, or out of order.
            UnknownTopic, CorruptRow: a seal cannot be understood.
        """
        covered: list[LogRow] = []
        versions = self._versions
        for row in rows:
            expected = versions.get(row.stream, 0) + 1
            if row.position <= self._reached:
                raise NotAsSealed(row.position, f"stands after position {self._reached}")
            if row.version != expected:
                why = f"version {row.version} of its stream, where {expected} should stand"
                raise NotAsSealed(row.position, why)
            versions[row.stream] = expected
            self._reached = row.position
            if row.topic == SEAL_TOPIC:
                self._check(row)
                covered += self._unsealed
                covered.append(row)
                self._unsealed, self._unsealed_bytes = [], 0
                continue
            self._unsealed.append(row)
            self._unsealed_bytes += len(row.state)
            if self._unsealed_bytes > BATCH_BYTES_MAX:
                why = "no seal follows within the size of a transaction"
                raise NotAsSealed(self._unsealed[0].position, why)
        return covered

    def _check(self, row: LogRow) -> None:
        sealed = decode(row.topic, row.state)
        assert isinstance(sealed, BatchSealed)
        name = sealed.partition
        stream = partition_stream(name)
        head = self.heads.get(name, Head(0, GENESIS))
        if stream.bytes != row.stream:
            raise NotAsSealed(row.position, f"a seal of {name} in another stream")
        if sealed.rows != len(self._unsealed):
            why = f"a seal over {sealed.rows} rows follows {len(self._unsealed)} rows"
            raise NotAsSealed(row.position, why)
        if sealed.previous != head.digest or row.version != head.version + 1:
            why = f"seal {row.version} of {name} does not continue seal {head.version}"
            raise NotAsSealed(row.position, why)
        if self._digest(sealed) != sealed.digest or (
            encode(stream, row.version, sealed).state != row.state
        ):
            raise NotAsSealed(row.position, f"not the seal of the {sealed.rows} rows before it")
        self.heads[name] = Head(row.version, sealed.digest)
        self.position, self.seals = row.position, self.seals + 1
        self.rows += sealed.rows + 1

    def _digest(self, sealed: BatchSealed) -> bytes | None:
        """The digest that a seal with these fields has over the rows that wait for it."""
        rows = [(row.stream, row.version, row.topic, row.state) for row in self._unsealed]
        return digest_by(sealed, rows)
