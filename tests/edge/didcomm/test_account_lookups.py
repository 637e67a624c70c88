"""Messages of one rotated DID, while an edge looks its account up."""

from __future__ import annotations

from typing import Any

import pytest

from actors.core.commands import Command, DeliverMessages, QueryQueue
from actors.core.refusals import Refusal
from actors.core.replies import QueueState
from http_edge.clients.didcomm.pickup import delivered
from http_edge.didcomm.identities import Identities, speaker
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_rotated_accounts import moved, say, successor
from tests.edge.didcomm.wallet_network import WalletNetwork

STATUS = "messagepickup/3.0/status-request"
FETCH = ("messagepickup/3.0/delivery-request", {"limit": 10})


async def test_an_answered_message_is_not_handled_again_because_of_another_of_the_same_did(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await connected(network)
    recipient, wallet = await old.new_recipient(), successor(network, old)
    await say(wallet, STATUS, from_prior=moved(old, wallet))
    await Sender(network).write(recipient, "one")
    ask = Identities.ask

    async def as_another_is_refused(
        self: Identities, target: str, command: Command, key: bytes, *args: Any, **how: Any
    ) -> Any:
        answer = await ask(self, target, command, key, *args, **how)
        if isinstance(command, DeliverMessages):
            # The other one was on its way before the account of its DID was known.
            refused = await ask(self, speaker(), QueryQueue(), key, QueueState)
            assert refused is Refusal.SPEAKS_FOR_ANOTHER
        return answer

    monkeypatch.setattr(Identities, "ask", as_another_is_refused)
    assert len(delivered(await say(wallet, *FETCH))) == 1
    assert (await say(wallet, *FETCH))["message_count"] == 0
