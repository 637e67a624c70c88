"""What the threads of a host that answer questions write of those that fail."""

from __future__ import annotations

import logging
import os
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Never

import msgspec
import pytest
from typing_extensions import override

from actors.host.port import AnyQuestion, Ping, QueryStats
from actors.host.question_threads import QuestionThreads
from eventstore.log.errors import LogUnavailable

ANSWERED_S_MAX = 10.0
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
def threads_of(log: Log) -> Iterator[QuestionThreads]:
    threads = QuestionThreads(log.answer)
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
