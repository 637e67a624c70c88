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
    # Tables of frequent events take longest: they start first, and the others run beside them.
    return tuple(
        sorted(found.values(), key=lambda table: (FREQUENT.isdisjoint(table.reads), table.name))
    )


PROJECTIONS: Final = _declared()
"""All projections, in the order of their rebuild."""


def _rare() -> frozenset[str]:
    readers = Counter(kind for projection in PROJECTIONS for kind in projection.reads)
    return frozenset(kind for kind, count in readers.items() if count > 1) - FREQUENT


RARE: Final = _rare()
"""The types of few events that several tables read. One table reads all types; types that no other
table reads are left out."""
