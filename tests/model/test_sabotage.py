"""The tests can fail: the model catches each defect that is put in on purpose."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model import agent_sabotages, sabotages
from tests.model.agent_machine import AgentMachine
from tests.model.mediator_machine import MediatorMachine
from tests.model.sabotages import Sabotage
from tests.model.systems import CoreSystem, HostSystem
from tests.model.test_model import EXAMPLES

IN_THE_CORE = [*sabotages.IN_THE_CORE, *agent_sabotages.IN_THE_CORE]
IN_THE_HOST = [*sabotages.IN_THE_HOST, *agent_sabotages.IN_THE_HOST]
LOOKING = settings(EXAMPLES, max_examples=400, phases=[Phase.generate], report_multiple_bugs=False)


@pytest.mark.parametrize("sabotage", IN_THE_CORE, ids=lambda sabotage: sabotage.__name__)
def test_the_model_catches_in_the_core(sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Sabotaged(AgentMachine):
        make_system = CoreSystem

    sabotage(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Sabotaged, settings=LOOKING)


@pytest.mark.parametrize("sabotage", IN_THE_HOST, ids=lambda sabotage: sabotage.__name__)
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
