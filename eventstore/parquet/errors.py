"""Errors of the export.

ExportError
├── ExportUnavailable  the place cannot be written or read now (disk full, store gone); try again
├── ExportRefused      the place belongs to another mediator, another log or another exporter
├── ExportDamaged      a file of the export is not what it should be; names the file
├── SignedByAnother    the export is signed by another key than the one that was named
└── RowsPruned         the requested rows were removed from the archive for ever
"""

from __future__ import annotations

from enum import Enum


class ExportError(Exception):
    """Base class of all errors of the export; never raised itself."""


class ExportUnavailable(ExportError):
    """The place of the export cannot be written or read now; nothing is known to be wrong."""

    def __init__(self, path: str, why: str) -> None:
        """``path`` was being written or read; ``why`` is what the file system said."""
        super().__init__(path, why)  # as they are, so that the error can be pickled

    def __str__(self) -> str:
        """Path and reason."""
        return ": ".join(self.args)


class ExportRefused(ExportError):
    """Writing here would mix two exports; the message says which and why."""


class Damage(Enum):
    """What can be wrong with a file of an export."""

    MISSING = "missing"
    """A manifest names the file, and it is not there."""
    TRUNCATED = "truncated"
    """The file has another size than its manifest says."""
    CHANGED = "changed"
    """The content of the file is not what its manifest says, or it cannot be decoded."""
    DUPLICATED = "duplicated"
    """The file is listed more than once."""
    MISPLACED = "misplaced"
    """The file does not hold what its name and place say: renamed, moved or swapped."""
    BROKEN_MANIFEST = "broken manifest"
    """Not a manifest, or its figures contradict each other."""
    GAP = "gap"
    """Positions between the manifest before and this one are missing."""
    OVERLAP = "overlap"
    """The manifest holds positions that the manifest before it holds too."""
    BROKEN_COMMIT = "broken commit"
    """A file of the table's log cannot be read, or is not what the exporter committed."""
    ROLLED_BACK = "rolled back"
    """The table ends before a version that a mark or a checkpoint names, or a head is too old."""
    ENDS_EARLY = "ends early"
    """The export ends before the log beside it."""
    BROKEN_CHAIN = "broken chain"
    """The manifest or commit does not continue from the one before it."""
    BAD_SIGNATURE = "bad signature"
    """The signature is not the mediator's."""
    UNKNOWN_FORMAT = "unknown format"
    """Written in a format or a schema that this release does not know."""
    STRAY = "stray"
    """No manifest names the file: it does not count and is never read."""
    WRONG_INDEX = "wrong index"
    """The index is as it was signed, but leaves out rows or names wrong ones."""
    UNKNOWN_EVENT = "unknown event"
    """The file holds an event type, or a version of one, that this release does not know."""


class ExportDamaged(ExportError):
    """A file of the export is not what it should be.

    Attributes:
        path: The file, relative to the root of the export.
        damage: The kind of damage.
        why: What exactly is wrong.
    """

    def __init__(self, path: str, damage: Damage, why: str) -> None:
        super().__init__(f"{path}: {damage.value}: {why}")
        self.path = path
        self.damage = damage
        self.why = why


class SignedByAnother(ExportError):
    """The export names another key as its signer than the caller expects: no signature counts."""


class RowsPruned(ExportError):
    """The request needs rows that were removed from the archive, as its manifest says."""
