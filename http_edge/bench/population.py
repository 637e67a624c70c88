"""The people of a benchmark and the commands that they sign before the clock runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Final

from http_edge.client import Channel, Identity, Sources, signed_command
from http_edge.client.contracts import sealed_request
from http_edge.contract_profile import ContractRequest, accept_request, new_request
from http_edge.dids import DidDocument
from http_edge.encoding import b64encode
from http_edge.key_agreement import new_key_pair

REGISTERED_S: Final = 86_400
PAYLOAD_BYTES: Final = 1024
SOURCES: Final = Sources()


@dataclass(frozen=True, slots=True)
class Pair:
    """One who writes and one who receives."""

    sender: Identity
    recipient: Identity


def pairs(count: int, mediator: DidDocument) -> list[Pair]:
    """Fresh identities of one mediator, two by two."""
    made = [
        Identity.create(f"{role}-{number}", mediator.did)
        for number in range(count)
        for role in ("sender", "recipient")
    ]
    return [Pair(*two) for two in zip(made[::2], made[1::2], strict=True)]


def registration(identity: Identity, mediator: DidDocument) -> bytes:
    """The signed command that registers an identity for a day (DCTRL-0004 8.1)."""
    ephemeral = new_key_pair()
    payload = {
        "type": "REQUEST_COMMUNICATION_CONTRACT",
        "encrypted_contract_request": sealed_request(identity, ephemeral, mediator, _until_s()),
        "requestor_ephemeral_public_key": b64encode(ephemeral.public),
    }
    return direct(identity, mediator, payload)


def contract(pair: Pair, mediator: DidDocument) -> bytes:
    """The signed command by which the recipient saves a contract of both (8.5)."""
    sender, recipient = pair.sender, pair.recipient
    expires_at_s = _until_s()
    asked = new_request(
        sender.did, recipient.did, expires_at_s, sender.signing_seed, new_key_pair().public
    )
    request = ContractRequest(sender.did, recipient.did, expires_at_s, asked)
    signed = accept_request(request, recipient.signing_seed, new_key_pair().public)
    payload = {"type": "SAVE_COMMUNICATION_CONTRACT", "signed_communication_contract": signed}
    return direct(recipient, mediator, payload)


def direct(identity: Identity, mediator: DidDocument, payload: Mapping[str, object]) -> bytes:
    """A signed command to the mediator."""
    return signed_command(
        identity,
        Channel.DIRECT_AUTHENTICATED,
        mediator.did,
        payload,
        now_ms=SOURCES.now_ms(),
        nonce=SOURCES.new_nonce(),
    )


def message(pair: Pair, payload: str) -> bytes:
    """A signed TWO_WAY_PRIVATE command."""
    return signed_command(
        pair.sender,
        Channel.TWO_WAY_PRIVATE,
        pair.recipient.did,
        payload,
        now_ms=SOURCES.now_ms(),
        nonce=SOURCES.new_nonce(),
    )


def messages(people: Sequence[Pair], count: int) -> Iterator[bytes]:
    """That many messages of 1 KiB, the pairs taking turns."""
    payload = "x" * PAYLOAD_BYTES
    return (message(pair, payload) for pair in islice(cycle(people), count))


def _until_s() -> int:
    return SOURCES.now_ms() // 1000 + REGISTERED_S
