"""Names that are in memory once."""

from __future__ import annotations

import pytest

from actors.core.names import RecentNames, frees_interned


@pytest.mark.parametrize(
    ("version", "frees"),
    [
        ((3, 11, 2), True),
        ((3, 12, 0), False),
        ((3, 12, 6), False),
        ((3, 12, 7), True),
        ((3, 13, 0), True),
    ],
)
def test_names_are_interned_where_the_interpreter_frees_them(
    version: tuple[int, ...], *, frees: bool
) -> None:
    assert frees_interned(version) is frees


def test_recent_names_are_shared_and_strangers_cannot_fill_their_table() -> None:
    names = RecentNames(3)
    first = named(0)
    assert names.shared(first) is names.shared(named(0)) is first
    assert [names.shared(named(number)) for number in range(3)] == [named(n) for n in range(3)]
    assert names.shared(named(0)) is first
    for number in range(3, 10):
        names.shared(named(number))
        assert len(names._names) <= 3
    assert names.shared(first) == first


def named(number: int) -> str:
    """A new copy of a name."""
    return "".join(["did:x:", str(number)])
