"""Two Decentrl identities: a contract, and a message held until it is fetched."""

import asyncio
import sys
import time

from http_edge.clients.decentrl import Identity, MediatorClient, NotAuthentic


async def main(url: str) -> None:
    """Register two identities at the mediator of this address and exchange a message."""
    async with MediatorClient(url) as mediator:
        mediator_did = (await mediator.document()).did
        alice = mediator.as_(Identity.create("alice", mediator_did))
        bob = mediator.as_(Identity.create("bob", mediator_did))
        until_s = int(time.time()) + 86_400
        for account in (alice, bob):
            await account.register(expires_at_s=until_s)

        # Alice asks for a contract, Bob agrees.
        await alice.request_contract(bob.identity.did, expires_at_s=until_s)
        (request,) = [request async for request in bob.contract_requests()]
        contract = await bob.answer_contract(request)

        # Bob is offline; the mediator holds what it cannot read.
        hello: dict[str, object] = {"type": "chat", "data": {"text": "hello, Bob"}}
        await alice.send(bob.identity.did, alice.encrypt(hello, contract))

        # Taking acknowledges, and acknowledgement alone removes: also what cannot be read.
        async for waiting in bob.take_pending_events():
            try:
                print(bob.decrypt(waiting, contract).event)
            except NotAuthentic:
                continue


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8080"))
