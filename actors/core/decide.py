"""The table of decisions, one row per command, and ``decide``, which applies it.

Each row of ``RULES`` names a command, who may send it, the function that decides, and whether it
stores something for a client. Rules of this file: a decision depends on identity, command and
context alone and changes nothing; every command of the closed family has a row (a test compares the
table with ``Command``); authorization comes first, in the order of DCTRL-0004 6.2 and 7.2, then the
rules of the command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from actors.core import (
    accounts,
    agents,
    commands,
    contracts,
    envelopes,
    erasure,
    forwarded,
    idle_agents,
    message_queue,
    retention,
    saved_events,
    system_commands,
)
from actors.core.commands import Command
from actors.core.decision import Decision, DecisionContext
from actors.core.identity import Identity
from actors.core.refusals import Refusal
from actors.core.submissions import Submission

Sender: TypeAlias = Callable[[Identity, DecisionContext], Refusal | None]
"""Authorizes the sender of a command by the target's state: a refusal, or None."""
_C = TypeVar("_C", bound=Command)


class Rule(NamedTuple):
    """One row of the table: who may send a command, and the function that decides on it.

    ``adds``: the command stores something for a client. The rest free space, read, or add a tiny
    row.
    """

    sender: Sender
    decide: Callable[[Identity, Any, DecisionContext], Decision]
    adds: bool


def anyone(_state: Identity, _context: DecisionContext) -> Refusal | None:
    """Any client with a valid signature, or any DIDComm peer; the deciding function may refuse."""
    return None


def mediator(_state: Identity, _context: DecisionContext) -> Refusal | None:
    """A process of the mediator itself: an edge, the placer, or an operator through one of them."""
    return None


def owner(state: Identity, context: DecisionContext) -> Refusal | None:
    """The target itself; it must be registered: a contract with the mediator is in force."""
    registered = state.registered_until_s > context.now_ms / 1000
    return None if registered else Refusal.UNAUTHORIZED_COMMAND


def unreplaced_owner(state: Identity, context: DecisionContext) -> Refusal | None:
    """As ``owner``; the target must not have been given up for another DID in DIDComm.

    What it stored would fill the queue and the quotas of an account that is another's now.
    """
    is_given_up = state.is_spoken_for(context.target)
    return Refusal.UNAUTHORIZED_COMMAND if is_given_up else owner(state, context)


def correspondent(state: Identity, context: DecisionContext) -> Refusal | None:
    """Another identity; the target must be registered, and not given up in DIDComm."""
    refusal = unreplaced_owner(state, context)
    return None if refusal is None else Refusal.RECIPIENT_NOT_REGISTERED


def speaker(state: Identity, context: DecisionContext) -> Refusal | None:
    """The DID that speaks for the target: its own until it rotates; it need not be connected."""
    return accounts.not_speaking(state, context)


def agent(state: Identity, context: DecisionContext) -> Refusal | None:
    """The speaker, or an edge on its behalf; the target must be a connected DIDComm agent."""
    if (refusal := accounts.not_speaking(state, context)) is not None:
        return refusal
    return Refusal.NOT_CONNECTED if state.connection is None else None


def mediated_agent(state: Identity, context: DecisionContext) -> Refusal | None:
    """As ``agent``; the target must have been granted mediation."""
    if (refusal := agent(state, context)) is not None:
        return refusal
    return None if state.mediated else Refusal.NOT_MEDIATED


def _row(
    command: type[_C],
    sender: Sender,
    function: Callable[[Identity, _C, DecisionContext], Decision],
    *,
    adds: bool = False,
) -> tuple[type[Any], Rule]:
    return command, Rule(sender, function, adds)


RULES: Final[dict[type[Command], Rule]] = dict(
    [
        # Decentrl: registration and contracts (DCTRL-0004 8.1 to 8.6)
        _row(commands.Register, anyone, contracts.register, adds=True),
        _row(commands.CheckRegistered, anyone, contracts.check_registered),
        _row(commands.RequestContract, correspondent, contracts.request_contract, adds=True),
        _row(commands.StoreContract, correspondent, contracts.store_contract, adds=True),
        _row(commands.SaveContract, unreplaced_owner, contracts.save_contract, adds=True),
        _row(commands.QueryContractRequests, owner, contracts.query_requests),
        _row(commands.AcknowledgeContractRequests, owner, contracts.acknowledge_requests),
        _row(commands.QueryContracts, owner, contracts.query_contracts),
        # Decentrl: messages, sections 7.2, 8.7 and 8.8
        _row(commands.QueueMessage, correspondent, message_queue.queue_message, adds=True),
        _row(commands.QueryMessages, owner, message_queue.query_messages),
        _row(commands.AcknowledgeMessages, owner, message_queue.acknowledge_messages),
        # Decentrl: saved events (8.9 to 8.11) and public events (DCTRL-0007)
        _row(commands.SaveEvents, unreplaced_owner, saved_events.save_events, adds=True),
        _row(commands.QuerySavedEvents, owner, saved_events.query_saved_events),
        _row(commands.UpdateEventTags, unreplaced_owner, saved_events.update_event_tags, adds=True),
        _row(
            commands.PublishPublicEvent,
            unreplaced_owner,
            saved_events.publish_public_event,
            adds=True,
        ),
        _row(commands.DeletePublicEvents, owner, saved_events.delete_public_events),
        # DIDComm: connections (RFC 0160, RFC 0023, RFC 0434) and mediation (RFC 0211)
        _row(commands.Connect, speaker, agents.connect, adds=True),
        _row(commands.UseInvitation, anyone, agents.use_invitation, adds=True),
        _row(commands.QueryConnection, agent, agents.query_connection),
        _row(commands.GrantMediation, speaker, accounts.grant_mediation, adds=True),
        _row(commands.CheckKeys, mediated_agent, agents.check_keys),
        _row(commands.UpdateKeylist, mediated_agent, agents.update_keylist, adds=True),
        _row(commands.QueryKeylist, mediated_agent, agents.query_keylist),
        # DIDComm v2: who speaks for an account
        _row(commands.FindAccount, mediator, accounts.find_account),
        _row(commands.NameSpeaker, mediator, accounts.name_speaker, adds=True),
        _row(commands.UnnameSpeaker, mediator, accounts.unname_speaker),
        _row(commands.RotateAccount, mediator, accounts.rotate, adds=True),
        _row(commands.EndAccount, mediator, accounts.end),
        # DIDComm: whose key it is; the target is the key
        _row(commands.ClaimKey, mediator, agents.claim_key, adds=True),
        _row(commands.ReleaseKey, mediator, agents.release_key),
        _row(commands.FindKeyOwner, mediator, agents.find_owner),
        # DIDComm: envelopes (RFC 0094, RFC 0212, RFC 0685, Aries queue 1.0)
        _row(commands.QueueEnvelopes, anyone, forwarded.queue_envelopes, adds=True),
        _row(commands.DeliverMessages, agent, envelopes.deliver),
        _row(commands.RemoveMessages, agent, envelopes.remove),
        _row(commands.QueryQueue, agent, envelopes.query),
        _row(commands.SetQueuePolicy, agent, envelopes.set_policy, adds=True),
        _row(commands.SetPushDevice, agent, agents.set_push_device, adds=True),
        _row(commands.QueryPushDevice, agent, agents.query_push_device),
        _row(commands.StartLive, agent, envelopes.start_live),
        _row(commands.EndLive, agent, envelopes.end_live),
        _row(commands.ReleaseLeases, mediator, envelopes.release_leases),
        _row(commands.PurgeQueue, mediator, envelopes.purge),
        # Retention: what expires, and what postpones it
        _row(commands.SeeAgent, agent, idle_agents.see),
        _row(commands.ExpireRecords, mediator, retention.expire),
        # Erasure, on the order of the operator or the owner
        _row(commands.EraseIdentity, mediator, erasure.erase),
        # Edges: their sockets, and what they refused
        _row(commands.OpenSession, owner, system_commands.open_session),
        _row(commands.Listen, agent, system_commands.note_session),
        _row(commands.CloseSession, mediator, system_commands.note_session),
        _row(commands.CountRefusals, mediator, system_commands.count_refusals),
        # The placer: where an identity belongs
        _row(commands.DedicateIdentity, mediator, system_commands.dedicate),
        _row(commands.ReleaseIdentity, mediator, system_commands.release),
    ]
)


_OF_OTHERS: Final = frozenset({anyone, correspondent})


def is_of_owner(command: Command) -> bool:
    """Is this a command of the target or mediator? Others may use a new DID for each command."""
    return RULES[type(command)].sender not in _OF_OTHERS


def adds(command: Command) -> bool:
    """Does the command store something for a client, so that it is refused when the disk is short?

    A keylist update that only removes keys does not, and the later parts of an update of tags
    complete what the first part began.
    """
    match command:
        case commands.UpdateKeylist():
            return bool(command.add)
        case commands.SetPushDevice():
            return command.device is not None
        case commands.UpdateEventTags():
            return command.later_bytes is not None
        case _:
            return RULES[type(command)].adds


def decide(state: Identity, command: Command, context: DecisionContext) -> Decision:
    """Decide on one command for the identity ``context.target``."""
    sender, function, _ = RULES[type(command)]
    refusal = sender(state, context)
    return function(state, command, context) if refusal is None else refusal


def is_step_of_adding(submission: Submission) -> bool:
    """Does this submission store something for a client, or is it a step of one that does?"""
    command = submission.command
    return submission.adds or (command is not None and adds(command))
