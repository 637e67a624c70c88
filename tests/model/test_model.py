"""Whatever is asked, in whatever order, the mediator answers as its plain model does."""

from __future__ import annotations

import tempfile
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.agent_machine import AgentMachine
from tests.model.erasure_machine import ErasingAgents, ErasingMediator
from tests.model.mediator_machine import MediatorMachine
from tests.model.systems import CoreSystem, HostSystem
from tests.postgres import Server

EXAMPLES = settings(derandomize=True, database=None, deadline=None, stateful_step_count=80)


def test_the_pure_core_answers_as_the_model_does() -> None:
    class Core(AgentMachine):
        make_system = CoreSystem

    examples = min(60, settings().max_examples)  # fewer in make quick, by its profile
    run_state_machine_as_test(Core, settings=settings(EXAMPLES, max_examples=examples))


@pytest.mark.thorough
def test_a_host_on_sqlite_answers_as_the_model_does() -> None:
    with tempfile.TemporaryDirectory() as directory:

        class OnSqlite(MediatorMachine):
            @staticmethod
            def make_system() -> HostSystem:
                return HostSystem(f"sqlite:{Path(directory) / uuid4().hex}.db")

        run_state_machine_as_test(OnSqlite, settings=settings(EXAMPLES, max_examples=25))


@pytest.mark.thorough
def test_the_pure_core_answers_as_the_model_does_with_erased_identities() -> None:
    class Core(ErasingAgents):
        make_system = CoreSystem

    examples = min(60, settings().max_examples)
    run_state_machine_as_test(Core, settings=settings(EXAMPLES, max_examples=examples))


@pytest.mark.thorough
def test_a_host_on_sqlite_answers_as_the_model_does_with_erased_identities() -> None:
    with tempfile.TemporaryDirectory() as directory:

        class OnSqlite(ErasingMediator):
            @staticmethod
            def make_system() -> HostSystem:
                return HostSystem(f"sqlite:{Path(directory) / uuid4().hex}.db")

        run_state_machine_as_test(OnSqlite, settings=settings(EXAMPLES, max_examples=10))


@pytest.mark.postgres
def test_a_host_on_postgresql_answers_as_the_model_does(postgres_server: Server) -> None:
    def fresh_log() -> HostSystem:
        name = f"model_{uuid4().hex}"
        with psycopg.connect(postgres_server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return HostSystem(postgres_server.get_uri(name))

    class OnPostgres(MediatorMachine):
        make_system = staticmethod(fresh_log)

    run_state_machine_as_test(OnPostgres, settings=settings(EXAMPLES, max_examples=8))
