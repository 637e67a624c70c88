"""A wallet empties its queue although connections were lost, and fails if it cannot."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from typing_extensions import override

from http_edge.clients.didcomm import MediatorRefused, MediatorUnreachable, WalletError
from tests.crash import pickers
from tests.crash.pickers import Picker

pytestmark = pytest.mark.crash
AWAY = MediatorUnreachable("the connection was reset")
LOAD: Any = None  # no turn here uses it


class Scripted(Picker):
    """Each turn, and each status, has the next of these results."""

    def __init__(self, turns: list[bool | WalletError], counts: list[int | WalletError]) -> None:
        async def status() -> SimpleNamespace:
            return SimpleNamespace(message_count=_next(waiting))

        waiting, self.turns = iter(counts), iter(turns)
        wallet: Any = SimpleNamespace(status=status)
        super().__init__("wallet", wallet, [])

    @override
    async def turn(self, load: object) -> bool:
        return bool(_next(self.turns))


def _next(answers: Iterator[Any]) -> Any:
    answer = next(answers)
    if isinstance(answer, WalletError):
        raise answer
    return answer


async def test_a_wallet_goes_on_after_a_connection_that_was_lost_until_nothing_waits() -> None:
    wallet = Scripted([AWAY, True, False, False, False], [AWAY, 1, 0])
    await wallet.drain(LOAD)
    assert not [*wallet.turns]


async def test_a_wallet_does_not_go_on_after_a_refusal() -> None:
    with pytest.raises(MediatorRefused):
        await Scripted([AWAY, MediatorRefused(400, "")], [0]).drain(LOAD)


async def test_a_mediator_that_stays_away_empties_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pickers, "FRUITLESS_S_MAX", 0.01)
    monkeypatch.setattr(pickers, "PAUSE_S", 0.02)
    with pytest.raises(TimeoutError):
        await Scripted([AWAY, AWAY], [0]).drain(LOAD)
