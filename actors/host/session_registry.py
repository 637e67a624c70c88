"""The sessions of one host's identities, and the leases that they hold.

All of this is in the host's memory. Losing it makes edges close their sockets and offers messages
again; handing it over with its partition costs nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from actors.core.commands import (
    CloseSession,
    Command,
    DeliverMessages,
    EndAccount,
    EndLive,
    ExpireRecords,
    Listen,
    OpenSession,
    ReleaseLeases,
    RotateAccount,
    StartLive,
)
from actors.core.decision import Leasing
from actors.core.leases import HELD_BACK, Lease, Leases
from actors.core.message_queue import EXPIRED, LOST
from actors.core.replies import EnvelopeDelivered, Expired, Notice, Push, QueueState, Refused, Reply
from actors.core.sessions import LiveMode, Sessions, SessionsOf
from actors.core.submissions import Submission
from actors.host.measures import HostStats
from eventstore.log.events import MessagesRemoved

_DAMAGED_MS: Final = 600_000
"""A damaged envelope is held back for this long: it may have been put back by then."""
_ABOUT_SESSIONS: Final = frozenset(
    {
        *(CloseSession, DeliverMessages, EndAccount, EndLive, ExpireRecords, Listen, OpenSession),
        *(ReleaseLeases, RotateAccount, StartLive),
    }
)
"""The commands that ``follow`` handles; most commands are not among them."""
_FORMER_MAX: Final = 1_024
"""Former identities whose partitions are kept besides one for each with sessions or leases."""


class _Part(msgspec.Struct, array_like=True):
    """The handover of one partition: sessions and leases by identity, under one ``id``.

    ``offered_again`` are the identities to notify that a lease on their messages is over.
    """

    id: str
    sessions: dict[str, SessionsOf] = {}
    leases: dict[str, dict[str, Lease]] = {}
    offered_again: list[str] = []


_PARTS: Final = msgspec.msgpack.Decoder(dict[str, _Part])


class Handover:
    """Sessions and leases on their way from the former owner of partitions to the next one."""

    def __init__(self, packed: bytes | None) -> None:
        """Decode a handover; None is an empty one.

        Raises:
            msgspec.DecodeError: ``packed`` is not a handover.
        """
        self.parts: Final = {} if packed is None else _PARTS.decode(packed)

    def holds_anything(self) -> bool:
        """Does it have sessions or leases of any identity?"""
        return any(part.sessions or part.leases for part in self.parts.values())

    def ids(self) -> Mapping[str, str]:
        """The session id of each partition."""
        return {name: part.id for name, part in self.parts.items()}


class SessionRegistry:
    """The sessions and leases of a host's identities, and the partition of each identity.

    Also which identities are expected: those whose sessions are on their way from another host.
    """

    def __init__(self) -> None:
        self.sessions = Sessions()
        self.leases = Leases()
        self._partitions: dict[str, str] = {}
        self._partitions_max = _FORMER_MAX
        self._offered_again: set[str] = set()
        self._expected: dict[str, int] = {}

    def lease(self, submission: Submission, leasing: Leasing) -> None:
        """Lease messages at once: the next command of the batch must not hand them out too.

        Offer those at once that their sender delays, if the host delays too many.
        """
        did, command = submission.target_did, submission.command
        self._place(submission)
        if not self.leases.grant(did, leasing.message_ids, leasing.lease):
            self._offered_again.add(did)
        if type(command) is DeliverMessages and not command.live:
            self.sessions.note_fetched(did, leasing.message_ids)

    def removed(self, did: str, event: MessagesRemoved) -> None:
        """Forget messages that have left the queue; announce the room that leased ones leave.

        The decision on an acknowledgement announces it by itself, and only if there was none.
        """
        ids = event.message_ids
        if event.reason in {EXPIRED, LOST} and not self.leases.of(did).keys().isdisjoint(ids):
            self._offered_again.add(did)
        self.leases.end(did, ids)
        self.sessions.note_removed(did, ids)

    def unlease(self, did: str, message_ids: Sequence[str]) -> None:
        """End the leases of messages that were not handed out, and offer them again at once."""
        self.leases.end(did, message_ids)
        self._offered_again.add(did)

    def undo(self, leased: Iterable[tuple[str, Leasing]], touched: Iterable[str]) -> None:
        """End the leases of a failed append, and offer again what it may have stored all the same.

        If it did, the repetition of a message or of an acknowledgement changes nothing any more, so
        it announces nothing.
        """
        for did, leasing in leased:
            self.leases.end(did, leasing.message_ids)
        self._offered_again.update(touched)

    def hold_back(self, did: str, damaged: Sequence[str], now_ms: int) -> None:
        """Hold damaged envelopes back, or a session that takes one at a time would get no other."""
        if damaged:
            # Where too many messages are held back already, the session's lease keeps these.
            self.leases.grant(did, damaged, Lease(HELD_BACK, now_ms + _DAMAGED_MS))

    def count_in(self, stats: HostStats) -> None:
        """Set the figures of leases and sessions."""
        stats.leases = len(self.leases)
        stats.sessions = len(self.sessions)
        stats.live_sessions = self.sessions.live

    def lose_leases(self) -> None:
        """End all leases but those of delayed messages, and offer these messages again."""
        self._offered_again |= self.leases.end_all_but(HELD_BACK)

    def expire(self, now_ms: int) -> None:
        """End the leases whose time is over."""
        self._offered_again |= self.leases.expire(now_ms)

    def precede(self, did: str, command: Command) -> None:
        """Apply what a command does to sessions before it is decided.

        The first fetch of a session takes the live mode: only its edge knows that its agent was
        answered.
        """
        if type(command) is not DeliverMessages or not command.live:
            return
        starting = self.sessions.starting_of(did)
        if starting and starting == command.session:
            self._start_live(did, starting, command.lease_ms, command.bytes_max)

    def follow(self, submission: Submission, reply: Reply) -> None:  # noqa: C901 - one arm each
        """Apply an answered command that concerns sessions or leases."""
        did, command = submission.target_did, submission.command
        if type(command) not in _ABOUT_SESSIONS:
            return  # as for nearly all commands
        if isinstance(command, CloseSession):
            self.sessions.close(did, command.edge)
        if isinstance(reply, Refused):
            return
        match command:
            case OpenSession():
                self._place(submission)
                self.sessions.open(did, command.edge)
            case Listen():
                self._place(submission)
                self._listen(did, command)
            case StartLive() if isinstance(reply, QueueState):
                self._place(submission)
                self._ask_live(did, command, reply.version)
            case EndLive():
                self.sessions.end_live(did, command.session)
            case DeliverMessages() if not command.implicit:
                # The session now asks explicitly, so it no longer holds messages implicitly.
                self.sessions.end_implicit(did, command.session)
            case RotateAccount() | EndAccount():
                # The live session belongs to a former speaker or an ended account: end it.
                self.sessions.end_handing_out(did)
            case ExpireRecords() if isinstance(reply, Expired) and reply.agents:
                self.sessions.end_handing_out(did)
            case ReleaseLeases():
                self.sessions.end_live(did, command.session)
                self.sessions.end_implicit(did, command.session)
                self.leases.release(did, command.session)
            case _:
                pass

    def pushes(self, did: str, notice: Notice) -> list[tuple[str, Push]]:
        """The pushes of a notice about an identity, as (edge, push) pairs."""
        push = Push(did, notice)
        if isinstance(notice, EnvelopeDelivered):
            live = self.sessions.live_of(did)
            if live.session == notice.session:
                return [(live.edge, push)]
            # The live mode ended in the same transaction that leased this message to its session.
            message_id = notice.message.message_id
            lease = self.leases.of(did).get(message_id)
            if lease is not None and lease.session == notice.session:
                self.unlease(did, [message_id])
            return []
        return [(edge, push) for edge in self.sessions.edges_of(did)]

    def offered_again(self) -> Collection[str]:
        """The identities whose messages are offered again since the last call."""
        offered, self._offered_again = self._offered_again, set()
        return offered

    def expect(self, did: str, until_ms: int) -> None:
        """Expect the sessions of an identity until then, in Unix milliseconds."""
        self._expected[did] = until_ms

    def is_expected(self, did: str, now_ms: int) -> bool:
        """Are the sessions of an identity still to come?"""
        return self._expected.get(did, 0) > now_ms

    def expect_no_longer(self, did: str, now_ms: int) -> bool:
        """End ``expect``; return whether the sessions were still to come."""
        return self._expected.pop(did, 0) > now_ms

    def set_back(self, back_ms: int) -> None:
        """Have all that ends last as long as before after the clock was set back by ``back_ms``."""
        self.leases.set_back(back_ms)
        self._expected = {did: until - back_ms for did, until in self._expected.items()}

    def sweep(self, now_ms: int) -> None:
        """Forget the partition of each identity without sessions and leases.

        Also forget which identities were expected until ``now_ms`` at most.
        """
        self._expected = {did: until for did, until in self._expected.items() if until > now_ms}
        self._forget_former()

    def hand_over(self, ids: Mapping[str, str]) -> bytes:
        """Hand over the sessions and leases of partitions; ``ids`` are their session ids."""
        parts = {name: _Part(id_) for name, id_ in ids.items()}
        for did in self._dids(ids):
            self._take(did, parts[self._partitions[did]])
        return msgspec.msgpack.encode(parts)

    def hand_out(self, did: str, id_: str) -> bytes:
        """Hand over the sessions and leases of one identity, as for a partition of its own.

        ``id_`` is the id of its sessions from now on.
        """
        part = _Part(id_)
        self._take(did, part)
        return msgspec.msgpack.encode({did: part})

    def take_over(self, name: str, partition: str, handover: Handover, now_ms: int) -> None:
        """Continue what was handed over under this name, in a partition.

        The name is that of the partition, or an identity that returns to it.
        """
        part = handover.parts.get(name)
        if part is None:
            return
        for did, sessions in part.sessions.items():
            self.sessions.put(did, sessions)
        for did, leases in part.leases.items():
            if not self.leases.put(did, leases, now_ms):
                self._offered_again.add(did)
        self._partitions.update(dict.fromkeys([*part.sessions, *part.leases], partition))
        self._offered_again.update(part.offered_again)

    def lose(self, names: Sequence[str]) -> None:
        """Drop the sessions and leases of these partitions."""
        for did in self._dids(names):
            self._take(did, _Part(""))

    def _take(self, did: str, part: _Part) -> None:
        self._partitions.pop(did, None)
        if starting := self.sessions.starting_of(did):
            # A handover has room for one live mode; without a lease it goes on to be asked for.
            self._start_live(did, starting, 0, 0)
        sessions, leases = self.sessions.take(did), self.leases.take(did)
        if sessions is not None:
            part.sessions[did] = sessions
        if leases:
            part.leases[did] = dict(leases)
        if did in self._offered_again:
            self._offered_again.discard(did)
            part.offered_again.append(did)

    def _dids(self, names: Collection[str]) -> list[str]:
        return [did for did, partition in self._partitions.items() if partition in names]

    def _place(self, submission: Submission) -> None:
        """Note the partition of an identity that is about to have a session or leases."""
        if len(self._partitions) >= self._partitions_max:
            self._forget_former()
        self._partitions[submission.target_did] = submission.partition

    def _forget_former(self) -> None:
        self._partitions = {
            did: partition
            for did, partition in self._partitions.items()
            if self.sessions.knows(did) or self.leases.of(did)
        }
        self._partitions_max = _FORMER_MAX + 2 * len(self._partitions)

    def _listen(self, did: str, command: Listen) -> None:
        self.sessions.open(did, command.edge)
        if command.implicit:
            self._release(did, self.sessions.start_implicit(did, command.edge, command.implicit))

    def _ask_live(self, did: str, command: StartLive, version: int) -> None:
        self.sessions.open(did, command.edge)
        # The session can fetch the others: they are free, or are released when it takes over.
        replaced = self._replaced_by(did, command.session)
        leases = self.leases.of(did).items()
        leased = {message_id for message_id, lease in leases if lease.session not in replaced}
        mode = LiveMode(command.edge, command.session, version, leased=leased)
        self.sessions.ask_live(did, mode)

    def _start_live(self, did: str, session: str, lease_ms: int, bytes_max: int) -> None:
        for before in self._replaced_by(did, session):
            self._release(did, before)
        self.sessions.end_implicit(did, self.sessions.implicit_of(did))
        self.sessions.start_live(did, lease_ms, bytes_max)

    def _replaced_by(self, did: str, session: str) -> set[str]:
        """The other sessions that hold the live mode or implicit pickup."""
        return {self.sessions.live_of(did).session, self.sessions.implicit_of(did)} - {session, ""}

    def _release(self, did: str, session: str) -> None:
        """End the leases of a replaced session and offer its messages again at once."""
        if session and self.leases.release(did, session):
            self._offered_again.add(did)
