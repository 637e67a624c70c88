"""ACA-Py as a mediator, for comparison: the same load, on the same machine, in the same run.

An agent of the package aries-cloudagent in a virtual environment of its own: ``make interop`` makes
one. It answers a forward before it has dealt with it and keeps what waits in memory alone, so its
rate is that of taking messages in; the next run starts when it has come to rest.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Final, Self

import aiohttp

from http_edge.clients.didcomm import Connection, Wallet
from http_edge.clients.load.didcomm_agents import Mailbox
from http_edge.didcomm.envelopes.keys import KeyPair, base58, read_key
from tests.bench.processes import ProcessTree
from tests.cluster.server import GONE_S_MAX, READY_S_MAX, own_environment
from tests.ports import free_port

PROGRAM: Final = Path(".venv-interop/bin/aca-py")
_LOOPBACK: Final = "127.0.0.1"
_WALLET_KEY: Final = "4k3R9mYnQ8pVbTz2XcWdFhJgLsKaMeNuPrSqTvUwXyZ7"
"""Of a wallet that is thrown away; in raw form, so that no time goes into deriving it."""
_DID_BYTES: Final = 16
_ANSWER_S_MAX: Final = 10.0
_POLL_S: Final = 0.1
_REST_S: Final = 0.5
_RESTING_CPU: Final = 0.1
"""Share of one core that counts as rest."""
_REST_S_MAX: Final = 120.0
_OK: Final = 200


class AcaPy:
    """An ACA-Py agent that mediates for all wallets and keeps what it cannot deliver.

    A context manager that starts and stops it.
    """

    def __init__(self, program: Path, home: Path) -> None:
        self._port, self._admin = free_port(), free_port()
        self._words = home / "acapy.out"
        self._environment = {**own_environment(), "ACAPY_HOME": str(home)}
        self._command = [
            str(program),
            "start",
            *("--label", "peer", "--endpoint", f"http://{_LOOPBACK}:{self._port}", "--no-ledger"),
            *("--inbound-transport", "http", _LOOPBACK, str(self._port)),
            *("--outbound-transport", "http"),
            *("--admin", _LOOPBACK, str(self._admin), "--admin-insecure-mode"),
            *("--wallet-type", "askar", "--wallet-name", "peer", "--auto-provision"),
            *("--wallet-key-derivation-method", "RAW", "--wallet-key", _WALLET_KEY),
            *("--open-mediation", "--enable-undelivered-queue"),
            *("--log-level", "critical"),
        ]

    @property
    def tree(self) -> ProcessTree:
        """Its processes."""
        return ProcessTree(self._process.pid)

    def __enter__(self) -> Self:
        """Start, and wait until it is ready.

        Raises:
            OSError, RuntimeError: it does not start.
        """
        with self._words.open("wb") as words:
            self._process = subprocess.Popen(
                self._command, stdout=words, stderr=words, env=self._environment
            )
        deadline_s = time.monotonic() + READY_S_MAX
        while self._ask("GET", "/status/ready", None) is None:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self.__exit__()
                raise RuntimeError(f"ACA-Py does not start: {self._words.read_text()[-400:]}")
            time.sleep(_POLL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(GONE_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def mailboxes(self, session: aiohttp.ClientSession, count: int) -> list[Mailbox]:
        """Wallets of ours that it mediates for, one key each.

        Their connections are made on its side, without a handshake.

        Raises:
            RuntimeError: it does not make one.
            WalletError: it does not mediate.
        """
        made = []
        for _ in range(count):
            wallet = Wallet(self._connection(KeyPair.new()), session=session)
            made.append(Mailbox(wallet, await wallet.new_recipient()))
        return made

    def _connection(self, key: KeyPair) -> Connection:
        """A connection of a wallet with this key."""
        did = base58(key.public[:_DID_BYTES])
        wanted = {"their_did": did, "their_verkey": base58(key.public)}
        answer = self._ask("POST", "/connections/create-static", wanted)
        its_key = read_key(answer["my_verkey"]) if answer else None
        if its_key is None:
            raise RuntimeError("ACA-Py makes no connection")
        return Connection(
            key=key,
            did=did,
            mediator_did=answer["my_did"],
            mediator_key=its_key,
            http_url=f"http://{_LOOPBACK}:{self._port}",
            ws_url="",
        )

    def _ask(self, method: str, path: str, body: object | None) -> Any:
        """The answer of the admin interface; None where there is none, or a refusal."""
        connection = http.client.HTTPConnection(_LOOPBACK, self._admin, timeout=_ANSWER_S_MAX)
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


async def worked_off_after_s(processes: ProcessTree) -> float:
    """Wait until a server has worked off what it has taken: the seconds that it took."""
    started_s, before_s = time.monotonic(), processes.cpu_s()
    while time.monotonic() - started_s < _REST_S_MAX:
        await asyncio.sleep(_REST_S)
        now_s = processes.cpu_s()
        if now_s - before_s < _RESTING_CPU * _REST_S:
            break
        before_s = now_s
    return time.monotonic() - started_s
