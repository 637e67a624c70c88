"""The project's own files, as the tidy rules see them."""

from __future__ import annotations

import ast
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
        """Dotted names that the module imports or reaches through a plain name, with lines."""
        return iter(self._found[0])

    def functions(self) -> Iterator[tuple[str, int, int]]:
        """Its functions: name, first and last line."""
        return iter(self._found[1])

    @cached_property
    def _found(self) -> tuple[Sequence[tuple[str, int]], Sequence[tuple[str, int, int]]]:
        """What the rules look for, found in one walk."""
        uses: list[tuple[str, int]] = []
        functions = []
        for node in ast.walk(self.tree):
            match node:
                case ast.Import(names=names):
                    uses += [(alias.name, node.lineno) for alias in names]
                case ast.ImportFrom(module=str(module), names=names):
                    uses.append((module, node.lineno))
                    uses += [(f"{module}.{alias.name}", node.lineno) for alias in names]
                case ast.Attribute(value=ast.Name(id=base), attr=attribute):
                    uses.append((f"{base}.{attribute}", node.lineno))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    functions.append((name, node.lineno, node.end_lineno or node.lineno))
                case _:
                    pass
        return uses, functions


_module = cache(Module)


def modules(*packages: str) -> list[Module]:
    """All modules of these packages, by path."""
    return [_module(path) for path in text_files(*packages) if path.endswith(".py")]


def text_files(*folders: str) -> list[str]:
    """Paths of the files in these folders, and of the root's own when none is named."""
    found = [path for folder in folders or _TEXTS for path in (ROOT / folder).rglob("*")]
    if not folders:
        found += [path for path in ROOT.iterdir() if path.suffix != ".db"]
    relative = [path.relative_to(ROOT) for path in found if path.is_file()]
    return sorted(str(path) for path in relative if not _SKIPPED & set(path.parts))
