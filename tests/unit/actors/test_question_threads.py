"""What the threads of a host that answer questions write of those that fail, and which wait."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Never

import msgspec
import pytest
from typing_extensions import override

from actors.core.commands import Page
from actors.core.submissions import Read, WaitingAt
from actors.host.port import AnyQuestion, Ping, QueryStats, ReadPages
from actors.host.question_threads import QuestionThreads
from eventstore.log.errors import LogUnavailable
from eventstore.log.event_log import PublicEventsFilter, SavedEventsFilter

ANSWERED_S_MAX = 10.0
CALL_S_MAX = 30.0
CAUSE = "OperationalError: no route to host"
LINES = [f"{kind} failed: LogUnavailable: {CAUSE}" for kind in ("Ping", "QueryStats")]


class Log:
    """What a host answers from; it is away for as long as a test wants."""

    is_away = False

    def answer(self, _: AnyQuestion) -> object:
        if self.is_away:
            raise LogUnavailable(f"{CAUSE}\nDETAIL: (did:x:me, secret)")
        return "answer"


class Exhausted(Log):
    """A log for which there is not enough memory."""

    @override
    def answer(self, _: AnyQuestion) -> Never:
        raise MemoryError


@contextmanager
def threads_of(
    log: Log, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[QuestionThreads]:
    threads = QuestionThreads(log.answer, call_s_max=CALL_S_MAX, monotonic=monotonic)
    try:
        yield threads
    finally:
        threads.stop()


def test_an_outage_is_one_line_for_each_kind_of_question_and_the_next_one_is_another(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log, answers = Log(), queue.SimpleQueue[bool]()
    with threads_of(log) as threads, caplog.at_level(logging.INFO):

        def ask(question: AnyQuestion) -> bool:
            threads.ask(
                msgspec.msgpack.encode(question), lambda answer: answers.put(answer is not None)
            )
            return answers.get(timeout=ANSWERED_S_MAX)

        for outage in (1, 2):
            log.is_away = True
            assert not any(ask(each) for each in (Ping(), Ping(), QueryStats(), Ping()))
            assert caplog.messages == LINES * outage
            log.is_away = False
            assert ask(Ping())
            assert ask(QueryStats())


def test_a_host_ends_when_a_question_runs_out_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: queue.SimpleQueue[int] = queue.SimpleQueue()
    monkeypatch.setattr(os, "_exit", codes.put)
    with threads_of(Exhausted()) as threads:
        threads.ask(msgspec.msgpack.encode(Ping()), lambda _: None)
        assert codes.get(timeout=ANSWERED_S_MAX) == 70


class LongHistories(Log):
    """A log that answers no question about a history until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = queue.SimpleQueue[int](), threading.Event()

    @override
    def answer(self, question: AnyQuestion) -> object:
        assert isinstance(question, ReadPages)
        self.begun.put(question.reads[0].page.offset)
        if isinstance(question.reads[0].where, SavedEventsFilter):
            assert self.released.wait(ANSWERED_S_MAX)
        return "answer"


def test_no_page_of_messages_or_public_events_waits_for_long_histories() -> None:
    log, histories, others = LongHistories(), queue.SimpleQueue[bool](), queue.SimpleQueue[bool]()
    with threads_of(log) as threads:

        def ask(where: SavedEventsFilter | PublicEventsFilter | WaitingAt) -> None:
            answers = histories if isinstance(where, SavedEventsFilter) else others
            question = msgspec.msgpack.encode(ReadPages([Read("did:x:me", Page(0, 1), where)]))
            threads.ask(question, lambda answer: answers.put(answer is not None))

        for _ in range(4):
            ask(SavedEventsFilter())
        ask(WaitingAt([1], 1))
        ask(PublicEventsFilter())
        assert [others.get(timeout=ANSWERED_S_MAX) for _ in range(2)] == [True, True]
        assert histories.empty()
        log.released.set()
        assert all(histories.get(timeout=ANSWERED_S_MAX) for _ in range(4))


def test_a_history_for_which_its_edge_waits_no_longer_is_not_read_in_its_turn() -> None:
    log, now_s = LongHistories(), 0.0
    answers = queue.SimpleQueue[tuple[int, bool]]()
    with threads_of(log, lambda: now_s) as threads:

        def ask(number: int) -> None:
            read = Read("did:x:me", Page(number, 1), SavedEventsFilter())
            threads.ask(
                msgspec.msgpack.encode(ReadPages([read])),
                lambda answer: answers.put((number, answer is not None)),
            )

        ask(0)
        assert log.begun.get(timeout=ANSWERED_S_MAX) == 0
        for number in (1, 2):
            ask(number)
        now_s = 0.1
        ask(3)
        now_s = CALL_S_MAX
        log.released.set()
        answered = [answers.get(timeout=ANSWERED_S_MAX) for _ in range(4)]
        assert answered == [(0, True), (1, False), (2, False), (3, True)]
        assert (log.begun.get(timeout=ANSWERED_S_MAX), log.begun.empty()) == (3, True)
