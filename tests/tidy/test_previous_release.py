"""The previous release can run in the environment of the tests."""

import tomllib
from itertools import chain

import pytest
from packaging.requirements import Requirement

from tests.cluster import previous_release
from tests.tidy.modules import ROOT


def test_whatever_the_previous_release_depends_on_is_installed_for_tests() -> None:
    # An environment that was made before a dependency left still holds it; a new one does not.
    try:
        needed = previous_release.requirements()
    except previous_release.NotThere as error:
        pytest.skip(f"no previous release: {error}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = chain(project["dependencies"], *project["optional-dependencies"].values())
    assert {Requirement(line).name for line in needed} <= {
        Requirement(line).name for line in installed
    }
