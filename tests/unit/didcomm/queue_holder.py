"""A message holder without a transport: the real core, and the families of pickup over it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

import orjson

from actors.core.commands import (
    ClaimedKey,
    Command,
    Connect,
    Connection,
    DeliverMessages,
    GrantMediation,
    QueryQueue,
    QueueEnvelopes,
    ReleaseLeases,
    RemoveMessages,
    UpdateKeylist,
)
from actors.core.partitioning import host_name
from actors.core.refusals import Refusal
from actors.core.replies import (
    Delivery,
    Done,
    EnvelopeQueued,
    KeylistChanged,
    KeysOver,
    Push,
    QueueState,
    Reply,
)
from eventstore.stores.open_log import open_log
from http_edge.didcomm.delivery.pump import Pump
from http_edge.didcomm.delivery.waiting import Waiting, Wake
from http_edge.didcomm.envelopes.keys import KeyPair, base58, did_key
from http_edge.didcomm.envelopes.messages import Message
from http_edge.didcomm.envelopes.v1.plaintext import read, write_answer
from http_edge.didcomm.envelopes.v1.version import agent_account
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.pickup import FORMS, Pickup
from http_edge.didcomm.protocols.pickup_1 import Pickup1
from http_edge.didcomm.protocols.protocol import Family, Outcome, PeerState, Request
from http_edge.didcomm.protocols.queue_1 import Queue1
from http_edge.dispatch.hub import Hub
from http_edge.settings.settings import Settings
from tests.edge.local_host import LocalHosts
from tests.edge.mediator import HandClock

NEW: Final = "https://didcomm.org/"
OLD: Final = "did:sov:BzCbsNYhMrjHiqZDTUASHg;spec/"
EDGE: Final = "edge-0"
ASK_ID: Final = "ask-1"
Members: TypeAlias = dict[str, Any]
_R = TypeVar("_R", bound=Reply)
_COMMAND: Final = b"c" * 16
_UNUSED: Final = cast("Any", None)


def envelope(number: int, filling: str = "") -> bytes:
    """An envelope that cannot be opened; ``number`` makes it differ from others."""
    return orjson.dumps(
        {"protected": f"p{number}", "iv": "iv", "ciphertext": f"c{filling}", "tag": "tag"}
    )


class Recipient:
    """A recipient: the key of its connection, and keys that messages are forwarded to."""

    def __init__(self, number: int, keys: int = 2) -> None:
        pairs = [KeyPair.from_seed(bytes([number, index]) * 16) for index in range(keys + 1)]
        self.key = pairs[0].public
        self.did = did_key(self.key)
        self.raw_keys = [pair.public for pair in pairs[1:]]
        self.keys = [base58(key) for key in self.raw_keys]


ALICE, BOB = Recipient(1), Recipient(2)


class Holder:
    """Queues in a log of their own, and what the families answer about them."""

    def __init__(self, data_dir: Path, settings: Members) -> None:
        self.clock = HandClock()
        # A start claims each shard, and hundreds of tests start.
        self.settings = Settings.model_validate({"data_dir": data_dir, "shards": 4, **settings})
        self._ids = itertools.count(1)
        self.hosts = LocalHosts(self.settings, clock=self.clock, new_id=self._new_id)
        self.gateway = self.hosts.gateway(EDGE, self._push)
        self.identities = Identities(self.gateway)
        self.hub = Hub(EDGE, self.gateway)
        self.hosts.attach(EDGE, self._push)
        didcomm, clock = self.settings.didcomm, self.clock
        self._sent = itertools.count(1)
        self._questions: list[tuple[Outcome, Message]] = []
        self.waiting = Waiting(
            self.hub, self.identities, waiters_max=didcomm.waiters_max, per_identity_max=32
        )
        families = (
            Pickup1(didcomm, self.waiting, clock=clock).family(),
            *(Pickup(form, didcomm, edge=EDGE, clock=clock).family() for form in FORMS),
            Queue1(didcomm, clock=clock).family(),
        )
        self.families = {(family.name, family.major): family for family in families}

    def _new_id(self) -> str:
        return f"id-{next(self._ids)}"

    def _push(self, push: Push) -> None:
        assert not isinstance(push.notice, KeysOver)
        self.hub.push(push.did, push.notice)

    # ---- asking the families

    async def outcome(
        self,
        wallet: Recipient,
        kind: str,
        /,
        *,
        prefix: str = NEW,
        session: str = "request",
        persistent: bool = False,
        routable: bool = True,
        **members: Any,
    ) -> Outcome:
        """What comes of a message; ``members`` with a tilde come by ``**``."""
        question = read({"@type": prefix + kind, "@id": ASK_ID, **members})
        assert question is not None
        sender = agent_account(wallet.key)
        on_socket = Pump(
            self.settings.didcomm,
            _UNUSED,
            self.identities,
            sender,
            session=session,
            outgoing=_UNUSED,
        )
        peer = PeerState(routable=routable, pump=on_socket if persistent else None)
        request = Request(question, sender, _COMMAND, self.identities, session, peer)
        family: Family = self.families[question.type.family, question.type.major]
        handler = family.handlers.get(question.type.name, family.otherwise)
        assert handler is not None
        outcome = await handler(request)
        self._questions.append((outcome, question))
        return outcome

    def reply_of(self, outcome: Outcome) -> Members:
        """The reply of an outcome as its wallet reads it."""
        question = next(each for made, each in self._questions if made is outcome)
        assert outcome.reply is not None
        text = orjson.dumps(write_answer(outcome.reply, question, f"reply-{next(self._ids)}"))
        reply: Members = orjson.loads(text)
        return reply

    async def ask(self, wallet: Recipient, kind: str, /, **circumstances: Any) -> Members:
        """The reply to a message, which is then written, with all that follows from that."""
        outcome = await self.outcome(wallet, kind, **circumstances)
        await self.written(wallet, outcome)
        return self.reply_of(outcome)

    async def written(self, wallet: Recipient, outcome: Outcome) -> None:
        """The transport has written the outcome."""
        if outcome.handed_over:
            remove = RemoveMessages(list(outcome.handed_over), "delivered")
            await self._send(wallet, remove, QueueState)

    @contextmanager
    def socket(self, wallet: Recipient, session: str = "socket") -> Iterator[Members]:
        """The circumstances of a message on a socket of the wallet, which the hub knows."""
        listener = Wake()
        self.hub.add(wallet.did, listener)
        try:
            yield {"persistent": True, "session": session}
        finally:
            self.hub.remove(wallet.did, listener)

    # ---- asking the core

    async def connect(self, *wallets: Recipient) -> None:
        """The wallets connect, are granted mediation and register their keys."""
        for wallet in wallets:
            said = Connection(wallet.did, "", "", [], "didexchange/1.1", "")
            await self._send(wallet, Connect(said), Done)
            await self._send(wallet, GrantMediation(), Done)
            await self._send(
                wallet,
                UpdateKeylist([ClaimedKey(key, 1) for key in wallet.keys], []),
                KeylistChanged,
            )

    async def queue(
        self, wallet: Recipient, *numbers: int, key: int = 0, filling: str = ""
    ) -> list[str]:
        """Queue envelopes for one of the wallet's keys; their ids."""
        ids: list[str] = []
        for number in numbers:
            command = QueueEnvelopes(wallet.keys[key], [envelope(number, filling)])
            queued = await self._queue(wallet, command)
            assert isinstance(queued, EnvelopeQueued), queued
            ids.append(queued.message_id)
        return ids

    async def refusal(self, wallet: Recipient, number: int = 0) -> Refusal:
        """Why one more envelope is not queued."""
        command = QueueEnvelopes(wallet.keys[0], [envelope(number)])
        refused = await self._queue(wallet, command)
        assert isinstance(refused, Refusal)
        return refused

    async def _queue(self, wallet: Recipient, command: QueueEnvelopes) -> EnvelopeQueued | Refusal:
        """Queue it as a message of its own: the same bytes once more would be a retry."""
        key = next(self._sent).to_bytes(16, "big")
        return await self.identities.ask(wallet.did, command, key, EnvelopeQueued)

    async def state(self, wallet: Recipient) -> QueueState:
        """How the wallet's queue stands."""
        return await self._send(wallet, QueryQueue(), QueueState)

    async def release(self, wallet: Recipient, session: str) -> None:
        """The session has ended."""
        await self._send(wallet, ReleaseLeases(session), Done)

    async def pass_time(self, wallet: Recipient, seconds: float) -> None:
        """Let time pass, and the host of the wallet notice it."""
        self.clock.advance(seconds)
        await self.state(wallet)

    async def deliver_live(self, wallet: Recipient, session: str, after: int) -> Delivery | Refusal:
        """What a live session is handed that has seen the queue up to a version."""
        command = DeliverMessages(
            session, "live", 100, 1_000_000, 30_000, after_version=after, live=True
        )
        return await self.identities.ask(wallet.did, command, _COMMAND, Delivery)

    def facts(self) -> list[str]:
        """The topics of all rows of the log but the seals."""
        log = open_log(self.settings.log_dsn)
        try:
            rows = log.read_log(limit=1_000_000)
        finally:
            log.close()
        return [row.topic for row in rows if row.topic != "batch-sealed.1"]

    def cut(self) -> None:
        """The hosts do not answer from now on."""
        for index in range(self.settings.hosts):
            self.hosts.cut(host_name(index))

    def mend(self) -> None:
        """The hosts answer again."""
        for index in range(self.settings.hosts):
            self.hosts.mend(host_name(index))

    async def _send(self, wallet: Recipient, command: Command, reply: type[_R]) -> _R:
        answer = await self.identities.ask(wallet.did, command, _COMMAND, reply)
        assert not isinstance(answer, Refusal), answer
        return answer


def problem_code(report: Members) -> str:
    """The code of a problem report that is no protocol's own."""
    assert report["@type"] == f"{NEW}notification/1.0/problem-report", report
    code: str = report["description"]["code"]
    return code


@asynccontextmanager
async def running_holder(data_dir: Path, **settings: Any) -> AsyncIterator[Holder]:
    """A holder whose hosts run."""
    holder = Holder(data_dir, settings)
    holder.hosts.start()
    try:
        yield holder
    finally:
        await asyncio.sleep(0)  # the ends of sessions are on their way
        await asyncio.wait_for(holder.gateway.drained(), 5)
        await holder.hosts.stop()
