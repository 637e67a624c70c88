"""Rules of direction: the import contracts of pyproject.toml are kept."""

import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

from tests.tidy.modules import ROOT


def test_imports_point_one_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", no_cache=True, no_logo=True)
    assert status == EXIT_STATUS_SUCCESS, capsys.readouterr().out
