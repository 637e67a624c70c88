"""The connections of an address that may all send their first request at once."""

from __future__ import annotations

from http_edge.listener.connections import Newcomers


def test_a_newcomer_counts_once_and_only_until_all_are_forgotten() -> None:
    newcomers = Newcomers()
    early = newcomers.add("a")
    newcomers.forget()
    late = newcomers.add("a")
    newcomers.remove("a", early)
    newcomers.remove("a", None)
    assert (newcomers.of("a"), newcomers.of("b")) == (1, 0)
    newcomers.remove("a", late)
    assert newcomers.of("a") == 0
