"""ACA-Py as a mediator, for comparison: the same load, on the same machine, in the same run.

An agent of the package aries-cloudagent in a virtual environment of its own: ``make interop`` makes
one. It answers a forward before it has dealt with it and keeps what waits in memory alone, so its
rate is that of taking messages in; the next run starts when it has come to rest.
"""

from __future__ import annotations

import http.client
import json
import socket
import time
from pathlib import Path
from typing import Any, Final

import aiohttp

from http_edge.bench.mediator import Door, Mailbox
from http_edge.bench.processes import ProcessTree
from http_edge.bench.server import LOOPBACK, OwnProcess
from http_edge.didcomm.keys import KeyPair, base58, read_key
from http_edge.wallet import Connection, Wallet
from http_edge.wallet.transport import MEDIA_TYPE

PROGRAM: Final = Path(".venv-interop/bin/aca-py")
_WALLET_KEY: Final = "4k3R9mYnQ8pVbTz2XcWdFhJgLsKaMeNuPrSqTvUwXyZ7"
"""Of a wallet that is thrown away; in raw form, so that no time goes into deriving it."""
_DID_BYTES: Final = 16
_ANSWER_S_MAX: Final = 10.0
_REST_S: Final = 0.5
_RESTING_CPU: Final = 0.1
"""Share of one core that counts as rest."""
_REST_S_MAX: Final = 120.0
_OK: Final = 200


class AcaPy(OwnProcess):
    """An ACA-Py agent that mediates for everybody and keeps what it cannot deliver."""

    def __init__(self, program: Path, home: Path) -> None:
        self._port, self._admin = _free_port(), _free_port()
        command = [
            str(program),
            "start",
            *("--label", "peer", "--endpoint", f"http://{LOOPBACK}:{self._port}", "--no-ledger"),
            *("--inbound-transport", "http", LOOPBACK, str(self._port)),
            *("--outbound-transport", "http"),
            *("--admin", LOOPBACK, str(self._admin), "--admin-insecure-mode"),
            *("--wallet-type", "askar", "--wallet-name", "peer", "--auto-provision"),
            *("--wallet-key-derivation-method", "RAW", "--wallet-key", _WALLET_KEY),
            *("--open-mediation", "--enable-undelivered-queue"),
            *("--log-level", "critical"),
        ]
        super().__init__(command, home / "acapy.out", {"ACAPY_HOME": str(home)})

    @property
    def door(self) -> Door:
        """Where it takes envelopes."""
        return Door(self.target.posting("/", MEDIA_TYPE), self.processes)

    async def mailboxes(self, count: int) -> list[Mailbox]:
        """Wallets of ours that it mediates for, one key each.

        Their connections are made on its side, without a handshake.

        Raises:
            RuntimeError: it does not make one.
            WalletError: it does not mediate.
        """
        made = []
        async with aiohttp.ClientSession() as session:
            for _ in range(count):
                wallet = Wallet(self._connection(KeyPair.new()), session=session)
                made.append(Mailbox(wallet.connection, await wallet.new_recipient()))
        return made

    def _connection(self, key: KeyPair) -> Connection:
        """A connection of a wallet with this key."""
        did = base58(key.public[:_DID_BYTES])
        wanted = {"their_did": did, "their_verkey": base58(key.public)}
        answer = self._ask("POST", "/connections/create-static", wanted)
        its_key = read_key(answer["my_verkey"]) if answer else None
        if its_key is None:
            raise RuntimeError(f"ACA-Py makes no connection: {self._last_words()}")
        return Connection(
            key=key,
            did=did,
            mediator_did=answer["my_did"],
            mediator_key=its_key,
            http_url=self.target.url,
            ws_url="",
        )

    def _ready_url(self) -> str | None:
        ready = self._ask("GET", "/status/ready", None)
        return None if ready is None else f"http://{LOOPBACK}:{self._port}"

    def _ask(self, method: str, path: str, body: object | None) -> Any:
        """The answer of the admin interface; None where there is none, or a refusal."""
        connection = http.client.HTTPConnection(LOOPBACK, self._admin, timeout=_ANSWER_S_MAX)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, json.dumps(body), headers)
            response = connection.getresponse()
            content = response.read()
            return json.loads(content) if response.status == _OK else None
        except (OSError, http.client.HTTPException, ValueError):
            return None
        finally:
            connection.close()


def come_to_rest(processes: ProcessTree) -> float:
    """Wait until the server has worked off what it has taken: the seconds that it took."""
    started, before_s = time.monotonic(), processes.cpu_s()
    while time.monotonic() - started < _REST_S_MAX:
        time.sleep(_REST_S)
        now_s = processes.cpu_s()
        if now_s - before_s < _RESTING_CPU * _REST_S:
            break
        before_s = now_s
    return time.monotonic() - started


def _free_port() -> int:
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return int(one.getsockname()[1])
