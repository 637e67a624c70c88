"""A DIDComm wallet: connected, mediated, and reading what was sent to its key while it was away."""

import asyncio
import sys

import aiohttp

from http_edge.clients.didcomm import Wallet, WalletError, send


async def main(url: str) -> None:
    """Connect a wallet to the mediator of this address and write to it."""
    async with aiohttp.ClientSession() as session:
        bob = await Wallet.connect(f"{url.rstrip('/')}/invitation", session=session, label="bob")
        bob.mediation = await bob.request_mediation()
        key = await bob.new_recipient()

        # What Bob gives to a correspondent: an endpoint, a key of his, the mediator's routing keys.
        address = key.address
        message = {"@type": "https://didcomm.org/basicmessage/1.0/message", "@id": "1"}
        await send(session, address.endpoint, address.seal({**message, "content": "hello, Bob"}))

        # Draining fetches by Pickup 2.0 and acknowledges what was yielded before. Anyone can send
        # anything: what cannot be read is acknowledged like the rest, else it would come again.
        async for picked in bob.drain():
            try:
                received = key.unpack(picked.envelope).message
            except WalletError:
                continue
            print(received.get("content"))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8080"))
