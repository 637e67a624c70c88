"""What an identity answers to each command: ``decide``.

Rules of this file: a decision depends on identity, command and moment alone and changes nothing;
every command has its arm here (type checking finds a missing one); authorization comes first, in
the order of DCTRL-0004 6.2 and 7.2, then the rules of the command.
"""

from __future__ import annotations

from typing import assert_never

from actors import archive, contracts, message_queue
from actors.commands import (
    AcknowledgeContractRequests,
    AcknowledgeMessages,
    CheckRegistered,
    CloseSession,
    Command,
    DeletePublicEvents,
    OpenSession,
    PublishPublicEvent,
    QueryContractRequests,
    QueryContracts,
    QueryMessages,
    QuerySavedEvents,
    QueueMessage,
    Register,
    RequestContract,
    SaveContract,
    SaveEvents,
    StoreContract,
    UpdateEventTags,
)
from actors.decision import Accepted, Decision, Moment
from actors.identity import Identity
from actors.refusals import Refusal
from actors.replies import Done, ReadAllowed, Registered

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


def decide(did: str, state: Identity, command: Command, moment: Moment) -> Decision:
    """The decision of identity ``did`` on one command (DCTRL-0004 sections 6 to 8)."""
    match command:
        case QueueMessage():
            return message_queue.queue_message(did, state, command, moment)
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
        case _:
            if not state.is_registered(moment.now_s):
                return Refusal.UNAUTHORIZED_COMMAND
            return _decide_own(did, state, command, moment)


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
