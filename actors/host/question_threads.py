"""The threads of a host that answer questions, besides the writer, which runs commands.

Moves of partitions and health checks wait for the log, and pages wait for the disk. Each kind of
question has threads of its own, so that none delays the question whether the host lives, and no
page of a long history, which takes seconds, one of messages or public events. A page that is no
longer waited for when its turn comes is not read.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from actors.host.host_connection import Answered
from actors.host.log_outage import reason
from actors.host.port import (
    QUESTIONS,
    AdoptPartitions,
    AnyQuestion,
    Expect,
    HandOut,
    Inspect,
    IsKnown,
    ListDedicated,
    ListQueues,
    Ping,
    QueryStats,
    ReadPages,
    ReleasePartitions,
    StartDedicated,
    TakeIn,
)
from actors.host.vital_thread import end_process
from eventstore.log.event_log import SavedEventsFilter

_LOG = logging.getLogger(__name__)
_CONTROL: Final = "control"
HISTORY: Final = "history"
_END_S_MAX: Final = 1.0
"""Answers take milliseconds, and a process that stops a host waits seconds for its end."""
THREADS: Final[Mapping[str, int]] = {
    "read": 2,
    HISTORY: 1,
    _CONTROL: 4,
    "health": 2,
    "inspect": 1,
    "placement": 4,
}
_KINDS: Final[Mapping[type, str]] = {
    ReadPages: "read",
    ListQueues: "read",
    ListDedicated: "read",
    Ping: "health",
    Inspect: "inspect",
    QueryStats: "inspect",
    IsKnown: "placement",
    ReleasePartitions: "placement",
    StartDedicated: "placement",
    AdoptPartitions: "placement",
    HandOut: "placement",
    Expect: "placement",
    TakeIn: "placement",
}
"""The threads that answer each type of question; ``control`` answers all others, which wait for
neither the writer nor the log: a host that hangs there still answers whether it lives."""


class _Received(NamedTuple):
    question: AnyQuestion
    answered: Answered
    at_s: float


class QuestionThreads:
    """Answers questions in msgpack, each on a thread of its kind."""

    def __init__(
        self,
        answer: Callable[[AnyQuestion], object],
        *,
        call_s_max: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start threads that call ``answer``; any exception from it fails the question.

        But a host without memory ends: it would fail one question after the other. ``call_s_max``
        is how long an edge waits for an answer, in seconds; ``monotonic`` gives seconds.
        """
        self._answer, self._call_s_max, self._monotonic = answer, call_s_max, monotonic
        self._failing: dict[type, type] = {}
        self._threads: list[threading.Thread] = []
        self._inboxes: dict[str, queue.SimpleQueue[_Received | None]] = {}
        for kind, count in THREADS.items():
            inbox = self._inboxes[kind] = queue.SimpleQueue()
            for _ in range(count):
                thread = threading.Thread(target=self._work, args=(inbox,), name=kind, daemon=True)
                thread.start()
                self._threads.append(thread)

    def ask(self, question: bytes, answered: Answered) -> None:
        """Have a question answered (msgpack of ``actors.host.port.AnyQuestion``).

        Raises:
            msgspec.DecodeError: ``question`` is not a question.
        """
        found = QUESTIONS.decode(question)
        self._inboxes[_kind_of(found)].put(_Received(found, answered, self._monotonic()))

    def stop(self) -> None:
        """End the threads after they have answered all questions, so that the log can be closed.

        This stops waiting at the first thread that hangs, as one does if its log hangs.
        """
        for kind, count in THREADS.items():
            for _ in range(count):
                self._inboxes[kind].put(None)
        for thread in self._threads:
            thread.join(_END_S_MAX)
            if thread.is_alive():
                break

    def _work(self, inbox: queue.SimpleQueue[_Received | None]) -> None:
        while (item := inbox.get()) is not None:
            found, answered, at_s = item
            kind = type(found)
            if kind is ReadPages and self._monotonic() - at_s >= self._call_s_max:
                answered(None)
                continue
            try:
                answer = msgspec.msgpack.encode(self._answer(found))
            except MemoryError as error:
                end_process(f"{kind.__name__} ran out of memory", error)
            except Exception as error:  # noqa: BLE001 - reported to the caller, whatever it is
                # One line for an outage, because checks of health ask each second.
                is_known = self._failing.get(kind) is type(error)
                self._failing[kind] = type(error)
                level = logging.DEBUG if is_known else logging.WARNING
                _LOG.log(level, "%s failed: %s", kind.__name__, reason(error))
                answered(None)
            else:
                self._failing.pop(kind, None)
                answered(answer)


def _kind_of(question: AnyQuestion) -> str:
    if isinstance(question, ReadPages) and any(
        isinstance(read.where, SavedEventsFilter) for read in question.reads
    ):
        return HISTORY
    return _KINDS.get(type(question), _CONTROL)
