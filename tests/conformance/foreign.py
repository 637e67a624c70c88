"""Other libraries' agents of DIDComm v2, each a program in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from http_edge.crypto.encoding import b64encode
from http_edge.didcomm.envelopes.did_documents import AgentDocument
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, write_jwk

ENVIRONMENTS: Final = Path("build/conformance")
"""Where ``make conformance`` puts the environments, by the name of the library."""
_SECONDS_MAX: Final = 60


class Library(msgspec.Struct, frozen=True):
    """A library, and what it is known to be unable to do."""

    name: str
    program: str
    requirement: str
    reads_nested: bool = True
    reads_forwards: bool = True

    @property
    def python(self) -> Path:
        """The interpreter of its environment, which may not be there."""
        return ENVIRONMENTS / self.name / "bin" / "python"

    def ask(self, **question: Any) -> dict[str, Any]:
        """What the library makes of a question.

        Raises:
            RuntimeError: it fails.
        """
        done = subprocess.run(
            [self.python, "-W", "ignore", Path(__file__).with_name(self.program)],
            input=json.dumps(question).encode(),
            capture_output=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr.decode()[-2000:])
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer


LIBRARIES: Final[Sequence[Library]] = (
    Library("sicpa", "sicpa_agent.py", "didcomm==0.3.2"),
    Library(
        "indicio",
        "indicio_agent.py",
        "didcomm-messaging[askar,did-peer]==0.1.1",
        reads_nested=False,
        reads_forwards=False,
    ),
)


def document_of(agent: AgentDocument) -> dict[str, Any]:
    """A document with absolute ids and keys as JWK, which both libraries read."""
    did = agent.did
    keys: dict[str, PublicKey] = {**agent.authentication, **agent.agreement}
    return {
        "id": did,
        "verificationMethod": [
            {
                "id": f"{did}#{fragment}",
                "type": "JsonWebKey2020",
                "controller": did,
                "publicKeyJwk": write_jwk(key),
            }
            for fragment, key in keys.items()
        ],
        "authentication": [f"{did}#{fragment}" for fragment in agent.authentication],
        "keyAgreement": [f"{did}#{fragment}" for fragment in agent.agreement],
        "service": [],
    }


def secrets_of(agent: AgentDocument, key: KeyPair) -> Mapping[str, Any]:
    """The private keys of an agent by the ids in its document."""
    secret = {Curve.ED25519: key.seed, Curve.X25519: key.curve_private}
    keys: dict[str, PublicKey] = {**agent.authentication, **agent.agreement}
    return {
        f"{agent.did}#{fragment}": {**write_jwk(public), "d": b64encode(secret[public.curve])}
        for fragment, public in keys.items()
    }


def main() -> None:
    """Make the environment of each library; one that a registry does not have is left out."""
    for library in LIBRARIES:
        folder = ENVIRONMENTS / library.name
        if not library.python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        done = subprocess.run(
            [library.python, "-m", "pip", "install", "--quiet", library.requirement], check=False
        )
        if done.returncode:
            shutil.rmtree(folder)
            sys.stderr.write(f"{library.requirement} cannot be had here\n")


if __name__ == "__main__":
    main()
