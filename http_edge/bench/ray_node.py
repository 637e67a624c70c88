"""A Ray node and the ``poste serve`` on it, each in a session of its own."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from http_edge.bench.ending import GONE_S_MAX, kill_all, signalled
from http_edge.bench.layers import Seen, in_sessions
from http_edge.bench.server import LOOPBACK, READY_S_MAX, NotReady
from http_edge.bench.target import Target

_OBJECT_STORE_BYTES: Final = 100 * 1024 * 1024
_LAST_LINES: Final = 5
_RAY: Final = (sys.executable, "-m", "ray.scripts.scripts", "start", "--block")
_SERVE: Final = (sys.executable, "-c", "from http_edge.cli.main import main; main()", "serve")


class Started:
    """A process in a session of its own, by which all that it starts is found."""

    def __init__(self, command: Iterable[str], environment: Mapping[str, str], words: Path) -> None:
        """Start it; what it says on stderr goes to the file ``words``."""
        self._words = words
        with words.open("ab") as said:
            self._process = subprocess.Popen(  # noqa: S603 - what the benchmark measures
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=said,
                env=environment,
                start_new_session=True,
            )

    @property
    def session(self) -> int:
        """The session of all its processes."""
        return self._process.pid

    def processes(self, title: str = "") -> list[Seen]:
        """Its living processes whose titles begin so."""
        return [seen for seen in in_sessions([self.session]) if seen.title.startswith(title)]

    def until_says(self, word: bytes) -> bytes:
        """The line that it says with this word in it.

        Raises:
            NotReady: it ended, or did not say it within READY_S_MAX.
        """
        said = self._process.stdout
        assert said is not None
        lines: list[bytes] = []
        while select.select([said], [], [], READY_S_MAX)[0]:
            lines.append(said.readline())
            if word in lines[-1]:
                return lines[-1]
            if not lines[-1]:
                break
        heard = b" ".join(lines).decode(errors="replace") + self._words.read_text(errors="replace")
        last = " | ".join(heard.splitlines()[-_LAST_LINES:])
        raise NotReady(f"a process of the cluster did not start: {last}")

    def stop(self) -> None:
        """SIGTERM to the first process, as an operator stops it; kill what is left."""
        signalled([self.session] if self._process.poll() is None else [], signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GONE_S_MAX)
        self.kill()

    def kill_first(self) -> None:
        """``kill -9`` of the first process alone; what it has started has to end by itself."""
        self._process.kill()
        self._process.wait()

    def kill(self) -> None:
        """``kill -9`` of every process of the session."""
        while left := [seen.pid for seen in self.processes()]:
            kill_all(left)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(slots=True)
class Node:
    """A Ray node, and its ``poste serve`` once that runs.

    Attributes:
        name: What the placer calls it.
        ip: Its own address of loopback.
        ray: Ray's processes, actors included.
        serve: The main process of ``poste serve``.
        target: Where its edges listen.
    """

    name: str
    ip: str
    ray: Started
    serve: Started | None = None
    target: Target = field(default_factory=lambda: Target(LOOPBACK, 0))

    def start_serving(
        self, settings: Mapping[str, str], environment: Mapping[str, str], folder: Path
    ) -> None:
        """Start ``poste serve`` here; it listens where it did before.

        Raises:
            NotReady: it did not start.
        """
        own = {
            "listen": self.target.authority,
            "data_dir": str(folder / self.name),
            "node": self.name,
            "ray_node_ip": self.ip,
        }
        named = [f"--set={name}={value}" for name, value in {**settings, **own}.items()]
        self.serve = Started([*_SERVE, *named], environment, folder / f"{self.name}.words")
        ready = self.serve.until_says(b"ready ").decode()
        self.target = Target.at(ready.partition("ready ")[2].split()[0])


def ray_start(
    ip: str, address: str, environment: Mapping[str, str], folder: Path, sockets: Path
) -> Started:
    """``ray start``: the head where ``address`` is this node's own, else a node that joins it.

    Raises:
        NotReady: it did not start.
    """
    host, _, port = address.partition(":")
    role = (
        ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"]
        if host == ip
        else [f"--address={address}"]
    )
    own = [f"--node-ip-address={ip}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
    command = [*_RAY, "--disable-usage-stats", "--num-cpus=1", *role, *own]
    started = Started(command, environment, folder / f"ray-{ip}.words")
    try:
        started.until_says(b"Ray runtime started")
    except BaseException:
        started.kill()
        raise
    return started


def free_port(ip: str) -> int:
    """A port that nobody listens on at this address."""
    with socket.socket() as probe:
        probe.bind((ip, 0))
        port: int = probe.getsockname()[1]
    return port
