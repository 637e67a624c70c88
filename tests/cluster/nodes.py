"""Nodes of a cluster on one machine: a ``poste serve`` each, at an address of its own."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple, Self

from tests.cluster.namespace import Namespace
from tests.cluster.server import MEDIATOR_DID, Server, own_environment, send, serve_command
from tests.ports import free_port

_REFUSED_S_MAX: Final = 60.0
_INSIDE_PORT: Final = 8080


class Place(NamedTuple):
    """Where a node is: its address in the cluster, where it listens, what its commands run in.

    Without ``listen`` it is at a free port of loopback.
    """

    ip: str
    listen: str = ""
    prefix: Sequence[str] = ()


def apart(namespace: Namespace) -> tuple[Place, Place]:
    """A place outside the namespace, and one in it."""
    inside = f"{namespace.clients.address(3)}:{_INSIDE_PORT}"
    return (
        Place(namespace.outward.address(1), f"127.0.0.1:{free_port()}"),
        Place(namespace.inward.address(3), inside, namespace.prefix),
    )


class Nodes:
    """Nodes with one log and one file of keys, and nothing else in common.

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
        """None is there yet; where ``places`` says nothing, they are on loopback."""
        self._directory = directory
        keys_file = directory / "mediator-keys.json"
        self._settings = {"log": dsn, "keys_file": str(keys_file), **settings}
        self._places = places or {}
        self.servers: dict[int, Server] = {}
        self.exit_codes: list[int | None] = []
        """Of the mediators that were started again."""

    def serve(self, number: int) -> Server:
        """Start a node, once more if it was there before."""
        server = self._server(number)
        server.start()
        return server

    def run_from(self, number: int, tree: Path | None) -> None:
        """Have a node run the packages of this checkout, or of none but this one, from its next
        start on; not one whose place has commands of its own."""
        self._server(number).run_from(tree)

    def _server(self, number: int) -> Server:
        if number not in self.servers:
            place = self.place(number)
            self.servers[number] = Server(
                self._directory / f"data-{number}",
                node_address=place.ip,
                listen=place.listen,
                node=f"node-{number}",
                **self._settings,
            )
            self.servers[number].prefix = place.prefix
        return self.servers[number]

    def refused(self, number: int, **settings: str) -> tuple[int, str]:
        """A node that must not start: its exit code and its words."""
        name = "-".join(settings)
        there = {"node_address": _ip(number), "did": MEDIATOR_DID, "listen": "127.0.0.1:0"}
        ended = subprocess.run(
            serve_command(
                self._directory / f"refused-{name}", **{**self._settings, **there, **settings}
            ),
            capture_output=True,
            text=True,
            env=own_environment(),
            check=False,
            timeout=_REFUSED_S_MAX,
        )
        return ended.returncode, ended.stderr

    def send(self, number: int, what: signal.Signals) -> None:
        """A signal to every process of a node."""
        for pid, _ in self.servers[number].processes():
            send(pid, what)

    def mend(self) -> bool:
        """Start again what has ended by now, as supervisors do: was there nothing to be done?"""
        codes = {number: server.exit_code(0) for number, server in self.servers.items()}
        ended = [number for number, code in codes.items() if code is not None]
        self.exit_codes += [codes[number] for number in ended]
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(self.serve, ended))
        return not ended

    def kill_everything(self) -> None:
        """``kill -9`` of every process of every node."""
        for server in self.servers.values():
            server.kill_everything()

    def lose_everything(self) -> None:
        """``kill -9`` of every process of every node, and nothing of their disks is left."""
        self.kill_everything()
        for server in self.servers.values():
            shutil.rmtree(server.data_dir)

    def start(self, *numbers: int) -> None:
        """Start these nodes at once; without numbers every one that there was."""
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(self.serve, numbers or list(self.servers)))

    def url(self, number: int) -> str:
        """Where a node listens, if its place says so."""
        return f"http://{self.place(number).listen}"

    def place(self, number: int) -> Place:
        """Where a node is."""
        return self._places.get(number, Place(_ip(number)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for number, server in self.servers.items():
            # What stands still cannot be ended in order.
            self.send(number, signal.SIGCONT)
            server.__exit__(None, None, None)


def _ip(number: int) -> str:
    """An address of loopback that is a node's own."""
    return f"127.0.7.{number}"
