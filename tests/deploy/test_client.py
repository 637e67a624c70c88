"""poste-client: the client libraries alone, small, and complete without server, Ray and log."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

from tests.deploy.manifests import DEPLOY
from tests.tidy.modules import ROOT

PROJECT = tomllib.loads((DEPLOY / "client/pyproject.toml").read_text("utf-8"))
SERVER = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
BYTES_MAX = 60_000_000
SECONDS_MAX = 60
IMPORTS = """
import json, sys
import http_edge.clients.decentrl, http_edge.clients.didcomm
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
print(json.dumps(sorted(name for name in sys.modules if name.startswith("http_edge"))))
"""
SERVER_ONLY = {"actors", "eventsourcing", "eventstore", "projections", "psycopg", "pyarrow", "ray"}


def _imported() -> tuple[set[str], set[str]]:
    """What both libraries import in a process of its own: top-level names, and our modules."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
    )
    names, modules = map(json.loads, done.stdout.splitlines())
    return set(names), set(modules)


def test_the_client_libraries_import_neither_server_nor_ray_nor_log() -> None:
    names, _ = _imported()
    assert names & SERVER_ONLY == set()


def test_the_distribution_holds_the_modules_that_the_libraries_import_and_no_other() -> None:
    _, imported = _imported()
    built = PROJECT["tool"]["setuptools"]
    held = {name.removesuffix(".__init__") for name in built["py-modules"]}
    # Setuptools adds the __init__ of the package of each module.
    held |= {name.rpartition(".")[0] for name in held} | set(built["packages"])
    for package in built["packages"]:
        paths = (ROOT / package.replace(".", "/")).glob("[!_]*.py")
        held |= {f"{package}.{path.stem}" for path in paths}
    assert held == imported


def test_what_the_libraries_import_is_declared_and_no_more() -> None:
    names, _ = _imported()
    declared = {Requirement(text).name.lower() for text in PROJECT["project"]["dependencies"]}
    owners = importlib.metadata.packages_distributions()
    names -= {"http_edge", "_distutils_hack"}  # ours, and what setuptools adds to every process
    used = {owner.lower() for name in names for owner in owners.get(name, ())}
    assert declared - used == set()
    assert used - set(_closure(declared)) == set()


def test_both_distributions_ask_for_the_same_versions() -> None:
    assert set(PROJECT["project"]["dependencies"]) <= set(SERVER["dependencies"])
    assert PROJECT["project"]["version"] == SERVER["version"]


def test_the_distribution_carries_its_licence() -> None:
    (named,) = PROJECT["project"]["license-files"]
    assert (DEPLOY / "client" / named).read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert PROJECT["project"]["license"] == SERVER["license"]


def test_the_distribution_and_what_it_needs_stay_small() -> None:
    declared = {Requirement(text).name for text in PROJECT["project"]["dependencies"]}
    files = {
        Path(str(file.locate()))
        for name in _closure(declared)
        for file in importlib.metadata.files(name) or ()
    }
    assert sum(path.stat().st_size for path in files if path.exists()) < BYTES_MAX


def _closure(names: set[str]) -> set[str]:
    """These distributions and all that they need, by lower-case name."""
    found: set[str] = set()
    waiting = [name.lower() for name in names]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or ():
            inner = Requirement(text)
            if inner.marker is None or inner.marker.evaluate({"extra": ""}):
                waiting.append(inner.name.lower())
    return found
