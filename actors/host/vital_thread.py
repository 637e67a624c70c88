"""Threads without which a host would look alive but not work: if one fails, the process ends."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, NoReturn

_LOG = logging.getLogger(__name__)
_DEFECT: Final = 70
_RESTART_S: Final = 5.0
"""Between a start that failed and the next: a start takes 1 to 2 CPU seconds."""


def end_process(event: str, error: BaseException, *, pause_s: float = 0.0) -> NoReturn:
    """Log that this happened, and end the process ``pause_s`` later with exit code 70."""
    try:
        _LOG.critical(event, exc_info=error)
        time.sleep(pause_s)
    finally:  # a line may need more memory than there is
        os._exit(_DEFECT)


def end_failed_start(error: Exception) -> NoReturn:
    """End a process that could not start, some seconds later, so that it is started again.

    Ray starts no actor again whose constructor has raised, only one whose process has ended.
    """
    end_process("the start failed", error, pause_s=_RESTART_S)


def vital_thread(name: str, work: Callable[[], None]) -> threading.Thread:
    """A daemon thread, not started yet, that runs ``work``.

    If ``work`` raises anything, that is logged and the process ends with exit code 70, so that
    whatever started the host starts it again.
    """

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the process ends
            end_process(f"the thread {name} failed", error)

    return threading.Thread(target=run, name=name, daemon=True)
