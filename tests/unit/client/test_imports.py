"""The client libraries stand alone: what they import is small, whatever part is used."""

from __future__ import annotations

import subprocess
import sys
from graphlib import TopologicalSorter

from tests.tidy.modules import modules

SERVER_SIDE = {
    "actors",
    "eventsourcing",
    "eventstore",
    "projections",
    "psycopg",
    "psycopg_pool",
    "pyarrow",
    "ray",
    "http_edge.admin",
    "http_edge.cli",
    "http_edge.decentrl",
    "http_edge.dispatch",
    "http_edge.listener",
    "http_edge.server",
    "http_edge.settings",
    "http_edge.telemetry",
}
IMPORT_ALL = """
import importlib, pkgutil, sys
import http_edge.clients as clients
for found in pkgutil.walk_packages(clients.__path__, clients.__name__ + "."):
    importlib.import_module(found.name)
print("\\n".join(sys.modules))
"""


def test_the_client_libraries_import_nothing_of_the_server_the_actors_or_the_log() -> None:
    listed = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=True
    )
    imported = set(listed.stdout.split())
    assert {
        "http_edge.clients.decentrl.walk",
        "http_edge.clients.didcomm.demonstration",
    } <= imported
    assert imported & SERVER_SIDE == set()


def test_no_modules_of_the_client_libraries_import_one_another() -> None:
    # Imports for type checking count too: two modules that name each other are one.
    found = modules("http_edge/clients")
    names = {module.path.removesuffix(".py").replace("/", ".") for module in found}
    graph = {
        module.path.removesuffix(".py").replace("/", "."): {
            name for name, _ in module.uses() if name in names
        }
        for module in found
    }
    TopologicalSorter(graph).prepare()  # raises CycleError, with the circle
