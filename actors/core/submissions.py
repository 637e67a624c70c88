"""What an edge sends to a host: submissions, each with a command or its refusal, and reads."""

from __future__ import annotations

from typing import Final

import msgspec

from actors.core.commands import Command, Page
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from eventstore.log.event_log import PublicEventsFilter, SavedEventsFilter

PAID: Final = 1e-6
"""The charge of a command that was charged before, by another host or for a first question: this
host charges its page alone, and refuses it while its sender owes."""


class Submission(msgspec.Struct, frozen=True, array_like=True):
    """One item of a batch from an edge to a host.

    The host processes it in the order of DCTRL-0004 5.4 and 6.2: first ``claim`` (if any), then
    ``refusal`` (the edge's stateless validation: resolution, key, signature, payload), then
    ``command``. A claim without command answers ``Done``. The nonce of a submission that the edge
    refused, or of a claim without proof, is kept in memory alone, since neither has an effect.

    The events repeat ``command_key``. They do not repeat ``request_id``, which a client may choose:
    it appears beside the key in log lines, and is empty for a command without a request.

    ``source`` is the sender whose turn this takes (``actors.core.cost.source_key``; for a session
    its identity; empty for the mediator), ``cost`` the writer's work, ``charge`` what counts
    against the rate of ``source``, together with the page that is read (with 0 neither counts,
    with ``PAID`` the page alone);
    ``adds``: part (if only the nonce) of what stores something (``actors.core.decide.adds``).
    ``speaker`` is the DID that sent the command's message; empty for the mediator itself.
    """

    partition: str
    target_did: str
    command_key: bytes
    claim: NonceClaim | None = None
    refusal: Refusal | None = None
    command: Command | None = None
    request_id: str = ""
    source: bytes = b""
    cost: float = 1.0
    charge: float = 0.0
    adds: bool = False
    speaker: str = ""


class WaitingAt(msgspec.Struct, frozen=True, array_like=True, tag="waiting"):
    """The waiting messages at these versions; ``total`` messages match."""

    versions: list[int]
    total: int


class Read(msgspec.Struct, frozen=True, array_like=True):
    """A read that bypasses the commands: it needs no permission, or a command has given it."""

    owner_did: str
    page: Page
    where: SavedEventsFilter | PublicEventsFilter | WaitingAt
