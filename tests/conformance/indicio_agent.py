"""Indicio's ``didcomm-messaging`` as an agent, in a process and an environment of its own.

Reads one question as JSON from its input and writes the answer: what it packed, or what it opened.
It imports nothing from this project.
"""

# mypy: ignore-errors

import asyncio
import json
import sys
from typing import Any

from aries_askar import Key
from didcomm_messaging.crypto.backend.askar import AskarCryptoService, AskarSecretKey
from didcomm_messaging.crypto.backend.basic import InMemorySecretsManager
from didcomm_messaging.packaging import PackagingService
from didcomm_messaging.resolver import DIDResolver


class Given(DIDResolver):
    """Resolves what the question brought."""

    def __init__(self, documents: list[dict[str, Any]]) -> None:
        self.documents = {document["id"]: document for document in documents}

    async def is_resolvable(self, did: str) -> bool:
        return did in self.documents

    async def resolve(self, did: str) -> dict[str, Any]:
        return self.documents[did]


async def answer(question: dict[str, Any]) -> dict[str, Any]:
    crypto, packaging = AskarCryptoService(), PackagingService()
    resolver = Given(question["documents"])
    secrets = InMemorySecretsManager()
    for kid, jwk in question["secrets"].items():
        if jwk["crv"] == "X25519":
            await secrets.add_secret(AskarSecretKey(Key.from_jwk(json.dumps(jwk)), kid))
    if question["do"] == "pack":
        text = json.dumps(question["message"]).encode()
        packed = await packaging.pack(
            crypto, resolver, secrets, text, [question["to"]], question["from"]
        )
        return {"packed": json.loads(packed)}
    text = json.dumps(question["packed"])
    opened, metadata = await packaging.unpack(crypto, resolver, secrets, text)
    return {
        "message": json.loads(opened),
        "authenticated": metadata.sender_kid is not None,
        "sender_kid": metadata.sender_kid,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(answer(json.load(sys.stdin)))))
