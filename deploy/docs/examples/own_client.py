"""A client of one's own: register, agree on a contract, send and fetch, without a line of Poste."""

import asyncio
import base64
import json
import os
import sys
import time
import uuid
from typing import Any

import aiohttp
import base58
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl.bindings import crypto_scalarmult, crypto_scalarmult_base
from nacl.signing import SigningKey

Json = dict[str, Any]


def encode(data: bytes) -> str:
    """base64url without padding, as the mediator writes it; it reads the other forms as well."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decode(text: str) -> bytes:
    """Decode what ``encode`` writes."""
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def canonical(value: object) -> bytes:
    """RFC 8785 for texts and whole numbers; for other numbers and names use a library."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def seal(key: bytes, plaintext: bytes) -> str:
    """AES-256-GCM: nonce, ciphertext and tag."""
    nonce = os.urandom(12)
    return encode(nonce + AESGCM(key).encrypt(nonce, plaintext, None))


def unseal(key: bytes, sealed: str) -> bytes:
    """Open what ``seal`` has made."""
    data = decode(sealed)
    return AESGCM(key).decrypt(data[:12], data[12:], None)


class Identity:
    """An identity with its own keys, at one mediator."""

    def __init__(
        self, alias: str, url: str, mediator: Json, session: aiohttp.ClientSession
    ) -> None:
        self.url, self.session, self.mediator_did = url, session, mediator["id"]
        self.signing, self.pre_key = SigningKey.generate(), os.urandom(32)
        pre_key = mediator["keyAgreement"][0]["publicKeyMultibase"]
        self.mediator_pre_key = base58.b58decode(pre_key[1:])[2:]
        signing_public = b"\xed\x01" + bytes(self.signing.verify_key)
        self.pre_public = crypto_scalarmult_base(self.pre_key)
        keys = [signing_public, b"\xec\x01" + self.pre_public]
        parts = ["z" + base58.b58encode(key).decode() for key in keys]
        places = [encode(alias.encode()), *parts, encode(self.mediator_did.encode())]
        self.did = ":".join(["did", "decentrl", *places])
        self.key_id = self.did + "#signing"

    def sign(self, value: object) -> str:
        """Sign the canonical form of a value."""
        return encode(self.signing.sign(canonical(value)).signature)

    async def send(
        self, payload: object, *, to: str = "", channel: str = "DIRECT_AUTHENTICATED"
    ) -> Json:
        """Send a command, by default one for the mediator."""
        header = {
            "channel": channel,
            "sender_did": self.did,
            "sender_signing_key_id": self.key_id,
            "recipient_did": to or self.mediator_did,
            "timestamp": time.time_ns() // 1_000_000,
            "nonce": str(uuid.uuid4()),
        }
        command = {"header": header, "payload": payload}
        command["signature"] = self.sign(command)
        async with self.session.post(self.url + "/", json=command) as response:
            answer: Json = await response.json()
        assert answer["type"] == "SUCCESS", answer
        return answer

    async def ask_for_contract(self, did: str, pre_key: bytes) -> bytes:
        """Ask the mediator, or another identity, for a contract; returns the own ephemeral key."""
        secret = os.urandom(32)
        ephemeral = encode(crypto_scalarmult_base(secret))
        contract = {
            "requestor_did": self.did,
            "requestor_signing_key_id": self.key_id,
            "requestor_ephemeral_public_key": ephemeral,
            "recipient_did": did,
            "expires_at": int(time.time()) + 86_400,
        }
        request = {"communication_contract": contract, "requestor_signature": self.sign(contract)}
        sealed = seal(crypto_scalarmult(secret, pre_key), canonical(request))
        payload = {
            "type": "REQUEST_COMMUNICATION_CONTRACT",
            "encrypted_contract_request": sealed,
            "requestor_ephemeral_public_key": ephemeral,
        }
        await self.send(payload, to=did)
        return secret

    def agree(self, waiting: Json) -> tuple[Json, bytes]:
        """Sign the contract of a waiting request, too; returns it and the own ephemeral key."""
        theirs = decode(waiting["requestor_ephemeral_public_key"])
        opened = unseal(
            crypto_scalarmult(self.pre_key, theirs), waiting["encrypted_contract_request"]
        )
        request: Json = json.loads(opened)
        secret = os.urandom(32)
        contract = {
            **request["communication_contract"],
            "recipient_signing_key_id": self.key_id,
            "recipient_ephemeral_public_key": encode(crypto_scalarmult_base(secret)),
        }
        signed = {
            "communication_contract": contract,
            "requestor_signature": request["requestor_signature"],
            "recipient_signature": self.sign(contract),
        }
        return signed, secret


async def main(url: str) -> None:
    """Let Alice write to Bob through the mediator at this address."""
    url = url.rstrip("/")
    async with aiohttp.ClientSession() as session:
        document = url + "/.well-known/did.json"
        try:
            async with session.get(document, raise_for_status=True) as response:
                mediator = await response.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            sys.exit(f"no mediator answers at {url}: {error}")
        alice = Identity("alice", url, mediator, session)
        bob = Identity("bob", url, mediator, session)
        for identity in (alice, bob):  # a contract with the mediator is the registration
            await identity.ask_for_contract(mediator["id"], identity.mediator_pre_key)

        secret = await alice.ask_for_contract(bob.did, bob.pre_public)
        query = {"type": "QUERY_PENDING_COMMUNICATION_CONTRACT_REQUESTS"}
        answer = await bob.send(query)
        (waiting,) = answer["payload"]["pending_communication_contract_requests"]
        signed, bobs_secret = bob.agree(waiting)
        member = {"signed_communication_contract": signed}
        await bob.send({"type": "SAVE_COMMUNICATION_CONTRACT", **member})
        await bob.send({"type": "COMMUNICATION_CONTRACT_RESPONSE", **member}, to=alice.did)
        done = {"communication_contract_ids": [waiting["id"]]}
        await bob.send({"type": "ACKNOWLEDGE_PENDING_COMMUNICATION_CONTRACT_REQUESTS", **done})

        # Alice finds the contract by QUERY_COMMUNICATION_CONTRACTS, and checks both signatures.
        contract = signed["communication_contract"]
        theirs = decode(contract["recipient_ephemeral_public_key"])
        sealed = seal(crypto_scalarmult(secret, theirs), b"hello, Bob")
        await alice.send(sealed, to=bob.did, channel="TWO_WAY_PRIVATE")

        answer = await bob.send({"type": "QUERY_PENDING_EVENTS"})
        (event,) = answer["payload"]["pending_events"]
        theirs = decode(contract["requestor_ephemeral_public_key"])
        print(unseal(crypto_scalarmult(bobs_secret, theirs), event["payload"]).decode())
        await bob.send({"type": "ACKNOWLEDGE_PENDING_EVENTS", "event_ids": [event["id"]]})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if sys.argv[1:] else "http://127.0.0.1:8080"))
