"""The tests can fail: the model catches each defect that is put in on purpose."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import pytest
from _pytest.mark import ParameterSet
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import account_sabotages, agent_sabotages, sabotages
from tests.model.agent_machine import AgentMachine
from tests.model.mediator_machine import MediatorMachine
from tests.model.sabotages import Sabotage
from tests.model.systems import CoreSystem, HostSystem
from tests.model.test_model import EXAMPLES

IN_THE_CORE = [
    *sabotages.IN_THE_CORE,
    *agent_sabotages.IN_THE_CORE,
    *account_sabotages.IN_THE_CORE,
]
IN_THE_HOST = [*sabotages.IN_THE_HOST, *agent_sabotages.IN_THE_HOST]
LOOKING = settings(
    EXAMPLES, max_examples=1_600, phases=[Phase.generate], report_multiple_bugs=False
)


QUICKLY: Final = {
    "decide_on_the_log_instead_of_the_batch",
    "forget_the_caps",
    "hand_out_what_is_leased",
    "keep_the_bytes_of_removed_messages",
    "leave_the_depths_of_queues_as_they_were",
    "let_a_claim_overwrite_another",
    "push_without_a_lease",
    "remove_what_is_handed_out",
    "skip_the_nonce_check",
    "sweep_nonces_that_are_in_force",
}
"""Ten of different kinds that are caught within half a second each: a model that has gone blind is
noticed at once. The others belong to a whole run."""


def each_of(sabotages: Sequence[Sabotage]) -> list[ParameterSet]:
    return [
        pytest.param(
            sabotage,
            id=sabotage.__name__,
            marks=() if sabotage.__name__ in QUICKLY else pytest.mark.thorough,
        )
        for sabotage in sabotages
    ]


def test_the_ten_quick_ones_are_there() -> None:
    names = {sabotage.__name__ for sabotage in (*IN_THE_CORE, *IN_THE_HOST)}
    assert len(QUICKLY) == 10
    assert names >= QUICKLY


@pytest.mark.parametrize("sabotage", each_of(IN_THE_CORE))
def test_the_model_catches_in_the_core(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sabotaged(AgentMachine):
        make_system = CoreSystem

    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Sabotaged, settings=LOOKING)


@pytest.mark.parametrize("sabotage", each_of(IN_THE_HOST))
def test_the_model_catches_in_the_host(
    sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Sabotaged(MediatorMachine):
        @staticmethod
        def make_system() -> HostSystem:
            return HostSystem(f"sqlite:{tmp_path / uuid4().hex}.db")

    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Sabotaged, settings=LOOKING)
