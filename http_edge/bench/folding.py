"""Folding an export, as a program: ``python -m http_edge.bench.folding JOB``, a job in JSON.

The positions reached go to stderr, one per line; the rows of each table to stdout, as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from http_edge.bench.folded_export import fold_export
from http_edge.bench.folded_tables import write_tables


class Job(msgspec.Struct, frozen=True):
    """What to fold: an export up to a position, and a folder for the tables.

    This process folds the streams of share ``number`` of ``count``.
    """

    export: str
    until: int
    tables: str
    number: int = 0
    count: int = 1


def command(job: Job) -> list[str]:
    """The command that does this job."""
    return [sys.executable, "-m", "http_edge.bench.folding", msgspec.json.encode(job).decode()]


def main(text: str) -> None:
    """Do a job."""
    job = msgspec.json.decode(text, type=Job)
    fold = fold_export(
        Path(job.export),
        job.until,
        share=(job.number, job.count),
        progress=lambda position: print(position, file=sys.stderr),  # noqa: T201 - the channel
    )
    rows = write_tables(fold, Path(job.tables))
    sys.stdout.buffer.write(msgspec.json.encode(rows))


if __name__ == "__main__":
    main(sys.argv[1])
