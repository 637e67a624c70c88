"""The agents that the scenarios are played with: installed when missing, or the reason why not.

Each part stands apart from the project's own packages: ACA-Py in a virtual environment of its own,
each version of Credo in a ``node_modules`` of its own. Install scripts do not run, but for the
native call interface that Node needs; the library that those calls go to is in the wheel
``aries-askar``, which the tests use anyway.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CREDO: Final = HERE / "credo"
ACAPY: Final = "aries-cloudagent[askar]==0.12.8"
ACAPY_PYTHON: Final = "python3.11"
"""ACA-Py 0.12 and its pinned requirements have no wheels for a later one."""
_NATIVE: Final = ("@2060.io/ffi-napi", "@2060.io/ref-napi")
_INSTALL_S_MAX: Final = 1_800
_REASON_LINES: Final = 2
"""Of an installer's errors: npm says a code first, and then which package it could not get."""
_LIBRARY_VARIABLE: Final = "LIB_ASKAR_PATH"
"""Names the directory of ``libaries_askar`` to ``askar-nodejs``."""


class Credo(Enum):
    """The versions of Credo; the values are their directories below ``CREDO``."""

    V0_5 = "v05"
    V0_6 = "v06"


def install_acapy(program: Path) -> str:
    """Install ACA-Py where it is missing: the reason why that cannot be, empty when it can."""
    if program.exists():
        return ""
    python = shutil.which(ACAPY_PYTHON) or sys.executable
    home = program.parent.parent.resolve()
    constraints = str(HERE / "constraints.txt")
    return _first_failure(
        [python, "-m", "venv", str(home)],
        [str(home / "bin/python"), "-m", "pip", "install", "-q", "-c", constraints, ACAPY],
    )


def install_credo(version: Credo) -> str:
    """Install Credo where it is missing: the reason why that cannot be, empty when it can."""
    home = CREDO / version.value
    stamp, wanted = home / "node_modules/.installed", (home / "package.json").read_text("utf-8")
    if importlib.util.find_spec("aries_askar") is None:
        return "the Python package aries-askar is not installed"
    if shutil.which("node") is None or shutil.which("npm") is None:
        return "there is no Node"
    if stamp.exists() and stamp.read_text("utf-8") == wanted:
        return ""
    failure = _first_failure(
        ["npm", "install"], ["npm", "rebuild", "--ignore-scripts=false", *_NATIVE], place=home
    )
    if not failure:
        stamp.write_text(wanted, "utf-8")
    return failure


def credo_environment() -> dict[str, str]:
    """The environment of a Credo agent: with the library of Askar, and without proxies."""
    found = importlib.util.find_spec("aries_askar")
    assert found is not None
    assert found.origin is not None
    library = str(Path(found.origin).parent)
    kept = {name: text for name, text in os.environ.items() if not name.lower().endswith("_proxy")}
    return {**kept, _LIBRARY_VARIABLE: library}


def _first_failure(*commands: Sequence[str], place: Path = HERE) -> str:
    """Run one after the other: the errors of the first that fails, empty when none does."""
    for command in commands:
        try:
            done = subprocess.run(
                command,
                cwd=place,
                capture_output=True,
                text=True,
                check=False,
                timeout=_INSTALL_S_MAX,
            )
        except subprocess.TimeoutExpired:
            return f"{' '.join(command)}: not done within {_INSTALL_S_MAX} s"
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
            words = [line.removeprefix("npm error ") for line in lines[:_REASON_LINES]]
            return f"{Path(command[0]).name}: {'; '.join(words) or f'exit {done.returncode}'}"
    return ""
