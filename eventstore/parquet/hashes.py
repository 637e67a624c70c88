"""Compares data files with the SHA-256 that was signed, before another program reads them."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from eventstore.parquet.catalog import read_data
from eventstore.parquet.files import ExportPlace
from eventstore.parquet.manifest import DataFile

_AT_ONCE: Final = 4
"""Files in memory at once, some 30 MB each; two cores hash more than a disk reads."""


class FileHashes:
    """Which files of exports were compared; none are where ``is_skipped``.

    What changes a file between this look and that of the other program goes unseen; so does all
    where the comparison is skipped, which is for who has just verified the export.
    """

    def __init__(self, *, is_skipped: bool = False) -> None:
        self.is_skipped = is_skipped
        self._compared: set[tuple[str, str]] = set()

    def check(self, place: ExportPlace, files: Iterable[DataFile]) -> None:
        """Compare those that were not compared yet.

        Raises:
            ExportDamaged: one is missing, or not the one that its manifest names.
            ExportUnavailable: one cannot be read now.
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
