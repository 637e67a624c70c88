"""Rules of direction: the import contracts of pyproject.toml are kept."""

import subprocess
import sys

from tests.tidy.modules import ROOT


def test_imports_point_one_way() -> None:
    # In a process of its own: the linter replaces the logging of the one it runs in.
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"
    checked = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout
