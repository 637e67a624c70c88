"""What the tests ask of a host, in the form in which an edge does: signatures verified already."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

from actors.core.commands import (
    Command,
    Contract,
    Page,
    QueryMessages,
    QueueMessage,
    Register,
    SaveContract,
)
from actors.core.nonces import NonceClaim
from actors.core.refusals import Refusal
from actors.core.replies import Done, MessageAccepted, MessagesPage, Refused, Registered, Reply
from actors.core.submissions import Submission
from actors.host.clock import system_clock
from eventstore.log.seal import command_key
from tests.crash.owner import PARTITION

READER: Final = "did:test:reader"
WRITER: Final = "did:test:writer"
UNAVAILABLE: Final = Refused(Refusal.TEMPORARILY_UNAVAILABLE)
NOT_OWNER: Final = Refused(Refusal.NOT_OWNER)
_NEVER_S: Final = 4_000_000_000


def submission(nonce: str, command: Command, target_did: str = READER) -> Submission:
    """A command of the target itself, or of the writer to it, with its nonce."""
    key = command_key(WRITER, nonce)
    claim = NonceClaim(PARTITION, key, system_clock())
    return Submission(PARTITION, target_did, key, claim, command=command)


def introduction(nonce: str = "first") -> list[Submission]:
    """The reader registers and keeps a contract with the writer; repeating changes nothing."""
    return [
        submission(f"register {nonce}", Register(_contract(READER, "did:test:mediator"))),
        submission(f"contract {nonce}", SaveContract(_contract(WRITER, READER))),
    ]


def introduced(replies: Sequence[Reply] | None) -> bool:
    """Was the introduction accepted?"""
    return replies == [Registered(_NEVER_S), Done()]


def message(text: str) -> Submission:
    """A message from the writer to the reader; its text is its nonce too."""
    return submission(text, QueueMessage(WRITER, text.encode()))


def accepted(texts: Iterable[str], replies: Iterable[Sequence[Reply] | None]) -> list[str]:
    """The messages that were accepted; others are unknown, or for another owner."""
    kept: list[str] = []
    for text, reply in zip(texts, replies, strict=True):
        match reply:
            case [MessageAccepted()]:
                kept.append(text)
            case None | [Refused(Refusal.TEMPORARILY_UNAVAILABLE | Refusal.NOT_OWNER)]:
                pass
            case _:
                raise AssertionError(f"{text}: {reply}")
    return kept


def query(nonce: str) -> Submission:
    """All that waits for the reader."""
    return submission(nonce, QueryMessages(Page(0, 1_000)))


def texts_in(replies: Sequence[Reply] | None) -> list[str]:
    """The messages in the answer to ``query``, oldest first."""
    assert replies is not None
    (page,) = replies
    assert isinstance(page, MessagesPage), page
    assert page.total == len(page.messages)
    return [waiting.payload.decode() for waiting in page.messages]


def _contract(requestor_did: str, recipient_did: str) -> Contract:
    signed = f"{requestor_did} and {recipient_did}".encode()
    digest = hashlib.sha256(signed).digest()
    return Contract(requestor_did, recipient_did, _NEVER_S, digest, signed)
