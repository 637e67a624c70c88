"""The client libraries stand alone: what they import is small, whatever part is used."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing
from collections.abc import Iterator
from graphlib import TopologicalSorter
from types import ModuleType

import pytest

from http_edge.clients import decentrl, didcomm
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
        "http_edge.clients.demonstration.decentrl",
        "http_edge.clients.demonstration.didcomm",
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


INNER = {"OwnDids", "V2"}
"""What connections are made of; no caller has to name it."""


@pytest.mark.parametrize("library", [decentrl, didcomm], ids=lambda one: one.__name__)
def test_a_library_exports_every_class_that_its_signatures_name(library: ModuleType) -> None:
    public = [getattr(library, name) for name in library.__all__]
    named = {kind for item in public for hint in _hints(item) for kind in _classes(hint)}
    ours = {kind.__name__ for kind in named if kind.__module__.startswith("http_edge")}
    assert ours - INNER - set(library.__all__) == set()


def _hints(item: object) -> Iterator[object]:
    """The types of a function's parameters and answer, or of all public methods of a class."""
    functions = [item]
    if inspect.isclass(item):
        functions = [
            getattr(member, "fget", None) or getattr(member, "__func__", member)
            for kind in item.__mro__
            for name, member in vars(kind).items()
            if kind.__module__.startswith("http_edge")
            and (name == "__init__" or not name.startswith("_"))
        ]
    for function in functions:
        if inspect.isfunction(function):
            yield from typing.get_type_hints(inspect.unwrap(function)).values()


def _classes(hint: object) -> Iterator[type]:
    if inspect.isclass(hint) and not hint.__name__.startswith("_"):
        yield hint
    for inner in typing.get_args(hint):
        yield from _classes(inner)
