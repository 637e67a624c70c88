"""What an identity that was erased held in the streams of others: keys, and who spoke for it.

The erasure takes what stands in its own stream. That a key is its own stands in the key's, and that
another DID is to speak for it in that one's (``actors.core.accounts``); both would be bound to
nothing for ever.
"""

from __future__ import annotations

from actors.core.commands import FindAccount, UnnameSpeaker
from actors.core.refusals import Refusal
from actors.core.replies import AccountFound, Done, Erased
from http_edge.didcomm.identities import Identities
from http_edge.didcomm.protocols.keylists import Keylists


class ErasedAccounts:
    """Lets go what erased identities held."""

    def __init__(self, identities: Identities, keylists: Keylists) -> None:
        """``keylists`` release the keys."""
        self._identities = identities
        self._keylists = keylists

    async def let_go(self, did: str, command: bytes, step: Erased) -> None:
        """Let go what an identity held as this step of its erasure found it.

        Where it is cut short, a key goes to who holds it, and the DID that spoke is let go with its
        next message.
        """
        if step.keys:
            await self._keylists.release(did, command, step.keys)
        if step.speaker_did:
            await self._unname(step.speaker_did, did, command)

    async def freed(self, did: str, account: str, command: bytes) -> bool | Refusal:
        """Let a DID go that was to speak for this account, if it is none any more; was it so?

        An account that has ended, or was idle, knows who spoke for it, who may begin anew: that one
        is not let go.
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
