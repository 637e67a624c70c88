"""The stateless half of a command: who signed it, what it asks, and of whom.

Rules of this file: no state, no clock, no network; the order of the checks is that of DCTRL-0004
6.2 and 7.2 (resolve → key → signature → payload → authorization), so the first failure names the
code. What depends on registrations, contracts or queues is left to the identity.
"""

from __future__ import annotations

from typing import Any

import msgspec

from actors.commands import (
    Command,
    Contract,
    DeletePublicEvents,
    Page,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QuerySavedEvents,
    QueueMessage,
    Register,
    RequestContract,
    SaveContract,
    StoreContract,
)
from actors.refusals import Refusal
from http_edge import contract_profile
from http_edge.canonical_json import NotCanonical
from http_edge.config import Settings
from http_edge.decentrl import answers, payloads
from http_edge.decentrl.envelope import Envelope
from http_edge.decentrl.errors import Answer
from http_edge.dids.resolver import Resolver
from http_edge.encoding import b64decode
from http_edge.mediator_keys import MediatorKeys
from http_edge.signatures import verify, verify_object


class Verdict(msgspec.Struct, frozen=True):
    """A command that passed: the identity that decides on it, and what it is asked.

    ``done`` is the answer if it is accepted, where the reply itself does not make one;
    ``page`` is what a query asked for; ``registered_first`` names an identity, other than the
    target, that must be registered before the command counts (6.2 step 4).
    """

    target_did: str
    command: Command
    done: Answer | None = None
    page: Page | None = None
    registered_first: str | None = None


class Judge:
    """Judges commands for one mediator."""

    def __init__(self, settings: Settings, keys: MediatorKeys, resolver: Resolver) -> None:
        """A judge with the mediator's keys, which open registration requests."""
        self._settings = settings
        self._did = settings.mediator_did
        self._contract_bytes_max = settings.limits.contract_bytes_max
        self._keys = keys
        self._resolver = resolver

    def dids_to_resolve(self, command: Envelope) -> list[str]:
        """The DIDs that ``judge`` will resolve; the caller fetches those that need the network.

        Unverified: an attacker may name any DID here, so whoever fetches must be bounded.
        """
        dids = [command.sender_did]
        if command.channel == "TWO_WAY_PRIVATE":
            dids.append(command.recipient_did)
        elif isinstance(command.payload, dict):
            signed = command.payload.get("signed_communication_contract")
            dids += contract_profile.participants(signed) or ()
        return dids

    def judge(self, command: Envelope, now_s: float) -> Verdict | Refusal:
        """The verdict on a command whose timestamp and nonce are somebody else's business."""
        document = self._resolver.known(command.sender_did)
        if document is None:
            return Refusal.SENDER_NOT_FOUND
        public_key = document.signing_keys.get(command.sender_signing_key_id)
        if public_key is None:
            return Refusal.SENDER_SIGNING_KEY_NOT_FOUND
        if not _is_signed(command, public_key):
            return Refusal.INVALID_SIGNATURE
        match command.channel:
            case "TWO_WAY_PRIVATE":
                return self._judge_message(command)
            case "ONE_WAY_PUBLIC":
                return self._judge_public(command, public_key)
            case _:
                return self._judge_direct(command, now_s)

    def _judge_message(self, command: Envelope) -> Verdict | Refusal:
        if not isinstance(command.payload, str):
            return Refusal.INVALID_COMMAND
        if self._resolver.known(command.recipient_did) is None:
            return Refusal.RECIPIENT_NOT_FOUND
        message = QueueMessage(command.sender_did, command.payload.encode())
        return Verdict(command.recipient_did, message)

    def _judge_public(self, command: Envelope, public_key: bytes) -> Verdict | Refusal:
        asked = payloads.read_public(command.payload, self._settings.limits)
        if asked is None:
            return Refusal.INVALID_COMMAND
        if command.recipient_did != self._did:
            return Refusal.UNAUTHORIZED_COMMAND
        if isinstance(asked, DeletePublicEvents):
            return Verdict(command.sender_did, asked)
        valid = _is_public_event_signed(asked, public_key)
        return Verdict(command.sender_did, msgspec.structs.replace(asked, signature_valid=valid))

    def _judge_direct(self, command: Envelope, now_s: float) -> Verdict | Refusal:
        asked = payloads.read_direct(command.payload, self._settings.limits)
        match asked:
            case None:
                return Refusal.INVALID_COMMAND
            case payloads.ContractRequest():
                return self._judge_request(command, asked, now_s)
            case payloads.ContractResponse():
                return self._judge_response(command, asked.signed_contract, now_s)
            case _ if command.recipient_did != self._did:
                return Refusal.UNAUTHORIZED_COMMAND
            case payloads.ContractToSave():
                contract = self._contract_of(command.sender_did, asked.signed_contract, now_s)
                return Verdict(command.sender_did, SaveContract(contract))
            case QueryContractRequests() | QueryContracts() | QueryMessages() | QuerySavedEvents():
                return Verdict(command.sender_did, asked, page=asked.page)
            case _:
                return Verdict(command.sender_did, asked)

    def _judge_request(
        self, command: Envelope, asked: payloads.ContractRequest, now_s: float
    ) -> Verdict | Refusal:
        if command.recipient_did != self._did:
            forwarded = RequestContract(
                command.sender_did,
                asked.encrypted_contract_request,
                asked.requestor_ephemeral_public_key,
            )
            return Verdict(command.recipient_did, forwarded, done=answers.REQUESTED)
        accepted = contract_profile.open_registration(
            asked.encrypted_contract_request,
            asked.requestor_ephemeral_public_key,
            self._keys,
            self._did,
            command.sender_did,
            now_s,
            self._resolver.known,
        )
        if isinstance(accepted, Refusal):
            return accepted
        if len(accepted.contract.signed) > self._contract_bytes_max:
            return Refusal.INVALID_COMMAND
        lifetime_s_max = self._settings.protocol.contract_lifetime_s_max
        expires_at_s = accepted.contract.expires_at_s
        if lifetime_s_max is not None and expires_at_s > now_s + lifetime_s_max:
            return Refusal.INVALID_COMMAND
        if self._settings.protocol.require_mediator_in_did and not self._is_named_by(
            command.sender_did
        ):
            return Refusal.UNAUTHORIZED_COMMAND
        done = answers.registered(accepted.signed)
        return Verdict(command.sender_did, Register(accepted.contract), done=done)

    def _judge_response(
        self, command: Envelope, signed: dict[str, Any], now_s: float
    ) -> Verdict | Refusal:
        """8.2: the other participant owns the contract, whoever the header names."""
        sender, named = command.sender_did, command.recipient_did
        other = _other_party(contract_profile.participants(signed), sender)
        if other is None:
            # Refused anyway; but first the header's recipient must be registered (6.2 step 4).
            if named == self._did:
                return Refusal.INVALID_COMMAND
            return Verdict(named, StoreContract(Refusal.INVALID_COMMAND))
        contract = self._contract_of(sender, signed, now_s)
        first = None if named in {self._did, other} else named
        return Verdict(other, StoreContract(contract), registered_first=first)

    def _contract_of(self, sender: str, signed: dict[str, Any], now_s: float) -> Contract | Refusal:
        parties = contract_profile.participants(signed)
        if parties is None or sender not in parties:
            return Refusal.INVALID_COMMAND
        contract = contract_profile.verify_signed_contract(signed, now_s, self._resolver.known)
        if isinstance(contract, Contract) and len(contract.signed) > self._contract_bytes_max:
            return Refusal.INVALID_COMMAND
        return contract

    def _is_named_by(self, did: str) -> bool:
        segments = did.split(":")
        try:
            return b64decode(segments[-1]).decode() == self._did
        except ValueError:
            return False


def _is_signed(command: Envelope, public_key: bytes) -> bool:
    signed = command.signed_bytes()
    if signed is None:
        return False
    try:
        signature = b64decode(command.signature)
    except ValueError:
        return False
    return verify(public_key, signed, signature)


def _is_public_event_signed(event: PublishPublicEvent, public_key: bytes) -> bool:
    """The event's own signature, which readers verify without us (DCTRL-0007)."""
    signed = {
        "channel_id": event.channel_id,
        "event": event.event,
        "tags": event.tags,
        "timestamp": event.timestamp_s,
    }
    try:
        return verify_object(public_key, signed, event.event_signature)
    except NotCanonical:
        return False


def _other_party(parties: tuple[str, str] | None, sender: str) -> str | None:
    if parties is None or sender not in parties or parties[0] == parties[1]:
        return None
    return parties[1] if parties[0] == sender else parties[0]
