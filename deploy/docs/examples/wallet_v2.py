"""A DIDComm v2 wallet: live mode, a new DID for the same account, and the end of the account."""

import asyncio
import sys
from contextlib import suppress

import aiohttp

from http_edge.clients.didcomm import KeyPair, Recipient2, Wallet2, WalletError, endpoint_of, send


async def main(url: str) -> None:
    """Connect a wallet to the mediator of this address, write to it, rotate its DID, end it."""
    async with aiohttp.ClientSession() as session:
        bob = await Wallet2.connect(f"{url.rstrip('/')}/invitation", session=session)
        friend = await bob.new_recipient()  # Bob gives friend.did to a correspondent
        alice = Recipient2(KeyPair.new(), routing_did="", method="key")  # she needs no mediator

        async with bob.live() as live:
            message = {"@type": "https://didcomm.org/basicmessage/2.0/message", "@id": "1"}
            sealed = alice.seal({**message, "content": "hello, Bob"}, friend.did)
            await send(session, endpoint_of(friend.did), sealed)
            async for picked in live:
                text = None
                with suppress(WalletError):  # anyone can send anything
                    text = friend.unpack(picked.envelope)[0].get("content")
                    print(text)
                await live.acknowledge([picked.id])
                if text is not None:
                    break

        # Another DID speaks for the account from now on; keylist and queue stay.
        bob = await bob.rotate(KeyPair.new())  # a wallet stores the key first
        print([each.recipient_did for each in (await bob.query_recipients()).dids])

        # Replaced by no DID, the account ends, with keylist and queue.
        await bob.end()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8080"))
