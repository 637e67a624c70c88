"""What the check of an export finds, and what it says at its end."""

from __future__ import annotations

from uuid import UUID

import msgspec

from eventstore.log.verify import Fault, Head
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.manifest import ManifestTree


class ExportFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a file of an export, or with rows in it.

    A finding about a file alone (``fault`` is a ``Damage``) has neither positions nor a row. One
    about rows names the row at ``last_position`` by its ``stream`` and ``version`` in the log
    and by ``path`` and ``row`` in the export; the rows in question begin at ``first_position``.
    """

    fault: Damage | Fault
    path: str
    """Of the file, relative to the root of the export."""
    row: int | None = None
    """Of the row within the file, from 0."""
    first_position: int | None = None
    last_position: int | None = None
    shard: str | None = None
    """The partition that the row is in, None where nothing says it."""
    stream: UUID | None = None
    version: int | None = None
    explanation: str


class ExportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a check: what was read, and what that proves."""

    position: int
    """The last position that a manifest names."""
    manifests: int
    files: int
    rows: int
    """Rows that could be read and were compared."""
    seals: int
    streams: int
    findings: int
    """All, also those that were only counted."""
    signed_by: str
    """The key of ``export.json``; empty where there is none."""
    key_is_trusted: bool
    """Signatures were checked with a key from elsewhere. Otherwise with the key that the export
    names itself: then nothing proves who wrote it."""
    complete_until_ms: int | None
    """All that was recorded until then (Unix milliseconds) is here; None where nothing says it."""
    verified_to: int
    """The position up to which rows were not read again, for a signed mark says that they were
    verified; 0 where all were read."""
    known_to: int
    """The position of the newest of the known heads: the export is not cut before it."""
    heads: dict[str, Head]
    """The newest seal of each partition, as the newest manifest has them."""
    tree: ManifestTree | None
    """The tree over all seals that were read; None if some of them are not known."""
    pruned_to: int = 0
    """The position up to which a signed manifest says that rows were removed, and only those are
    here that it names; 0 where none were."""


def finding_of(damage: ExportDamaged) -> ExportFinding:
    """Damage to a file as a finding."""
    return ExportFinding(fault=damage.damage, path=damage.path, explanation=damage.why)
