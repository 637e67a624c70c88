"""``poste config``: what is in force, from where, and what could be set."""

import json
from pathlib import Path

import pytest

from http_edge.server.exits import Exit
from http_edge.settings import sources
from http_edge.settings.reference import every_setting, markdown_reference, toml_reference
from tests.unit.cli.conftest import Run


def test_show_names_each_value_and_its_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("poste.toml").write_text("[limits]\ncontracts_max = 7\n")
    monkeypatch.setenv("POSTE_EDGES", "2")
    args = ["--config", "poste.toml", "--set", "hosts=3", "--listen", "[::]:80", "--json"]
    values = json.loads(run("config", "show", *args).out)
    assert values.keys() == every_setting().keys()
    assert values["limits.contracts_max"] == {"value": 7, "source": "poste.toml"}
    assert values["edges"] == {"value": 2, "source": "POSTE_EDGES"}
    assert values["hosts"] == {"value": 3, "source": "command line"}
    assert values["public_url"] == {"value": "http://localhost:80", "source": "default"}


def test_show_as_a_table_has_a_row_for_every_setting(run: Run) -> None:
    out = run("config", "show").out
    for name in every_setting():
        assert f" {name} " in out


def test_show_keeps_the_password_of_the_log_to_itself(run: Run) -> None:
    args = ["config", "show", "--log", "postgresql://poste:hunter2@db/poste"]
    for ran in (run(*args), run(*args, "--json")):
        assert ran.code == Exit.OK
        assert "hunter2" not in ran.out + ran.err


def test_a_refused_setting_ends_with_the_remedy(run: Run) -> None:
    ran = run("config", "show", "--set", "limits.contract_max=7")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert ran.err == (
        "poste: limits.contract_max from command line: expected a known setting, perhaps "
        "limits.contracts_max\n  All settings: poste config reference\n"
    )


def test_a_former_name_of_a_setting_is_read_and_named(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "former_names", lambda: {"workers": "hosts"})
    ran = run("config", "show", "--set", "workers=3", "--json")
    assert json.loads(ran.out)["hosts"] == {"value": 3, "source": "command line"}
    assert ran.err == (
        "poste: workers from command line is called hosts now; the former name still works\n"
    )


def test_a_set_without_a_value_is_a_mistake_of_usage(run: Run) -> None:
    ran = run("config", "show", "--set", "hosts")
    assert ran.code == Exit.USAGE
    assert "'hosts' is not NAME=VALUE" in ran.err


@pytest.mark.parametrize(
    ("option", "printed"), [("--toml", toml_reference()), ("--markdown", markdown_reference())]
)
def test_the_reference_is_printed_as_it_is(run: Run, option: str, printed: str) -> None:
    assert run("config", "reference", option).out == printed
    # The last one counts.
    for other in ("--toml", "--markdown"):
        assert run("config", "reference", other, option).out == printed
