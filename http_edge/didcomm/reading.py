"""Reading of an inbound message: unpack it, unwrap forwards, find its recipient and content.

Reading changes nothing and counts nothing. If the message depends on an unknown DID, the reader
learns that DID where settings permit (``unknown_dids``). All else comes from the message or is
known to the edge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Final, TypeAlias

import msgspec

from actors.core.commands import QueueEnvelopes
from http_edge.didcomm.envelopes.messages import (
    AgentAccount,
    ForOthers,
    Forward,
    Message,
    UnknownSender,
    Unpacked,
    UnpackRejection,
)
from http_edge.didcomm.envelopes.versions import Envelopes
from http_edge.didcomm.protocols.routing import FORWARDS
from http_edge.didcomm.rejections import UNPACK_REJECTIONS, RejectionReason
from http_edge.didcomm.unknown_dids import UnknownDids
from http_edge.listener.body_reads import BodyReads
from http_edge.settings.settings import DidComm

_DIDS_LEARNED_MAX: Final = 2
"""DIDs that the reader learns for one message: its sender's, and the sender's prior DID."""
_DRAWN_BYTES: Final = 16
"""So many bytes that each delay is drawn equally often."""


class ForUs(msgspec.Struct, frozen=True):
    """A message for the mediator itself, and the account that packed it, if proven.

    ``work``, here and below, is the number of key agreements and signature checks that opening it
    took, all envelopes within one another together.
    """

    message: Message
    sender: AgentAccount | None
    work: int


class ToForward(msgspec.Struct, frozen=True):
    """Envelopes for the owners of these names, and the forward that carried them, if any.

    ``envelopes`` names no recipient yet. ``dids`` is as in ``messages.Forward``.
    """

    recipients: Sequence[str]
    envelopes: QueueEnvelopes
    forward: Message | None = None
    work: int = 0
    dids: Mapping[str, Sequence[str]] = {}


class NotTaken(msgspec.Struct, frozen=True):
    """A message that could not be opened or read; ``name`` is set if it is known as a forward.

    ``unknown_sender`` is the DID that has to be known to open it, empty for none.
    """

    reason: RejectionReason
    name: str = ""
    work: int = 0
    unknown_sender: str = ""


_Read: TypeAlias = ForUs | ToForward | NotTaken


class MessageReader:
    """Reads the messages of one edge."""

    def __init__(self, settings: DidComm, envelopes: Envelopes, unknown_dids: UnknownDids) -> None:
        self._settings = settings
        self._envelopes = envelopes
        self._unknown_dids = unknown_dids
        self._reads = BodyReads()

    async def read(self, body: bytes, command: bytes) -> _Read:
        """Read a message with any content; ``command`` is its key in the log.

        Learn the unknown DIDs that it depends on, and read it again. Without its sender's DID the
        message cannot be opened. Without the sender's prior DID it is read like any other message,
        because the agent repeats the proof until it is answered.
        """
        found = await self._reads.read(len(body), partial(self._open, body))
        for _ in range(_DIDS_LEARNED_MAX):
            if not (did := _to_learn(found)):
                break
            reason = await self._unknown_dids.learn(did, command)
            if reason is None:
                found = await self._reads.read(len(body), partial(self._open, body))
            elif reason is RejectionReason.TRY_AGAIN or isinstance(found, NotTaken):
                return NotTaken(reason, work=found.work)
            else:
                break
        return found

    def _open(self, body: bytes) -> _Read:
        """Read a message with the DIDs known so far; may run in a thread."""
        depth_max = self._settings.forward_depth_max
        name, work = "", 0
        for depth in range(depth_max + 1):
            unpacked = self._envelopes.unpack(body)
            if not isinstance(unpacked, Unpacked):
                return self._unopened(unpacked, body, work)
            work += unpacked.work
            version = self._envelopes.of(unpacked.version)
            message = version.read(unpacked)
            if message is None:
                return NotTaken(RejectionReason.NOT_A_MESSAGE, work=work)
            if not message.is_forward:
                work += message.rotation is not None or message.is_prior_unproven  # its signature
                return ForUs(message, unpacked.sender, work)
            name = FORWARDS[version.generation]
            if depth == depth_max:
                break
            forward = version.read_forward(
                message, recipients_max=self._settings.forward_recipients_max
            )
            if forward is None:
                return NotTaken(RejectionReason.NOT_A_MESSAGE, name, work)
            if not any(self._envelopes.is_own(name) for name in forward.recipients):
                envelopes = self._to_queue(forward, version.generation, unpacked.plaintext)
                return ToForward(forward.recipients, envelopes, message, work, forward.dids)
            # Opening an envelope costs key agreements: a forward may make us open only one.
            if len(forward.recipients) > 1 or len(forward.payloads) > 1:
                return NotTaken(RejectionReason.NOT_A_MESSAGE, name, work)
            (body,) = forward.payloads
        return NotTaken(RejectionReason.TOO_DEEP, name, work)

    def _unopened(
        self, found: ForOthers | UnknownSender | UnpackRejection, body: bytes, work: int
    ) -> ToForward | NotTaken:
        """Classify an envelope that was not opened."""
        match found:
            case ForOthers():
                # Not encrypted to us, but to one or more recipients that we may hold messages for.
                generation = self._envelopes.of(found.version).generation
                queued = QueueEnvelopes("", [body], generation)
                return ToForward(found.recipients, queued, work=work)
            case UnknownSender(did):
                # The same as with a wrong key: its price must not show who has an account.
                return NotTaken(RejectionReason.UNDECRYPTABLE, work=work, unknown_sender=did)
            case _:
                return NotTaken(UNPACK_REJECTIONS[found], work=work)

    def _to_queue(self, forward: Forward, generation: int, plaintext: bytes) -> QueueEnvelopes:
        """Return what a forward with this plaintext asks for, within the limits of the settings.

        A negative delay asks for a random one up to its amount (routing 2.0), so that the times of
        messages do not show which belong together. It is drawn from the plaintext, which only the
        sender and this mediator know; a repeated message draws the same.
        """
        delay_ms = min(abs(forward.delay_ms), round(self._settings.forward_delay_s_max * 1000))
        if forward.delay_ms < 0:
            drawn = int.from_bytes(blake2b(plaintext, digest_size=_DRAWN_BYTES).digest(), "big")
            delay_ms = drawn % (delay_ms + 1)
        expires_at_s = forward.expires_at_s
        return QueueEnvelopes(
            "",
            list(forward.payloads),
            generation,
            0 if expires_at_s is None else max(1, expires_at_s),  # 0 means never
            delay_ms,
        )


def _to_learn(found: _Read) -> str:
    """Return the unknown DID that reading depends on; empty for none."""
    match found:
        case NotTaken():
            return found.unknown_sender
        case ForUs(message):
            return message.unknown_prior
        case _:
            return ""
