"""The commands of the compose file, as plain processes: keys, a node, an export.

No container engine is needed: what a container would give (paths, names, the image's environment)
is put in its place, the commands themselves are those of the file.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cluster.server import ended, own_environment, processes_of, ready_url, send
from tests.deploy.manifests import DEPLOY, VARIABLES, compose
from tests.ports import free_port

pytestmark = pytest.mark.cluster
READY_S_MAX: Final = 90.0
GONE_S_MAX: Final = 30.0
_POSTE: Final = """#!/bin/sh
exec {python} -c 'from http_edge.cli.main import main; main()' "$@"
"""


def _environment_of_the_image() -> dict[str, str]:
    text = (DEPLOY / "image/Dockerfile").read_text("utf-8").replace("\\\n", " ")
    (runtime,) = re.findall(r"(?m)^ENV (HOME=.*)$", text)
    return dict(part.split("=", 1) for part in runtime.split())


class Machine:
    """One machine on which the services of the compose file run as processes."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.services: dict[str, Any] = compose(VARIABLES).to_dict()["services"]
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self._dsn = dsn
        self._running: list[subprocess.Popen[bytes]] = []
        programs = folder / "bin"
        programs.mkdir()
        (programs / "poste").write_text(_POSTE.format(python=sys.executable), "utf-8")
        (programs / "poste").chmod(0o755)

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """The process of a service, through the entry point of the image."""
        service = self.services[name]
        command = [self._here(word) for word in service["command"]]
        log = (self.folder / f"{name}.log").open("w")
        with log:
            process = subprocess.Popen(
                ["sh", str(DEPLOY / "image/poste-run"), *command],
                env=self._environment(service),
                stdout=subprocess.PIPE,
                bufsize=0,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def words(self, name: str) -> str:
        """What a service wrote on stderr."""
        return (self.folder / f"{name}.log").read_text("utf-8")

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command to its end, with the environment of a node."""
        return subprocess.run(
            command,
            env=self._environment(self.services["node"]),
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_S_MAX,
        )

    def end(self) -> None:
        """Kill every process of every service."""
        sessions = {process.pid for process in self._running}
        # One may have made another before it was killed.
        while left := [pid for pid, _ in processes_of(sessions)]:
            for pid in left:
                send(pid, signal.SIGKILL)
            for pid in left:
                ended(pid, GONE_S_MAX)
        for process in self._running:
            process.wait(GONE_S_MAX)
            assert process.stdout is not None
            process.stdout.close()

    def _environment(self, service: dict[str, Any]) -> dict[str, str]:
        variables = _environment_of_the_image() | {
            name: self._here(str(value)) for name, value in service.get("environment", {}).items()
        }
        if "POSTE_LOG" in variables:
            variables["POSTE_LOG"] = self._dsn
        return {
            **own_environment(),
            **variables,
            "HOME": str(self.folder),
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "POSTE_DATA_DIR": str(self.folder / "data"),
            "POSTE_LISTEN": self.url.removeprefix("http://"),
        }

    def _here(self, text: str) -> str:
        """A word of the file with the names and paths of this machine."""
        text = text.replace("node_address=auto", "node_address=127.0.0.1")
        return re.sub(r"^(|--[\w-]+=)/(keys|export)\b", rf"\1{self.folder}/\2", text)


@pytest.fixture
def machine(postgres_url: str) -> Iterator[Machine]:
    # A Unix socket's path has at most 107 bytes, and Ray adds 70.
    folder = Path(tempfile.mkdtemp(prefix="poste-"))
    machine = Machine(folder, postgres_url)
    try:
        yield machine
    finally:
        machine.end()
        shutil.rmtree(folder)


def _until(holds: Any, seconds_max: float) -> bool:
    deadline = time.monotonic() + seconds_max
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.1)
    return False


def test_the_commands_of_the_compose_file_make_a_mediator(machine: Machine) -> None:
    (machine.folder / "keys").mkdir(mode=0o700)
    assert machine.start("keys").wait(READY_S_MAX) == 0, machine.words("keys")

    node = machine.start("node")
    assert node.stdout is not None
    assert ready_url(node.stdout) == VARIABLES["POSTE_PUBLIC_URL"], machine.words("node")
    demo = machine.run("poste", "demo", "--url", machine.url)
    assert demo.returncode == 0, demo.stderr

    export = machine.start("export")
    exported = machine.folder / "export"
    assert _until(lambda: list(exported.rglob("*.parquet")), READY_S_MAX), machine.words("export")
    export.terminate()
    export.wait(GONE_S_MAX)
    node.terminate()
    assert node.wait(GONE_S_MAX) == 0, machine.words("node")

    checked = machine.run("poste", "log", "verify")
    assert checked.returncode == 0, checked.stdout
