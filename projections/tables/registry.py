"""All projected tables: every ``Projection`` that a module of this package declares."""

from __future__ import annotations

from collections import Counter
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

import projections.tables
from projections.tables.projection import FREQUENT, Projection


def _declared() -> tuple[Projection, ...]:
    names = [module.name for module in iter_modules(projections.tables.__path__)]
    modules = [import_module(f"{projections.tables.__name__}.{name}") for name in names]
    found = {
        value.name: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Projection)
    }
    # Tables of frequent events take longest: begun first, the others are done beside them.
    return tuple(
        sorted(found.values(), key=lambda table: (FREQUENT.isdisjoint(table.reads), table.name))
    )


PROJECTIONS: Final = _declared()
"""In the order in which they are rebuilt."""


def _rare() -> frozenset[str]:
    readers = Counter(kind for projection in PROJECTIONS for kind in projection.reads)
    return frozenset(kind for kind, count in readers.items() if count > 1) - FREQUENT


RARE: Final = _rare()
"""Types of few events that several tables are of. One table is of all types: what no other reads
is not among them."""
