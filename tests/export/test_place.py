"""The files of an export, however they are read."""

from __future__ import annotations

import threading

import pytest

from eventstore.parquet.files import ExportPlace


class _Watched(ExportPlace):
    """A place that knows which threads have read it."""

    readers: set[int]

    def read(self, path: str, bytes_max: int | None = None) -> bytes:
        self.readers.add(threading.get_ident())
        return super().read(path, bytes_max)


@pytest.mark.parametrize("number", [0, 1, 64, 65])
def test_files_are_read_in_their_order_without_missing_ones_and_few_by_no_other_thread(
    place: ExportPlace, number: int
) -> None:
    watched = _Watched(place.filesystem, place.root)
    watched.readers = set()
    there = {f"{n}": b"%d" % n for n in range(number) if n != 30}
    place.write_all(there)
    assert list(watched.read_all(map(str, range(number)))) == list(there.items())
    if number <= 64:
        assert watched.readers <= {threading.get_ident()}
