"""People of both protocols who write without end, whatever happens to the nodes.

Each sends one message at a time and keeps what it heard. A writer whose connection breaks goes to
the next node, as clients behind one address do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, Protocol, Self

from http_edge.bench.answers import Answer, Heard, Judgement, between, judged, served_again_s
from http_edge.bench.connection import Connection
from http_edge.bench.envelopes import Letter, forwards, routing_key_of, seal_of
from http_edge.bench.mediator import Mailbox, mediator_at
from http_edge.bench.messages import prepare
from http_edge.bench.population import PAYLOAD_BYTES, Pair, message, pairs
from http_edge.bench.registrations import register
from http_edge.bench.subject import Subject
from http_edge.bench.target import Target
from http_edge.client import MediatorClient
from http_edge.didcomm.envelope import pack
from http_edge.didcomm.keys import KeyPair
from http_edge.didcomm.messages import NEW_PREFIX, Json
from http_edge.wallet import UnexpectedAnswer
from http_edge.wallet.conversation import prepared
from http_edge.wallet.pickup_2 import delivered
from http_edge.wallet.transport import MEDIA_TYPE

PAUSE_S: Final = 0.1
_ANSWER_S_MAX: Final = 20.0
_PAGE: Final = 100
_SHOWN_BYTES: Final = 80
_PICKUP: Final = NEW_PREFIX + "messagepickup/2.0/"


class Person(Protocol):
    """Somebody who is written to."""

    def at(self, node: Target) -> Target:
        """Where messages to this person are posted on a node."""

    def write(self, number: int) -> tuple[str, bytes]:
        """A message, the number's: by what it is known when it is fetched, and the body."""

    async def fetch(self, node: Target) -> list[str]:
        """Everything that waits, which is then removed."""


@dataclass(frozen=True, slots=True)
class Decentrl:
    """A pair with a contract; messages are TWO_WAY_PRIVATE."""

    pair: Pair

    def at(self, node: Target) -> Target:
        """See ``Person``."""
        return node

    def write(self, number: int) -> tuple[str, bytes]:
        """See ``Person``."""
        text = f"{self.pair.sender.did} {number} ".ljust(PAYLOAD_BYTES, "x")
        return text, message(self.pair, text)

    async def fetch(self, node: Target) -> list[str]:
        """See ``Person``. Raises: ClientError."""
        texts: list[str] = []
        async with MediatorClient(node.url) as client:
            account = client.as_(self.pair.recipient)
            while items := (await account.query_pending_events(page_size=_PAGE)).items:
                texts += [item.payload for item in items]
                await account.acknowledge_pending_events([item.id for item in items])
        return texts


@dataclass(frozen=True, slots=True)
class Wallet:
    """A wallet with one key; messages are forwards of sealed letters."""

    mailbox: Mailbox
    sender: KeyPair

    def at(self, node: Target) -> Target:
        """See ``Person``."""
        return node.posting("/didcomm", MEDIA_TYPE)

    def write(self, number: int) -> tuple[str, bytes]:
        """See ``Person``."""
        key = self.mailbox.recipient.key.public
        content = f"letter {number}".ljust(PAYLOAD_BYTES, "x")
        envelope = pack(content.encode(), [key], self.sender)
        (body,) = forwards([Letter(key, envelope)], routing_key_of(self.mailbox))
        return seal_of(envelope), body

    async def fetch(self, node: Target) -> list[str]:
        """See ``Person``. Raises: WalletError, RuntimeError, OSError."""
        seals: list[str] = []
        connection = await Connection.open(self.at(node))
        try:
            while True:
                answer = await self._asked(connection, "delivery-request", {"limit": _PAGE})
                picked = delivered(answer) if "~attach" in answer else []
                if not picked:
                    return seals
                seals += [seal_of(one.envelope) for one in picked]
                ids = [one.id for one in picked]
                await self._asked(connection, "messages-received", {"message_id_list": ids})
        finally:
            connection.close()

    async def _asked(self, connection: Connection, name: str, members: Json) -> Json:
        question = prepared({"@type": _PICKUP + name, **members}, "all")
        status, body = await connection.post(self.mailbox.connection.pack(question))
        if status != HTTPStatus.OK:
            raise RuntimeError(f"pickup refused: {status} {body[:_SHOWN_BYTES]!r}")
        heard = self.mailbox.connection.open(body)
        if isinstance(heard, bytes):
            raise UnexpectedAnswer("an answer for another key")
        return heard


@dataclass(slots=True)
class _Writer:
    person: Person
    turn: int
    answers: list[Answer] = field(default_factory=list)
    connection: Connection | None = None
    node: Target | None = None
    written: int = 0

    def close(self) -> None:
        if self.connection is not None:
            self.connection.close()
        self.connection = None

    async def post(self, nodes: Sequence[Target]) -> None:
        """Send one message and note what was heard; a broken connection goes to the next node."""
        text, body = self.person.write(self.written)
        self.written += 1
        sent_s = time.monotonic()
        try:
            async with asyncio.timeout(_ANSWER_S_MAX):
                connection = await self._connected(nodes)
                status, said = await connection.post(body)
        except (OSError, ValueError) as error:  # a time-out is an OSError
            self.close()
            self.turn += 1
            heard, words = Heard.UNKNOWN, type(error).__name__
        else:
            words = f"{status} {said[:_SHOWN_BYTES].decode(errors='replace')}"
            if status < HTTPStatus.BAD_REQUEST:
                heard = Heard.ACCEPTED
            elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
                heard = Heard.REFUSED
            else:
                heard = Heard.UNKNOWN
        self.answers.append(Answer(text, sent_s, time.monotonic(), heard, words))

    async def _connected(self, nodes: Sequence[Target]) -> Connection:
        if self.connection is not None and self.connection.is_open and self.node in nodes:
            return self.connection
        self.close()
        self.node = nodes[self.turn % len(nodes)]
        self.connection = await Connection.open(self.person.at(self.node))
        return self.connection


class Writers:
    """All of them; they write while the context lasts, and can be entered again."""

    def __init__(self, people: Sequence[Person], nodes: Sequence[Target]) -> None:
        """Writers to these people through these nodes."""
        self.nodes = list(nodes)
        self._writers = [_Writer(person, turn) for turn, person in enumerate(people)]
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    @classmethod
    async def arrive(
        cls,
        nodes: Sequence[Target],
        subject: Subject,
        count: int,
        progress: Callable[[int], None] = lambda _: None,
    ) -> Self:
        """So many of each protocol, registered at ``subject``.

        Raises:
            RuntimeError: the mediator refused one.
            WalletError: an answer is not the mediator's.
        """
        mediator = await mediator_at(subject.target, None)
        mailboxes, _ = await register(mediator, count)
        progress(count)
        people = pairs(count, subject.mediator)
        await prepare(subject, [pair.recipient for pair in people], people)
        progress(2 * count)
        sender = KeyPair.new()
        wallets = [Wallet(mailbox, sender) for mailbox in mailboxes]
        return cls([*map(Decentrl, people), *wallets], nodes)

    async def __aenter__(self) -> Self:
        self._over = False
        self._tasks = [asyncio.create_task(self._write(writer)) for writer in self._writers]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._over = True
        await asyncio.gather(*self._tasks)

    def sent(self, since_s: float, until_s: float) -> list[Answer]:
        """What was heard about what was sent in this time."""
        return between((writer.answers for writer in self._writers), since_s, until_s)

    def served_again_s(self, since_s: float) -> float | None:
        """See ``answers.served_again_s``."""
        return served_again_s((writer.answers for writer in self._writers), since_s)

    async def judgement(self) -> Judgement:
        """Fetch everything that waits, and hold it against what the writers heard.

        What was heard is forgotten: the next judgement is about what comes after. Everybody goes
        back to the node of the beginning.

        Raises:
            RuntimeError, ClientError, WalletError, OSError: it cannot be fetched.
        """
        fetched: list[str] = []
        for writer in self._writers:
            fetched += await writer.person.fetch(self.nodes[0])
        answers = [answer for writer in self._writers for answer in writer.answers]
        for turn, writer in enumerate(self._writers):
            writer.close()
            writer.answers.clear()
            writer.turn = turn
        return judged(answers, fetched)

    async def _write(self, writer: _Writer) -> None:
        while not self._over:
            await writer.post(self.nodes)
            await asyncio.sleep(PAUSE_S)
