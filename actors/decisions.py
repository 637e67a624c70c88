"""What an identity answers to each command: ``decide``.

Rules of this file: a decision depends on identity, command and moment alone and changes nothing;
every command has its arm here (type checking finds a missing one); authorization comes first, in
the order of DCTRL-0004 6.2 and 7.2, then the rules of the command.
"""

from __future__ import annotations

from typing import assert_never

from actors import agents, archive, contracts, dedication, edges, envelopes, message_queue
from actors.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    CheckKeys,
    CheckRegistered,
    ClaimKey,
    CloseSession,
    Command,
    Connect,
    CountRefusals,
    DedicateIdentity,
    DeletePublicEvents,
    DeliverMessages,
    EndLive,
    FindKeyOwner,
    GrantMediation,
    Listen,
    OpenSession,
    PublishPublicEvent,
    PurgeQueue,
    QueryConnection,
    QueryContractRequests,
    QueryContracts,
    QueryKeylist,
    QueryMessages,
    QueryQueue,
    QuerySavedEvents,
    QueueEnvelope,
    QueueMessage,
    Register,
    ReleaseIdentity,
    ReleaseKey,
    ReleaseLeases,
    RemoveMessages,
    RequestContract,
    SaveContract,
    SaveEvents,
    SetQueuePolicy,
    StartLive,
    StoreContract,
    UpdateEventTags,
    UpdateKeylist,
    UseInvitation,
)
from actors.decision import Accepted, Decision, Moment
from actors.identity import Identity
from actors.refusals import Refusal
from actors.replies import Done, EnvelopesWaiting, ReadAllowed, Registered

_OwnCommand = (
    QueryMessages
    | AcknowledgeMessages
    | SaveContract
    | QueryContractRequests
    | AcknowledgeContractRequests
    | QueryContracts
    | SaveEvents
    | QuerySavedEvents
    | UpdateEventTags
    | PublishPublicEvent
    | DeletePublicEvents
    | OpenSession
)
_AgentCommand = (
    Connect
    | UseInvitation
    | QueryConnection
    | GrantMediation
    | ClaimKey
    | ReleaseKey
    | FindKeyOwner
    | CheckKeys
    | UpdateKeylist
    | QueryKeylist
)
_QueueCommand = (
    QueryQueue
    | SetQueuePolicy
    | DeliverMessages
    | RemoveMessages
    | PurgeQueue
    | ReleaseLeases
    | Listen
    | StartLive
    | EndLive
)


def decide(  # noqa: C901 - one arm per command
    did: str, state: Identity, command: Command, moment: Moment
) -> Decision:
    """The decision of identity ``did`` on one command (DCTRL-0004 sections 6 to 8; DIDComm)."""
    # The two that everybody waits for come first.
    if isinstance(command, QueueMessage):
        return message_queue.queue_message(did, state, command, moment)
    if isinstance(command, QueueEnvelope):
        return envelopes.queue_envelope(state, command, moment)
    if isinstance(command, _QueueCommand):
        return _decide_queue(state, command, moment)
    if isinstance(command, _AgentCommand):
        return _decide_agent(did, state, command, moment)
    match command:
        case Register():
            return contracts.register(did, command, moment)
        case RequestContract():
            return contracts.request_contract(state, command, moment)
        case StoreContract() | CheckRegistered():
            if not state.is_registered(moment.now_s):
                return Refusal.RECIPIENT_NOT_REGISTERED
            if isinstance(command, CheckRegistered):
                return Accepted(Registered(state.registered_until_s))
            full = Refusal.RECIPIENT_QUEUE_FULL
            return contracts.keep_contract(state, command.contract, moment, full)
        case CloseSession():
            return Accepted(Done())
        case CountRefusals():
            return edges.count_refusals(state, command, moment)
        case DedicateIdentity():
            return dedication.dedicate(did, state, command, moment)
        case ReleaseIdentity():
            return dedication.release(did, state, command, moment)
        case _:
            if not state.is_registered(moment.now_s):
                return Refusal.UNAUTHORIZED_COMMAND
            return _decide_own(did, state, command, moment)


def _decide_agent(  # noqa: C901 - one arm per command
    did: str, state: Identity, command: _AgentCommand, moment: Moment
) -> Decision:
    """Commands about a DIDComm agent, a key or an invitation."""
    match command:
        case Connect():
            return agents.connect(did, state, command, moment)
        case UseInvitation():
            return agents.use_invitation(did, state, command, moment)
        case QueryConnection():
            return agents.query_connection(state)
        case GrantMediation():
            return agents.grant_mediation(state, moment)
        case ClaimKey():
            return agents.claim_key(did, state, command, moment)
        case ReleaseKey():
            return agents.release_key(did, state, command, moment)
        case FindKeyOwner():
            return agents.find_owner(state)
        case CheckKeys():
            return agents.check_keys(state, command)
        case UpdateKeylist():
            return agents.update_keylist(state, command, moment)
        case QueryKeylist():
            return agents.query_keylist(state, command)


def _decide_queue(state: Identity, command: _QueueCommand, moment: Moment) -> Decision:
    """Commands about the envelopes that wait for a DIDComm agent."""
    match command:
        case DeliverMessages():
            return envelopes.deliver(state, command, moment)
        case RemoveMessages():
            return envelopes.remove(state, command, moment)
        case SetQueuePolicy():
            return envelopes.set_policy(state, command, moment)
        case PurgeQueue():
            return envelopes.purge(state, moment)
        case QueryQueue() | StartLive() | EndLive():
            return envelopes.query(state, command, moment)
        case ReleaseLeases():
            return Accepted(Done(), notice=EnvelopesWaiting())
        case Listen():
            is_agent = state.connection is not None
            return Accepted(Done()) if is_agent else Refusal.NOT_CONNECTED


def _decide_own(  # noqa: C901 - one arm per command
    did: str, state: Identity, command: _OwnCommand, moment: Moment
) -> Decision:
    """Commands that a registered identity gives on its own behalf."""
    match command:
        case QueryMessages():
            return message_queue.query_messages(state, command)
        case AcknowledgeMessages():
            return message_queue.acknowledge_messages(state, command, moment)
        case SaveContract():
            full = Refusal.QUOTA_EXCEEDED
            return contracts.keep_contract(state, command.contract, moment, full)
        case QueryContractRequests():
            return contracts.query_requests(state, command)
        case AcknowledgeContractRequests():
            return contracts.acknowledge_requests(state, command, moment)
        case QueryContracts():
            return contracts.query_contracts(state, command)
        case SaveEvents():
            return archive.save_events(did, state, command, moment)
        case QuerySavedEvents():
            return Accepted(ReadAllowed())
        case UpdateEventTags():
            return archive.update_event_tags(command, moment)
        case PublishPublicEvent():
            return archive.publish_public_event(state, command, moment)
        case DeletePublicEvents():
            return archive.delete_public_events(state, command, moment)
        case OpenSession():
            return Accepted(Registered(state.registered_until_s))
        case _:
            assert_never(command)
