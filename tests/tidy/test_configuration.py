"""Rules of configuration: every setting works, every bound agrees, every version is pinned."""

import ast
import importlib.metadata
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from itertools import chain

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from actors.core.limits import HostLimits, IdentityLimits, RetentionPace
from http_edge.settings.reference import every_setting
from http_edge.settings.settings import DidComm, Limits, Protocol, Rates, Retention
from tests.tidy.modules import PRODUCT, ROOT, modules

PYTHONS = ("3.11", "3.12", "3.13")
CONFIGURATION = {
    "http_edge/settings/settings.py",
    "http_edge/settings/limits.py",
    "http_edge/settings/outgoing.py",
    "http_edge/settings/sections.py",
    "http_edge/settings/value_types.py",
    "http_edge/settings/reference.py",
    "http_edge/settings/sources.py",
}


def _attributes_read() -> set[str]:
    return {
        node.attr
        for module in modules(*PRODUCT)
        if module.path not in CONFIGURATION
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }


def test_every_setting_is_used_somewhere() -> None:
    # Some are read through a property of Settings that says what follows from them.
    through = {
        "data_dir": {"keys_path", "log_dsn"},
        "keys_file": {"keys_path"},
        "operators.token_file": {"operators_token_path"},
        "public_url": {"url"},
        "did": {"mediator_did"},
        "log": {"log_dsn"},
        "archive.every_s": {"round_s"},
    }
    read = _attributes_read()
    missing = [
        setting.name
        for setting in every_setting().values()
        if not ({setting.field} | through.get(setting.name, set())) & read
    ]
    assert missing == []


def test_the_core_and_the_configuration_agree_on_defaults() -> None:
    ages = Retention()
    sections = (Limits(), Protocol(), DidComm(), Rates(), ages)
    configured = {name: value for each in sections for name, value in each.model_dump().items()}
    configured |= {
        "queue_age_s_max": ages.messages_s,
        "contract_requests_age_s_max": ages.contract_requests_s,
        "expired_contracts_age_s_max": ages.expired_contracts_s,
        "unregistered_age_s_max": ages.unregistered_s,
        "public_events_age_s_max": ages.public_events_s,
        "idle_agents_age_s_max": ages.idle_agents_s,
        "idle_agents_since_ms": 0,  # of the log, and no setting
    }
    for limits in (IdentityLimits(), HostLimits(), RetentionPace()):
        for name in set(limits.__struct_fields__) - {"identity", "retention"}:
            assert getattr(limits, name) == configured[name], name


@pytest.mark.skipif(
    find_spec("pyspark") is None or find_spec("mkdocs") is None,
    reason="what is not installed does not say what it needs (make setup installs all)",
)
def test_the_constraints_pin_what_is_declared_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    assert pinned == set(_needed())


def test_every_pinned_version_takes_the_first_release_of_each_python() -> None:
    # A distribution stays with the release that it began with: Debian 12 has 3.11.2.
    assert {
        name: wanted
        for name, wanted in _wanted()
        if not all(SpecifierSet(wanted).contains(f"{each}.0") for each in PYTHONS)
    } == {}


def _wanted() -> Iterator[tuple[str, str]]:
    """The pinned packages that are installed here, with the Pythons that they ask for, if any."""
    for line in (ROOT / "constraints.txt").read_text().split():
        name = line.partition("==")[0]
        with suppress(importlib.metadata.PackageNotFoundError):
            metadata = importlib.metadata.metadata(name)
            if "Requires-Python" in metadata:
                yield name, metadata["Requires-Python"]


def _needed() -> Iterator[str]:
    """The declared requirements and, as installed here, theirs under every Python we support."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = chain(project["dependencies"], *project["optional-dependencies"].values())
    waiting, seen = [Requirement(text) for text in declared], set[tuple[str, str]]()
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {extra for known, extra in seen if known == name}:
            seen.add((name, extra))
            yield name
            for text in importlib.metadata.requires(name) or []:
                inner = Requirement(text)
                if inner.marker is None or any(
                    inner.marker.evaluate({"extra": extra, "python_version": version})
                    for version in PYTHONS
                ):
                    waiting.append(inner)
