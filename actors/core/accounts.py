"""Decisions on who speaks for an account: DID rotation, and the end of a relationship.

DIDComm v2, DID rotation (``from_prior``). An account is the identity named by its first DID. A
rotation leaves the account where it is, with queue, keylist, policy and leases, and lets another
DID speak for it. Two streams record this, as with a key: first the new DID's stream names the
account, then the account's stream names the DID. Only the second event makes the rotation
effective. When the account is erased, the mediator releases the DID that spoke for it.

Rules of this file: pure; a repeated command changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from actors.core.commands import (
    ClaimedKey,
    Connection,
    EndAccount,
    FindAccount,
    GrantMediation,
    NameSpeaker,
    RotateAccount,
    UnnameSpeaker,
)
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.identity import PRIOR_SPEAKERS_MAX, Identity
from actors.core.message_queue import REMOVED_MAX, removals
from actors.core.refusals import Refusal
from actors.core.replies import AccountFound, AccountOver, Done, EnvelopesWaiting
from eventstore.log.events import (
    AccountEnded,
    AccountRotated,
    ConnectionEstablished,
    Event,
    KeylistUpdated,
    MediationGranted,
    Seconds,
    SpeakerNamed,
)
from eventstore.log.streams import is_erased_name

ENDED = "ended"


def not_speaking(state: Identity, context: DecisionContext) -> Refusal | None:
    """Why the DID that sent a command does not speak for this account; None if it does.

    A command of the mediator itself has no sending DID.
    """
    if state.account_did:
        return Refusal.SPEAKS_FOR_ANOTHER
    if context.speaker and context.speaker != (state.speaker_did or context.target):
        return Refusal.NOT_SPEAKING
    return None


def find_account(state: Identity, command: FindAccount, context: DecisionContext) -> Accepted:
    """Answer what this DID is: an account, a speaker for another's account, or nothing yet."""
    speaker = state.speaker_did or context.target
    known = [key for key in command.keys if key in state.keylist]
    found = AccountFound(
        state.account_did,
        speaker,
        connected=state.connection is not None,
        keys=known,
        rotates_from_s=_rotates_from_s(state),
        has_room=_has_room(state, command.keys, context),
        never_spoke=_never_spoke(state, command.did, context),
    )
    return Accepted(found)


def grant_mediation(state: Identity, command: GrantMediation, context: DecisionContext) -> Decision:
    """Grant mediation to any connected agent; the edge has decided whether it may connect."""
    if state.erasing:
        return Refusal.TEMPORARILY_UNAVAILABLE
    if state.connection is None and command.connection is None:
        return Refusal.NOT_CONNECTED
    if not _has_room(state, [c.key for c in command.own], context):
        return Refusal.QUOTA_EXCEEDED
    events = newly_stated(state, command.connection, context)
    if not state.mediated:
        events.append(MediationGranted(at_ms=context.now_ms, command=context.command))
    return Accepted(
        Done(), [*events, *keylist_updates(newer_claims(state, command.own), [], context)]
    )


def name_speaker(state: Identity, command: NameSpeaker, context: DecisionContext) -> Decision:
    """Let this DID speak for another account, unless it is an account itself.

    It stays one that has ended, if it was given up: there the DID that replaced it begins anew.
    A digest in place of the account's name does not bind it: that account was erased.
    """
    if state.account_did == command.account_did:
        return Accepted(Done())
    if state.erasing:
        return Refusal.TEMPORARILY_UNAVAILABLE
    is_bound = state.account_did and not is_erased_name(state.account_did)
    if is_bound or state.connection is not None or state.is_spoken_for(context.target):
        return Refusal.KEY_TAKEN
    named = SpeakerNamed(
        at_ms=context.now_ms,
        command=context.command,
        did=context.target,
        account_did=command.account_did,
    )
    return Accepted(Done(), [named])


def unname_speaker(state: Identity, command: UnnameSpeaker, context: DecisionContext) -> Accepted:
    """Free this DID, if it speaks for that account."""
    if state.account_did != command.account_did:
        return Accepted(Done())
    unnamed = SpeakerNamed(
        at_ms=context.now_ms, command=context.command, did=context.target, account_did=""
    )
    return Accepted(Done(), [unnamed])


def rotate(state: Identity, command: RotateAccount, context: DecisionContext) -> Decision:
    """Let another DID speak for this account.

    A rotation older than the last rotation or end of the account is a repeated old message; it
    changes nothing.
    """
    if state.connection is None:
        return Refusal.NOT_CONNECTED
    speaks = state.speaker_did or context.target
    events: list[Event] = []
    if speaks != command.speaker_did:
        is_old = command.issued_at_s < _rotates_from_s(state)
        if speaks != command.prior_did or is_old:
            return Refusal.NOT_SPEAKING
        rotated = AccountRotated(
            at_ms=context.now_ms,
            command=context.command,
            speaker_did=command.speaker_did,
            prior_did=command.prior_did,
            issued_at_s=command.issued_at_s,
        )
        events.append(rotated)
    if not _has_room(state, [c.key for c in command.own], context):
        return Refusal.QUOTA_EXCEEDED
    events += newly_stated(state, command.connection, context)
    events += keylist_updates(newer_claims(state, command.own), [], context)
    # A wake-up: what pushes for the prior DID asks the queue, and is refused.
    return Accepted(Done(), events, EnvelopesWaiting() if speaks != command.speaker_did else None)


def end(state: Identity, command: EndAccount, context: DecisionContext) -> Decision:
    """End the account: queue, keylist and connection, in this order and in one transaction.

    The owner may begin a new account afterwards; a repeated end does not end that one.
    """
    if command.speaker_did != (state.speaker_did or context.target):
        return Refusal.NOT_SPEAKING
    if state.connection is None or command.issued_at_s <= state.ended_at_s:
        return Accepted(AccountOver([]))
    at_ms, key = context.now_ms, context.command
    events = removals(state, list(state.envelopes), ENDED, context)
    names = list(state.keylist)
    for start in range(0, len(names), REMOVED_MAX):
        events += keylist_updates({}, names[start : start + REMOVED_MAX], context)
    ended = AccountEnded(
        at_ms=at_ms, command=key, prior_did=command.speaker_did, issued_at_s=command.issued_at_s
    )
    over = [ClaimedKey(name, claim) for name, claim in state.keylist.items()]
    return Accepted(AccountOver(over), [*events, ended], EnvelopesWaiting())


def _never_spoke(state: Identity, did: str, context: DecisionContext) -> bool:
    """Is it certain that a DID has not spoken for this account? Not if some may be forgotten."""
    spoke = {context.target, state.speaker_did, *state.prior_speakers}
    return did not in {"", *spoke} and len(state.prior_speakers) < PRIOR_SPEAKERS_MAX


def _rotates_from_s(state: Identity) -> Seconds:
    return max(state.rotated_at_s, state.ended_at_s)


def newly_stated(
    state: Identity, stated: Connection | None, context: DecisionContext
) -> list[Event]:
    """The event that records the agent's statement about itself, if it is new."""
    if stated is None or stated == state.connection:
        return []
    established = ConnectionEstablished(
        at_ms=context.now_ms,
        command=context.command,
        did=context.target,
        **msgspec.structs.asdict(stated),
    )
    return [established]


def _has_room(state: Identity, names: Iterable[str], context: DecisionContext) -> bool:
    new = set(names) - state.keylist.keys()
    return not new or len(state.keylist) + len(new) <= context.limits.keylist_keys_max


def newer_claims(state: Identity, claimed: Iterable[ClaimedKey]) -> dict[str, int]:
    """The claims of keys that are new, or replace the claim that holds the key in the keylist."""
    return {c.key: c.claim for c in claimed if c.claim > state.keylist.get(c.key, 0)}


def keylist_updates(
    claims: dict[str, int], removed: list[str], context: DecisionContext
) -> list[Event]:
    """The event that adds keys with these claims and removes others; none without any."""
    if not claims and not removed:
        return []
    added = list(claims)
    return [
        KeylistUpdated(
            at_ms=context.now_ms,
            command=context.command,
            added=added,
            claims=list(claims.values()),
            removed=removed,
        )
    ]
