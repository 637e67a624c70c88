"""Decisions on registration, contracts and contract requests (DCTRL-0004 8.1 to 8.6).

Rules of this file: pure; signatures were verified by the edge, whose verdict on a contract comes
in the command and counts only after authorization; a contract stays until the log ends, what
expires is its effect.
"""

from __future__ import annotations

from itertools import islice

from actors.commands import (
    AcknowledgeContractRequests,
    Contract,
    QueryContractRequests,
    QueryContracts,
    Register,
    RequestContract,
)
from actors.decision import Accepted, ContractRefs, Decision, Moment, RequestRefs
from actors.identity import ContractRecord, Identity
from actors.refusals import Refusal
from actors.replies import ContractsUpdated, Done, Registered
from eventstore.events import (
    ContractRequested,
    ContractRequestsAcknowledged,
    ContractStored,
    IdentityRegistered,
)


def register(target_did: str, command: Register, moment: Moment) -> Decision:
    """Store a contract with the mediator: registration or its renewal (8.1)."""
    contract = command.contract
    if contract.expires_at_s <= moment.now_s:
        return Refusal.INVALID_COMMAND
    registered = IdentityRegistered(
        at_ms=moment.now_ms,
        command=moment.command,
        did=target_did,
        expires_at_s=contract.expires_at_s,
        contract=contract.signed,
    )
    return Accepted(Registered(contract.expires_at_s), [registered])


def request_contract(state: Identity, command: RequestContract, moment: Moment) -> Decision:
    """Keep an encrypted contract request for the recipient (8.1, forwarded)."""
    if not state.is_registered(moment.now_s):
        return Refusal.RECIPIENT_NOT_REGISTERED
    if len(state.requests) >= moment.limits.contract_requests_max:
        return Refusal.RECIPIENT_QUEUE_FULL
    requested = ContractRequested(
        at_ms=moment.now_ms,
        command=moment.command,
        request_id=moment.fresh_id,
        sender_did=command.sender_did,
        encrypted_contract_request=command.encrypted_contract_request,
        requestor_ephemeral_public_key=command.requestor_ephemeral_public_key,
    )
    return Accepted(Done(), [requested], ContractsUpdated())


def keep_contract(
    state: Identity, contract: Contract | Refusal, moment: Moment, when_full: Refusal
) -> Decision:
    """Store a contract for its owner (8.2, 8.5); the same contract twice is one record."""
    if isinstance(contract, Refusal):
        return contract
    if contract.expires_at_s <= moment.now_s:
        return Refusal.INVALID_COMMAND
    if contract.digest in state.contract_ids:
        return Accepted(Done(), notice=ContractsUpdated())
    if len(state.contracts) >= moment.limits.contracts_max:
        return when_full
    stored = ContractStored(
        at_ms=moment.now_ms,
        command=moment.command,
        contract_id=moment.fresh_id,
        requestor_did=contract.requestor_did,
        recipient_did=contract.recipient_did,
        expires_at_s=contract.expires_at_s,
        digest=contract.digest,
        contract=contract.signed,
    )
    return Accepted(Done(), [stored], ContractsUpdated())


def query_requests(state: Identity, command: QueryContractRequests) -> Accepted:
    """A page of waiting contract requests in arrival order (8.3)."""
    page = command.page
    chosen = islice(state.requests.values(), page.offset, page.offset + page.size)
    return Accepted(RequestRefs([r.version for r in chosen], len(state.requests)))


def acknowledge_requests(
    state: Identity, command: AcknowledgeContractRequests, moment: Moment
) -> Accepted:
    """Drop the contract requests among these ids that wait here (8.4)."""
    waiting = [i for i in dict.fromkeys(command.request_ids) if i in state.requests]
    if not waiting:
        return Accepted(Done())
    acknowledged = ContractRequestsAcknowledged(
        at_ms=moment.now_ms, command=moment.command, request_ids=waiting
    )
    return Accepted(Done(), [acknowledged])


def query_contracts(state: Identity, command: QueryContracts) -> Accepted:
    """A page of owned contracts, expired ones included, in arrival order (8.6)."""
    matching = [r.version for r in state.contracts.values() if _matches(r, command)]
    page = command.page
    return Accepted(ContractRefs(matching[page.offset : page.offset + page.size], len(matching)))


def _matches(record: ContractRecord, command: QueryContracts) -> bool:
    return (
        (command.did is None or command.did in (record.requestor_did, record.recipient_did))
        and (command.expires_before_s is None or record.expires_at_s < command.expires_before_s)
        and (command.expires_after_s is None or record.expires_at_s > command.expires_after_s)
    )
