"""Decisions on DIDComm agents: connection, mediation, keylists, and who owns a key.

RFC 0160 and RFC 0023 (connections), RFC 0434 (invitations), RFC 0211 (mediation, keylists). Rules
of this file: pure; everything can be asked twice, and the second time changes nothing.
"""

from __future__ import annotations

from itertools import islice

from actors.commands import (
    CheckKeys,
    ClaimedKey,
    ClaimKey,
    Connect,
    QueryKeylist,
    ReleaseKey,
    UpdateKeylist,
    UseInvitation,
)
from actors.decision import Accepted, Decision, Moment
from actors.identity import Identity
from actors.refusals import Refusal
from actors.replies import (
    Connected,
    Done,
    KeyClaim,
    KeylistChanged,
    KeylistPart,
    KeyOwner,
    KeysKnown,
)
from eventstore.events import (
    ConnectionEstablished,
    InvitationUsed,
    KeyClaimed,
    KeylistUpdated,
    KeyReleased,
    MediationGranted,
)


def connect(did: str, state: Identity, command: Connect, moment: Moment) -> Accepted:
    """Keep what the agent said of itself; the latest word counts."""
    said = command.connection
    if said == state.connection:
        return Accepted(Done())
    established = ConnectionEstablished(
        at_ms=moment.now_ms,
        command=moment.command,
        did=did,
        peer_did=said.peer_did,
        label=said.label,
        endpoint=said.endpoint,
        routing_keys=said.routing_keys,
        protocol=said.protocol,
        invitation_id=said.invitation_id,
    )
    return Accepted(Done(), [established])


def use_invitation(
    target: str, state: Identity, command: UseInvitation, moment: Moment
) -> Decision:
    """The first who uses a single-use invitation has it; again by the same one is no second use."""
    if state.used_by:
        used_by_this = state.used_by == command.by_did
        return Accepted(Done()) if used_by_this else Refusal.INVITATION_USED
    used = InvitationUsed(
        at_ms=moment.now_ms,
        command=moment.command,
        invitation_id=target.partition(":")[2],
        by_did=command.by_did,
    )
    return Accepted(Done(), [used])


def query_connection(state: Identity) -> Decision:
    """What is known of the agent."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    return Accepted(Connected(state.connection, state.mediated))


def grant_mediation(state: Identity, moment: Moment) -> Decision:
    """Every connected agent is granted mediation; who may connect is decided before."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    if state.mediated:
        return Accepted(Done())
    return Accepted(Done(), [MediationGranted(at_ms=moment.now_ms, command=moment.command)])


def claim_key(target: str, state: Identity, command: ClaimKey, moment: Moment) -> Decision:
    """The key is the claimer's alone from now on, if it is nobody's or the claimer's already.

    Each claim is new, also the owner's own: a release that is still on its way ends an older one.
    """
    if state.owner_did not in ("", command.owner_did):
        return Refusal.KEY_TAKEN
    key = target.partition(":")[2]
    claimed = KeyClaimed(
        at_ms=moment.now_ms, command=moment.command, key=key, owner_did=command.owner_did
    )
    return Accepted(KeyClaim(state.version + 1), [claimed])


def release_key(target: str, state: Identity, command: ReleaseKey, moment: Moment) -> Accepted:
    """The key is nobody's from now on, if this claim is its newest; else it stays as it is."""
    if (state.owner_did, state.claim) != (command.owner_did, command.claim):
        return Accepted(Done())
    key = target.partition(":")[2]
    return Accepted(Done(), [KeyReleased(at_ms=moment.now_ms, command=moment.command, key=key)])


def find_owner(state: Identity) -> Decision:
    """Whose key it is."""
    return Accepted(KeyOwner(state.owner_did)) if state.owner_did else Refusal.KEY_UNKNOWN


def update_keylist(state: Identity, command: UpdateKeylist, moment: Moment) -> Decision:
    """Add and remove keys in one step (RFC 0211 keylist-update)."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    if not state.mediated:
        return Refusal.NOT_MEDIATED
    keylist = state.keylist
    removed = [key for key in dict.fromkeys(command.remove) if key in keylist]
    # A later claim of a key that is there already replaces the one that it is held by.
    held = {c.key: c.claim for c in command.add if c.claim > keylist.get(c.key, 0)}
    added = [key for key in held if key not in keylist]
    if added and len(keylist) + len(added) - len(removed) > moment.limits.keylist_keys_max:
        return Refusal.QUOTA_EXCEEDED
    reply = KeylistChanged(added, [ClaimedKey(key, keylist[key]) for key in removed])
    if not held and not removed:
        return Accepted(reply)
    updated = KeylistUpdated(
        at_ms=moment.now_ms,
        command=moment.command,
        added=list(held),
        claims=list(held.values()),
        removed=removed,
    )
    return Accepted(reply, [updated])


def check_keys(state: Identity, command: CheckKeys) -> Decision:
    """Which of the keys are in the keylist, and how long it is."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    if not state.mediated:
        return Refusal.NOT_MEDIATED
    return Accepted(KeysKnown([k for k in command.keys if k in state.keylist], len(state.keylist)))


def query_keylist(state: Identity, command: QueryKeylist) -> Decision:
    """A part of the keylist, and how long it is (RFC 0211 keylist-query)."""
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    if not state.mediated:
        return Refusal.NOT_MEDIATED
    keys = list(islice(state.keylist, command.offset, command.offset + command.limit))
    return Accepted(KeylistPart(keys, len(state.keylist)))
