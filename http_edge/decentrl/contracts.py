"""Commands about communication contracts: registration, request, response (DCTRL-0004 8.1 to 8.6).

``dids.contract_profile`` has the rules of contracts; this module turns payloads into commands.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from actors.core.commands import (
    Contract,
    Register,
    RequestContract,
    SaveContract,
    StoreContract,
)
from actors.core.refusals import Refusal
from http_edge.crypto.canonical_json import members_in
from http_edge.crypto.encoding import b64decode_exactly
from http_edge.crypto.invitation_ids import InvitationTerms
from http_edge.crypto.key_agreement import KEY_BYTES
from http_edge.decentrl.answers import Rejected, always, invalid, success
from http_edge.decentrl.payloads import REQUEST_BYTES
from http_edge.decentrl.validator import CommandRequest, ValidatedCommand
from http_edge.dids import contract_profile, decentrl
from http_edge.dids.contract_profile import ContractRejection, VerifiedContract

_REQUEST = "payload.encrypted_contract_request"
_EPHEMERAL_KEY = "payload.requestor_ephemeral_public_key"
_SIGNED = "payload.signed_communication_contract"
_UNREGISTERED = Rejected(
    Refusal.RECIPIENT_NOT_REGISTERED, f"{_SIGNED}: names another party that is not registered here"
)


class RequestPayload(msgspec.Struct, frozen=True):
    """REQUEST_COMMUNICATION_CONTRACT (8.1); its meaning depends on the recipient.

    ``invitation`` is the id of an invitation by the mediator, for a registration that requires one.
    It is an extension: 8.1 has no such member.
    """

    encrypted_contract_request: Annotated[str, REQUEST_BYTES]
    requestor_ephemeral_public_key: Annotated[str, REQUEST_BYTES]
    invitation: Annotated[str, REQUEST_BYTES] | None = None


class SignedContract(msgspec.Struct, frozen=True):
    """COMMUNICATION_CONTRACT_RESPONSE (8.2) and SAVE_COMMUNICATION_CONTRACT (8.5)."""

    signed_communication_contract: dict[str, Any]


def request_contract(
    request: CommandRequest, payload: RequestPayload
) -> ValidatedCommand | Rejected:
    """8.1: a registration if the mediator is the recipient, else a request to forward."""
    sender, recipient = request.envelope.sender_did, request.envelope.recipient_did
    if recipient == request.settings.mediator_did:
        return _register(request, payload)
    forwarded = RequestContract(
        sender, payload.encrypted_contract_request, payload.requestor_ephemeral_public_key
    )
    return ValidatedCommand(recipient, forwarded, request.answer)


def _register(request: CommandRequest, payload: RequestPayload) -> ValidatedCommand | Rejected:
    settings, sender = request.settings, request.envelope.sender_did
    if b64decode_exactly(payload.requestor_ephemeral_public_key, KEY_BYTES) is None:
        return invalid(f"{_EPHEMERAL_KEY}: is not base64 of {KEY_BYTES} bytes")
    validator = request.validator
    opened = contract_profile.open_request(
        payload.encrypted_contract_request,
        payload.requestor_ephemeral_public_key,
        validator.keys.pre_private,
        request.now_s,
    )
    if isinstance(opened, ContractRejection):
        return _rejected(_REQUEST, opened)
    accepted = contract_profile.accept_registration(
        opened,
        settings.mediator_did,
        sender,
        validator.keys.signing_seed,
        validator.resolver.known,
        bytes_max=settings.limits.contract_bytes_max,
    )
    if isinstance(accepted, ContractRejection):
        return _rejected(_REQUEST, accepted)
    contract, lifetime_s_max = accepted.contract, settings.protocol.contract_lifetime_s_max
    if lifetime_s_max is not None and contract.expires_at_s > request.now_s + lifetime_s_max:
        return invalid(
            f"{_REQUEST}: communication_contract.expires_at: is more than {lifetime_s_max} s away"
        )
    if (
        settings.protocol.require_mediator_in_did
        and decentrl.mediator_of(sender) != settings.mediator_did
    ):
        return Rejected(
            Refusal.UNAUTHORIZED_COMMAND, "header.sender_did: does not name this mediator"
        )
    answer = success(
        code="MEDIATOR_REGISTRATION_SUCCESS",
        payload={"signed_communication_contract": accepted.signed},
    )
    admitted = request.validator.admit(sender, payload.invitation, request.now_s)
    rejection = admitted if isinstance(admitted, Rejected) else None
    single_use = isinstance(admitted, InvitationTerms) and admitted.single_use
    return ValidatedCommand(
        sender,
        Register(_stored(contract), admitted=rejection is None),
        always(answer),
        rejection=rejection,
        invitation_id=payload.invitation or "" if single_use else "",
    )


def respond_contract(
    request: CommandRequest, payload: SignedContract
) -> ValidatedCommand | Rejected:
    """8.2: the other participant owns the contract, whichever DID the header names."""
    sender, named = request.envelope.sender_did, request.envelope.recipient_did
    mediator_did = request.settings.mediator_did
    parties = contract_profile.participants(payload.signed_communication_contract)
    contract = _contract_of(request, payload)
    if parties is None or sender not in parties or parties[0] == parties[1]:
        assert isinstance(contract, Rejected), "it is not between the sender and another DID"
        if named == mediator_did:
            return contract
        # Refused anyway; but first the header's recipient must be registered (6.2 step 4).
        return ValidatedCommand(
            named, StoreContract(contract.code), request.answer, rejection=contract
        )
    other = parties[1] if parties[0] == sender else parties[0]
    rejection_or_none = contract if isinstance(contract, Rejected) else None
    stored = contract.code if isinstance(contract, Rejected) else contract
    return ValidatedCommand(
        other,
        StoreContract(stored),
        request.answer,
        registered_first=None if named in {mediator_did, other} else named,
        rejection=rejection_or_none,
        unregistered=None if named == other else _UNREGISTERED,
    )


def save_contract(request: CommandRequest, payload: SignedContract) -> ValidatedCommand:
    """8.5: a contract that the sender itself keeps."""
    contract = _contract_of(request, payload)
    if isinstance(contract, Rejected):
        return request.own(SaveContract(contract.code), rejection=contract)
    return request.own(SaveContract(contract))


def _contract_of(request: CommandRequest, payload: SignedContract) -> Contract | Rejected:
    signed = payload.signed_communication_contract
    parties = contract_profile.participants(signed)
    if parties is not None and request.envelope.sender_did not in parties:
        return invalid(f"{_SIGNED}: does not name the sender")
    contract = contract_profile.verify_signed_contract(
        signed,
        request.now_s,
        request.validator.resolver.known,
        # It was written for the signature of the command, of which it is a part.
        text=members_in(members_in(request.signed)["payload"])["signed_communication_contract"],
        bytes_max=request.settings.limits.contract_bytes_max,
    )
    if isinstance(contract, ContractRejection):
        return _rejected(_SIGNED, contract)
    return _stored(contract)


def _rejected(member: str, rejection: ContractRejection) -> Rejected:
    code = Refusal.INVALID_SIGNATURES if rejection.unsigned else Refusal.INVALID_COMMAND
    return Rejected(code, f"{member}: {rejection.rule}")


def _stored(contract: VerifiedContract) -> Contract:
    return Contract(
        contract.requestor_did,
        contract.recipient_did,
        contract.expires_at_s,
        contract.digest,
        contract.signed,
    )
