"""A DIDComm v2 wallet: live mode, a new DID for the same account, and the end of the account."""

import asyncio
import base64
import json
import secrets
import sys
import time
from dataclasses import replace

import aiohttp
from nacl.signing import SigningKey

from http_edge.clients.didcomm import (
    Connection2,
    KeyPair,
    Recipient2,
    Wallet2,
    endpoint_of,
    post,
    send,
)


async def main(url: str) -> None:
    """Connect a wallet to the mediator of this address, write to it, move it, end it."""
    async with aiohttp.ClientSession() as session:
        bob = await Wallet2.connect(f"{url}/invitation", session=session)
        friend = await bob.new_recipient()  # Bob gives friend.did to a correspondent
        alice = Recipient2(KeyPair.new(), routing_did="", method="key")  # she needs no mediator

        async with bob.live() as live:
            message = {"@type": "https://didcomm.org/basicmessage/2.0/message", "@id": "1"}
            sealed = alice.seal({**message, "content": "hello, Bob"}, friend.did)
            await send(session, endpoint_of(friend.did), sealed)
            async for picked in live:
                print(friend.unpack(picked.envelope)[0]["content"])
                await live.acknowledge([picked.id])
                break

        # Another DID speaks for the account from now on; keylist and queue stay.
        old, new = bob.connection, replace(bob.connection, key=KeyPair.new(), is_known=False)
        await say(session, new, "trust-ping/2.0/ping", from_prior(old, new.did))
        new = replace(new, is_known=True)
        bob = Wallet2(new, session=session, routing_did=bob.routing_did)
        print([each.recipient_did for each in (await bob.query_recipients()).dids])

        # Replaced by no DID, the account ends, with keylist and queue.
        parting = replace(new, key=KeyPair.new(), is_known=False)
        await say(session, parting, "empty/1.0/empty", from_prior(new, None))


def from_prior(old: Connection2, sub: str | None) -> str:
    """The proof, by the key of the DID before, that ``sub`` replaces it: a JWT."""
    claims = {"iss": old.did, "iat": int(time.time())} | ({"sub": sub} if sub else {})
    header = {"typ": "JWT", "alg": "EdDSA", "kid": f"{old.did}#key-1"}
    text = b".".join(b64url(json.dumps(part).encode()) for part in (header, claims))
    return (text + b"." + b64url(SigningKey(old.key.seed).sign(text).signature)).decode()


def b64url(content: bytes) -> bytes:
    """Encode as base64url without padding."""
    return base64.urlsafe_b64encode(content).rstrip(b"=")


async def say(session: aiohttp.ClientSession, by: Connection2, kind: str, prior: str) -> None:
    """Send a message with ``from_prior``, a header for which the library has no argument."""
    message = {
        "id": secrets.token_urlsafe(),
        "type": f"https://didcomm.org/{kind}",
        "from": by.did,
        "to": [by.mediator_did],
        "from_prior": prior,
        "body": {},
    }
    envelope = by.packed(json.dumps(message).encode())
    await post(session, by.http_url, envelope, media_type=by.media_type)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8080"))
