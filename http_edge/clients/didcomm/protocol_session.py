"""Requests to the mediator, and the reading of its answers, over either transport."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

import msgspec

from http_edge.clients.didcomm.connection import MediatorConnection, Received
from http_edge.clients.didcomm.errors import ProblemReported, UnexpectedAnswer
from http_edge.clients.didcomm.transport import Transport
from http_edge.clients.sources import Sources
from http_edge.didcomm.envelopes.messages import NEW_PREFIX, Json, read_type

ReturnRoute = Literal["all", "thread", "none"]
Record = TypeVar("Record")

new_id: Final[Callable[[], str]] = Sources().new_nonce
"""Makes a fresh id for a message."""


class ProtocolSession:
    """A wallet's end of a connection, over one transport.

    Every request of a protocol raises ProblemReported and WalletError as ``request`` does.
    """

    def __init__(self, connection: MediatorConnection, transport: Transport) -> None:
        self.connection = connection
        self.transport = transport

    async def ask(self, message: Json, *, return_route: ReturnRoute = "all") -> Json | None:
        """Send any message and return its answer as it is, also a problem report.

        ``@id`` and ``~transport`` are added if they are missing; ``none`` adds no ``~transport``.
        None if the HTTP answer is empty, or if a message over a socket allows no answer.

        Raises: WalletError.
        """
        answer = await self.exchange(message, return_route=return_route)
        assert not isinstance(answer, bytes)  # only ``raw`` takes one
        return answer

    async def exchange(
        self, message: Json, *, return_route: ReturnRoute = "all", raw: bool = False
    ) -> Received | None:
        """Send a message as ``ask`` does; ``raw`` also takes an envelope for another key as answer.

        Raises: WalletError.
        """
        return await self.transport.exchange(prepared(message, return_route), raw=raw)

    async def request(self, kind: str, answer: str, **members: object) -> Json:
        """Send a message of type ``kind``, such as ``messagepickup/2.0/status-request``.

        ``answer`` has the expected names of the answer in the same protocol, separated by ``|``.

        Raises:
            ProblemReported: the answer is a problem report.
            UnexpectedAnswer: the answer is anything else, or there is none.
            WalletError: see the transport.
        """
        return expected(await self.ask({"@type": NEW_PREFIX + kind, **members}), kind, answer)


def prepared(message: Json, return_route: ReturnRoute) -> Json:
    """The message, with an id and the return route added if they are missing."""
    whole = message if "@id" in message else {**message, "@id": new_id()}
    if return_route == "none" or "~transport" in whole:
        return whole
    return {**whole, "~transport": {"return_route": return_route}}


def expected(answer: Json | None, kind: str, names: str) -> Json:
    """Return ``answer`` if it is of the protocol of ``kind`` and has one of the names.

    Raises: ProblemReported, UnexpectedAnswer.
    """
    if answer is None:
        raise UnexpectedAnswer(f"nothing came back for {kind}")
    check_problem(answer)
    found, requested = read_type(answer.get("@type")), read_type(NEW_PREFIX + kind)
    if (
        found is None
        or requested is None
        or (found.family, found.major) != (requested.family, requested.major)
        or found.name not in names.split("|")
    ):
        raise UnexpectedAnswer(f"{answer.get('@type')!r} came back for {kind}")
    return answer


def check_problem(message: Json) -> None:
    """Raise ProblemReported if this is a problem report in any of its forms (RFC 0035, 0212)."""
    kind = read_type(message.get("@type"))
    if kind is None or not kind.is_problem_report:
        return
    description = message.get("description")
    if isinstance(description, dict):
        code, text = description.get("code"), description.get("en", "")
    else:
        code, text = message.get("problem-code"), message.get("explain") or description or ""
    raise ProblemReported(str(code or "unknown"), str(text), message)


def check_registered(what: str, results: Sequence[str]) -> None:
    """Raise unless the mediator says of each key or DID that it is registered, now or before.

    Raises:
        ProblemReported: it says of one that it was not.
        UnexpectedAnswer: it says nothing.
    """
    if not results:
        raise UnexpectedAnswer(f"the mediator does not say whether the {what} was registered")
    for result in results:
        if result not in ("success", "no_change"):
            raise ProblemReported(result, f"the {what} was not registered", {})


def record_of(answer: object, kind: type[Record]) -> Record:
    """Convert an answer to a record.

    Raises:
        UnexpectedAnswer: the answer has another shape.
    """
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise UnexpectedAnswer(f"{kind.__name__}: {error}") from error
