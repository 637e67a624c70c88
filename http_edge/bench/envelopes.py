"""Envelopes that are packed before the clock runs.

A letter is a message of 1 KiB sealed for its recipient; a forward wraps it for a mediator, about
3.3 KiB. A run posts the forwards of a pool in turns, each time with another number beside its
parts: packing a new one for each post would cost more than posting it, and the same bytes once
more would be a retry.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from typing import Final, NamedTuple

import orjson

from http_edge.bench.mediator import Mailbox
from http_edge.didcomm.envelope import pack
from http_edge.didcomm.keys import KeyPair, base58
from http_edge.didcomm.messages import NEW_PREFIX
from http_edge.wallet import forward

PLAINTEXT_BYTES: Final = 1024
_BASIC_MESSAGE: Final = NEW_PREFIX + "basicmessage/1.0/message"


class Letter(NamedTuple):
    """A sealed message and the public key that it is for."""

    to: bytes
    envelope: bytes


def letters(mailboxes: Sequence[Mailbox], count: int) -> list[Letter]:
    """That many different letters, the recipients taking turns."""
    sender = KeyPair.new()
    keys = [mailbox.recipient.key.public for mailbox in mailboxes]
    return [
        Letter(key, pack(_plaintext(number), [key], sender))
        for number, key in enumerate(islice(cycle(keys), count))
    ]


def forwards(written: Sequence[Letter], routing_key: bytes) -> list[bytes]:
    """The letters as a mediator with this routing key takes them."""
    # In base58, which every mediator reads.
    return [forward(letter.envelope, base58(letter.to), [routing_key]) for letter in written]


def routing_key_of(mailbox: Mailbox) -> bytes:
    """The key that the mediator of a mailbox has forwards wrapped for.

    Raises:
        RuntimeError: it named none, or several.
    """
    keys = mailbox.recipient.mediation.routing_keys
    if len(keys) != 1:
        raise RuntimeError(f"the mediator names {len(keys)} routing keys")
    return keys[0]


def seal_of(envelope: bytes) -> str:
    """What tells one envelope from all others: its authentication tag."""
    return str(orjson.loads(envelope)["tag"])


def _plaintext(number: int) -> bytes:
    message = {"@type": _BASIC_MESSAGE, "@id": f"letter-{number}", "content": ""}
    filling = PLAINTEXT_BYTES - len(orjson.dumps(message))
    return orjson.dumps({**message, "content": "x" * filling})
