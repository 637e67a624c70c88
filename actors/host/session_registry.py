"""Who is there for the identities of one host: their sessions, and what those hold.

All of it is memory of the host. It can be lost, which costs sockets a reconnection and offers
messages again; it can be handed over with its partition, which costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from actors.core.commands import (
    CloseSession,
    DeliverMessages,
    EndAccount,
    EndLive,
    ExpireRecords,
    Listen,
    OpenSession,
    ReleaseLeases,
    RemoveMessages,
    RotateAccount,
    StartLive,
    Submission,
)
from actors.core.decision import Leasing
from actors.core.leases import Lease, Leases
from actors.core.replies import (
    EnvelopeDelivered,
    Expired,
    Notice,
    Push,
    QueueState,
    Refused,
    Reply,
)
from actors.core.sessions import LiveMode, Sessions, SessionsOf

_ABOUT_SESSIONS: Final = frozenset(
    {
        *(CloseSession, DeliverMessages, EndAccount, EndLive, ExpireRecords, Listen, OpenSession),
        *(ReleaseLeases, RemoveMessages, RotateAccount, StartLive),
    }
)
"""The commands that ``follow`` does something for; most that come are none of them."""


class _Part(msgspec.Struct, array_like=True):
    """What is handed over of one partition: by identity, but the id of it all.

    ``offered_again`` are those to be notified that a lease of theirs is over.
    """

    id: str
    sessions: dict[str, SessionsOf] = {}
    leases: dict[str, dict[str, Lease]] = {}
    offered_again: list[str] = []


_PARTS: Final = msgspec.msgpack.Decoder(dict[str, _Part])


class Handover:
    """What travels from the former owner of partitions to the next one."""

    def __init__(self, packed: bytes | None) -> None:
        """Read it; nothing travels with None.

        Raises:
            msgspec.DecodeError: it is none.
        """
        self.parts: Final = {} if packed is None else _PARTS.decode(packed)

    def holds_anything(self) -> bool:
        """Are there sessions or leases of any of its identities?"""
        return any(part.sessions or part.leases for part in self.parts.values())

    def ids(self) -> Mapping[str, str]:
        """The id of the sessions of each partition."""
        return {name: part.id for name, part in self.parts.items()}


class SessionRegistry:
    """Sessions and leases of the identities of a host, and the partition of each."""

    def __init__(self) -> None:
        """No sessions and no leases."""
        self.sessions = Sessions()
        self.leases = Leases()
        self._partitions: dict[str, str] = {}
        self._offered_again: set[str] = set()

    def __len__(self) -> int:
        """How many identities have sockets somewhere."""
        return len(self.sessions)

    def lease(self, did: str, partition: str, leasing: Leasing) -> None:
        """Leases hold at once: the next command of the batch must not hand out the same."""
        self._partitions[did] = partition
        self.leases.grant(did, leasing.message_ids, leasing.lease)

    def unlease(self, did: str, message_ids: Sequence[str]) -> None:
        """The messages were not handed out: they are offered again at once."""
        self.leases.end(did, message_ids)
        self._offered_again.add(did)

    def lose_leases(self) -> None:
        """Everything that was handed out can be handed out again."""
        self.leases = Leases()

    def expire(self, now_ms: int) -> None:
        """End the leases whose time is over."""
        self._offered_again |= self.leases.expire(now_ms)

    def follow(self, submission: Submission, reply: Reply) -> None:  # noqa: C901 - one arm each
        """What the commands about sessions do, once they were accepted."""
        did, command = submission.target_did, submission.command
        if type(command) not in _ABOUT_SESSIONS:
            return  # nearly all of them
        if isinstance(command, CloseSession):
            self.sessions.close(did, command.edge)
        if isinstance(reply, Refused):
            return
        match command:
            case OpenSession():
                self._partitions[did] = submission.partition
                self.sessions.open(did, command.edge)
            case Listen():
                self._partitions[did] = submission.partition
                self._listen(did, command)
            case StartLive() if isinstance(reply, QueueState):
                self._partitions[did] = submission.partition
                self._start_live(did, command, reply.version)
            case EndLive():
                self.sessions.end_live(did, command.session)
            case DeliverMessages() if not command.implicit:
                # It asks by itself from now on: what it holds is no longer held implicitly.
                self.sessions.end_implicit(did, command.session)
            case RotateAccount() | EndAccount():
                # A session in live mode was of another speaker, or is over: the next begins anew.
                self.sessions.end_handing_out(did)
            case ExpireRecords() if isinstance(reply, Expired) and reply.agents:
                self.sessions.end_handing_out(did)
            case ReleaseLeases():
                self.sessions.end_live(did, command.session)
                self.sessions.end_implicit(did, command.session)
                self.leases.release(did, command.session)
            case RemoveMessages():
                self.leases.end(did, command.message_ids)
            case _:
                pass

    def pushes(self, did: str, notice: Notice) -> list[tuple[str, Push]]:
        """What to push to which edges about an identity, as (edge, push) pairs."""
        push = Push(did, notice)
        if isinstance(notice, EnvelopeDelivered):
            live = self.sessions.live_of(did)
            if live.session == notice.session:
                return [(live.edge, push)]
            # Its live mode ended in the transaction in which it was given this.
            self.unlease(did, [notice.message.message_id])
            return []
        return [(edge, push) for edge in self.sessions.edges_of(did)]

    def offered_again(self) -> Collection[str]:
        """The identities of which leases have ended by themselves since the last call."""
        offered, self._offered_again = self._offered_again, set()
        return offered

    def sweep(self) -> None:
        """Forget the partitions of identities without sessions and leases."""
        self._partitions = {
            did: partition
            for did, partition in self._partitions.items()
            if self.sessions.knows(did) or self.leases.of(did)
        }

    def hand_over(self, ids: Mapping[str, str]) -> bytes:
        """Give away what belongs to partitions, whose sessions have these ids."""
        parts = {name: _Part(id_) for name, id_ in ids.items() if id_}
        for did in self._dids(ids):
            self._take(did, parts.get(self._partitions[did], _Part("")))
        return msgspec.msgpack.encode(parts)

    def hand_out(self, did: str, id_: str) -> bytes:
        """Give away what belongs to one identity, as to a partition of its own.

        ``id_`` is that of its sessions from now on.
        """
        part = _Part(id_)
        self._take(did, part)
        return msgspec.msgpack.encode({did: part})

    def take_over(self, names: Sequence[str], handover: Handover) -> None:
        """Go on with what was handed over of these partitions."""
        for name in names:
            part = handover.parts.get(name)
            if part is not None:
                self._put(part, name)

    def take_in(self, did: str, partition: str, handover: Handover) -> None:
        """Go on with what was handed over of an identity that is of this partition again."""
        part = handover.parts.get(did)
        if part is not None:
            self._put(part, partition)

    def lose(self, names: Sequence[str]) -> None:
        """The sessions and leases of these partitions are lost."""
        self.hand_over(dict.fromkeys(names, ""))

    def _take(self, did: str, part: _Part) -> None:
        self._partitions.pop(did, None)
        sessions, leases = self.sessions.take(did), self.leases.take(did)
        if sessions is not None:
            part.sessions[did] = sessions
        if leases:
            part.leases[did] = dict(leases)
        if did in self._offered_again:
            self._offered_again.discard(did)
            part.offered_again.append(did)

    def _put(self, part: _Part, partition: str) -> None:
        for did, sessions in part.sessions.items():
            self.sessions.put(did, sessions)
        for did, leases in part.leases.items():
            self.leases.put(did, leases)
        self._partitions.update(dict.fromkeys([*part.sessions, *part.leases], partition))
        self._offered_again.update(part.offered_again)

    def _dids(self, names: Collection[str]) -> list[str]:
        return [did for did, partition in self._partitions.items() if partition in names]

    def _listen(self, did: str, command: Listen) -> None:
        self.sessions.open(did, command.edge)
        if command.implicit:
            self._release(did, self.sessions.start_implicit(did, command.edge, command.implicit))

    def _start_live(self, did: str, command: StartLive, version: int) -> None:
        self.sessions.open(did, command.edge)
        implicit = self.sessions.implicit_of(did)
        self.sessions.end_implicit(did, implicit)
        for before in (self.sessions.live_of(did).session, implicit):
            if before != command.session:
                self._release(did, before)
        # What is free now can be fetched: the answer says how much there is.
        leased = list(self.leases.of(did))
        mode = LiveMode(
            command.edge, command.session, version, command.lease_ms, command.bytes_max, leased
        )
        self.sessions.start_live(did, mode)

    def _release(self, did: str, session: str) -> None:
        """What a session held that another one took over from is offered again at once."""
        if session and self.leases.release(did, session):
            self._offered_again.add(did)
