"""Archives that tests unpack: golden exports, and the tree of an earlier release."""

from __future__ import annotations

import tarfile
from pathlib import Path


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Unpack an archive of our own making into a folder."""
    # Python has filters from 3.11.4 on, and warns from 3.12 on where none is named.
    archive.extraction_filter = getattr(tarfile, "data_filter", None)
    archive.extractall(folder)  # noqa: S202 - our own
