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
from http_edge.didcomm.envelopes.agent_documents import AgentDocument
from http_edge.didcomm.envelopes.keys import KeyPair
from http_edge.didcomm.envelopes.public_keys import Curve, PublicKey, write_jwk

ENVIRONMENTS: Final = Path("build/conformance")
"""Where ``make conformance`` puts the environments, by the name of the library."""
HERE: Final = Path(__file__).parent
_SECONDS_MAX: Final = 60


class Library(msgspec.Struct, frozen=True):
    """A library, and what it is known to be unable to do.

    ``program`` is a Python program beside this module, or the folder of one for Node.
    """

    name: str
    program: str
    requirement: str
    remark: str = ""
    authenticates: bool = True
    reads_nested: bool = True
    reads_forwards: bool = True

    @property
    def is_python(self) -> bool:
        """Is it a library of Python?"""
        return self.program.endswith(".py")

    @property
    def home(self) -> Path:
        """Its environment, which may not be there."""
        return ENVIRONMENTS / self.name if self.is_python else HERE / self.program / "node_modules"

    @property
    def command(self) -> Sequence[str | Path]:
        """What runs its program."""
        if self.is_python:
            return [self.home / "bin" / "python", "-W", "ignore", HERE / self.program]
        return ["node", HERE / self.program / "agent.mjs"]

    @property
    def installing(self) -> Sequence[Sequence[str | Path]]:
        """The commands that make its environment."""
        if self.is_python:
            python = self.home / "bin" / "python"
            return [
                [sys.executable, "-m", "venv", self.home],
                [python, "-m", "pip", "install", "--quiet", self.requirement],
            ]
        return [["npm", "install", "--prefix", HERE / self.program]]

    def ask(self, **question: Any) -> dict[str, Any]:
        """What the library makes of a question.

        Raises:
            RuntimeError: it fails.
        """
        done = subprocess.run(
            self.command,
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
        remark="packs nothing in another envelope, follows no forward",
        reads_nested=False,
        reads_forwards=False,
    ),
    Library("sicpa-rust", "didcomm-node", "didcomm-node@0.4.1"),
    # Draft 03 leaves the tag out of the key derivation.
    Library(
        "veramo",
        "veramo",
        "@veramo/did-comm@7.0.1",
        remark="authcrypt is of draft 03 of ECDH-1PU: refused; anonymous messages both ways",
        authenticates=False,
        reads_nested=False,
    ),
)
IDENTUS: Final = Library("identus", "identus", "@hyperledger/identus-sdk@7.0.0")
"""Not asked for envelopes, which are those of ``sicpa-rust``, but to be a wallet."""


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


def install(library: Library) -> str:
    """Make the environment of a library where it is missing: why it cannot be, empty if it can."""
    if library.home.exists():
        return ""
    for command in library.installing:
        try:
            done = subprocess.run(command, capture_output=True, check=False)
        except FileNotFoundError:
            return f"there is no {command[0]}"
        if done.returncode:
            shutil.rmtree(library.home, ignore_errors=True)
            return "cannot be had here: " + done.stderr.decode().strip().rpartition("\n")[2]
    return ""
