"""Threads without which a host would look alive but not work: if one fails, the process ends."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Final, NoReturn

_LOG = logging.getLogger(__name__)
_DEFECT: Final = 70


def end_process(event: str, error: BaseException) -> NoReturn:
    """Log that this happened, and end the process with exit code 70."""
    try:
        _LOG.critical(event, exc_info=error)
    finally:  # a line may need more memory than there is
        os._exit(_DEFECT)


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
