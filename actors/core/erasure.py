"""Decisions on the erasure of an identity: all its records leave, in bounded steps.

The first step ends the registration, contracts, connection, keylist and rules of the identity; from
then on it receives nothing and reads nothing. The next steps remove the records that have contents,
public events before all others, so that the commit of each step erases those contents; saved events
leave their lists first. The last step records that nothing is left. Until then the search for due
records finds the identity (``retention.due_times``), so an erasure that has begun completes, even
if its requester is gone and whichever process is killed meanwhile.

The DID of one that was never here, but whom rows of others name, is erased alike: its stream begins
with a row that names it, so that the erasure is found and explained as any other.

If the log has several databases, rows of each may name the identity, and each explains them alone.
So the last of its rows is stored in each other one, too, where the identity has no rows else.

Rules of this file: pure; a step can be repeated, and after the last one it changes nothing; an
identity that comes back afterwards begins anew.
"""

from __future__ import annotations

from itertools import islice
from typing import Final

from actors.core.commands import ClaimedKey, EraseIdentity
from actors.core.contracts import requests_expired
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.identity import Identity
from actors.core.message_queue import removal
from actors.core.refusals import Refusal
from actors.core.replies import Erased, IdentityGone
from actors.core.saved_events import public_events_deleted
from eventstore.log.event_log import Listed
from eventstore.log.events import (
    Event,
    IdentityErased,
    IdentityErasureBegun,
    SavedEventsErased,
    SavedEventsUnlisted,
    SpeakerNamed,
)

ERASED: Final = "erased"
OPERATOR: Final = "operator"
FOREIGN: Final = "foreign"
"""An operator who knows that the identity may never have registered or connected here."""
OWNER: Final = "owner"
ELSEWHERE: Final = "elsewhere"
"""The mediator, in a database of the log other than that of the identity, whose rows name it."""
ELSEWHERE_ONCE: Final = "elsewhere once"
"""As ``ELSEWHERE``, when an erasure was over before: recorded unless one is already. Tables take
the newest version of a stream in any database: who comes back must have more rows in its own."""
ELSEWHERE_LATER: Final = "elsewhere later"
"""As ``ELSEWHERE``, before an erasure begins: records nothing; a host that could not says so."""
_ELSEWHERE: Final = frozenset({ELSEWHERE, ELSEWHERE_ONCE, ELSEWHERE_LATER})
CONTINUED: Final = "continued"
"""Who goes on with an erasure that has begun, and begins none: the identity may have come back."""
_POSTINGS: Final = 16
"""Postings, removed in their order, that count as one record of a step. With twice as many a step
took 2 to 4 ms and doubled what others waited at worst (p99); with half, the erasure took longer."""
_UNLISTED: Final = 2
"""Saved events on no list that count as one record of a step."""
_POSTINGS_MAX: Final = 320_000
_RECORDS_MAX: Final = 10_000
"""The bounds of the events' own fields (``event_declaration``)."""


def erase(state: Identity, command: EraseIdentity, context: DecisionContext) -> Decision:
    """Begin an erasure, or do its next step."""
    if command.by in _ELSEWHERE:
        return _recorded(state, command, context)
    if state.erasing:
        return next_step(state, command.records_max, context)
    if command.by == OWNER:
        if state.registered_until_s <= context.now_s:
            return Refusal.UNAUTHORIZED_COMMAND
        if state.account_did or state.is_spoken_for(context.target):
            # What would be erased is not its own alone.
            return Refusal.INVALID_COMMAND
    if command.by == CONTINUED:
        return Accepted(Erased(0, is_over=True))
    if state.account_did:
        return Refusal.SPEAKS_FOR_ANOTHER
    if state.is_erased or not (state.version or command.by == FOREIGN):
        return Accepted(Erased(0, is_over=True, is_known=state.version > 0))
    at_ms, key = context.now_ms, context.command
    reason = OPERATOR if command.by == FOREIGN else command.by
    events: list[Event] = [IdentityErasureBegun(at_ms=at_ms, command=key, reason=reason)]
    if not state.version:
        named = SpeakerNamed(at_ms=at_ms, command=key, did=context.target, account_did="")
        events.insert(0, named)
    keys = [ClaimedKey(key, claim) for key, claim in state.keylist.items()]
    spoke = [did for did in (*state.prior_speakers, state.speaker_did) if did]
    reply = Erased(len(state.contracts) + len(keys), is_over=False, keys=keys, speaker_dids=spoke)
    return Accepted(reply, events, IdentityGone())


def is_at_saved_events(state: Identity) -> bool:
    """Is nothing left of an erasure but saved events?"""
    return state.erased_until < state.erasing and not (
        state.messages or state.requests or state.public_events
    )


def next_step(state: Identity, records_max: int, context: DecisionContext) -> Accepted:
    """Erase up to ``records_max`` records of an identity whose erasure has begun."""
    if state.public_events:  # first, because they are read without a command
        ids = list(islice(state.public_events, records_max))
        return _erased(len(ids), public_events_deleted(state, ids, None, context))
    if state.messages:
        ids = list(islice(state.messages, records_max))
        return _erased(len(ids), removal(state, ids, ERASED, context))
    if state.requests:
        ids = list(islice(state.requests, records_max))
        return _erased(len(ids), requests_expired(state, ids, ERASED, context))
    if is_at_saved_events(state):
        return _of_saved_events(state, records_max, context)
    return _over(context)


def _recorded(state: Identity, command: EraseIdentity, context: DecisionContext) -> Decision:
    """Record the erasure of an identity of another database."""
    if state.version and not state.is_erased:
        return Refusal.INVALID_COMMAND
    is_recorded = state.is_erased and command.by == ELSEWHERE_ONCE
    if is_recorded or command.by == ELSEWHERE_LATER:
        return Accepted(Erased(0, is_over=True))
    return _over(context)


def _over(context: DecisionContext) -> Accepted:
    over = IdentityErased(at_ms=context.now_ms, command=context.command)
    return Accepted(Erased(0, is_over=True), [over])


def _of_saved_events(state: Identity, records_max: int, context: DecisionContext) -> Accepted:
    """Take saved events off their lists, then erase them."""
    at_ms, command, after = context.now_ms, context.command, state.erased_until
    if context.listed is Listed.APART:
        postings = min(records_max * _POSTINGS, _POSTINGS_MAX)
        return _erased(0, SavedEventsUnlisted(at_ms=at_ms, command=command, count=postings))
    if context.listed is Listed.NOT:
        records_max = min(records_max * _UNLISTED, _RECORDS_MAX)
    count = min(records_max, state.erasing - after)
    saved = SavedEventsErased(at_ms=at_ms, command=command, after=after, count=count)
    return _erased(count, saved)


def _erased(records: int, event: Event) -> Accepted:
    return Accepted(Erased(records, is_over=False), [event])
