"""All programs end with the same codes, and the guide says what they mean."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from http_edge.server.exits import Exit
from projections import errors
from projections.errors import ProjectionError
from projections.program import projections
from tests.tidy.modules import ROOT

GUIDE = ROOT / "deploy/docs/pages/reference/commands.md"
ROW = re.compile(r"^\| (\d+) \| (.+) \|$", re.MULTILINE)


def test_the_guide_says_what_each_code_means() -> None:
    rows = {int(code): means for code, means in ROW.findall(GUIDE.read_text())}
    assert rows == {int(code): code.means for code in Exit}


def test_the_projections_have_the_codes_of_poste() -> None:
    codes = {n: v for n, v in vars(errors).items() if n.isupper() and isinstance(v, int)}
    assert codes == {name: int(Exit[name]) for name in codes}
    assert codes.keys() == set(Exit.__members__) - {"OK"}


def test_each_error_of_the_projections_has_one_of_them() -> None:
    found = [ProjectionError]
    for kind in found:
        found += kind.__subclasses__()
    assert len(found) > 5
    assert {kind.exit_code for kind in found[1:]} <= {int(code) for code in Exit}


def test_a_place_without_an_export_is_unreachable_to_rebuilds_reports_and_audits(
    tmp_path: Path,
) -> None:
    nowhere = str(tmp_path / "nowhere")
    question = {"source": nowhere, "subject": {"type": "replays"}, "rows_max": 1}
    for arguments in (
        ["rebuild", "--from", nowhere, "--to", "tables"],
        ["report", "--from", nowhere, "--to", "page"],
        ["audit", json.dumps(question)],
    ):
        done = CliRunner().invoke(projections, arguments)
        assert done.exit_code == Exit.UNREACHABLE, done.output
        assert f"{nowhere}: there is no such folder" in done.stderr


@pytest.mark.parametrize("failure", [RuntimeError, BaseException], ids=["a fault", "a panic"])
def test_a_fault_of_the_program_is_none_of_the_findings(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: type[BaseException],
) -> None:
    def broken(*_args: object, **_options: object) -> None:
        raise failure("broken")

    monkeypatch.setattr("projections.rebuild.program.open_export", broken)
    for arguments, code in (
        (["rebuild", "--from", "x", "--to", "y"], Exit.INTERNAL),
        (["rebuild"], Exit.USAGE),
        (["--help"], Exit.OK),
    ):
        with pytest.raises(SystemExit) as ended:
            projections(arguments, prog_name="poste")
        assert ended.value.code == code
    assert "a fault of poste itself" in capsys.readouterr().err


@pytest.mark.parametrize("name", [None, "page/report.html"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.ENOENT, Exit.USAGE),
        (errno.EIO, Exit.UNREACHABLE),
        (errno.EMFILE, Exit.UNREACHABLE),
        (errno.EROFS, Exit.UNREACHABLE),
        (errno.ENOSPC, Exit.UNWRITTEN),
    ],
)
def test_what_can_fail_at_any_time_does_not_say_that_nothing_was_done(
    monkeypatch: pytest.MonkeyPatch, number: int, code: Exit, name: str | None
) -> None:
    def fails(*_args: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number), name)

    monkeypatch.setattr("projections.rebuild.program.open_export", fails)
    with pytest.raises(SystemExit) as ended:
        projections(["rebuild", "--from", "x", "--to", "y"], prog_name="poste")
    assert ended.value.code == code


def test_an_interrupted_program_ends_as_shells_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("projections.rebuild.program.open_export", interrupted)
    with pytest.raises(SystemExit) as ended:
        projections(["rebuild", "--from", "x", "--to", "y"], prog_name="poste")
    assert ended.value.code == 130
