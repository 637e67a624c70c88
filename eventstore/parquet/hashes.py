"""Compares data files with their signed SHA-256 before another program reads them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from eventstore.parquet.catalog import read_data
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile

_AT_ONCE: Final = 4
"""Files in memory at once, some 30 MB each; two cores hash faster than a disk reads."""


class FileHashes:
    """Compares each file of exports once, and remembers it; compares none if ``is_skipped``.

    A file that changes between this comparison and the other program's reading goes unnoticed.
    Skipping is for callers that have just verified the export.
    """

    def __init__(self, *, is_skipped: bool = False) -> None:
        self.is_skipped = is_skipped
        self._compared: set[tuple[str, str]] = set()

    def check(self, place: ExportPlace, files: Iterable[DataFile]) -> None:
        """Compare the files that were not compared yet.

        Raises:
            ExportDamaged: a file is missing, or not the one that its manifest names.
            ExportUnavailable: a file cannot be read now.
        """
        at = place.address()
        new = [file for file in files if (at, file.sha256) not in self._compared]
        if self.is_skipped or not new:
            return

        def compare(file: DataFile) -> None:
            read_data(place, file)

        with ThreadPoolExecutor(_AT_ONCE, "export-hashes") as readers:
            for _ in readers.map(compare, new):
                pass
        self._compared.update((at, file.sha256) for file in new)
