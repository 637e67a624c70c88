"""Typed commands of the DIDComm families to identities, over the gateway.

``Identities.ask`` sends one command to the one owner of its target and returns the owner's reply.
``Refusal.TEMPORARILY_UNAVAILABLE`` means that the outcome is unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Final, TypeVar, cast

import msgspec
from cachetools import LRUCache

from actors.core.commands import (
    CheckKeys,
    Command,
    DeliverMessages,
    FindAccount,
    Listen,
    Page,
    QueueEnvelopes,
    RemoveMessages,
    UpdateKeylist,
)
from actors.core.cost import cost, source_key, turn_cost
from actors.core.partitioning import Placement
from actors.core.refusals import Refusal
from actors.core.replies import (
    UNAVAILABLE,
    AccountFound,
    DeliveredMessage,
    Delivery,
    MessagesPage,
    Refused,
    Reply,
)
from actors.core.submissions import PAID, Read, Submission, WaitingAt
from actors.host.clock import new_id
from actors.host.packed_page import unpack_page
from eventstore.log.seal import command_key
from http_edge.dispatch.gateway import Gateway
from http_edge.listener.address_charge import charge_answer, paid_turn
from http_edge.listener.body_reads import in_reading_thread
from http_edge.telemetry.request_id import current

_R = TypeVar("_R", bound=Reply)
TO_RETRY: Final = frozenset(
    {Refusal.TEMPORARILY_UNAVAILABLE, Refusal.RATE_LIMITED, Refusal.INSUFFICIENT_STORAGE}
)
"""Refusals after which the same message may succeed later."""
NO_ACCOUNT: Final = frozenset({Refusal.NOT_CONNECTED, Refusal.SPEAKS_FOR_ANOTHER})
"""Refusals of a DID that is no account, or none any more."""
GIVEN_UP: Final = frozenset({Refusal.NOT_CONNECTED, Refusal.NOT_SPEAKING})
"""Refusals of a sender that has no account, or speaks for its account no longer."""
_ID_BYTES: Final = 64
_MOVED_MAX: Final = 10_000
"""DIDs remembered as speaking for another DID's account until that account is looked up, 100 bytes
each."""
_SPEAKER: Final[ContextVar[str]] = ContextVar("speaker", default="")


def key_target(key: str) -> str:
    """Return the target of commands about the ownership of a key in base58."""
    return f"key:{key}"


def speak_as(did: str) -> None:
    """Attribute the commands of this context, from now on, to a message of ``did``; empty for none.

    The account that receives a command decides whether the DID speaks for it. Work that no message
    causes runs in an empty context: its commands are the mediator's own.
    """
    _SPEAKER.set(did)


def speaker() -> str:
    """Return the DID, proven by an envelope, whose message caused this work; empty for none."""
    return _SPEAKER.get()


class Identities:
    """Sends commands to the owners of identities, keys and invitations."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.moved: LRUCache[str, None] = LRUCache(_MOVED_MAX)
        """DIDs whose account is to be looked up: they are none, or not that one's speaker
        (``accounts``)."""

    async def ask(  # noqa: PLR0913 - each says one thing of the question
        self,
        target: str,
        command: Command,
        key: bytes,
        reply: type[_R],
        *,
        can_linger: bool = False,
        by_owner: bool = False,
        by_mediator: bool = False,
        adds: bool = False,
        shard: str | None = None,
    ) -> _R | Refusal:
        """Send ``command`` to ``target`` and return the reply, of type ``reply``, or the refusal.

        ``key`` is the key of the command in the log, 16 bytes; for ``can_linger`` see ``Gateway``.
        ``by_owner``: the account itself asks, and its host charges it for the work, whatever the
        edge; if it cannot pay, the reply is RATE_LIMITED.
        ``by_mediator``: the command is the mediator's own, even if a message caused it.
        ``adds``: it is a step of storing something, and is refused if the disk is nearly full.
        ``shard``: one of another database, if the command is about the rows there.
        """
        if isinstance(command, DeliverMessages):
            command = msgspec.structs.replace(command, waits_for_turn=True)
        partition = shard or self._gateway.routes.partition_of(target)
        # Forwards are anonymous, so they take turns by recipient. All that a message of an account
        # causes takes the turns of its sender: one message may claim hundreds of keys. A session,
        # though, begins in the turns of its account, whichever DID speaks: there it ends (``Hub``).
        is_of_target = by_owner or isinstance(command, Listen)
        submission = Submission(
            partition,
            target,
            key,
            command=command,
            request_id=current(),
            source=source_key(target if is_of_target else speaker() or target),
            cost=turn_cost(command),
            charge=cost(command) if by_owner else 0.0,
            speaker="" if by_mediator else speaker(),
            adds=adds,
        )
        size_bytes = _size_bytes(command)
        answer = await self._gateway.submit(submission, size_bytes, can_linger=can_linger)
        if isinstance(answer, Delivery):
            is_large = answer.is_large
            whole = self._in_turn(submission) if is_large else self._whole(submission, answer)
            answer = await whole
        if isinstance(answer, Refused):
            if answer.code is Refusal.SPEAKS_FOR_ANOTHER:
                self.moved[target] = None
            elif answer.code is Refusal.NOT_SPEAKING and speaker() != target:
                self.moved[speaker()] = None
            return answer.code
        assert isinstance(answer, reply), type(answer).__name__
        return cast("_R", answer)

    def placement(self) -> Placement:
        """Return which shards are in which database."""
        return self._gateway.routes.placement

    async def ask_unprompted(self, did: str, command: Command, reply: type[_R]) -> _R | Refusal:
        """Send a command that no message caused, under a key of its own in the log."""
        return await self.ask(did, command, command_key(did, new_id()), reply)

    async def find_account(
        self, did: str, command: bytes, names: Sequence[str] = (), *, speaker_did: str = ""
    ) -> AccountFound | Refusal:
        """Ask the identity of a DID for its account: is it one, or which one does it speak for?

        The reply says which of the ``names`` are in the keylist, and whether ``speaker_did`` has
        never spoken for it; ``command`` is the key in the log.
        """
        question = FindAccount(list(names), speaker_did)
        return await self.ask(did, question, command, AccountFound, by_mediator=True)

    async def _in_turn(self, submission: Submission) -> Reply:
        """Lease a large delivery and read it, outside of the commands and of the event loop.

        An address that owes waits. Only if too many of its requests wait, if its turn comes too
        late for a wallet, or if the account owes by then, is a request refused: its next try finds
        the messages, because nothing is leased before its turn.
        """
        async with paid_turn() as has_turn:
            if not has_turn:
                return Refused(Refusal.RATE_LIMITED)
            assert isinstance(submission.command, DeliverMessages)
            command = msgspec.structs.replace(submission.command, waits_for_turn=False)
            charge = min(submission.charge, PAID)  # the account has paid for the first question
            submission = msgspec.structs.replace(submission, command=command, charge=charge)
            answer = await self._gateway.submit(submission, _size_bytes(command))
            return await self._whole(submission, answer)

    async def _whole(self, submission: Submission, answer: Reply) -> Reply:
        """Read the messages of a delivery that the host has not, and charge for it."""
        if isinstance(answer, Delivery) and answer.beside:
            return await self._read(submission, answer)
        if isinstance(answer, Delivery):
            charge_answer(answer.size_bytes)
        return answer

    async def _read(self, submission: Submission, delivery: Delivery) -> Delivery | Refused:
        """Read messages and charge for them as soon as they are here.

        If the socket ends before, charge for as many bytes as were wanted: the host reads on.
        """
        assert isinstance(submission.command, DeliverMessages)
        count = len(delivery.beside)
        read = Read(submission.target_did, Page(0, count), WaitingAt(delivery.beside, count))
        try:
            packed = await self._gateway.read(read)
        except asyncio.CancelledError:
            charge_answer(submission.command.bytes_max)
            raise
        if isinstance(packed, Refused):
            return packed
        charge_answer(len(packed))
        page = await in_reading_thread(lambda: unpack_page(packed), len(packed))
        assert isinstance(page, MessagesPage), "a host answers what it was asked"
        messages = [
            DeliveredMessage(one.message_id, one.recipient_key, one.payload, one.at_ms)
            for one in page.messages
        ]
        if not messages:
            # All were removed meanwhile. Others may wait: an empty delivery would say that none do.
            return UNAVAILABLE
        return Delivery(messages, delivery.state)


def _size_bytes(command: Command) -> int:
    """Return roughly how many bytes a command takes on its way to the host."""
    match command:
        case QueueEnvelopes():
            return sum(map(len, command.payloads))
        case DeliverMessages() | RemoveMessages():
            return _ID_BYTES * len(command.message_ids or ())
        case CheckKeys():
            return _ID_BYTES * len(command.keys)
        case UpdateKeylist():
            return _ID_BYTES * (len(command.add) + len(command.remove))
        case _:
            return 0
