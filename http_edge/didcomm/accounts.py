"""Lookup, rotation and end of accounts: which account a sender speaks for, and how that changes.

The message version derives a DID from the envelope alone. For nearly every sender this DID names
the account itself, and no lookup is needed. After a rotation (DIDComm v2, ``from_prior``) the new
DID speaks for the account of the prior DID: the new DID's identity refuses commands for that
reason, and the edge then asks it for the account and remembers the answer. With every command the
account decides whether the DID still speaks for it (``actors.core.accounts``), so a remembered
answer cannot do harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
from cachetools import LRUCache

from actors.core.commands import (
    ClaimedKey,
    Connection,
    EndAccount,
    EraseIdentity,
    NameSpeaker,
    QueryConnection,
    RotateAccount,
    UnnameSpeaker,
)
from actors.core.refusals import Refusal
from actors.core.replies import AccountFound, AccountOver, Connected, Done, Erased
from http_edge.didcomm.envelopes.messages import AgentAccount, DidRotation, Message
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.identities import TO_RETRY, Identities
from http_edge.didcomm.protocols.keylists import Keylists
from http_edge.listener.address_charge import registration_wait_s

Reach: TypeAlias = Callable[[Message], Awaitable[tuple[str, list[str]] | Refusal]]
"""Returns a sender's endpoint and routing keys, or the refusal while they cannot be said; an agent
that fetches has an empty endpoint."""


class ErasedAccounts:
    """Releases what erased identities held in other streams: their keys and their speakers.

    The erasure clears the identity's own stream. The stream of each key still names the identity as
    owner, and the streams of its speakers still name it as account (``actors.core.accounts``);
    without a release, keys and speakers would stay bound to an identity that is gone.
    """

    def __init__(self, identities: Identities, keylists: Keylists) -> None:
        self._identities = identities
        self._keylists = keylists

    async def let_go(self, did: str, command: bytes, step: Erased) -> None:
        """Release the keys and the speakers that this step of an identity's erasure found.

        If the release is cut short, a key is released some time after another account has claimed
        it, and a speaker with its next message.
        """
        if step.keys:
            await self._keylists.release(did, command, step.keys)
        for speaker_did in step.speaker_dids:
            await self.unname(speaker_did, did, command)

    async def elsewhere(self, did: str, command: bytes, by: str) -> list[int]:
        """Have the other databases of the log record an erasure: their rows name the identity.

        Return the numbers of those that did not. With ``ELSEWHERE_LATER`` in place of ``ELSEWHERE``
        they record nothing, and answer if they could.
        """
        placement, erase = self._identities.placement(), EraseIdentity(by, 1)
        shards = placement.shards_elsewhere(did)
        asking = (
            self._identities.ask(did, erase, command, Erased, by_mediator=True, shard=shard)
            for shard in shards
        )
        answers = zip(shards, await asyncio.gather(*asking), strict=True)
        # A host of an earlier release says that it does not know the identity.
        return [
            placement.database_of_shard(shard)
            for shard, one in answers
            if isinstance(one, Refusal) or not one.is_known
        ]

    async def free(self, did: str, command: bytes) -> bool:
        """Release a DID that is to be erased if it speaks for no account that goes on.

        Return whether it was released. ``command`` is the key of the erasure in the log.
        """
        found = await self._identities.find_account(did, command)
        if isinstance(found, Refusal) or not found.account_did:
            return False
        return await self.freed(did, found.account_did, command, is_leaving=True) is True

    async def freed(
        self, did: str, account: str, command: bytes, *, is_leaving: bool = False
    ) -> bool | Refusal:
        """Release a DID that is to speak for an ``account`` that is over; return whether it was.

        An account that has ended, or expired as idle, still knows its speaker, which may begin
        anew: that speaker is not released, unless it ``is_leaving``, too. A DID that it rotated
        away, and whose key may be stolen, never is: free, it could take its name back. A DID that
        has never spoken, because its rotation came too late, is released.
        """
        found = await self._identities.find_account(account, command, speaker_did=did)
        if isinstance(found, Refusal):
            return found
        may_go = found.never_spoke or found.speaker_did in {account, did if is_leaving else account}
        if found.connected or not may_go:
            return False
        done = await self.unname(did, account, command)
        return done if isinstance(done, Refusal) else True

    async def unname(self, did: str, account: str, command: bytes) -> Done | Refusal:
        """Release a DID, if it is to speak for ``account``."""
        change = UnnameSpeaker(account)
        return await self._identities.ask(did, change, command, Done, by_mediator=True)


class Accounts:
    """Find, rotate and end accounts."""

    def __init__(
        self,
        identities: Identities,
        keylists: Keylists,
        reach: Reach,
        *,
        accounts_remembered_max: int,
    ) -> None:
        """Remember up to ``accounts_remembered_max`` rotated DIDs, about 300 bytes each."""
        self._identities = identities
        self._keylists = keylists
        self._erased = ErasedAccounts(identities, keylists)
        self._reach = reach
        self._remembered: LRUCache[str, str] = LRUCache(accounts_remembered_max)

    def is_moved(self, sender: AgentAccount) -> bool:
        """Say whether the sender's account is to be looked up.

        It speaks for another DID's account, or that account, as it is remembered, refuses it: the
        account may have been erased.
        """
        return sender.did in self._identities.moved

    async def of(self, sender: AgentAccount, command: bytes) -> AgentAccount | Refusal:
        """Return the sender with the account that it speaks for.

        ``command`` is the key of the sender's message in the log.
        """
        account = self._remembered.get(sender.did)
        if self.is_moved(sender):
            found = await self._identities.find_account(sender.did, command)
            if isinstance(found, Refusal):
                return found
            account = found.account_did
            freed = account and await self._erased.freed(sender.did, account, command)
            if isinstance(freed, Refusal):
                return freed
            self._identities.moved.pop(sender.did, None)
            account = "" if freed else account
            self._remember(sender.did, account)
        return msgspec.structs.replace(sender, did=account) if account else sender

    async def rotate(
        self, rotation: DidRotation, sender: AgentAccount, message: Message, command: bytes
    ) -> Refusal | None:
        """Let the sender speak for the account of its prior DID; a repetition changes nothing.

        ``sender`` is the account that the envelope proves, ``message`` names the sender's DID.
        Return None if the sender speaks for the prior DID's account. ``NOT_CONNECTED``: the prior
        DID has no account. ``KEY_TAKEN``: the sender is an account itself already, or it speaks
        or spoke for another one, or another account gave up its key on the other curve.
        ``NOT_SPEAKING``: the prior DID no longer speaks for its account, or the rotation is old.
        ``QUOTA_EXCEEDED``: the account's keylist has no room for the sender's name.
        ``RATE_LIMITED``: the sender's address registers and rotates too often.
        """
        name = canonical_name(message.sender_did)
        if name is None or canonical_name(rotation.new_did) != name:
            return Refusal.NOT_SPEAKING
        prior = await self._prior(rotation, [name], command)
        if isinstance(prior, Refusal):
            return prior
        prior_did, account, found = prior
        if found.speaker_did == sender.did and name in found.keys:
            self._remember(sender.did, account)
            return None
        refusal = _refusal(rotation, sender, prior_did, found)
        if refusal is Refusal.NOT_SPEAKING:
            # If an earlier copy named the sender and was refused, its release may have failed.
            await self._unname_new(sender.did, account, command)
        if refusal is not None:
            return refusal
        # A rotation stores as much as a new account, and another DID costs only a key.
        if registration_wait_s() is not None:
            return Refusal.RATE_LIMITED
        own = await self._named(sender.did, account, message, command)
        if isinstance(own, Refusal):
            return own
        change = RotateAccount(prior_did, sender.did, rotation.issued_at_s, own=own)
        rotated = await self._change(account, change, message, command)
        if isinstance(rotated, Refusal):
            return rotated
        self._remember(sender.did, account)
        return None

    async def end(self, rotation: DidRotation, command: bytes) -> Refusal | None:
        """End the account of a DID that was given up for none; a repetition changes nothing.

        If the answer of the account is lost, its names stay claimed. Each goes to who proves to
        hold its key, and is free some time after another account has claimed it (``keylists``).
        """
        prior = await self._prior(rotation, [], command)
        if isinstance(prior, Refusal):
            return prior
        prior_did, account, _ = prior
        ended = await self._identities.ask(
            account,
            EndAccount(prior_did, rotation.issued_at_s),
            command,
            AccountOver,
            by_mediator=True,
        )
        if isinstance(ended, Refusal):
            return ended
        await self._keylists.release(account, command, ended.keys)
        return None

    async def _named(
        self, did: str, account: str, message: Message, command: bytes
    ) -> list[ClaimedKey] | Refusal:
        """Name a DID for an account and claim the DID's name; release it if that is refused."""
        name, whole = canonical_name(message.sender_did), message.whole_did or message.sender_did
        if did != account:
            named = await self._identities.ask(
                did, NameSpeaker(account), command, Done, by_mediator=True
            )
            if isinstance(named, Refusal):
                return named
        names = [] if name is None else [name]
        own = await self._keylists.claim_own(account, command, names, whole, speaker_did=did)
        if isinstance(own, Refusal) and own not in TO_RETRY:
            await self._unname_new(did, account, command)
        return own

    async def _unname_new(self, did: str, account: str, command: bytes) -> None:
        """Release a DID that was to speak for an account, if it has never done so.

        It stays if it speaks already, or if it was given up and would take its name back: another
        copy of the same message may have let it speak meanwhile.
        """
        found = await self._identities.find_account(account, command, speaker_did=did)
        if isinstance(found, AccountFound) and found.never_spoke:
            await self._erased.unname(did, account, command)

    async def _change(
        self, account: str, change: RotateAccount, message: Message, command: bytes
    ) -> Done | Refusal:
        """Change the speaker; release the new one if another rotation or an erasure came first.

        A DID left naming an account that refuses it could never get an account of its own.
        """
        rotated: Connection | Done | Refusal = await self._stated(account, message, command)
        if isinstance(rotated, Connection):
            change = msgspec.structs.replace(change, connection=rotated)
            rotated = await self._identities.ask(account, change, command, Done, by_mediator=True)
        if rotated is Refusal.NOT_SPEAKING:
            await self._unname_new(change.speaker_did, account, command)
        elif rotated is Refusal.NOT_CONNECTED:
            await self._erased.freed(change.speaker_did, account, command)
        return rotated

    async def _prior(
        self, rotation: DidRotation, names: list[str], command: bytes
    ) -> tuple[str, str, AccountFound] | Refusal:
        """Return the prior DID as an identity, the account it spoke for, and that account's state.

        ``names`` are the keys whose presence in the keylist the state is to show.
        """
        for did in rotation.prior_accounts:
            found = await self._identities.find_account(did, command, names)
            account = did
            if not isinstance(found, Refusal) and found.account_did:
                account = found.account_did
                found = await self._identities.find_account(account, command, names)
            if isinstance(found, Refusal):
                return found
            if found.connected:
                return did, account, found
        return Refusal.NOT_CONNECTED

    async def _stated(self, account: str, message: Message, command: bytes) -> Connection | Refusal:
        """Return the account's connection, with the new DID and its endpoint in it."""
        known = await self._identities.ask(
            account, QueryConnection(), command, Connected, by_mediator=True
        )
        if isinstance(known, Refusal):
            return known
        reach = await self._reach(message)
        if isinstance(reach, Refusal):
            return reach
        endpoint, routing_keys = reach
        return msgspec.structs.replace(
            known.connection,
            peer_did=message.whole_did or message.sender_did,
            endpoint=endpoint,
            routing_keys=routing_keys,
        )

    def _remember(self, did: str, account: str) -> None:
        if account and account != did:
            self._remembered[did] = account
        else:
            self._remembered.pop(did, None)


def _refusal(
    rotation: DidRotation, sender: AgentAccount, prior_did: str, found: AccountFound
) -> Refusal | None:
    """Return why the account will refuse the rotation, or None.

    It is asked first: a sender that is named for an account that refuses it can have no account.
    """
    is_old = rotation.issued_at_s < found.rotates_from_s and found.speaker_did != sender.did
    if is_old or found.speaker_did not in {prior_did, sender.did}:
        return Refusal.NOT_SPEAKING
    return None if found.has_room else Refusal.QUOTA_EXCEEDED
