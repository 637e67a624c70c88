"""Names that are in memory once."""

from __future__ import annotations

import sys
from functools import _lru_cache_wrapper

import pytest

from actors.core.names import sharing


@pytest.mark.parametrize("version", [(3, 11, 2), (3, 12, 7), (3, 13, 0)])
def test_names_are_interned_where_the_interpreter_frees_them(version: tuple[int, ...]) -> None:
    assert sharing(version) is sys.intern


@pytest.mark.parametrize("version", [(3, 12, 0), (3, 12, 6)])
def test_recent_names_are_shared_and_strangers_cannot_fill_their_table(
    version: tuple[int, ...],
) -> None:
    shared = sharing(version)
    assert isinstance(shared, _lru_cache_wrapper)
    names_max = shared.cache_info().maxsize
    assert names_max is not None
    first = named(0)
    assert shared(first) is shared(named(0)) is first
    for number in range(1, 2 * names_max):
        assert shared(named(number)) == named(number)
    assert shared.cache_info().currsize == names_max
    assert shared(named(0)) == first


def named(number: int) -> str:
    """A new copy of a name."""
    return "".join(["did:x:", str(number)])
