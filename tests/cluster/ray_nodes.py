"""Real Ray nodes on one machine, each an address of loopback, with a ``poste serve`` on each."""

from __future__ import annotations

import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from tests.cluster.server import (
    GONE_S_MAX,
    MEDIATOR_DID,
    Server,
    ended,
    own_environment,
    processes_of,
    send,
    serve_command,
)

_START_S_MAX: Final = 60.0
_OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
_HEALTH: Final = {
    # Ray's own defaults take 15 s to notice that a node has died.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
}


class RayNode:
    """One ``ray start`` in a session of its own; the first of a cluster is its head."""

    def __init__(self, ip: str, address: str, environment: Mapping[str, str], logs: Path) -> None:
        self.ip = ip
        host, _, port = address.partition(":")
        is_head = host == ip
        role = (
            ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={logs}"]
            if is_head
            else [f"--address={address}"]
        )
        command = ["start", "--block", "--disable-usage-stats", "--num-cpus=1", *role]
        options = [f"--node-ip-address={ip}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *command, *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            bufsize=0,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def until_started(self) -> None:
        """Return when Ray says that the node has started."""
        said = self._process.stdout
        assert said is not None
        lines: list[bytes] = []
        while select.select([said], [], [], _START_S_MAX)[0]:
            lines.append(said.readline())
            if b"Ray runtime started" in lines[-1]:
                return
            if not lines[-1]:
                break
        raise AssertionError(b"".join(lines).decode())

    def processes(self) -> list[int]:
        """Every process of the node, that of actors included."""
        return [pid for pid, _ in processes_of([self._process.pid])]

    def send(self, number: signal.Signals) -> None:
        """A signal to every process of the node."""
        for pid in self.processes():
            send(pid, number)

    def kill(self) -> None:
        """``kill -9`` of every process of the node."""
        while left := self.processes():
            for pid in left:
                send(pid, signal.SIGKILL)
            for pid in left:
                ended(pid, GONE_S_MAX)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class RayCluster:
    """A head and whatever nodes join it, with a ``poste serve`` on any of them.

    A context manager that leaves no process behind, whatever a test did.
    """

    def __init__(self, directory: Path, dsn: str, **settings: str) -> None:
        self._directory = directory
        self.keys_file = directory / "mediator-keys.json"
        self._settings = {"log": dsn, "keys_file": str(self.keys_file), **settings}
        self._environment = {
            **own_environment(),
            **_HEALTH,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        self._address = f"{_ip(1)}:{_free_port(_ip(1))}"
        # The paths of Ray's sockets must be short.
        self._rays_own = tempfile.TemporaryDirectory(prefix="ray-")
        self.nodes: dict[int, RayNode] = {}
        self.servers: dict[int, Server] = {}

    def start_nodes(self, *numbers: int) -> None:
        """Start Ray nodes; number 1 is the head and comes first.

        One after the other: two that start at once may choose the same names for their sockets.
        """
        for number in numbers:
            self.nodes[number] = RayNode(
                _ip(number), self._address, self._environment, Path(self._rays_own.name)
            )
            self.nodes[number].until_started()

    def serve(self, number: int) -> Server:
        """Start ``poste serve`` on a node, once more if it was there before."""
        if number not in self.servers:
            self.servers[number] = Server(
                self._directory / f"data-{number}",
                ray_address=self._address,
                ray_node_ip=_ip(number),
                node=f"node-{number}",
                **self._settings,
            )
            self.servers[number].environment = self._environment
        self.servers[number].start()
        return self.servers[number]

    def refused(self, number: int, **settings: str) -> tuple[int, str]:
        """A ``poste serve`` on a node that must not start: its exit code and its words."""
        name = "-".join(settings)
        there = {"ray_address": self._address, "ray_node_ip": _ip(number), "did": MEDIATOR_DID}
        ended = subprocess.run(
            serve_command(
                self._directory / f"refused-{name}",
                listen="127.0.0.1:0",
                **{**self._settings, **there, **settings},
            ),
            capture_output=True,
            text=True,
            env=self._environment,
            check=False,
            timeout=_START_S_MAX,
        )
        return ended.returncode, ended.stderr

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for server in self.servers.values():
            server.__exit__(None, None, None)
        for node in self.nodes.values():
            node.kill()
        self._rays_own.cleanup()


def _ip(number: int) -> str:
    """An address of loopback that is a node's own; Ray takes 127.0.0.1 for the machine's name."""
    return f"127.0.7.{number}"


def _free_port(ip: str) -> int:
    with socket.socket() as probe:
        probe.bind((ip, 0))
        port: int = probe.getsockname()[1]
    return port
