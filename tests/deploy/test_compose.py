"""The compose file: of the specification, closed, and without a secret in it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from yamllint import linter
from yamllint.config import YamlLintConfig

from tests.deploy.manifests import CHART, COMPOSE, DEPLOY, VARIABLES, compose, services

LINT = YamlLintConfig(
    "{extends: default, rules: {document-start: disable, line-length: {max: 125}, "
    "comments: {min-spaces-from-content: 1}, "
    "truthy: {check-keys: false}}}"
)
FILES = [COMPOSE, CHART / "values.yaml", CHART / "Chart.yaml"]
SERVICES = services()
OURS = {name for name, service in SERVICES.items() if service["image"].startswith("poste")}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_yaml_is_clean(file: Any) -> None:
    problems = linter.run(file.read_text("utf-8"), LINT)
    assert [f"{problem.line}: {problem.message}" for problem in problems] == []


def test_the_file_is_a_compose_file_with_every_part_of_a_cluster() -> None:
    compose(VARIABLES).to_spec()
    assert set(SERVICES) >= {"postgres", "node", "proxy", "spark", "export", "keys"}
    assert SERVICES["spark"]["profiles"] == ["spark"]


def test_everything_that_it_demands_stands_in_the_example() -> None:
    demanded = set(re.findall(r"\$\{(\w+):\?", COMPOSE.read_text("utf-8")))
    example = (DEPLOY / "compose/example.env").read_text("utf-8")
    assert demanded == set(VARIABLES) == set(re.findall(r"(?m)^(\w+)=", example))


def test_what_is_depended_on_is_there_and_can_become_healthy() -> None:
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, name
            if how["condition"] == "service_healthy":
                # A node's own is in the image.
                assert "healthcheck" in SERVICES[needed] or needed == "node", name


def test_postgresql_has_the_settings_that_its_page_names() -> None:
    page = (DEPLOY / "docs/pages/operations/postgresql.md").read_text("utf-8")
    paragraph = page.split("**Bytes written.**")[1].split("halve")[0]
    named = re.findall(r"`(\w+) = (\w+)`", paragraph)
    assert len(named) == 4
    program, *given = SERVICES["postgres"]["command"]
    assert (program, given) == ("postgres", [f"-c{name}={value}" for name, value in named])


def test_the_proxy_alone_is_reached_from_outside() -> None:
    assert {name for name, service in SERVICES.items() if "ports" in service} == {"proxy"}
    assert all(service.get("network_mode") != "host" for service in SERVICES.values())


def test_our_containers_can_write_nowhere_and_may_do_nothing() -> None:
    for name in OURS:
        service = SERVICES[name]
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "privileged" not in service, name


def test_no_secret_is_written_in_it() -> None:
    secret = re.compile(r"(PASSWORD|TOKEN)$")
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if secret.search(variable):
                assert re.match(r"\$\{\w+:\?", value), f"{name}: {variable}"
    assert not re.search(r"://[^/@\s]*:[^/@\s]+@", COMPOSE.read_text("utf-8"))


def test_every_image_has_a_version() -> None:
    for name, service in SERVICES.items():
        assert re.search(r":(\d|\$\{POSTE_VERSION:-\d)", service["image"]), name
