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
from typing import Literal, TypeAlias

import msgspec

from actors.core.commands import CheckKeys, ClaimedKey, ClaimKey, ReleaseKey, UpdateKeylist
from actors.core.refusals import Refusal
from actors.core.replies import Done, KeyClaim, KeylistChanged, KeysKnown
from http_edge.didcomm.identities import Identities, key_target

Failure: TypeAlias = Literal["client_error", "server_error"]


class KeyChanges(msgspec.Struct, frozen=True):
    """What is wanted: keys in base58, none both added and removed.

    ``tried`` are those of ``remove`` that the same request had added before.
    """

    add: Sequence[str]
    remove: Sequence[str]
    tried: frozenset[str]


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
            owner, CheckKeys([*wanted.add, *wanted.remove]), command, KeysKnown
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
        claims = await self._claim(owner, command, [*new, *brief], changed)
        add = [ClaimedKey(key, claims[key]) for key in new if key in claims]
        passing = [ClaimedKey(key, claims[key]) for key in brief if key in claims]
        removed = await self._update(owner, command, add, gone, changed)
        await self._release(owner, command, [*removed, *passing])
        return changed

    async def _claim(
        self, owner: str, command: bytes, keys: Sequence[str], changed: Changed
    ) -> Mapping[str, int]:
        """The numbers of the claims that were made."""
        answers = await asyncio.gather(
            *[
                self._identities.ask(key_target(key), ClaimKey(owner), command, KeyClaim)
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
