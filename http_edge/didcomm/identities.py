"""The identities as the DIDComm families ask them: typed questions over the gateway.

Every method sends one command to the one owner of its target and returns what the owner said.
``Refusal.TEMPORARILY_UNAVAILABLE`` means that the outcome is unknown.
"""

from __future__ import annotations

from typing import Final, TypeVar, cast

from actors.core.commands import (
    CheckKeys,
    Command,
    DeliverMessages,
    QueueEnvelope,
    RemoveMessages,
    Submission,
    UpdateKeylist,
)
from actors.core.cost import source_key, turn_cost
from actors.core.refusals import Refusal
from actors.core.replies import Refused, Reply
from http_edge.dispatch.gateway import Gateway
from http_edge.telemetry.request_id import current

_R = TypeVar("_R", bound=Reply)
_KEY: Final = "key:"
_INVITATION: Final = "invitation:"
_ID_BYTES: Final = 64


def key_target(key: str) -> str:
    """The target of commands about the ownership of a key, in base58."""
    return _KEY + key


def invitation_target(invitation_id: str) -> str:
    """The target of commands about a single-use invitation."""
    return _INVITATION + invitation_id


class Identities:
    """Asks the owners of identities, keys and invitations."""

    def __init__(self, gateway: Gateway) -> None:
        """Identities behind a gateway."""
        self._gateway = gateway

    async def ask(
        self,
        target: str,
        command: Command,
        key: bytes,
        reply: type[_R],
        *,
        can_linger: bool = False,
    ) -> _R | Refusal:
        """The answer of ``target`` to ``command``, of the type that the command has.

        ``key`` is the key of the command in the log, 16 bytes; ``can_linger`` as of the gateway.
        """
        partition = self._gateway.partition_of(target)
        # A forward is anonymous: those of each recipient take turns with what others send.
        submission = Submission(
            partition,
            target,
            key,
            command=command,
            request_id=current(),
            source=source_key(target),
            cost=turn_cost(command),
        )
        size_bytes = _size_bytes(command)
        answer = await self._gateway.submit(submission, size_bytes, can_linger=can_linger)
        if isinstance(answer, Refused):
            return answer.code
        assert isinstance(answer, reply), type(answer).__name__
        return cast("_R", answer)


def _size_bytes(command: Command) -> int:
    """Roughly what a command takes on its way to the host."""
    match command:
        case QueueEnvelope():
            return len(command.payload)
        case DeliverMessages() | RemoveMessages():
            return _ID_BYTES * len(command.message_ids or ())
        case CheckKeys():
            return _ID_BYTES * len(command.keys)
        case UpdateKeylist():
            return _ID_BYTES * (len(command.add) + len(command.remove))
        case _:
            return 0
