"""Real Ray nodes on one machine, each an address of loopback, with a ``poste serve`` on each."""

from __future__ import annotations

import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Self

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
_RAY: Final = {
    # Ray's own defaults take 15 s to notice that a node has died.
    "RAY_health_check_initial_delay_ms": "5000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
    "RAY_health_check_failure_threshold": "3",
    # Ray starts workers at niceness 15: whatever else runs on the machine would go first.
    "RAY_worker_niceness": "0",
}


class Place(NamedTuple):
    """Where a node is: its address in the cluster, where it listens, what its commands run in."""

    ip: str
    listen: str = "127.0.0.1:0"
    prefix: Sequence[str] = ()


class RayNode:
    """One ``ray start`` in a session of its own; the first of a cluster is its head."""

    def __init__(
        self,
        ip: str,
        address: str,
        environment: Mapping[str, str],
        logs: Path,
        *,
        prefix: Sequence[str] = (),
    ) -> None:
        self.ip = ip
        host, _, port = address.partition(":")
        is_head = host == ip
        role = (
            ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={logs}"]
            if is_head
            else [f"--address={address}"]
        )
        # As in deploy: no workers ahead of need, and no process that reads the logs of others.
        lean = ["--num-cpus=0", "--include-log-monitor=false", "--disable-usage-stats"]
        command = ["start", "--block", *lean, *role]
        options = [f"--node-ip-address={ip}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "ray.scripts.scripts", *command, *options],
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

    @property
    def has_ended(self) -> bool:
        """Has Ray given up this node? Then not all of its processes are left."""
        return self._process.poll() is not None

    def processes(self) -> list[int]:
        """Every process of the node, that of actors included."""
        return [pid for pid, _ in self.titled_processes()]

    def titled_processes(self) -> Iterator[tuple[int, str]]:
        """The same with the title of each."""
        return processes_of([self._process.pid])

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

    def __init__(
        self,
        directory: Path,
        dsn: str,
        *,
        places: Mapping[int, Place] | None = None,
        **settings: str,
    ) -> None:
        """A cluster without nodes; where ``places`` says nothing, they are on loopback."""
        self._directory = directory
        self.keys_file = directory / "mediator-keys.json"
        self._settings = {"log": dsn, "keys_file": str(self.keys_file), **settings}
        self._environment = {
            **own_environment(),
            **_RAY,
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        self._places = places or {}
        head = self.place(1).ip
        self._address = f"{head}:{free_port(head)}"
        # The paths of Ray's sockets must be short.
        self._rays_own = tempfile.TemporaryDirectory(prefix="ray-")
        self.nodes: dict[int, RayNode] = {}
        self.servers: dict[int, Server] = {}
        self._starting = threading.Lock()
        self.exit_codes: list[int | None] = []
        """Of the mediators that were started again."""

    def start_nodes(self, *numbers: int) -> None:
        """Start Ray nodes; number 1 is the head and comes first.

        One after the other: two that start at once may choose the same names for their sockets.
        """
        rays_own = Path(self._rays_own.name)
        if 1 in numbers:
            # Ray would take what others of its kind on this machine know for a head that lives.
            (rays_own / "ray_current_cluster").unlink(missing_ok=True)
        for number in numbers:
            place = self.place(number)
            self.nodes[number] = RayNode(
                place.ip,
                self._address,
                self._environment,
                rays_own,
                prefix=place.prefix,
            )
            self.nodes[number].until_started()

    def serve(self, number: int) -> Server:
        """Start ``poste serve`` on a node, once more if it was there before."""
        if number not in self.servers:
            place = self.place(number)
            self.servers[number] = Server(
                self._directory / f"data-{number}",
                ray_address=self._address,
                ray_node_ip=place.ip,
                listen=place.listen,
                node=f"node-{number}",
                **self._settings,
            )
            self.servers[number].environment = self._environment
            self.servers[number].prefix = place.prefix
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

    def processes(self, number: int, title: str) -> list[int]:
        """The processes of Ray with this title on a node, oldest first."""
        named = self.nodes[number].titled_processes()
        return sorted(pid for pid, found in named if found.startswith(title))

    def send(self, number: int, what: signal.Signals) -> None:
        """A signal to every process of a node with a mediator, Ray's and the mediator's."""
        self.nodes[number].send(what)
        for pid, _ in self.servers[number].processes():
            send(pid, what)

    def mend(self) -> bool:
        """Start again what has ended by now, as supervisors do: was there nothing to be done?

        A node's unit is its mediator: Ray beside it is started with it, and a mediator whose Ray
        has ended has to end by itself. The head runs nothing of the mediator.
        """
        codes = {number: server.exit_code(0) for number, server in self.servers.items()}
        ended = [number for number, code in codes.items() if code is not None]
        self.exit_codes += [codes[number] for number in ended]
        heads = [number for number in self.nodes if number not in self.servers]
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(self._restart, heads))
            list(at_once.map(self._restart, ended))
        return not ended and not any(node.has_ended for node in self.nodes.values())

    def _restart(self, number: int) -> None:
        if self.nodes[number].has_ended:
            self.nodes[number].kill()
            with self._starting:
                self.start_nodes(number)
        if number in self.servers:
            self.serve(number)

    def kill_everything(self) -> None:
        """``kill -9`` of every process of every node."""
        for server in self.servers.values():
            server.kill_everything()
        for node in self.nodes.values():
            node.kill()

    def lose_everything(self) -> None:
        """``kill -9`` of every process of every node, and nothing of their disks is left."""
        self.kill_everything()
        for server in self.servers.values():
            shutil.rmtree(server.data_dir)
        self._rays_own.cleanup()
        self._rays_own = tempfile.TemporaryDirectory(prefix="ray-")

    def start_everything(self) -> None:
        """Start every node that there was."""
        self.start_nodes(*sorted(self.nodes))
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(self.serve, list(self.servers)))

    def url(self, number: int) -> str:
        """Where a node listens, if its place says so."""
        return f"http://{self.place(number).listen}"

    def place(self, number: int) -> Place:
        """Where a node is."""
        return self._places.get(number, Place(_ip(number)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number in self.nodes:
            # What stands still cannot be ended in order.
            self.nodes[number].send(signal.SIGCONT)
        for server in self.servers.values():
            server.__exit__(None, None, None)
        for node in self.nodes.values():
            node.kill()
        self._rays_own.cleanup()


def _ip(number: int) -> str:
    """An address of loopback that is a node's own; Ray takes 127.0.0.1 for the machine's name."""
    return f"127.0.7.{number}"


def free_port(ip: str = "127.0.0.1") -> int:
    """A port without a listener at this address."""
    with socket.socket() as probe:
        probe.bind((ip, 0))
        port: int = probe.getsockname()[1]
    return port
