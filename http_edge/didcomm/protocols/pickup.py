"""Message pickup with acknowledgements: the flow that versions 2.0, 3.0 and 4.0 share.

Status, delivery, acknowledgement and live mode work on the agent's one queue, with its leases, its
order and its bounds. A ``PickupForm`` defines what differs between the versions, above all members:
in 2.0 (RFC 0685) a recipient is a key, and times are text; in 3.0 (didcomm.org/messagepickup/3.0) a
recipient is a DID, and times are Unix seconds. Version 4.0 (didcomm.org/message-pickup/4.0), which
every message version may carry, has Unix milliseconds, answers a delivery request on an empty queue
with an empty delivery, and an acknowledgement with nothing.

Every request must ask for a return route. Without one it gets no answer, because neither a status
nor a delivery may wait in the queue; only an acknowledgement still takes effect, and on a WebSocket
a request for live mode (``opens_route``). A message leaves the queue only when
``messages-received`` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from actors.core.commands import EndLive, QueryQueue, StartLive
from actors.core.refusals import Refusal
from actors.core.replies import DeliveredMessage, Delivery, QueueState
from actors.host.clock import Clock
from http_edge.didcomm.envelopes.messages import InvalidMember, Json, Message, NewMessage, Reply
from http_edge.didcomm.envelopes.peer_dids import DID_CHARS_MAX
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.protocols.own_queue import (
    IDS_MAX,
    OwnQueue,
    attachments,
    received_times,
    seconds_since,
    times,
)
from http_edge.didcomm.protocols.problems import Problem, problem_of
from http_edge.didcomm.protocols.protocol import (
    NOTHING,
    Family,
    LiveModeChange,
    Outcome,
    Request,
    refusal,
    with_route,
)
from http_edge.settings.settings import DidComm

_FAMILIES: Final = frozenset({"messagepickup", "message-pickup", "queue"})
_LIVE: Final = "live-delivery-change"
_LIVE_OPENS: Final = frozenset({("messagepickup", 3), ("message-pickup", 4)})
"""Versions in which a request for live mode opens the return route; RFC 0685 requires one beside.
"""
ReceivedTimes: TypeAlias = Callable[[QueueState], Json]
"""Returns the attributes of a status that say when the newest and the oldest message came."""


class PickupForm(msgspec.Struct, frozen=True):
    """The differences between the versions of pickup.

    ``recipient`` is the member that narrows a request to one recipient, ``limit`` the member that
    bounds a delivery. ``says_waited``: a status has the time that the oldest message has waited.
    ``delivers_nothing``: a delivery request on an empty queue is answered with
    an empty delivery instead of a status. ``answers_receipt``: an acknowledgement is answered with
    the status. ``reports_itself``: problem reports are messages of the protocol.
    """

    family: str
    major: int
    recipient: str
    limit: str
    received: ReceivedTimes
    says_waited: bool = True
    delivers_nothing: bool = False
    answers_receipt: bool = True
    reports_itself: bool = False

    @property
    def channel(self) -> str:
        """The name of the protocol in the log."""
        return f"pickup/{self.major}.0"

    def status_of(self, state: QueueState, now_ms: int) -> Json:
        """Return a status without the recipient, which echoes the sender."""
        waited_s = seconds_since(state.oldest_ms, now_ms)
        return {
            "message_count": state.messages,
            **({"longest_waited_seconds": waited_s} if self.says_waited else {}),
            **self.received(state),
            "total_bytes": state.bytes,
            "live_delivery": state.live,
        }

    def live_delivery(self, messages: Sequence[DeliveredMessage]) -> NewMessage:
        """Return a delivery that answers no request and so has no thread."""
        kind = f"{self.family}/{self.major}.0/delivery"
        return NewMessage(kind, attachments=attachments(messages))


def _received_texts(state: QueueState) -> Json:
    return times(newest_received_time=state.newest_ms, oldest_received_time=state.oldest_ms)


FORM_2: Final = PickupForm("messagepickup", 2, "recipient_key", "limit", _received_texts)
FORM_3: Final = PickupForm(
    "messagepickup", 3, "recipient_did", "limit", partial(received_times, unit_ms=1000)
)
FORM_4: Final = PickupForm(
    "message-pickup",
    4,
    "recipient_did",
    "message_count_limit",
    partial(received_times, unit_ms=1),
    says_waited=False,
    delivers_nothing=True,
    answers_receipt=False,
    reports_itself=True,
)
FORMS: Final = (FORM_2, FORM_3, FORM_4)


class _Narrowed(msgspec.Struct, frozen=True):
    """The recipient that a message names: its spelling, and its name in the queue.

    Both are None if the message names none. Only ``name`` is None if the text is not a valid
    recipient: then no message waits for it, as for every recipient that is not of this queue.
    """

    member: str
    spelling: str | None = None
    name: str | None = None

    @property
    def to_nothing(self) -> bool:
        """Whether the request is narrowed to a recipient that does not exist."""
        return self.spelling is not None and self.name is None

    @property
    def echo(self) -> Json:
        """The member for the answer, in the sender's own spelling."""
        return {} if self.spelling is None else {self.member: self.spelling}


class Pickup:
    """The mediator of one version of pickup."""

    def __init__(
        self,
        form: PickupForm,
        settings: DidComm,
        *,
        edge: str,
        clock: Clock,
    ) -> None:
        """Answer in the version of ``form``; ``edge`` holds the live sessions."""
        self._form = form
        self._queue = OwnQueue(settings, form.channel)
        self._edge = edge
        self._clock = clock

    def family(self) -> Family:
        """Return the protocol with its handlers."""
        handlers = {
            "status-request": with_route(self._status),
            "delivery-request": with_route(self._deliver),
            "messages-received": self._received,
            _LIVE: with_route(self._live),
        }
        return Family(self._form.family, self._form.major, (0,), ("mediator",), handlers)

    async def _status(self, request: Request) -> Outcome:
        narrowed = self._narrowed(request.message)
        if isinstance(narrowed, InvalidMember):
            return self._refused(narrowed)
        return await self._status_reply(request, narrowed)

    async def _deliver(self, request: Request) -> Outcome:
        limit = request.message.count(self._form.limit)
        narrowed = self._narrowed(request.message)
        if isinstance(limit, InvalidMember):
            return self._refused(limit)
        if isinstance(narrowed, InvalidMember):
            return self._refused(narrowed)
        if limit == 0 or narrowed.to_nothing:
            if self._form.delivers_nothing:
                return _answer(Reply("delivery", narrowed.echo, attachments([])))
            return await self._status_reply(request, narrowed)
        found = await self._queue.deliver(request, limit, recipient_key=narrowed.name)
        if not isinstance(found, Delivery):
            return self._refused(found)
        if found.messages or self._form.delivers_nothing:
            delivery = Reply(
                "delivery",
                narrowed.echo,
                attachments(found.messages),
                delivered_bytes=found.size_bytes,
            )
            return _answer(delivery)
        # Leased messages are not counted, because a wallet asks again until the count is 0.
        return _answer(self._written(with_nothing(found.state), narrowed))

    async def _received(self, request: Request) -> Outcome:
        ids = request.message.texts("message_id_list", IDS_MAX)
        if isinstance(ids, InvalidMember):
            return self._not_removed(ids, Problem.INVALID_MESSAGE)
        state = await self._queue.acknowledge(request, ids)
        if not isinstance(state, QueueState):
            return self._not_removed(state, problem_of(state))
        if not request.peer.routable or not self._form.answers_receipt:
            return NOTHING
        return _answer(self._written(state, _Narrowed(self._form.recipient)))

    def _not_removed(self, why: InvalidMember | Refusal, problem: Problem) -> Outcome:
        """Refuse even without a return route: unremoved messages must not look removed."""
        return msgspec.structs.replace(self._refused(why), problem=problem)

    async def _live(self, request: Request) -> Outcome:
        everything = _Narrowed(self._form.recipient)
        wanted = request.message.flag("live_delivery")
        if isinstance(wanted, InvalidMember):
            return self._refused(wanted)
        if request.peer.pump is None:
            if wanted:
                return self._refused(Problem.LIVE_MODE_NOT_SUPPORTED)
            return await self._status_reply(request, everything)
        session = request.session
        command = StartLive(self._edge, session) if wanted else EndLive(session)
        state = await request.ask_account(command, QueueState)
        if not isinstance(state, QueueState):
            return self._refused(state)
        outcome = _answer(self._written(state, everything))
        delivery = self._form.live_delivery if wanted else None
        return msgspec.structs.replace(
            outcome, live=LiveModeChange(delivery, version=state.version)
        )

    async def _status_reply(self, request: Request, narrowed: _Narrowed) -> Outcome:
        """Answer with the current status of the queue."""
        state = await request.ask_account(QueryQueue(narrowed.name), QueueState)
        if not isinstance(state, QueueState):
            return self._refused(state)
        if narrowed.to_nothing:
            state = with_nothing(state)
        return _answer(self._written(state, narrowed))

    def _written(self, state: QueueState, narrowed: _Narrowed) -> Reply:
        return Reply("status", {**narrowed.echo, **self._form.status_of(state, self._clock())})

    def _narrowed(self, message: Message) -> _Narrowed | InvalidMember:
        """Return the recipient that the message names."""
        member = self._form.recipient
        spelling = message.optional_text(member, DID_CHARS_MAX)
        if isinstance(spelling, InvalidMember):
            return spelling
        if spelling is None:
            return _Narrowed(member)
        return _Narrowed(member, spelling, canonical_name(spelling))

    def _refused(self, problem: Problem | InvalidMember | Refusal) -> Outcome:
        own = self._form.reports_itself
        return refusal(problem, may_wait=False, is_own=own)


def ends_implicit(message: Message) -> bool:
    """Say whether a message belongs to a pickup protocol, so that nothing more comes implicitly.

    A ``noop`` asks for no more than what comes implicitly, and a problem report for nothing.
    """
    kind = message.type
    return kind.family in _FAMILIES and kind.name != "noop" and not kind.is_problem_report


def opens_route(message: Message) -> bool:
    """Say whether a message turns live mode on in a version in which that opens the return route.

    The Identus SDK for Android writes no return route with it, nor does Indicio's quickstart.
    """
    kind = message.type
    is_change = (kind.family, kind.major) in _LIVE_OPENS and kind.name == _LIVE
    return is_change and message.flag("live_delivery") is True


def with_nothing(state: QueueState) -> QueueState:
    """Return the state without waiting messages: all are leased, or the recipient has none here."""
    return msgspec.structs.replace(
        state, messages=0, bytes=0, available=0, oldest_ms=0, newest_ms=0
    )


def _answer(reply: Reply) -> Outcome:
    return Outcome(reply, may_wait=False)
