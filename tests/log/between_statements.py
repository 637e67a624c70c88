"""What other processes append while a question to a log is between two of its statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from eventstore.stores import postgres_log, sqlite_log


@contextmanager
def appended_between_statements(
    monkeypatch: pytest.MonkeyPatch, append: Callable[[], None]
) -> Iterator[None]:
    """Call ``append`` after each statement of a session that returns rows, but those of its own."""
    is_appending = False
    with monkeypatch.context() as patch:
        for session in (sqlite_log._Session, postgres_log._Session):

            def rows(
                self: Any, *given: Any, whole: Callable[..., Sequence[Any]] = session.rows
            ) -> Sequence[Any]:
                nonlocal is_appending
                found = whole(self, *given)
                if not is_appending:
                    is_appending = True
                    append()
                    is_appending = False
                return found

            patch.setattr(session, "rows", rows)
        yield
