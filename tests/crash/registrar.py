"""A wallet that changes its keylist and its rules, and new wallets that connect, amid kills.

What was confirmed has to hold after everything: keys are the wallet's alone, its rules
and every connection are known. A key that it gave up is free; after a kill between the two steps of
giving it up, or while the owner of the key itself cannot be asked, it may still be reserved for the
wallet, which can add it again. The edge that notices releases it, minutes later: not in this run.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from http_edge.clients.didcomm import Invitation, Mediation, Recipient, Wallet, WalletError
from http_edge.didcomm.envelopes.keys import KeyPair, did_key
from tests.crash.wallet_load import PAUSE_S, WalletLoad

_FIRST_LIMIT: Final = 1_000
_KEYS_MIN: Final = 4
_KEYS_AT_ONCE: Final = 200
"""Changes in one message; what is behind them is refused (``didcomm.keylist_updates_max``)."""
_DONE: Final = frozenset({"success", "no_change"})


@dataclass(slots=True)
class Registrar:
    """``owner`` registers, ``stranger`` claims what is not hers."""

    owner: Wallet
    stranger: Wallet
    mediation: Mediation
    invitation: Invitation
    limits: list[int | None]
    """The last limit of its queue that was confirmed, and those that were asked for since."""
    owned: dict[bytes, Recipient] = field(default_factory=dict)
    released: list[bytes] = field(default_factory=list)
    troubled: set[bytes] = field(default_factory=set)
    """Those of them that were given up under a fault that lasts."""
    unknown: list[KeyPair] = field(default_factory=list)
    tried: set[bytes] = field(default_factory=set)
    """What the stranger tried to claim without hearing what came of it. A command that waits for a
    new owner may be late, and by then the key may be free: then it is hers."""
    late_limits: list[int | None] = field(default_factory=list)
    """Those before the confirmed one that had no answer, where such a command may be late."""
    connected: list[Wallet] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    _new_limits: Iterator[int] = field(default_factory=lambda: itertools.count(_FIRST_LIMIT))

    async def work(self, load: WalletLoad) -> None:
        """Change something, whatever fails, until the run stops."""
        deeds = [self._add, self._add, self._remove, self._claim, self._change_rules, self._connect]
        while not load.stopping:
            try:
                await self.owner.ping()  # or while nothing answers, all of it would be unknown
                await load.chance.choice(deeds)(load)
            except WalletError:
                await asyncio.sleep(PAUSE_S)
            await asyncio.sleep(PAUSE_S)

    async def _add(self, _: WalletLoad) -> None:
        key = KeyPair.new()
        self.unknown.append(key)
        (added,) = await self.owner.update_keylist(add=[key.public])
        if added.result == "success":
            self.unknown.remove(key)
            self.owned[key.public] = Recipient(key, self.mediation)
        elif added.result != "server_error":
            self.broken.append(f"a fresh key is added: {added.result}")

    async def _remove(self, load: WalletLoad) -> None:
        if len(self.owned) <= _KEYS_MIN:
            return
        recipient = self.owned.pop(load.chance.choice(list(self.owned)))
        self.unknown.append(recipient.key)
        was_troubled = load.ledger.is_troubled
        (removed,) = await self.owner.update_keylist(remove=[recipient.key.public])
        if removed.result in _DONE:
            self.unknown.remove(recipient.key)
            self.released.append(recipient.key.public)
            if was_troubled or load.ledger.is_troubled:
                self.troubled.add(recipient.key.public)
        elif removed.result != "server_error":
            self.broken.append(f"an owned key is removed: {removed.result}")

    async def _claim(self, load: WalletLoad) -> None:
        if self.owned:
            key = load.chance.choice(list(self.owned))
            was_tried = key in self.tried
            self.tried.add(key)
            (claimed,) = await self.stranger.update_keylist(add=[key])
            if claimed.result != "server_error" and not was_tried:
                self.tried.discard(key)
            if claimed.result in _DONE:
                self.broken.append(f"a stranger claims a key amid kills: {claimed.result}")

    async def _change_rules(self, load: WalletLoad) -> None:
        limit = next(self._new_limits)
        self.limits.append(limit)
        answered = (await self.owner.update_queue(message_count_limit=limit)).message_count_limit
        if load.ledger.unknown_may_come_late:
            self.late_limits += self.limits[1:-1]
        self.limits = [limit]
        if answered != limit:
            self.broken.append(f"a limit of {limit} is set: {answered}")

    async def _connect(self, load: WalletLoad) -> None:
        self.connected.append(await Wallet.connect(self.invitation, session=load.session))

    async def check(self, kills: int) -> None:
        """What was confirmed holds after so many kills. Raises: WalletError."""
        if await self.owner.request_mediation() != self.mediation:
            self.broken.append("the grant is another one")
        await self._check_keylist(kills)
        limit = (await self.owner.queue_status()).message_count_limit
        possible = [*self.limits, *self.late_limits]
        if limit not in possible:
            self.broken.append(f"the limit is {limit} instead of one of {possible}")
        for wallet in self.connected:
            await wallet.ping()
            waiting = [wallet.connection.open(one.envelope) for one in await wallet.fetch()]
            if waiting:
                self.broken.append(f"for a wallet without a key there is: {waiting}")

    async def _check_keylist(self, kills: int) -> None:
        listed = {key.recipient_key for key in (await self.owner.query_keylist()).keys}
        owned, unknown = (
            {did_key(key) for key in keys}
            for keys in (self.owned, [key.public for key in self.unknown])
        )
        if not owned <= listed <= owned | unknown:
            more, fewer = len(listed - owned - unknown), len(owned - listed)
            self.broken.append(f"{more} keys too many and {fewer} too few are in the keylist")
        # Whatever a failure has left in between, adding the key once more puts it right; unless the
        # stranger's late claim came when it was free.
        again = [key.public for key in self.unknown]
        added = dict(zip(again, await _added(self.owner, again), strict=True))
        hers = [k for k, result in added.items() if result == "client_error" and k in self.tried]
        if wrong := [added[key] for key in again if key not in hers and added[key] not in _DONE]:
            self.broken.append(f"its own unknown keys are added: {wrong}")
        await self._expect(self.stranger, hers, _DONE, "keys that the owner cannot have")
        taken = [*self.owned, *(key for key in again if key not in hers)]
        await self._expect(self.stranger, taken, frozenset({"client_error"}), "keys of another")
        claimed = await _added(self.stranger, self.released)
        reserved = [
            key
            for key, result in zip(self.released, claimed, strict=True)
            if result not in (_DONE if key in self.tried else {"success"})
        ]
        without_cause = [key for key in reserved if key not in self.troubled]
        if len(without_cause) > kills:
            self.broken.append(f"{len(without_cause)} keys that were given up are reserved")
        await self._expect(self.owner, reserved, _DONE, "its own keys once more")

    async def _expect(
        self, wallet: Wallet, keys: Sequence[bytes], due: frozenset[str], whose: str
    ) -> None:
        wrong = [result for result in await _added(wallet, keys) if result not in due]
        if wrong:
            self.broken.append(f"{whose} are added: {wrong}")


async def _added(wallet: Wallet, keys: Sequence[bytes]) -> list[str]:
    """Add keys, however many: the result of each. Raises: WalletError."""
    changes = [each for some in _pages(keys) for each in await wallet.update_keylist(add=some)]
    return [change.result for change in changes]


def _pages(keys: Sequence[bytes]) -> list[Sequence[bytes]]:
    return [keys[at : at + _KEYS_AT_ONCE] for at in range(0, len(keys), _KEYS_AT_ONCE)]
