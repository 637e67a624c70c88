"""The mark of what was verified: the position up to which an export was found sound.

The verifier keeps the mark in a folder of the mediator's data directory, never in the export. The
mediator's key signs it, so that only the holder of that key can make one. The mark names the export
by its place, mediator and key, and the verified part by the tree over all seals, a file with the
end of each stream, and a file with the SHA-256 of each data file. The next check compares the
export with these. It reads only the rows after them, and rows in files that replaced others since.

An invalid mark is not used: then all is verified. A mark that was put back to an earlier state
costs the work of verifying the rows after it once more. A mark that reaches beyond the end of the
export is a finding, because the export was put back.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple

import pyarrow as pa

from eventstore.parquet.errors import ExportDamaged
from eventstore.parquet.files import ExportPlace, FileMissing
from eventstore.parquet.manifest import (
    ExportHead,
    Manifest,
    ManifestTree,
    SignedStatement,
    Signer,
    signed,
    verified_statement,
)
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION

STREAM_ENDS: Final = pa.schema(
    [
        pa.field("stream", pa.binary()),
        pa.field("last", pa.int64()),
        pa.field("is_named", pa.bool_()),
    ]
)
"""The end of each stream: its last version, and whether its rows name its identity.

It has no names: those of identities that are erased later would stay here for ever."""
_HASH_BYTES: Final = 32
_OWN_BYTES_MAX: Final = sys.maxsize - 1
"""Only the mediator writes to its data directory."""
RULES: Final = 7
"""The version of the check's rules: a release that checks more verifies everything again."""


class VerifiedMark(SignedStatement, frozen=True, kw_only=True):
    """The signed statement about the verified part of an export.

    ``streams`` is the SHA-256 of the file of ``STREAM_ENDS``. ``files`` is the SHA-256 of the file
    with the hashes of the data files, 32 bytes each.
    """

    rules: int
    address: str
    mediator_did: str
    public_key: str
    position: int
    tree: ManifestTree
    streams: str
    files: str
    signed_by: str


class Verified(NamedTuple):
    """A valid mark, with the ends of the streams and the SHA-256 of each data file."""

    position: int
    tree: ManifestTree
    streams: pa.Table
    files: AbstractSet[bytes]

    def has_files_of(self, manifest: Manifest) -> bool:
        """Whether the data files of this manifest were verified."""
        return file_hashes(manifest) <= self.files


def file_hashes(manifest: Manifest) -> AbstractSet[bytes]:
    """The SHA-256 of each data file of a manifest."""
    return {bytes.fromhex(file.sha256) for file in manifest.files}


class VerifiedMarks:
    """The marks in a folder, one for each place that was verified."""

    def __init__(self, folder: ExportPlace, signer: Signer, *, are_forgotten: bool = False) -> None:
        """``are_forgotten``: ignore earlier marks; new ones are written all the same."""
        self._ignored = ""
        self._are_forgotten = are_forgotten
        self._folder = folder
        self._signer = signer

    def take_ignored(self) -> str:
        """Why the mark that was read last is not used; empty if it is, or there is none."""
        said, self._ignored = self._ignored, ""
        return said

    def read(self, place: ExportPlace, head: ExportHead) -> Verified | None:
        """Read what was verified of the export at a place; None without a valid mark.

        Raises:
            ExportUnavailable: the folder cannot be read now.
        """
        path, streams_path, files_path = _paths(place)
        if self._are_forgotten:
            return None
        try:
            content = self._folder.read(path, _OWN_BYTES_MAX)
            mark = verified_statement(path, content, VerifiedMark, self._signer.key.verify)
            streams = self._folder.read(streams_path, _OWN_BYTES_MAX)
            files = self._folder.read(files_path, _OWN_BYTES_MAX)
        except FileMissing:
            return None
        except ExportDamaged as error:
            self._ignored = str(error)
            return None
        if (mark.address, mark.mediator_did, mark.public_key) != _whose(place, head):
            self._ignored = f"{path}: it is of {mark.address}, the export of {mark.mediator_did}"
            return None
        if mark.rules != RULES:
            self._ignored = f"{path}: it was made by other rules, of another release"
            return None
        for name, content, said in (
            (streams_path, streams, mark.streams),
            (files_path, files, mark.files),
        ):
            if hashlib.sha256(content).hexdigest() != said:
                self._ignored = f"{name}: not the file that the mark names"
                return None
        hashes = {files[at : at + _HASH_BYTES] for at in range(0, len(files), _HASH_BYTES)}
        with pa.ipc.open_file(pa.BufferReader(streams)) as file:
            return Verified(mark.position, mark.tree, file.read_all(), hashes)

    def write(self, place: ExportPlace, head: ExportHead, verified: Verified) -> None:
        """Write the mark of an export; call this only if the check found no fault.

        Raises:
            ExportUnavailable: the folder cannot be written now.
        """
        path, streams_path, files_path = _paths(place)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, STREAM_ENDS) as file:
            file.write_table(verified.streams)
        streams, files = sink.getvalue(), b"".join(sorted(verified.files))
        address, mediator_did, public_key = _whose(place, head)
        mark = VerifiedMark(
            format=FORMAT,
            schema=SCHEMA_VERSION,
            rules=RULES,
            address=address,
            mediator_did=mediator_did,
            public_key=public_key,
            position=verified.position,
            tree=verified.tree,
            streams=hashlib.sha256(streams).hexdigest(),
            files=hashlib.sha256(files).hexdigest(),
            signed_by=self._signer.signed_by,
        )
        # Between these writes the mark does not fit its files, and a check verifies everything.
        self._folder.write(streams_path, streams)
        self._folder.write(files_path, files)
        self._folder.write(path, signed(mark, self._signer.sign)[1])


def _whose(place: ExportPlace, head: ExportHead) -> tuple[str, str, str]:
    return place.address(), head.mediator_did, head.public_key


def _paths(place: ExportPlace) -> tuple[str, str, str]:
    name = hashlib.sha256(place.address().encode()).hexdigest()[:16]
    return f"{name}.json", f"{name}.streams", f"{name}.files"
