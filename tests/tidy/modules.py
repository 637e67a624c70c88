"""The project's own files, as the tidy rules see them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ("actors", "eventstore", "http_edge", "projections")
_TEXTS = (*PRODUCT, "tests", "deploy", ".ci")
_SKIPPED = {"__pycache__", "node_modules", ".git"}  # .git is a file in a linked work tree


@dataclass(frozen=True)
class Module:
    """One Python file: its path from the root, its text and its syntax tree."""

    path: str

    @cached_property
    def text(self) -> str:
        return (ROOT / self.path).read_text("utf-8")

    @property
    def tree(self) -> ast.Module:
        """Parsed anew each time: all trees at once would slow every test of the process down."""
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        return self.path.partition("/")[0]

    def uses(self) -> Iterator[tuple[str, int]]:
        """Dotted names that the module imports or reaches, with lines.

        They are those of the imports, whatever the module calls them: ``dt.date`` after ``import
        datetime as dt`` is ``datetime.date``.
        """
        return iter(self._found[0])

    def functions(self) -> Iterator[tuple[str, int, int]]:
        """Its functions: name, first and last line."""
        return iter(self._found[1])

    @cached_property
    def _found(self) -> tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int, int]]]:
        """What the rules look for, found in one walk."""
        uses: list[tuple[str, int]] = []
        reached: list[tuple[str, int]] = []
        imported: dict[str, str] = {}
        functions = []
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=names):
                    uses += [(alias.name, node.lineno) for alias in names]
                    imported |= {alias.asname: alias.name for alias in names if alias.asname}
                case ast.ImportFrom(module=str(module), names=names):
                    uses.append((module, node.lineno))
                    uses += [(f"{module}.{alias.name}", node.lineno) for alias in names]
                    imported |= {a.asname or a.name: f"{module}.{a.name}" for a in names}
                case ast.Attribute() if name := _dotted(node):
                    reached.append((name, node.lineno))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    functions.append((name, node.lineno, node.end_lineno or node.lineno))
                case _:
                    pass
        for name, line in reached:
            first, dot, rest = name.partition(".")
            uses.append((imported.get(first, first) + dot + rest, line))
        return uses, functions


def _dotted(node: ast.expr) -> str:
    """``a.b.c`` as it is written; empty if it begins with anything else than a plain name."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name) if base := _dotted(value):
            return f"{base}.{name}"
        case _:
            return ""


_module = cache(Module)


def modules(*packages: str) -> list[Module]:
    """All modules of these packages, by path."""
    return [_module(path) for path in text_files(*packages) if path.endswith(".py")]


def text_files(*folders: str) -> list[str]:
    """Paths of the files in these folders, and of the root's own when none is named."""
    roots = () if folders else ROOT.iterdir()
    found = [path.name for path in roots if path.suffix != ".db" and path.is_file()]
    for folder in folders or _TEXTS:
        for at, inner, names in os.walk(ROOT / folder):
            inner[:] = set(inner) - _SKIPPED
            below = os.path.relpath(at, ROOT)
            found += [f"{below}/{name}" for name in names]
    return sorted(set(found) - _SKIPPED)
