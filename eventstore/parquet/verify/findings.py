"""The findings of an export's check, and its summary."""

from __future__ import annotations

from uuid import UUID

import msgspec

from eventstore.log.faults import Fault, Head
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.manifest import ManifestTree


class ExportFinding(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of a file of an export, or of rows in it.

    A finding about a file alone (``fault`` is a ``Damage``) has neither positions nor a row. A
    finding about rows names the row at ``last_position`` by its ``stream`` and ``version`` in the
    log and by ``path`` and ``row`` in the export; the faulty rows begin at ``first_position``.
    """

    fault: Damage | Fault
    path: str
    """The path of the file, relative to the root of the export."""
    row: int | None = None
    """The number of the row within the file, from 0."""
    first_position: int | None = None
    last_position: int | None = None
    shard: str | None = None
    """The partition of the row; None if it is unknown."""
    stream: UUID | None = None
    version: int | None = None
    explanation: str


class ExportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of a check: what was read, and what that proves."""

    position: int
    """The last position that a manifest names."""
    manifests: int
    files: int
    rows: int
    """Rows that could be read and were compared."""
    seals: int
    streams: int
    findings: int
    """The number of all findings, also of those that were only counted."""
    signed_by: str
    """The key of ``export.json``; empty if there is none."""
    key_is_trusted: bool
    """Whether signatures were checked with a key from elsewhere. Otherwise they were checked with
    the key that the export names itself, and nothing proves who wrote it."""
    complete_until_ms: int | None
    """The time until which the export is complete (Unix milliseconds); None if unknown."""
    verified_before_up_to: int
    """The position up to which rows were not read again, because a signed mark says that they were
    verified; 0 if all were read."""
    earlier_check_up_to: int
    """The position of the newest of the known heads: the export is not cut before it."""
    heads: dict[str, Head]
    """The newest seal of each partition, from the newest manifest."""
    tree: ManifestTree | None
    """The tree over all seals that were read; None if some seals are not known."""
    pruned_up_to: int = 0
    """The position up to which the export is pruned, as a signed manifest says; 0 if it is not."""
    mediator_did: str = ""
    """The mediator of ``export.json``; empty if there is none."""
    shards: int = 0
    """The number of shards in ``export.json``; 0 if there is none."""


def file_finding(path: str, fault: Damage | Fault, why: str) -> ExportFinding:
    """The finding about a file alone."""
    return ExportFinding(fault=fault, path=path, explanation=why)


def finding_of(damage: ExportDamaged) -> ExportFinding:
    """The finding for damage that the reading of a file raised."""
    return file_finding(damage.path, damage.damage, damage.why)
