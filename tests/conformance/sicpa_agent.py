"""SICPA's ``didcomm`` as an agent, in a process and an environment of its own.

Reads one question as JSON from its input and writes the answer: what it packed, or what it opened.
It imports nothing from this project, whose dependencies do not go with its own.
"""

# mypy: ignore-errors

import asyncio
import json
import sys
from typing import Any

from didcomm import (
    DIDDoc,
    DIDResolverInMemory,
    Message,
    PackEncryptedConfig,
    ResolversConfig,
    Secret,
    SecretsResolverInMemory,
    VerificationMaterial,
    VerificationMaterialFormat,
    VerificationMethodType,
    pack_encrypted,
    unpack,
)
from didcomm.protocols.routing.forward import unpack_forward


def secrets_of(question: dict[str, Any]) -> SecretsResolverInMemory:
    return SecretsResolverInMemory(
        [
            Secret(
                kid,
                VerificationMethodType.JSON_WEB_KEY_2020,
                VerificationMaterial(VerificationMaterialFormat.JWK, json.dumps(jwk)),
            )
            for kid, jwk in question["secrets"].items()
        ]
    )


async def answer(question: dict[str, Any]) -> dict[str, Any]:
    documents = [DIDDoc.deserialize(document) for document in question["documents"]]
    resolvers = ResolversConfig(secrets_of(question), DIDResolverInMemory(documents))
    if question["do"] == "pack":
        message = Message.from_dict(question["message"])
        packed = await pack_encrypted(
            resolvers,
            message,
            question["to"],
            question["from"],
            None,
            PackEncryptedConfig(forward=False, protect_sender_id=question["hide"]),
        )
        return {"packed": json.loads(packed.packed_msg)}
    text = json.dumps(question["packed"])
    if question["do"] == "forward":
        found = await unpack_forward(resolvers, text, True)
        return {"next": found.forward_msg.body.next, "message": found.forwarded_msg}
    found = await unpack(resolvers, text)
    return {
        "message": found.message.as_dict(),
        "authenticated": found.metadata.authenticated,
        "sender_kid": found.metadata.encrypted_from,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(answer(json.load(sys.stdin)))))
