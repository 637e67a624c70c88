"""Changes of a keylist; each involves two owners, the identity's and the key's (RFC 0211).

A key is claimed before it enters the keylist, and released after it has left. Every claim has a
number, which the keylist keeps, and a release ends only the newest claim. Of a key that was its
owner's before, another request may have an earlier claim, and add the key by it at any time: the
keylist keeps a number of such a key that no release ends. So in whatever order the commands of an
account's requests arrive, and wherever one breaks off, a key in its keylist has an owner.

What can be left is a claimed key that its owner's keylist does not have. Where a release meets a
newer claim, an addition has no answer, or another account claims such a key, the newest claim is
released after a pause, unless the key is in the keylist then or has been claimed again. No request
outlasts the pause: one whose claims took long adds nothing. A release without an answer is repeated
for twenty minutes; for as long the keys of a removal without an answer are looked for in the
keylist, and released once they have left. If this process ends before, the next claim of another
account begins it anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

import msgspec

from actors.core.commands import (
    CheckKeys,
    ClaimedKey,
    ClaimKey,
    Command,
    Connection,
    FindKeyOwner,
    GrantMediation,
    ReleaseKey,
    UpdateKeylist,
)
from actors.core.refusals import Refusal
from actors.core.replies import (
    AccountFound,
    Done,
    KeyClaim,
    KeylistChanged,
    KeyOwner,
    KeysKnown,
    Reply,
)
from actors.host.tasks import Tasks
from http_edge.didcomm.envelopes.agent_documents import account_did, is_short
from http_edge.didcomm.envelopes.recipient_names import opposite, twins
from http_edge.didcomm.identities import Identities, key_target, speaker
from http_edge.didcomm.protocols.given_up_names import given_up_by_owner
from http_edge.listener.address_charge import charge_keys, paid_turn

_R = TypeVar("_R", bound=Reply)
Failure: TypeAlias = Literal["client_error", "server_error"]
_FEW: Final = 16
"""Changes of one message that need no turn of their own: 2 ms of CPU at an edge, and at a host."""
_RELEASES_AT_ONCE: Final = 100
"""Keys released at once when an account with a long keylist ends: others have commands too."""
_CLAIMING_S_MAX: Final = 20
"""A request that has been claiming keys for longer adds none of them."""
_SETTLED_AFTER: Final = (1, 4, 16)
"""Pauses before a claim that may be left over is released, and before that is tried again, in
times of claiming and of the addition after it: edges and hosts that hang longer are ended."""
_AGAIN_AFTER_S: Final = (1, 4, 15, 60, 240, 960)
"""Pauses before a release without an answer, or the one after such a removal, is tried again: from
the loss of a node, over the restart of a database, to a short maintenance."""
_UNRELEASED_MAX: Final = 1_500
"""Keys to be released later, up to 2.7 kB each; others stay claimed until another claims them."""
_UNKNOWN: Final = frozenset({Refusal.TEMPORARILY_UNAVAILABLE, Refusal.RATE_LIMITED})
"""Refusals after which the command may have been carried out, or may be later."""


class KeyChanges(msgspec.Struct, frozen=True):
    """The wanted changes: keys in base58 and short names of DIDs, none both added and removed.

    ``held`` are names whose keys the sender is proven to hold: another account that has registered
    one loses it, and the short form of a DID among them stays the sender's after its removal.
    ``held_did`` is the sender's DID in its whole form.
    ``on_either_curve``: a key also counts as taken if another account has registered it on the
    other curve; in DIDComm v1 (RFC 0211) there is only one.
    """

    add: Sequence[str]
    remove: Sequence[str]
    held: frozenset[str] = frozenset()
    held_did: str = ""
    on_either_curve: bool = False


class Changed(msgspec.Struct):
    """The result: which keys were in the keylist before, and which changes failed."""

    was_there: dict[str, bool] = msgspec.field(default_factory=dict)
    failed: dict[str, Failure] = msgspec.field(default_factory=dict)


class Keylists:
    """Changes keylists; one for each edge, whose repeated releases it bounds."""

    def __init__(self, identities: Identities, *, keys_max: int, command_s_max: float) -> None:
        """``command_s_max``: after so many seconds, a command that was sent is not carried out."""
        self._identities = identities
        self._keys_max = keys_max
        self._command_s_max = command_s_max
        self._unreleased = set[tuple[str, ClaimedKey]]()
        """The owners and claims whose release is to be repeated."""
        self._releasing = Tasks()

    def stop(self) -> None:
        """Repeat no release any more: keys whose release had no answer stay claimed."""
        self._releasing.cancel()

    async def change(self, owner: str, command: bytes, wanted: KeyChanges) -> Changed | Refusal:
        """Carry out the wanted changes; return a refusal if the owner may have no keylist.

        ``command`` is the key of the request in the log. Many changes wait for
        the turn of their address; ``RATE_LIMITED``: it would come too late.
        """
        if len(wanted.add) + len(wanted.remove) <= _FEW:
            return await self._change(owner, command, wanted)
        async with paid_turn() as has_turn:
            if not has_turn:
                return Refusal.RATE_LIMITED
            return await self._change(owner, command, wanted)

    async def _change(self, owner: str, command: bytes, wanted: KeyChanges) -> Changed | Refusal:
        known = await self._identities.ask(
            owner, CheckKeys([*wanted.add, *wanted.remove]), command, KeysKnown, by_owner=True
        )
        if isinstance(known, Refusal):
            return known
        there = frozenset(known.keys)
        changed = Changed({key: key in there for key in [*wanted.add, *wanted.remove]})
        new = [key for key in wanted.add if key not in there]
        gone = [key for key in wanted.remove if key in there]
        if new and known.total + len(new) - len(gone) > self._keys_max:
            # Refuse before anything is claimed: a refusal must not cost more than the change.
            changed.failed.update(dict.fromkeys(new, "client_error"))
            new = []
        charge_keys(len(new) + len(gone))
        claims = self._claims(owner, command, wanted.held_did)
        made = await claims.claim(new, changed, wanted)
        over, unsure = await claims.update(made, gone, changed)
        # By the short form of its DID, which does not contain its document, the sender is known
        # only through the owner of that name (``unknown_dids``), whatever is forwarded to it.
        own = {name for name in wanted.held if is_short(name)}
        over = [claimed for claimed in over if claimed.key not in own]
        held_by = dict(zip(known.keys, known.claims, strict=False))  # an earlier build says none
        perhaps = [ClaimedKey(k, held_by[k]) for k in unsure if k in held_by and k not in own]
        added = [ClaimedKey(k, made[k].number) for k in unsure if k in made and k not in own]
        claims.settle(claims, added)  # not at once: the update may still be carried out
        await self._release(claims, over, perhaps)
        return changed

    async def enrol(
        self, owner: str, command: bytes, connection: Connection, names: Sequence[str]
    ) -> Refusal | None:
        """Connect an account, grant it mediation and register its sender's own names, in one step.

        The sender has proven that it holds the names, so they become its own, even if another
        account has registered them. A repetition stores nothing. Return None, or the refusal.
        """
        found = await self._identities.find_account(owner, command, names)
        if isinstance(found, Refusal):
            return found
        if not found.has_room:
            # Refuse before a name is taken from another account.
            return Refusal.QUOTA_EXCEEDED
        # The account refuses any other sender, which is then to have taken no name from anyone.
        is_its_speaker = not found.account_did and speaker() in {"", found.speaker_did}
        new = [name for name in names if name not in found.keys] if is_its_speaker else []
        own = await self.claim_own(owner, command, new, connection.peer_did)
        if isinstance(own, Refusal):
            return own
        granted = await self._identities.ask(owner, GrantMediation(connection, own), command, Done)
        return granted if isinstance(granted, Refusal) else None

    async def claim_own(
        self,
        owner: str,
        command: bytes,
        names: Sequence[str],
        held_did: str,
        *,
        speaker_did: str = "",
    ) -> list[ClaimedKey] | Refusal:
        """Claim names whose keys the owner is proven to hold, even from another account.

        ``held_did`` is the whole DID that the message proves. ``speaker_did`` is named for the
        owner and is to speak for it: it is not given up.
        """
        claims: list[ClaimedKey] = []
        begun_s = _now_s()
        for name in names:
            claim = await self._claims(owner, command, held_did, speaker_did).claim_held(name)
            if isinstance(claim, Refusal):
                return claim
            claims.append(_entry(name, claim))
        took_long = _now_s() - begun_s > _CLAIMING_S_MAX
        return Refusal.TEMPORARILY_UNAVAILABLE if took_long else claims

    async def release(self, owner: str, command: bytes, keys: Sequence[ClaimedKey]) -> None:
        """Release the claims of a keylist that no longer exists.

        If this process ends before all is released, each further key is released some time after
        another account has claimed it.
        """
        claims = self._claims(owner, command)
        for start in range(0, len(keys), _RELEASES_AT_ONCE):
            await self._release(claims, keys[start : start + _RELEASES_AT_ONCE])

    async def _release(
        self, claims: _Claims, keys: Sequence[ClaimedKey], perhaps: Sequence[ClaimedKey] = ()
    ) -> None:
        """Release claims; repeat later what was not answered, as far as there is room.

        ``perhaps`` are keys that the keylist had by these claims, and may have no longer.
        """
        self._release_later(claims, [*await claims.release(keys), *perhaps], _AGAIN_AFTER_S)

    def _claims(
        self, owner: str, command: bytes, held_did: str = "", speaker_did: str = ""
    ) -> _Claims:
        pause_s = _CLAIMING_S_MAX + self._command_s_max
        after_s = [times * pause_s for times in _SETTLED_AFTER]
        settle = partial(self._release_later, after_s=after_s, are_left_over=True)
        return _Claims(self._identities, owner, command, settle, held_did, speaker_did)

    def _release_later(
        self,
        claims: _Claims,
        keys: Sequence[ClaimedKey],
        after_s: Sequence[float],
        *,
        are_left_over: bool = False,
    ) -> None:
        owner = claims.owner
        left = [claimed for claimed in keys if (owner, claimed) not in self._unreleased]
        left = left[: _UNRELEASED_MAX - len(self._unreleased)]
        for start in range(0, len(left), _RELEASES_AT_ONCE):
            some = left[start : start + _RELEASES_AT_ONCE]
            self._unreleased.update((owner, claimed) for claimed in some)
            work = self._release_after(claims, some, after_s, are_left_over=are_left_over)
            _ = self._releasing.run(work, Context())

    async def _release_after(
        self,
        claims: _Claims,
        keys: Sequence[ClaimedKey],
        after_s: Sequence[float],
        *,
        are_left_over: bool,
    ) -> None:
        left = keys
        try:
            for pause_s in after_s:
                await asyncio.sleep(pause_s)
                left = await claims.release_gone(left, are_left_over=are_left_over)
                if not left:
                    return
        finally:
            self._unreleased.difference_update((claims.owner, claimed) for claimed in keys)


def _entry(key: str, claim: KeyClaim) -> ClaimedKey:
    """Return a claimed key as the keylist keeps it: one that was owned before, by an older number.

    At least 1: a host of an earlier build does not say whether the key was owned before.
    """
    return ClaimedKey(key, max(1, claim.number - claim.owned_before))


@dataclass(frozen=True, slots=True)
class _Claims:
    """The claims of ``owner`` on names, for the request with the key ``command`` in the log.

    ``settle`` releases claims of an owner after a pause, unless their keys are in its keylist.
    ``held_did`` is the whole DID of which the owner proves to hold a key, ``speaker_did`` one that
    is about to speak for the owner; each is empty for none.
    """

    identities: Identities
    owner: str
    command: bytes
    settle: Callable[[_Claims, Sequence[ClaimedKey]], None]
    held_did: str = ""
    speaker_did: str = ""

    async def claim_held(self, name: str) -> KeyClaim | Refusal:
        """Claim a name, and remove it from the keylist of the account that owned it before.

        The opposite of a key leaves the account that has registered it, too. A key that an account
        has rotated away, and that may be stolen, takes nothing from it in any spelling.
        """
        for twin in twins(name):
            if (refusal := await self._given_up(twin)) is not None:
                return refusal
        claim = await self._take(name, holds_key=False)
        if claim is Refusal.KEY_TAKEN:
            refusal = await self._given_up(name) or await given_up_by_owner(
                self.identities, name, self.held_did, self.command
            )
            claim = refusal or await self._take(name)
        other = opposite(name)
        if isinstance(claim, Refusal) or other is None:
            return claim
        refusal = await self._taken(other)
        if refusal is Refusal.KEY_TAKEN:
            taken = await self._take(other)
            refusal = taken if isinstance(taken, Refusal) else None
        return refusal or claim

    async def _given_up(self, name: str) -> Refusal | None:
        """Return why the holder of a key may not take its name from the account that has it.

        ``KEY_TAKEN``: as a DID of its own the key spoke for an account, and speaks no longer.
        """
        did = account_did(name)
        if did in {self.owner, self.speaker_did}:
            return None
        if (refusal := await self._taken(name)) is not Refusal.KEY_TAKEN:
            return refusal
        found = await self.identities.find_account(did, self.command)
        if isinstance(found, AccountFound) and found.account_did:
            found = await self.identities.find_account(found.account_did, self.command)
        if isinstance(found, Refusal):
            return found
        return None if found.speaker_did == did else Refusal.KEY_TAKEN

    async def _take(self, name: str, *, holds_key: bool = True) -> KeyClaim | Refusal:
        """Claim a name, and remove it from the keylist of its former owner, if it had one."""
        claim = await self._ask(
            key_target(name), ClaimKey(self.owner, holds_key=holds_key), KeyClaim
        )
        if isinstance(claim, Refusal) or claim.former_did in {"", self.owner}:
            return claim
        update = UpdateKeylist([], [name])
        removed = await self._ask(claim.former_did, update, KeylistChanged, by_mediator=True)
        is_unknown = isinstance(removed, Refusal) and removed in _UNKNOWN
        return Refusal.TEMPORARILY_UNAVAILABLE if is_unknown else claim

    async def claim_free(self, name: str, *, with_twins: bool) -> KeyClaim | Refusal:
        """Claim a name that no other account has, by its twins and its opposite neither."""
        other = opposite(name)
        rivals = [*(twins(name) if with_twins else ()), *([] if other is None else [other])]
        for rival in rivals:
            if (refusal := await self._taken(rival)) is not None:
                return refusal
        claim = await self._ask(key_target(name), ClaimKey(self.owner), KeyClaim)
        if claim is Refusal.KEY_TAKEN:
            await self._taken(name)
        return claim

    async def _taken(self, name: str) -> Refusal | None:
        """Return ``KEY_TAKEN`` if another account has registered a name, None if none has.

        Any other refusal: it is not known, so nothing may follow from it.
        """
        found = await self._ask(key_target(name), FindKeyOwner(), KeyOwner)
        if isinstance(found, Refusal):
            return None if found is Refusal.KEY_UNKNOWN else found
        if found.owner_did == self.owner:
            return None
        other = replace(self, owner=found.owner_did)
        account = await self.identities.find_account(other.owner, self.command, [name])
        if isinstance(account, AccountFound) and _is_left_over(name, account):
            self.settle(other, [ClaimedKey(name, found.claim)])
        return Refusal.KEY_TAKEN

    async def release(self, keys: Sequence[ClaimedKey]) -> Sequence[ClaimedKey]:
        """Release claims; return those without an answer."""
        are_answered = await asyncio.gather(*map(self._release, keys))
        return [each for each, answered in zip(keys, are_answered, strict=True) if not answered]

    async def _release(self, claimed: ClaimedKey) -> bool:
        """Release a claim, or have the one released later that has replaced it.

        Return whether there was an answer.
        """
        target, release = key_target(claimed.key), ReleaseKey(self.owner, claimed.claim)
        answer = await self._ask(target, release, Done)
        if answer is not Refusal.KEY_TAKEN:
            return not isinstance(answer, Refusal)
        found = await self._ask(target, FindKeyOwner(), KeyOwner)
        if isinstance(found, KeyOwner) and found.owner_did == self.owner:
            self.settle(self, [ClaimedKey(claimed.key, found.claim)])
        return True

    async def release_gone(
        self, keys: Sequence[ClaimedKey], *, are_left_over: bool
    ) -> Sequence[ClaimedKey]:
        """Release claims, but none of a key that is in the keylist; return those to be tried again.

        A key that is added meanwhile has a newer claim, which this does not release. Claims that
        may be left over are tried again only without an answer.
        """
        names = [claimed.key for claimed in keys]
        found = await self.identities.find_account(self.owner, self.command, names)
        if isinstance(found, Refusal):
            return keys
        if are_left_over:
            return await self.release([each for each in keys if _is_left_over(each.key, found)])
        there = [claimed for claimed in keys if claimed.key in found.keys]
        gone = [claimed for claimed in keys if claimed.key not in found.keys]
        return [*there, *await self.release(gone)]

    async def claim(
        self, keys: Sequence[str], changed: Changed, wanted: KeyChanges
    ) -> Mapping[str, KeyClaim]:
        """Claim keys; return the claims that were made, none if that took long."""
        begun_s = _now_s()
        answers = await asyncio.gather(
            *[
                self.claim_held(key)
                if key in wanted.held
                else self.claim_free(key, with_twins=wanted.on_either_curve)
                for key in keys
            ]
        )
        claims: dict[str, KeyClaim] = {}
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Refusal):
                changed.failed[key] = _failure(answer)
            else:
                claims[key] = answer
        if _now_s() - begun_s > _CLAIMING_S_MAX:
            changed.failed.update(dict.fromkeys(claims, "server_error"))
            self.settle(self, [ClaimedKey(key, claim.number) for key, claim in claims.items()])
            return {}
        return claims

    async def update(
        self, made: Mapping[str, KeyClaim], remove: Sequence[str], changed: Changed
    ) -> tuple[Sequence[ClaimedKey], Sequence[str]]:
        """Add claimed keys and remove others in one step.

        Return the claims to be released now, and the keys that may have been added or removed: it
        is not known.
        """
        if not made and not remove:
            return [], []
        add = [_entry(key, claim) for key, claim in made.items()]
        update = UpdateKeylist(add, list(remove))
        done = await self._ask(self.owner, update, KeylistChanged)
        if not isinstance(done, Refusal):
            return done.removed, []
        if done is Refusal.QUOTA_EXCEEDED and add:
            # Another change came in between. The adds fail together; still make the removals.
            changed.failed.update(dict.fromkeys(made, "client_error"))
            over, unsure = await self.update({}, remove, changed)
            return [*add, *over], unsure
        both = [*made, *remove]
        changed.failed.update(dict.fromkeys(both, "server_error"))
        return ([], both) if done is Refusal.TEMPORARILY_UNAVAILABLE else (add, [])

    async def _ask(
        self, target: str, question: Command, reply: type[_R], *, by_mediator: bool = False
    ) -> _R | Refusal:
        return await self.identities.ask(
            target, question, self.command, reply, by_mediator=by_mediator
        )


def _is_left_over(name: str, account: AccountFound) -> bool:
    """Is the claim of a name, which an account owns, for nothing?

    Its own short DID stays an account's without an entry in the keylist.
    """
    return name not in account.keys and not (account.connected and is_short(name))


def _now_s() -> float:
    return asyncio.get_running_loop().time()


def _failure(refusal: Refusal) -> Failure:
    return "client_error" if refusal is Refusal.KEY_TAKEN else "server_error"
