"""Decisions on registration, contracts and contract requests (DCTRL-0004 8.1 to 8.6).

Rules of this file: pure; the edge has verified the signatures and puts its validation result in the
command, where it counts only after authorization; a contract that expires loses its effect but
stays until retention removes it.
"""

from __future__ import annotations

from itertools import islice

from actors.core.commands import (
    AcknowledgeContractRequests,
    CheckRegistered,
    Contract,
    QueryContractRequests,
    QueryContracts,
    Register,
    RequestContract,
    SaveContract,
    StoreContract,
)
from actors.core.decision import (
    Accepted,
    ContractRefs,
    Decision,
    DecisionContext,
    RequestRefs,
    answered_page,
)
from actors.core.identity import ContractRecord, Identity
from actors.core.refusals import Refusal
from actors.core.replies import ContractsUpdated, Done, Registered
from actors.core.stored_bytes import stored_bytes
from eventstore.log.events import (
    ContractRequested,
    ContractRequestsAcknowledged,
    ContractRequestsExpired,
    ContractStored,
    IdentityRegistered,
)


def register(state: Identity, command: Register, context: DecisionContext) -> Decision:
    """Store a contract with the mediator: registration or its renewal (8.1)."""
    contract = command.contract
    if state.erasing:
        return Refusal.TEMPORARILY_UNAVAILABLE
    is_new = not state.registered_until_s
    if state.is_spoken_for(context.target) or (is_new and not command.admitted):
        # A key that was given up in DIDComm would share the queue of the account.
        return Refusal.UNAUTHORIZED_COMMAND
    if contract.expires_at_s <= context.now_s:
        return Refusal.INVALID_COMMAND
    registered = IdentityRegistered(
        at_ms=context.now_ms,
        command=context.command,
        did=context.target,
        expires_at_s=contract.expires_at_s,
        contract=contract.signed,
    )
    return Accepted(Registered(contract.expires_at_s), [registered])


def request_contract(
    state: Identity, command: RequestContract, context: DecisionContext
) -> Decision:
    """Keep an encrypted contract request for the recipient (8.1, forwarded)."""
    limits, waiting = context.limits, len(state.requests)
    of_sender = state.requests_by_sender.get(command.sender_did, 0)
    share = limits.contract_requests_max * limits.queue_sender_share_max
    if waiting >= limits.contract_requests_max or (of_sender and of_sender >= share):
        return Refusal.RECIPIENT_QUEUE_FULL
    requested = ContractRequested(
        at_ms=context.now_ms,
        command=context.command,
        request_id=context.fresh_id,
        sender_did=command.sender_did,
        encrypted_contract_request=context.content(command.encrypted_contract_request.encode()),
        requestor_ephemeral_public_key=command.requestor_ephemeral_public_key,
    )
    request_bytes, bytes_max = stored_bytes(requested), limits.contract_requests_bytes_max
    share_bytes = bytes_max * limits.queue_sender_share_max
    if state.request_bytes + request_bytes > bytes_max:
        return Refusal.RECIPIENT_QUEUE_FULL
    if of_sender and state.request_bytes + request_bytes > share_bytes:
        of_sender_bytes = sum(
            request.stored_bytes
            for request in state.requests.values()
            if request.sender_did == command.sender_did
        )
        if of_sender_bytes + request_bytes > share_bytes:
            return Refusal.RECIPIENT_QUEUE_FULL
    return Accepted(Done(), [requested], ContractsUpdated())


def check_registered(
    state: Identity, command: CheckRegistered, context: DecisionContext
) -> Decision:
    """Until when the target is registered, or was (6.2)."""
    if state.is_spoken_for(context.target):
        or_was = command.or_was  # It may not renew, and leaves its invitation to others.
        return Refusal.UNAUTHORIZED_COMMAND if or_was else Refusal.RECIPIENT_NOT_REGISTERED
    until_s = state.registered_until_s
    if not until_s or (until_s <= context.now_s and not command.or_was):
        return Refusal.RECIPIENT_NOT_REGISTERED
    return Accepted(Registered(until_s))


def store_contract(state: Identity, command: StoreContract, context: DecisionContext) -> Decision:
    """Keep a contract with which another identity answered (8.2)."""
    return _keep(state, command.contract, context, Refusal.RECIPIENT_QUEUE_FULL)


def save_contract(state: Identity, command: SaveContract, context: DecisionContext) -> Decision:
    """Keep a contract that its owner saves itself (8.5)."""
    return _keep(state, command.contract, context, Refusal.QUOTA_EXCEEDED)


def _keep(
    state: Identity, contract: Contract | Refusal, context: DecisionContext, when_full: Refusal
) -> Decision:
    """Store a contract for its owner; a contract that is stored twice is one record."""
    if isinstance(contract, Refusal):
        return contract
    if contract.expires_at_s <= context.now_s:
        return Refusal.INVALID_COMMAND
    if contract.digest in state.contract_ids:
        return Accepted(Done(), notice=ContractsUpdated())
    if len(state.contracts) >= context.limits.contracts_max:
        return when_full
    stored = ContractStored(
        at_ms=context.now_ms,
        command=context.command,
        contract_id=context.fresh_id,
        requestor_did=contract.requestor_did,
        recipient_did=contract.recipient_did,
        expires_at_s=contract.expires_at_s,
        digest=contract.digest,
        contract=contract.signed,
    )
    size_bytes, limits = stored_bytes(stored), context.limits
    if state.contract_bytes + size_bytes > limits.contracts_bytes_max:
        return when_full
    # Contracts from others have caps of their own: the owner's history does not count against them.
    own = when_full is Refusal.QUOTA_EXCEEDED
    if own and state.stored_bytes + size_bytes > limits.identity_bytes_max:
        return when_full
    if not own and _has_its_share(state, contract, size_bytes, context):
        return when_full
    return Accepted(Done(), [stored], ContractsUpdated())


def _has_its_share(
    state: Identity, contract: Contract, size_bytes: int, context: DecisionContext
) -> bool:
    """Would one more contract exceed the share of these two parties?

    The recipient of one request can make any number of contracts from it, each with another
    ephemeral key.
    """
    limits = context.limits
    share = limits.queue_sender_share_max
    most, bytes_max = limits.contracts_max * share, limits.contracts_bytes_max * share
    if len(state.contracts) < most and state.contract_bytes + size_bytes <= bytes_max:
        return False  # no pair of parties has more than the total
    is_recipient = contract.recipient_did == context.target
    partner = state.correspondents.get(
        contract.requestor_did if is_recipient else contract.recipient_did
    )
    return partner is not None and (
        partner.contracts >= most or partner.stored_bytes + size_bytes > bytes_max
    )


def query_requests(
    state: Identity, command: QueryContractRequests, _context: DecisionContext
) -> Decision:
    """Answer with a page of waiting contract requests in arrival order (8.3)."""
    page, requests = command.page, state.requests
    chosen = islice(requests.values(), page.offset, page.offset + page.size)
    records = [(request.version, request.stored_bytes) for request in chosen]
    return answered_page(RequestRefs, page, records, len(requests))


def acknowledge_requests(
    state: Identity, command: AcknowledgeContractRequests, context: DecisionContext
) -> Accepted:
    """Drop the waiting contract requests among the command's ids (8.4)."""
    waiting = [i for i in dict.fromkeys(command.request_ids) if i in state.requests]
    if not waiting:
        return Accepted(Done())
    return Accepted(Done(), [requests_acknowledged(state, waiting, context)])


def requests_acknowledged(
    state: Identity, request_ids: list[str], context: DecisionContext
) -> ContractRequestsAcknowledged:
    """The event that drops these contract requests, all of which wait."""
    return ContractRequestsAcknowledged(
        at_ms=context.now_ms,
        command=context.command,
        request_ids=request_ids,
        versions=[state.requests[request_id].version for request_id in request_ids],
    )


def requests_expired(
    state: Identity, request_ids: list[str], reason: str, context: DecisionContext
) -> ContractRequestsExpired:
    """The event by which the mediator removes these contract requests, all of which wait."""
    return ContractRequestsExpired(
        at_ms=context.now_ms,
        command=context.command,
        request_ids=request_ids,
        reason=reason,
        versions=[state.requests[request_id].version for request_id in request_ids],
    )


def query_contracts(
    state: Identity, command: QueryContracts, _context: DecisionContext
) -> Decision:
    """Answer with a page of owned contracts, including expired ones, in arrival order (8.6)."""
    page, contracts = command.page, state.contracts.values()
    total, looked_at, matching = len(contracts), 0, iter(contracts)
    if (command.did, command.expires_before_s, command.expires_after_s) != (None, None, None):
        found = [record for record in contracts if _matches(record, command)]
        total, looked_at, matching = len(found), total, iter(found)
    chosen = islice(matching, page.offset, page.offset + page.size)
    records = [(record.version, record.stored_bytes) for record in chosen]
    return answered_page(ContractRefs, page, records, total, looked_at=looked_at)


def _matches(record: ContractRecord, command: QueryContracts) -> bool:
    return (
        (command.did is None or command.did in (record.requestor_did, record.recipient_did))
        and (command.expires_before_s is None or record.expires_at_s < command.expires_before_s)
        and (command.expires_after_s is None or record.expires_at_s > command.expires_after_s)
    )
