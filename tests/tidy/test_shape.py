"""Rules of shape: small modules, small functions, honest names, nothing left for later."""

import re

import pytest

from tests.tidy.modules import PRODUCT, ROOT, modules

MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 60
SAYING_NOTHING = {"utils", "util", "helpers", "helper", "common", "misc", "manager", "base", "core"}
LEFT_FOR_LATER = re.compile(r"\b(TODO|FIXME|XXX|HACK|NotImplementedError)\b")
HERE = "tests/tidy/test_shape.py"

ALL = modules(*PRODUCT, "tests")


def test_all_code_stands_in_the_four_packages_and_the_tests() -> None:
    assert {module.package for module in ALL} == {*PRODUCT, "tests"}
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("[!.]*/**/*.py")}
    assert folders - {"build", "dist", "data"} <= {*PRODUCT, "tests", "deploy"}


def test_a_module_fits_in_one_head() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in ALL}
    assert {path: n for path, n in lengths.items() if n > MODULE_LINES_MAX} == {}


def test_a_function_fits_on_one_screen() -> None:
    lengths = {
        f"{module.path}:{first} {name}": last - first + 1
        for module in ALL
        for name, first, last in module.functions()
    }
    assert {place: n for place, n in lengths.items() if n > FUNCTION_LINES_MAX} == {}


def test_a_module_is_named_for_what_it_holds() -> None:
    words = {module.path: set(re.split(r"[/_.]", module.path)) for module in ALL}
    # The pure half of the actors is known by this name: `actors/core`.
    words |= {p: said - {"core"} for p, said in words.items() if p.startswith("actors/core/")}
    assert {
        path: said & SAYING_NOTHING for path, said in words.items() if said & SAYING_NOTHING
    } == {}


def test_nothing_is_left_for_later() -> None:
    marks = {module.path: LEFT_FOR_LATER.findall(module.text) for module in ALL}
    assert {path: found for path, found in marks.items() if found and path != HERE} == {}


def test_tests_that_share_what_is_started_are_known_to_the_scheduler(
    request: pytest.FixtureRequest,
) -> None:
    # The group is appended to the name of a test.
    is_grouped = getattr(request.config.option, "loadgroup", False)
    assert request.node.nodeid.endswith("@tests/tidy/test_shape.py") == is_grouped
