"""A host in the process of a test, which calls it without a connection."""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

from actors.host.identity_host import IdentityHost
from actors.host.port import A, AnyQuestion, HostQuestion


class CalledHost(IdentityHost):
    """An ``IdentityHost`` that any thread calls as an edge would through a ``HostPort``."""

    def submit(self, edge: str, batch: bytes) -> bytes:
        """Run a batch for the edge of this name; wait for the ``BatchResult`` in msgpack."""
        answered: Future[bytes] = Future()
        self._writer.submit(edge, batch, answered.set_result)
        return answered.result()

    def ask(self, question: HostQuestion[A]) -> A:
        """Answer a question with the type that the question names."""
        return cast("A", self.answer(cast("AnyQuestion", question)))
