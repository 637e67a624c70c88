"""A restore in small transactions that kills its process, in one that a server forks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from eventstore.stores import restore
from http_edge.server.restoring import keys_for, opened_source, run, target_of
from tests.forked import exit_code_of


def _restore(place: str, destination: str, data_dir: str, keys_file: str, fatal: int) -> None:
    restore.TRANSACTION_ROWS = 1  # type: ignore[misc]  # of this process alone

    def cut(sections: Iterable[Any]) -> Iterator[Any]:
        for number, section in enumerate(sections):
            if number == fatal:
                os.kill(os.getpid(), signal.SIGKILL)
            yield section
        os.kill(os.getpid(), signal.SIGKILL)

    target = target_of(destination, Path(data_dir))
    keys = keys_for(target, Path(keys_file))
    with opened_source(place, target, keys, None) as source:
        run(replace(source, sections=cut(source.sections)), target, keys, lambda *_: None)


def exit_code(
    place: Path, destination: str, data_dir: Path, keys_file: Path, fatal: int
) -> int | None:
    """How a process ended that restores, and kills itself before the section ``fatal``.

    If that is below 0 or there is no such section, it does so after the last one.
    """
    return exit_code_of(_restore, str(place), destination, str(data_dir), str(keys_file), fatal)
