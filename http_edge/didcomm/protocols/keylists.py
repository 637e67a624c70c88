"""Changes of a keylist, which touch two owners each: the identity, and the key (RFC 0211).

A key is claimed before it enters the keylist, and released after it has left. Every claim has a
number, which the keylist keeps: whatever overtakes whatever, a release ends only the claim that it
belongs to, so a key in the keylist always has an owner. What breaks off between the two steps
leaves at worst a claim without its place in the keylist, which its owner heals by adding the key
again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from actors.core.commands import (
    CheckKeys,
    ClaimedKey,
    ClaimKey,
    Connection,
    FindAccount,
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
)
from http_edge.didcomm.envelopes.recipient_names import twins
from http_edge.didcomm.identities import Identities, key_target

Failure: TypeAlias = Literal["client_error", "server_error"]
_RELEASES_AT_ONCE: Final = 100
"""Of an account that ends with a long keylist: others have commands too."""


_UNKNOWN: Final = frozenset({Refusal.TEMPORARILY_UNAVAILABLE, Refusal.RATE_LIMITED})
"""Whether it was done is not known, or it was not done yet."""


class KeyChanges(msgspec.Struct, frozen=True):
    """What is wanted: keys in base58 and short names of DIDs, none both added and removed.

    ``tried`` are those of ``remove`` that the same request had added before. ``held`` are names
    whose keys the sender is proven to hold: another who has registered one loses it. It is None
    where that has no part (RFC 0211); else a key that another has registered on the other curve
    is taken, too.
    """

    add: Sequence[str]
    remove: Sequence[str]
    tried: frozenset[str]
    held: frozenset[str] | None = None


class Changed(msgspec.Struct):
    """What came of it: which keys were in the keylist before, and which changes failed."""

    was_there: dict[str, bool] = msgspec.field(default_factory=dict)
    failed: dict[str, Failure] = msgspec.field(default_factory=dict)


class Keylists:
    """Changes keylists."""

    def __init__(self, identities: Identities, *, keys_max: int) -> None:
        """Keylists of at most ``keys_max`` keys."""
        self._identities = identities
        self._keys_max = keys_max

    async def change(self, owner: str, command: bytes, wanted: KeyChanges) -> Changed | Refusal:
        """Carry out what is wanted; a refusal when the owner may have no keylist.

        ``command`` is the key of the request in the log.
        """
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
            # Before anything is claimed: a refusal must not cost more than what is done.
            changed.failed.update(dict.fromkeys(new, "client_error"))
            new = []
        brief = [key for key in wanted.remove if key in wanted.tried and key not in there]
        claims = await self._claim(owner, command, new, changed, wanted.held)
        await self._look_for_others(owner, command, brief, changed, wanted.held)
        add = [ClaimedKey(key, claims[key]) for key in new if key in claims]
        removed = await self._update(owner, command, add, gone, changed)
        await self._release(owner, command, removed)
        return changed

    async def enrol(
        self, owner: str, command: bytes, connection: Connection, names: Sequence[str]
    ) -> Refusal | None:
        """Connect an account, grant it mediation and register its sender's own names, in one step.

        The sender has proven that it holds them, so they are its own from now on, also where
        another has registered them. Again it stores nothing. None, or why it was not done.
        """
        found = await self._identities.ask(
            owner, FindAccount(list(names)), command, AccountFound, by_mediator=True
        )
        if isinstance(found, Refusal):
            return found
        own: list[ClaimedKey] | Refusal = []
        if not found.account_did:
            own = await self.claim_own(owner, command, [n for n in names if n not in found.keys])
        if isinstance(own, Refusal):
            return own
        granted = await self._identities.ask(owner, GrantMediation(connection, own), command, Done)
        return granted if isinstance(granted, Refusal) else None

    async def claim_own(
        self, owner: str, command: bytes, names: Sequence[str]
    ) -> list[ClaimedKey] | Refusal:
        """Claim names whose keys the owner is proven to hold, also from another account."""
        claims: list[ClaimedKey] = []
        for name in names:
            claim = await self._claim_held(owner, command, name)
            if isinstance(claim, Refusal):
                return claim
            claims.append(ClaimedKey(name, claim.number))
        return claims

    async def release(self, owner: str, command: bytes, keys: Sequence[ClaimedKey]) -> None:
        """Release the claims of a keylist that is no more.

        If that is cut short some stay the owner's, who loses them to who holds their keys.
        """
        for start in range(0, len(keys), _RELEASES_AT_ONCE):
            await self._release(owner, command, keys[start : start + _RELEASES_AT_ONCE])

    async def _claim_held(self, owner: str, command: bytes, name: str) -> KeyClaim | Refusal:
        """Claim a name, and take it out of the keylist of who had it: messages came to that one."""
        claim = await self._identities.ask(
            key_target(name), ClaimKey(owner, holds_key=True), command, KeyClaim
        )
        if isinstance(claim, Refusal) or claim.former_did in {"", owner}:
            return claim
        update = UpdateKeylist([], [name])
        removed = await self._identities.ask(
            claim.former_did, update, command, KeylistChanged, by_mediator=True
        )
        is_unknown = isinstance(removed, Refusal) and removed in _UNKNOWN
        return Refusal.TEMPORARILY_UNAVAILABLE if is_unknown else claim

    async def _claim_free(
        self, owner: str, command: bytes, name: str, *, with_twins: bool
    ) -> KeyClaim | Refusal:
        """Claim a name that no other account has."""
        for twin in twins(name) if with_twins else ():
            if await self._is_anothers(owner, command, twin):
                return Refusal.KEY_TAKEN
        return await self._identities.ask(key_target(name), ClaimKey(owner), command, KeyClaim)

    async def _is_anothers(self, owner: str, command: bytes, name: str) -> bool:
        """Has another account registered a name, as far as that is known?"""
        found = await self._identities.ask(key_target(name), FindKeyOwner(), command, KeyOwner)
        return isinstance(found, KeyOwner) and found.owner_did != owner

    async def _look_for_others(
        self,
        owner: str,
        command: bytes,
        names: Sequence[str],
        changed: Changed,
        held: frozenset[str] | None,
    ) -> None:
        """Which of the names that are added and removed at once could not be added?

        They are not claimed: a claim that is released at once would end what another request of
        the same account begins meanwhile.
        """
        for name in names:
            spellings = [name] if held is None else [name, *twins(name)]
            if held and name in held:
                continue
            if any([await self._is_anothers(owner, command, each) for each in spellings]):
                changed.failed[name] = "client_error"

    async def _claim(
        self,
        owner: str,
        command: bytes,
        keys: Sequence[str],
        changed: Changed,
        held: frozenset[str] | None,
    ) -> Mapping[str, int]:
        """The numbers of the claims that were made."""
        answers = await asyncio.gather(
            *[
                self._claim_held(owner, command, key)
                if held and key in held
                else self._claim_free(owner, command, key, with_twins=held is not None)
                for key in keys
            ]
        )
        claims: dict[str, int] = {}
        for key, answer in zip(keys, answers, strict=True):
            if isinstance(answer, Refusal):
                taken = answer is Refusal.KEY_TAKEN
                changed.failed[key] = "client_error" if taken else "server_error"
            else:
                claims[key] = answer.number
        return claims

    async def _update(
        self,
        owner: str,
        command: bytes,
        add: Sequence[ClaimedKey],
        remove: Sequence[str],
        changed: Changed,
    ) -> Sequence[ClaimedKey]:
        """Change the keylist in one step; the claims that are over with it."""
        if not add and not remove:
            return []
        update = UpdateKeylist(list(add), list(remove))
        done = await self._identities.ask(owner, update, command, KeylistChanged)
        if not isinstance(done, Refusal):
            return done.removed
        added = [claimed.key for claimed in add]
        if done is Refusal.QUOTA_EXCEEDED and add:
            # Another change came in between. All or none is added, and removed all the same.
            changed.failed.update(dict.fromkeys(added, "client_error"))
            return [*add, *await self._update(owner, command, [], remove, changed)]
        changed.failed.update(dict.fromkeys([*added, *remove], "server_error"))
        # Of an unknown outcome the claims stay: the keys may be in the keylist.
        return [] if done is Refusal.TEMPORARILY_UNAVAILABLE else add

    async def _release(self, owner: str, command: bytes, keys: Iterable[ClaimedKey]) -> None:
        releases = [
            self._identities.ask(
                key_target(claimed.key), ReleaseKey(owner, claimed.claim), command, Done
            )
            for claimed in keys
        ]
        await asyncio.gather(*releases)
