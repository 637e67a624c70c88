"""What is in a message that came in, and whom it is for: unpacked, read, and unwrapped.

Reading changes nothing and counts nothing. A DID that the message depends on is learned where that
is permitted (``unknown_dids``); all else is known here or derived from the message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, TypeAlias

import msgspec

from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    ForOthers,
    Forward,
    Message,
    UnknownSender,
    Unpacked,
    UnpackRefusal,
)
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.protocols.routing import FORWARDS, ToQueue
from http_edge.didcomm.rejections import UNPACK_REFUSALS, RejectionReason
from http_edge.didcomm.unknown_dids import UnknownDids
from http_edge.listener.body_reads import BodyReads
from http_edge.settings.settings import DidComm

_DIDS_LEARNED_MAX: Final = 2
"""DIDs that are learned for one message: its sender's, and the prior one of it."""


class ForUs(msgspec.Struct, frozen=True):
    """A message for the mediator itself, and the account that packed it if that is proven."""

    message: Message
    sender: AgentAccount | None


class ToForward(msgspec.Struct, frozen=True):
    """Envelopes for the owners of these names, and the forward that brought them, if one did."""

    recipients: Sequence[str]
    envelopes: ToQueue
    forward: Message | None = None


class NotTaken(msgspec.Struct, frozen=True):
    """A message that could not be opened or read; ``name`` is ``forward`` if it got that far."""

    reason: RejectionReason
    name: str = ""


_Read: TypeAlias = ForUs | ToForward | NotTaken


class MessageReader:
    """Reads the messages of one edge."""

    def __init__(self, settings: DidComm, envelopes: Envelopes, unknown_dids: UnknownDids) -> None:
        """Messages in the versions of ``envelopes``."""
        self._settings = settings
        self._envelopes = envelopes
        self._unknown_dids = unknown_dids
        self._reads = BodyReads()

    async def read(self, body: bytes, command: bytes) -> _Read:
        """What is in a message, whatever it holds; ``command`` is its key in the log."""
        opened = await self._reads.read(len(body), partial(self._open, body))
        if did := _to_learn(opened):
            return await self._learned(did, opened, body, command)
        assert not isinstance(opened, UnknownSender)
        return opened

    async def _learned(
        self, did: str, opened: _Read | UnknownSender, body: bytes, command: bytes
    ) -> _Read:
        """What is in a message that depends on DIDs which are unknown here.

        Without its sender it cannot be opened. Without the prior DID of its sender it is a message
        like any other, because the agent repeats the proof until it is answered.
        """
        for _ in range(_DIDS_LEARNED_MAX):
            reason = await self._unknown_dids.learn(did, command)
            if reason is RejectionReason.TRY_AGAIN:
                return NotTaken(reason)
            if reason is None:
                opened = await self._reads.read(len(body), partial(self._open, body))
                did = _to_learn(opened)
            if reason is not None or not did:
                break
        if isinstance(opened, UnknownSender):
            return NotTaken(RejectionReason.UNDECRYPTABLE)
        return opened

    def _open(self, body: bytes) -> _Read | UnknownSender:
        """What is in a message as far as it is known here; it may run in a thread."""
        depth_max = self._settings.forward_depth_max
        name = ""
        for depth in range(depth_max + 1):
            unpacked = self._envelopes.unpack(body)
            if not isinstance(unpacked, Unpacked):
                return self._unopened(unpacked, body)
            message = self._envelopes.read(unpacked)
            if message is None:
                return NotTaken(RejectionReason.NOT_A_MESSAGE)
            if not message.is_forward:
                return ForUs(message, unpacked.sender)
            name = FORWARDS[self._envelopes.generation(message.version)]
            if depth == depth_max:
                break
            forward = self._envelopes.read_forward(
                message, recipients_max=self._settings.forward_recipients_max
            )
            if forward is None:
                return NotTaken(RejectionReason.NOT_A_MESSAGE, name)
            if not any(self._envelopes.is_own(name, message) for name in forward.recipients):
                return ToForward(forward.recipients, self._to_queue(forward, message), message)
            # Each that is opened costs key agreements: one message makes us open one.
            if len(forward.recipients) > 1 or len(forward.payloads) > 1:
                return NotTaken(RejectionReason.NOT_A_MESSAGE, name)
            (body,) = forward.payloads
        return NotTaken(RejectionReason.TOO_DEEP, name)

    def _unopened(
        self, found: ForOthers | UnknownSender | UnpackRefusal, body: bytes
    ) -> ToForward | NotTaken | UnknownSender:
        """What becomes of an envelope that was not opened."""
        match found:
            case ForOthers():
                # Not sealed to us but to those that we hold messages for, one or several.
                generation = self._envelopes.generation(found.version)
                return ToForward(found.recipients, ToQueue([body], generation))
            case UnknownSender():
                return found
            case _:
                return NotTaken(UNPACK_REFUSALS[found])

    def _to_queue(self, forward: Forward, message: Message) -> ToQueue:
        """What a forward asks for, as far as it gets it.

        Of a negative delay any part is right (routing 2.0): it is half of it here.
        """
        wanted_ms = forward.delay_ms if forward.delay_ms >= 0 else -forward.delay_ms // 2
        expires_at_s = forward.expires_at_s
        return ToQueue(
            forward.payloads,
            self._envelopes.generation(message.version),
            0 if expires_at_s is None else max(1, expires_at_s),  # 0 is never there
            min(wanted_ms, round(self._settings.forward_delay_s_max * 1000)),
        )


def _to_learn(opened: _Read | UnknownSender) -> str:
    """The DID that reading depends on and that is unknown; empty for none."""
    match opened:
        case UnknownSender(did):
            return did
        case ForUs(message):
            return message.unknown_prior
        case _:
            return ""
