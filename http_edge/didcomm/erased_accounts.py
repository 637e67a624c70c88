"""Release of what an erased identity held in other streams: its keys and its speaker.

The erasure clears the identity's own stream. The stream of each key still names the identity as
owner, and the stream of its speaker still names it as account (``actors.core.accounts``); without a
release, keys and speaker would stay bound for ever to an identity that is gone.
"""

from __future__ import annotations

from actors.core.commands import FindAccount, UnnameSpeaker
from actors.core.refusals import Refusal
from actors.core.replies import AccountFound, Done, Erased
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.keylists import Keylists


class ErasedAccounts:
    """Releases what erased identities held."""

    def __init__(self, identities: Identities, keylists: Keylists) -> None:
        """``keylists`` release the keys."""
        self._identities = identities
        self._keylists = keylists

    async def let_go(self, did: str, command: bytes, step: Erased) -> None:
        """Release the keys and the speaker that this step of an identity's erasure found.

        If the release is cut short, a key can still be claimed by the agent that holds it, and the
        speaker is released with its next message.
        """
        if step.keys:
            await self._keylists.release(did, command, step.keys)
        if step.speaker_did:
            await self._unname(step.speaker_did, did, command)

    async def freed(self, did: str, account: str, command: bytes) -> bool | Refusal:
        """Release a DID that is to speak for ``account`` if that was erased; return whether it was.

        An account that has ended, or expired as idle, still knows its speaker, which may begin
        anew: that speaker is not released.
        """
        found = await self._identities.ask(
            account, FindAccount([]), command, AccountFound, by_mediator=True
        )
        if isinstance(found, Refusal):
            return found
        if found.connected or found.speaker_did != account:
            return False
        done = await self._unname(did, account, command)
        return done if isinstance(done, Refusal) else True

    async def _unname(self, did: str, account: str, command: bytes) -> Done | Refusal:
        change = UnnameSpeaker(account)
        return await self._identities.ask(did, change, command, Done, by_mediator=True)
