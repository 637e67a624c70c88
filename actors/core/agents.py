"""Decisions on DIDComm agents: connection, mediation, keylists, and who owns a key.

RFC 0160 and RFC 0023 (connections), RFC 0434 (invitations), RFC 0211 (mediation, keylists), RFC
0699 and RFC 0734 (push notifications). Rules of this file: pure; a repeated command changes
nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from actors.core.accounts import keylist_updates, newer_claims, newly_stated
from actors.core.commands import (
    CheckKeys,
    ClaimedKey,
    ClaimKey,
    Connect,
    FindKeyOwner,
    PushDevice,
    QueryConnection,
    QueryKeylist,
    QueryPushDevice,
    ReleaseKey,
    SetPushDevice,
    UpdateKeylist,
    UseInvitation,
)
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.identity import Identity
from actors.core.refusals import Refusal
from actors.core.replies import (
    Connected,
    Done,
    KeyClaim,
    KeylistChanged,
    KeylistPart,
    KeyOwner,
    KeysKnown,
    PushDeviceFound,
)
from eventstore.log.events import InvitationUsed, KeyClaimed, KeyReleased, PushDeviceSet
from eventstore.log.streams import ERASED

_NO_DEVICE: Final = PushDevice("", "", "")


def connect(state: Identity, command: Connect, context: DecisionContext) -> Decision:
    """Record the agent's statement about itself, replacing an earlier one."""
    if state.erasing:
        return Refusal.TEMPORARILY_UNAVAILABLE
    return Accepted(Done(), newly_stated(state, command.connection, context))


def invitation_target(invitation_id: str) -> str:
    """The target of commands about a single-use invitation."""
    return f"invitation:{invitation_id}"


def use_invitation(state: Identity, command: UseInvitation, context: DecisionContext) -> Decision:
    """Use up a single-use invitation; a repetition by its first user is not a second use."""
    if state.used_by:
        used_by_this = state.used_by == command.by_did
        return Accepted(Done()) if used_by_this else Refusal.INVITATION_USED
    used = InvitationUsed(
        at_ms=context.now_ms,
        command=context.command,
        invitation_id=context.target.partition(":")[2],
        by_did=command.by_did,
    )
    return Accepted(Done(), [used])


def query_connection(
    state: Identity, _command: QueryConnection, _context: DecisionContext
) -> Accepted:
    """Answer what the mediator knows of the agent."""
    assert state.connection is not None
    return Accepted(Connected(state.connection, state.mediated, state.prior_dids))


def set_push_device(state: Identity, command: SetPushDevice, context: DecisionContext) -> Accepted:
    """Replace the device to notify of messages; a repetition changes nothing (RFC 0734)."""
    now = state.push_device
    token = "" if now is None else now.token
    if command.device == now or command.instead_of not in {None, token}:
        return Accepted(PushDeviceFound(now))
    wanted = command.device or _NO_DEVICE
    changed = PushDeviceSet(
        at_ms=context.now_ms,
        command=context.command,
        channel=wanted.channel,
        device_token=wanted.token,
        device_platform=wanted.platform,
    )
    return Accepted(PushDeviceFound(command.device), [changed])


def query_push_device(
    state: Identity, _command: QueryPushDevice, _context: DecisionContext
) -> Accepted:
    """Answer which device to notify of messages."""
    return Accepted(PushDeviceFound(state.push_device))


def claim_key(state: Identity, command: ClaimKey, context: DecisionContext) -> Decision:
    """Give the key to the claimer, if it has no other owner.

    A claimer that holds the private key takes it from any other owner. Each claim gets a new
    number, even the owner's own, so that a release still on its way ends only an older claim.
    """
    owner = _left(state.owner_did)
    is_taken = owner not in {"", command.owner_did}
    if is_taken and not command.holds_key:
        return Refusal.KEY_TAKEN
    key = context.target.partition(":")[2]
    claimed = KeyClaimed(
        at_ms=context.now_ms, command=context.command, key=key, owner_did=command.owner_did
    )
    former_did = owner if is_taken else _left(state.former_did)
    owned_before = owner == command.owner_did
    return Accepted(KeyClaim(state.version + 1, former_did, owned_before), [claimed])


def release_key(state: Identity, command: ReleaseKey, context: DecisionContext) -> Decision:
    """Release the key from its owner by the newest claim; ``KEY_TAKEN``: the owner has a newer."""
    if state.owner_did != command.owner_did:
        return Accepted(Done())
    if state.claim != command.claim:
        return Refusal.KEY_TAKEN
    key = context.target.partition(":")[2]
    return Accepted(Done(), [KeyReleased(at_ms=context.now_ms, command=context.command, key=key)])


def find_owner(state: Identity, _command: FindKeyOwner, _context: DecisionContext) -> Decision:
    """Answer who owns the key, and by which claim."""
    owner = _left(state.owner_did)
    return Accepted(KeyOwner(owner, state.claim)) if owner else Refusal.KEY_UNKNOWN


def _left(did: str) -> str:
    """An owner's DID; empty if the owner was erased, so that its DID has left the log."""
    return "" if did.startswith(ERASED) else did


def update_keylist(state: Identity, command: UpdateKeylist, context: DecisionContext) -> Decision:
    """Add and remove keys in one step (RFC 0211 keylist-update)."""
    keylist = state.keylist
    removed = [key for key in dict.fromkeys(command.remove) if key in keylist]
    held = newer_claims(state, command.add)
    added = [key for key in held if key not in keylist]
    if added and len(keylist) + len(added) - len(removed) > context.limits.keylist_keys_max:
        return Refusal.QUOTA_EXCEEDED
    reply = KeylistChanged(added, [ClaimedKey(key, keylist[key]) for key in removed])
    return Accepted(reply, keylist_updates(held, removed, context))


def check_keys(state: Identity, command: CheckKeys, _context: DecisionContext) -> Accepted:
    """Answer which of the keys are in the keylist, and how long the keylist is."""
    keylist = state.keylist
    keys = [key for key in command.keys if key in keylist]
    return Accepted(KeysKnown(keys, len(keylist), [keylist[key] for key in keys]))


def query_keylist(state: Identity, command: QueryKeylist, _context: DecisionContext) -> Accepted:
    """Answer with a part of the keylist and its length (RFC 0211 keylist-query)."""
    keys = list(islice(state.keylist, command.offset, command.offset + command.limit))
    return Accepted(KeylistPart(keys, len(state.keylist)))
