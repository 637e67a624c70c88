"""Defects put in on purpose where rotated accounts, and messages of DIDComm v2, are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import pytest

from actors.core import accounts, agents, evolve, forwarded
from actors.core.commands import ClaimKey, EndAccount, QueueEnvelopes, RotateAccount, SetPushDevice
from actors.core.decision import Accepted, Decision, DecisionContext
from actors.core.identity import Identity
from eventstore.log.events import AccountRotated, Event, MessagesRemoved
from tests.model.sabotages import Sabotage, decide_by

_replace = msgspec.structs.replace


def let_any_did_speak_for_an_account(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(accounts, "not_speaking", lambda _state, _context: None)


def rotate_by_the_word_of_any_did(patch: pytest.MonkeyPatch) -> None:
    def rotate(state: Identity, command: RotateAccount, context: DecisionContext) -> Decision:
        speaks = state.speaker_did or context.target
        return accounts.rotate(state, _replace(command, prior_did=speaks), context)

    decide_by(patch, RotateAccount, rotate)


def follow_old_rotations(patch: pytest.MonkeyPatch) -> None:
    def rotate(state: Identity, command: RotateAccount, context: DecisionContext) -> Decision:
        return accounts.rotate(state, _replace(command, issued_at_s=context.now_s), context)

    decide_by(patch, RotateAccount, rotate)


def forget_the_dids_that_were_given_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(evolve, "_give_up_did", lambda _state: None)


def forget_who_spoke(patch: pytest.MonkeyPatch) -> None:
    def replace(state: Identity, event: AccountRotated) -> None:
        state.speaker_did = event.speaker_did

    patch.setattr(evolve, "_replace_speaker", replace)


def end_again_what_began_anew(patch: pytest.MonkeyPatch) -> None:
    def end(state: Identity, command: EndAccount, context: DecisionContext) -> Decision:
        at_s = max(command.issued_at_s, state.ended_at_s + 1)
        return accounts.end(state, _replace(command, issued_at_s=at_s), context)

    decide_by(patch, EndAccount, end)


def keep_the_queue_of_an_ended_account(patch: pytest.MonkeyPatch) -> None:
    def end(state: Identity, command: EndAccount, context: DecisionContext) -> Decision:
        decision = accounts.end(state, command, context)
        if not isinstance(decision, Accepted):
            return decision
        kept: list[Event] = [e for e in decision.events if not isinstance(e, MessagesRemoved)]
        return _replace(decision, events=kept)

    decide_by(patch, EndAccount, end)


def give_a_key_to_who_does_not_hold_it(patch: pytest.MonkeyPatch) -> None:
    def claim(state: Identity, command: ClaimKey, context: DecisionContext) -> Decision:
        return agents.claim_key(state, _replace(command, holds_key=True), context)

    decide_by(patch, ClaimKey, claim)


def queue_only_the_first_of_several(patch: pytest.MonkeyPatch) -> None:
    def queue(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
        first = _replace(command, payloads=command.payloads[:1])
        return forwarded.queue_envelopes(state, first, context)

    decide_by(patch, QueueEnvelopes, queue)


def hand_out_what_is_held_back(patch: pytest.MonkeyPatch) -> None:
    def queue(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
        return forwarded.queue_envelopes(state, _replace(command, delay_ms=0), context)

    decide_by(patch, QueueEnvelopes, queue)


def forget_when_a_message_expires(patch: pytest.MonkeyPatch) -> None:
    def queue(state: Identity, command: QueueEnvelopes, context: DecisionContext) -> Decision:
        return forwarded.queue_envelopes(state, _replace(command, expires_at_s=0), context)

    decide_by(patch, QueueEnvelopes, queue)


def change_a_device_that_is_not_named(patch: pytest.MonkeyPatch) -> None:
    def change(state: Identity, command: SetPushDevice, context: DecisionContext) -> Decision:
        return agents.set_push_device(state, _replace(command, instead_of=None), context)

    decide_by(patch, SetPushDevice, change)


IN_THE_CORE: Final[Sequence[Sabotage]] = (
    let_any_did_speak_for_an_account,
    rotate_by_the_word_of_any_did,
    follow_old_rotations,
    forget_the_dids_that_were_given_up,
    forget_who_spoke,
    end_again_what_began_anew,
    keep_the_queue_of_an_ended_account,
    change_a_device_that_is_not_named,
    give_a_key_to_who_does_not_hold_it,
    queue_only_the_first_of_several,
    hand_out_what_is_held_back,
    forget_when_a_message_expires,
)
