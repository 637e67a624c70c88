"""Messages of one rotated DID, while an edge looks its account up."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import pytest

from actors.core.commands import (
    Command,
    DeliverMessages,
    FindAccount,
    FindKeyOwner,
    QueryQueue,
    ReleaseKey,
)
from actors.core.partitioning import host_name
from actors.core.refusals import Refusal
from actors.core.replies import QueueState
from http_edge.clients.didcomm import Wallet2
from http_edge.clients.didcomm.connection import DidMethod2, own_did
from http_edge.clients.didcomm.handshake import DidMethod
from http_edge.clients.didcomm.pickup import delivered
from http_edge.didcomm.envelopes.keys import did_key, did_key_reference
from http_edge.didcomm.envelopes.recipient_names import canonical_name
from http_edge.didcomm.envelopes.v2.version import MEDIA_TYPE
from http_edge.didcomm.identities import Identities, speaker
from tests.edge.didcomm.newer_wallets import Sender, connected
from tests.edge.didcomm.test_rotated_accounts import (
    end,
    farewell,
    is_refused,
    moved,
    packed,
    say,
    successor,
)
from tests.edge.didcomm.wallet_network import WalletNetwork

STATUS = "messagepickup/3.0/status-request"
OF_OPERATORS: Final = [
    ("GET", "/queues"),
    ("POST", "/queues/purge"),
    ("POST", "/identities/erase"),
]
FETCH = ("messagepickup/3.0/delivery-request", {"limit": 10})


async def _moved_with_a_message(network: WalletNetwork) -> Wallet2:
    """A wallet that has another DID, and a message that waits for it."""
    old = await connected(network)
    recipient, wallet = await old.new_recipient(), successor(network, old)
    await say(wallet, STATUS, from_prior=moved(old, wallet))
    await Sender(network).write(recipient, "one")
    return wallet


async def test_an_answered_message_is_not_handled_again_because_of_another_of_the_same_did(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet = await _moved_with_a_message(network)
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


async def test_a_message_whose_account_cannot_be_looked_up_changes_nothing_and_may_come_again(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet = await _moved_with_a_message(network)
    await network.mediator.restart()

    async def unknown(*_: Any, **__: Any) -> Refusal:
        return Refusal.TEMPORARILY_UNAVAILABLE

    with monkeypatch.context() as away:
        away.setattr(Identities, "find_account", unknown)
        # The first message finds out that the account is that of another DID.
        assert (await say(wallet, *FETCH))["description"]["code"] == "e.m.me.try-again"
        again = await network.post(packed(wallet, *FETCH), content_type=MEDIA_TYPE)
        assert (again.status, again.json) == (503, {"error": "try-again"})
    assert len(delivered(await say(wallet, *FETCH))) == 1


async def test_the_end_of_a_relationship_may_come_again_while_its_host_is_away(
    network: WalletNetwork,
) -> None:
    wallet, host = await connected(network), host_name(0)
    network.mediator.hosts.cut(host)
    answer = await network.post(farewell(wallet), content_type=MEDIA_TYPE)
    assert (answer.status, answer.json) == (503, {"error": "try-again"})
    network.mediator.hosts.mend(host)
    assert not await is_refused(wallet)
    assert await end(wallet) == 202
    assert await is_refused(wallet)


@pytest.mark.parametrize("did_method", ["peer4", "peer2"])
async def test_operators_find_the_account_of_any_did_that_a_wallet_has_registered(
    network: WalletNetwork, did_method: DidMethod2
) -> None:
    wallet = await connected(network, did_method=did_method)
    recipient, own = await wallet.new_recipient(), wallet.connection.did
    account = did_key(wallet.connection.key.public)
    for did in (own, canonical_name(own), recipient.did, f"{recipient.did}#key-1"):
        query = f"did={quote(str(did), safe='')}"
        for method, path in OF_OPERATORS:
            answer = await network.mediator.operate(f"{path}?{query}", method)
            assert (answer.json["known"], answer.json["account"]) == (False, account), path
    assert (await wallet.status()).message_count == 0


@pytest.mark.parametrize("did_method", ["peer4", "peer2"])
async def test_operators_find_the_account_of_the_did_of_an_older_connection(
    network: WalletNetwork, did_method: DidMethod
) -> None:
    wallet = await network.connect(did_method=did_method)
    account = did_key(wallet.connection.key.public)
    for did in (wallet.connection.did, did_key_reference(wallet.connection.key.public)):
        answer = await network.mediator.operate(f"/queues?did={quote(did, safe='')}")
        assert (answer.json["known"], answer.json["account"]) == (False, account), did


@pytest.mark.parametrize("lost", [FindKeyOwner, FindAccount])
async def test_operators_are_not_answered_that_a_did_has_no_account_while_that_is_not_known(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch, lost: type[Command]
) -> None:
    wallet, ask = await network.connect(did_method="peer4"), Identities.ask

    async def without_answer(
        self: Identities, target: str, command: Command, *args: Any, **how: Any
    ) -> Any:
        if isinstance(command, lost):
            return Refusal.TEMPORARILY_UNAVAILABLE
        return await ask(self, target, command, *args, **how)

    monkeypatch.setattr(Identities, "ask", without_answer)
    query = f"did={quote(wallet.connection.did, safe='')}"
    for method, path in OF_OPERATORS:
        assert (await network.mediator.operate(f"{path}?{query}", method)).status == 503, path


async def test_operators_are_not_sent_from_an_account_that_has_ended_to_itself(
    network: WalletNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet, ask = await connected(network), Identities.ask
    account = did_key(wallet.connection.key.public)
    add = {"updates": [{"recipient_did": account, "action": "add"}]}
    await say(wallet, "coordinate-mediation/3.0/recipient-update", add)

    async def without_release(
        self: Identities, target: str, command: Command, *args: Any, **how: Any
    ) -> Any:
        if isinstance(command, ReleaseKey):
            return Refusal.TEMPORARILY_UNAVAILABLE
        return await ask(self, target, command, *args, **how)

    with monkeypatch.context() as away:
        away.setattr(Identities, "ask", without_release)
        assert await end(wallet) == 202
    for method, path in OF_OPERATORS[:2]:
        answer = await network.mediator.operate(f"{path}?did={quote(account, safe='')}", method)
        assert (answer.json["known"], answer.json.get("account")) == (True, None), path


async def test_operators_find_the_account_that_a_did_speaks_for(network: WalletNetwork) -> None:
    wallet = await _moved_with_a_message(network)
    query = f"did={quote(did_key(wallet.connection.key.public), safe='')}"
    refused = (await network.mediator.operate(f"/identities/erase?{query}", "POST")).json
    shown = (await network.mediator.operate(f"/queues?{query}")).json
    assert (refused["speaks_for"], shown["known"], shown["queues"]) == (True, True, [])
    purged = (await network.mediator.operate(f"/queues/purge?{query}", "POST")).json
    assert (purged["known"], purged["purged"]) == (True, 0)
    assert refused["account"] == shown["account"] == purged["account"]
    found = await network.mediator.operate(f"/queues?did={quote(shown['account'], safe='')}")
    assert found.json["agent"]["messages"] == 1


@pytest.mark.parametrize("did_method", ["peer4", "peer2"])
async def test_a_did_of_an_agent_whose_account_is_over_is_not_erased_as_of_who_was_never_here(
    network: WalletNetwork, did_method: DidMethod2
) -> None:
    """What is here of it is that of its account, which has another DID."""
    wallet = await connected(network, did_method=did_method)
    assert await end(wallet) == 202
    before = network.mediator.log_position()
    own = own_did(wallet.connection.own, did_method)
    path = f"/identities/erase?did={quote(own, safe='')}&foreign=true"
    answer = (await network.mediator.operate(path, "POST")).json
    account = did_key(wallet.connection.key.public)
    assert (answer["known"], answer.get("account")) == (False, account)
    assert network.mediator.log_position() == before
    erased = await network.mediator.operate(f"/identities/erase?did={account}", "POST")
    assert (erased.json["known"], erased.json["is_over"]) == (True, True)


async def test_the_short_did_of_an_agent_whose_account_is_over_is_said_to_have_been_registered(
    network: WalletNetwork,
) -> None:
    """It does not lead to the account, so its erasure alone would be taken for all."""
    wallet = await connected(network, did_method="peer4")
    short = canonical_name(own_did(wallet.connection.own, "peer4"))
    assert await end(wallet) == 202
    for did, was_registered in ((str(short), True), (f"{short}x", False)):
        path = f"/identities/erase?did={quote(did, safe='')}&foreign=true"
        answer = (await network.mediator.operate(path, "POST")).json
        assert (answer["is_over"], answer.get("was_registered", False)) == (True, was_registered)
