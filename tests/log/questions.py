"""What a test asks PostgreSQL, question by question."""

from __future__ import annotations

import threading
from collections.abc import Generator
from typing import Any

import pytest

from eventstore.stores.postgres_connections import BoundedConnection


def noted_questions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The questions of this thread from here on, each as it begins to wait for its answer."""
    questions: list[object] = []
    wait = BoundedConnection.wait

    def noted(steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        ready, is_first = None, True
        while True:
            try:
                step = steps.send(ready)
            except StopIteration as end:
                return end.value
            if is_first:  # else there is nothing to wait for
                questions.append(step)
            ready, is_first = (yield step), False

    def counted(connection: BoundedConnection, steps: Any, *arguments: Any) -> Any:
        is_ours = threading.current_thread() is threading.main_thread()  # the pool has others
        return wait(connection, noted(steps) if is_ours else steps, *arguments)

    monkeypatch.setattr(BoundedConnection, "wait", counted)
    return questions
