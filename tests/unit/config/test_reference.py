"""The reference: generated from the settings, so it is whole and true."""

import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from http_edge.settings.reference import (
    RETIRED,
    Setting,
    every_setting,
    markdown_reference,
    toml_reference,
    variable_of,
)
from http_edge.settings.settings import Section, Settings
from http_edge.settings.sources import SettingRefused, load_settings

ROOT = Path(__file__).parents[3]


def _with_every_setting() -> str:
    return re.sub(r"(?m)^#(?=\w)", "", toml_reference())


def test_the_example_in_deploy_is_the_reference() -> None:
    # Made anew by: poste config reference > deploy/poste.example.toml
    assert (ROOT / "deploy/poste.example.toml").read_text() == toml_reference()


def test_the_tables_in_deploy_are_the_reference() -> None:
    # Made anew by: poste config reference --markdown > deploy/CONFIGURATION.md
    assert (ROOT / "deploy/CONFIGURATION.md").read_text() == markdown_reference()


def test_the_reference_as_printed_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "poste.toml"
    path.write_text(toml_reference())
    assert set(load_settings({}, {}, path).sources.values()) == {"default"}


def test_the_reference_with_every_setting_set_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "poste.toml"
    path.write_text(_with_every_setting())
    loaded = load_settings({}, {}, path)
    assert set(loaded.sources.values()) == {str(path)}
    assert loaded.settings == load_settings({}, {}).settings


def test_every_setting_says_why_and_what_fits() -> None:
    for setting in every_setting().values():
        assert len(setting.reason) > 20, setting.name
        assert setting.reason.endswith("."), setting.name
        assert not setting.expected.startswith("a text"), setting.name


def test_every_section_is_described() -> None:
    for field in Settings.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            assert field.annotation.__doc__


_LIMIT_ENDS = ("_max", "_min", "_s", "_default", "_after_events")


def test_every_number_has_a_lower_bound_and_every_limit_a_unit() -> None:
    for setting in every_setting().values():
        if setting.kind["type"] in {"integer", "number"}:
            assert setting.kind.keys() & {"minimum", "exclusiveMinimum"}, setting.name
        if setting.section == "limits":
            assert setting.field.endswith(_LIMIT_ENDS), setting.name


def test_no_time_is_too_long_to_be_reckoned_with() -> None:
    for setting in every_setting().values():
        is_time = re.search(r"(?<!_per)_m?s(_max|_min)?$", setting.field)
        if is_time and setting.kind["type"] in {"integer", "number"}:
            assert setting.kind.get("maximum", inf) < 2**63 / 1000, setting.name


def test_every_whole_number_that_fits_is_exact_in_the_json_of_an_answer() -> None:
    for setting in every_setting().values():
        if setting.kind["type"] == "integer":
            assert setting.kind.get("maximum", inf) < 2**53, setting.name


def test_the_tables_name_every_setting_and_its_variable() -> None:
    tables = markdown_reference()
    for setting in every_setting().values():
        assert f"| `{setting.name}` |" in tables
        assert f"| `{setting.variable}` |" in tables


@pytest.mark.parametrize("name", RETIRED)
def test_a_setting_of_an_earlier_release_is_refused_with_what_to_set(
    name: str, tmp_path: Path
) -> None:
    section, _, field = name.rpartition(".")
    file = tmp_path / "poste.toml"
    file.write_text(f'{f"[{section}]" if section else ""}\n{field} = ""\n')
    sources: list[Any] = [({name: "1"}, {}), ({}, {variable_of(name): "1"}), ({}, {}, file)]
    for source in sources:
        with pytest.raises(SettingRefused) as refused:
            load_settings(*source)
        assert refused.value.expected == RETIRED[name]
        instead = RETIRED[name].split(" ")[0].rstrip(",")
        assert instead in every_setting()


def test_a_renamed_setting_names_the_one_it_was() -> None:
    schema = {"description": "Why.", "default": 1, "type": "integer", "former_name": "old.name"}
    setting = Setting("new.name", schema)
    assert (setting.former_name, setting.reason) == ("old.name", "Why. Formerly old.name.")
    assert (variable_of("old.name"), setting.variable) == ("POSTE_OLD__NAME", "POSTE_NEW__NAME")


@pytest.mark.parametrize(
    ("former", "present"),
    [
        ("didcomm.queue_age_s_max", "retention.messages_s"),
        ("limits.gather_s_max", "limits.commit_delay_s_max"),
    ],
)
def test_a_setting_of_an_earlier_release_is_read_by_its_former_name(
    former: str, present: str
) -> None:
    section, _, field = present.rpartition(".")
    loaded = load_settings({former: "1"}, {})
    assert getattr(getattr(loaded.settings, section), field) == 1
    assert every_setting()[present].reason.endswith(f"Formerly {former}.")
