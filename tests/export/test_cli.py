from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from pathlib import Path
from socket import create_server

import pytest
from typing_extensions import override

from eventstore.log.event_log import EventLog
from eventstore.log.public_key import PublicKey
from eventstore.parquet.files import ExportPlace, open_place
from eventstore.parquet.write.exporter import Exported
from eventstore.stores.open_log import open_log
from http_edge.cli.export import _run_all, _watching
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.server.exits import Exit
from http_edge.server.exporting import ContinuousExport
from http_edge.server.log_check import MEDIATOR_KEY
from http_edge.server.status_files import ExportReporter
from http_edge.settings.settings import Export, Settings
from tests.export.samples import Growing, catalog_of, whole_log
from tests.full_pipe import fill
from tests.log.raw_sql import run_sql
from tests.ports import free_port
from tests.tidy.modules import ROOT
from tests.unit.cli.conftest import Run, run

__all__ = ["run"]


@contextmanager
def _mediator(data_dir: Path) -> Iterator[tuple[EventLog, Growing]]:
    """A data directory with keys and a log."""
    data_dir.mkdir(exist_ok=True)
    load_or_create(data_dir / "mediator-keys.json")
    with closing(open_log(f"sqlite:{data_dir / 'log.db'}")) as log:
        log.setting("mediator_did", "did:web:mediator.test")
        log.setting("shards", "16")
        growing = Growing(log)
        growing.grow(10)
        yield log, growing


def _rows(place: ExportPlace) -> int:
    return catalog_of(place, None).rows


def test_an_export_says_what_it_wrote_and_goes_on_from_there(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data") as (log, growing):
        ran = run("export", "--data-dir", "data", "--to", "out", "--json")
        assert (ran.code, ran.err) == (Exit.OK, "")
        said = json.loads(ran.out)
        assert (said["position"], said["events_written"], said["files_written"]) == (50, 50, 1)
        assert said["place"] == f"local:{tmp_path}/out"
        growing.grow(2)
        again = run("export", "--data-dir", "data", "--to", "out")
        assert again.code == Exit.OK
        assert "The log is exported" in again.out
        assert _rows(open_place("out")) == len(whole_log(log)) == 60


def test_an_export_makes_its_folder_for_its_owner_alone_and_leaves_one_that_is_there(
    run: Run, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o750)
    with _mediator(tmp_path / "data"):
        for name in ("own", "shared"):
            assert run("export", "--data-dir", "data", "--to", name).code == Exit.OK
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("own", "shared")]
    assert modes == [0o700, 0o750]


def test_compact_leaves_one_file_and_the_same_rows(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data") as (log, growing):
        for _ in range(3):
            growing.grow(10)
            run("export", "--data-dir", "data", "--to", "out")
        said = json.loads(
            run("export", "--data-dir", "data", "--to", "out", "--compact", "--json").out
        )
        assert (said["files_in_all"], said["steps_put_together"]) == (1, 2)
        place = open_place("out")
        assert len(place.data_sizes()) == 1
        assert _rows(place) == len(whole_log(log))


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--to", "out", "compact"), "poste export compact --to"),
        (("--to", "out", "--json", "compact", "--to", "other"), "--to and --json before compact"),
        (("--set", "export.to=/out", "compact"), "poste export compact --set"),
        (("--to", "out", "--watch", "--compact"), "export.compact_files_min"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    run: Run, tmp_path: Path, arguments: Sequence[str], remedy: str
) -> None:
    with _mediator(tmp_path / "data"):
        ran = run("export", *arguments, "--data-dir", "data")
        assert (ran.code, ran.out) == (Exit.USAGE, "")
        assert remedy in ran.err
        assert not Path("out").exists()


def test_what_is_no_export_is_not_called_free_of_erased_contents(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        ran = run("export", "compact", "--data-dir", "data", "--to", "nowhere")
        assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
        assert f"there is no export at local:{tmp_path}/nowhere" in ran.err
        assert not Path("nowhere").exists()


def test_a_place_in_the_home_directory_makes_no_folder_with_a_tilde_for_its_name(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with _mediator(tmp_path / "data"):
        assert run("export", "--data-dir", "data", "--to", "~/out").code == Exit.OK
    assert _rows(open_place(str(tmp_path / "home" / "out"))) == 50
    assert not Path("~").exists()


def test_the_place_may_come_from_the_settings(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        assert run("export", "--data-dir", "data").code == Exit.USAGE
        to = f"export.to={tmp_path}/from-settings"
        assert run("export", "--data-dir", "data", "--set", to).code == Exit.OK
        assert _rows(open_place("from-settings")) == 50


def test_an_export_is_signed_with_the_key_of_the_mediator(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        run("export", "--data-dir", "data", "--to", "out")
        (tmp_path / "data" / "mediator-keys.json").unlink()
        without = run("export", "--data-dir", "data", "--to", "out")
        assert (without.code, "there are no mediator keys" in without.err) == (Exit.USAGE, True)
        load_or_create(tmp_path / "data" / "mediator-keys.json")
        other = run("export", "--data-dir", "data", "--to", "out")
        assert (other.code, "is the export of" in other.err) == (Exit.USAGE, True)


def test_nothing_is_signed_with_a_key_that_is_not_the_logs(run: Run, tmp_path: Path) -> None:
    own = PublicKey(load_or_create(tmp_path / "keys.json").signing_public).text
    with _mediator(tmp_path / "data") as (log, _):
        log.setting(MEDIATOR_KEY, own)
        ran = run("export", "--data-dir", "data", "--to", "out")
        assert ran.code == Exit.UNSAFE
        assert f"the log belongs to the mediator with the key {own}" in ran.err
        assert not list((tmp_path / "out").iterdir())
        to = ["--to", "out", "--set", f"keys_file={tmp_path}/keys.json"]
        assert run("export", "--data-dir", "data", *to).code == Exit.OK


def test_what_went_wrong_has_its_exit_code(run: Run, tmp_path: Path) -> None:
    assert run("export", "--data-dir", "none", "--to", "out").code == Exit.UNREACHABLE
    with _mediator(tmp_path / "data"):
        (tmp_path / "file").write_text("in the way")
        in_the_way = run("export", "--data-dir", "data", "--to", "file/out")
        assert (in_the_way.code, "cannot be written" in in_the_way.err) == (Exit.USAGE, True)
        assert "--to" in in_the_way.err
        assert run("export", "--data-dir", "data", "--to", "s4://x/y").code == Exit.UNREACHABLE
        run("export", "--data-dir", "data", "--to", "out")
        next((tmp_path / "out" / "events").rglob("*.parquet")).unlink()
        damaged = run("export", "--data-dir", "data", "--to", "out")
        assert (damaged.code, "missing" in damaged.err) == (Exit.UNSAFE, True)
        run_sql(f"sqlite:{tmp_path}/data/log.db", "DELETE FROM stored_events WHERE rowid = 7")
        unsealed = run("export", "--data-dir", "data", "--to", "elsewhere")
        assert (unsealed.code, "poste log verify" in unsealed.err) == (Exit.UNSAFE, True)
        seam = "INSERT INTO settings VALUES (CAST('seam' AS BLOB), CAST('none' AS BLOB))"
        run_sql(f"sqlite:{tmp_path}/data/log.db", seam)
        unread = run("export", "--data-dir", "data", "--to", "another")
        assert (unread.code, "poste log verify" in unread.err) == (Exit.UNSAFE, True)
        (tmp_path / "data" / "mediator-keys.json").unlink()
        unsigned = run("export", "--data-dir", "data", "--to", "out")
        assert (unsigned.code, "there are no mediator keys" in unsigned.err) == (Exit.USAGE, True)
        assert "--data-dir" in unsigned.err


@pytest.mark.parametrize(
    ("said_as", "ended_by"), [("--json", signal.SIGINT), ("text", signal.SIGTERM)]
)
def test_watch_follows_until_it_is_interrupted(
    tmp_path: Path, said_as: str, ended_by: signal.Signals
) -> None:
    with _mediator(tmp_path / "data") as (log, growing):
        program = "from http_edge.cli.main import main; main()"
        options = ["--set", "export.lag_s_max=0.1", "--watch"] + [said_as] * (said_as != "text")
        command = [sys.executable, "-c", program, "export"]
        command += [f"--data-dir={tmp_path}/data", f"--to={tmp_path}/out"]
        with subprocess.Popen(
            command + options, stdout=subprocess.PIPE, cwd=ROOT, text=True
        ) as watching:
            assert watching.stdout is not None
            assert "50" in watching.stdout.readline()
            growing.grow()
            line = watching.stdout.readline()
            if said_as == "--json":
                assert json.loads(line)["last"] == 55
            else:
                assert line.startswith("position 55: 5 events")
            watching.send_signal(ended_by)
            assert watching.wait(30) == Exit.OK
        assert _rows(open_place(str(tmp_path / "out"))) == len(whole_log(log))


def test_watch_ends_where_what_reads_its_lines_has_ended(tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        read, write = os.pipe()
        os.close(read)
        options = [f"--data-dir={tmp_path}/data", f"--to={tmp_path}/out", "--watch"]
        program = "from http_edge.cli.main import main; main()"
        done = subprocess.run(
            [sys.executable, "-c", program, "export", *options],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=30,
            check=False,
        )
        os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


def test_watch_goes_on_and_ends_though_nothing_reads_its_lines_about_a_fault(
    run: Run, tmp_path: Path
) -> None:
    reading, writing = os.pipe()
    fill(writing)
    with _mediator(tmp_path / "data") as (_, growing):
        for _ in range(2):
            growing.grow()
            run("export", "--data-dir", "data", "--to", "out")
        for name, size in open_place("out").data_sizes().items():
            Path("out", name).write_bytes(bytes(size))  # which merging finds
        options = [f"--data-dir={tmp_path}/data", f"--to={tmp_path}/out", "--watch"]
        options += ["--set=export.lag_s_max=0.1", "--set=export.compact_files_min=2"]
        program = "from http_edge.cli.main import main; main()"
        with subprocess.Popen(
            [sys.executable, "-c", program, "export", *options],
            stdout=subprocess.PIPE,
            stderr=writing,
            cwd=ROOT,
            text=True,
        ) as watching:
            assert watching.stdout is not None
            for position in (65, 70, 75):
                growing.grow()
                waiting = threading.Timer(30, watching.kill)
                waiting.start()
                assert watching.stdout.readline().startswith(f"position {position}:")
                waiting.cancel()
            watching.terminate()
            assert watching.wait(30) == Exit.OK
    os.close(writing)
    os.close(reading)


@pytest.mark.parametrize("failure", [BrokenPipeError, BaseException])
@pytest.mark.parametrize("number", [0, 1])
def test_watch_of_several_databases_ends_when_the_work_of_one_fails(
    number: int, failure: type[BaseException]
) -> None:
    """Its databases would not be exported any more, and no service manager would know."""
    ended = list[bool]()

    def waits(stopping: threading.Event) -> None:
        ended.append(stopping.wait(30))

    def fails(_stopping: threading.Event) -> None:
        raise failure

    works: list[Callable[[threading.Event], None]] = [waits, waits]
    works.insert(number, fails)
    with pytest.raises(failure):
        _run_all(works)
    assert ended == [True, True]


class _UntilIdle(threading.Event):
    """Set as soon as an export waits for more rows."""

    @override
    def wait(self, timeout: float | None = None) -> bool:
        self.set()
        return True


@pytest.mark.parametrize(("number", "named"), [(None, {}), (0, {"database": 0})])
def test_each_line_of_a_followed_log_with_several_databases_names_its_database(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: int | None, named: dict[str, int]
) -> None:
    settings = Settings(data_dir=tmp_path / "data", export=Export(to=str(tmp_path / "out")))
    with _mediator(settings.data_dir) as (_, growing):
        for as_json in (True, False):
            status = ExportReporter(None, lambda: 0)
            _watching(settings, number, status, as_json=as_json).run(_UntilIdle())
            growing.grow()
    line, text = capsys.readouterr().out.splitlines()
    said = json.loads(line)
    assert {name: said.pop(name) for name in named} == named
    assert said.keys() == {*Exported._fields}
    assert text.startswith("db-0: " if named else "position ")


def _measures(address: str, token: str) -> tuple[int, str]:
    with closing(HTTPConnection(address, timeout=10)) as connection:
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_watch_shows_who_has_the_token_how_it_stands(tmp_path: Path) -> None:
    data, address = tmp_path / "data", f"127.0.0.1:{free_port()}"
    with _mediator(data):
        program = "from http_edge.cli.main import main; main()"
        options = [f"--data-dir={data}", f"--to={tmp_path}/out", "--watch", f"--metrics={address}"]
        with subprocess.Popen(
            [sys.executable, "-c", program, "export", *options], stdout=subprocess.PIPE, cwd=ROOT
        ) as watching:
            assert watching.stdout is not None
            assert watching.stdout.readline()
            assert _measures(address, "of another")[0] == HTTPStatus.UNAUTHORIZED
            status, shown = _measures(address, (data / "operators-token").read_text())
            assert status == HTTPStatus.OK
            watching.send_signal(signal.SIGINT)
            assert watching.wait(30) == Exit.OK
    assert "poste_export_position 50.0" in shown
    assert "poste_export_standby 0.0" in shown
    assert "poste_export_lag_rows 0.0" in shown
    assert 'poste_process_start_time_seconds{process="export"}' in shown
    # It asks no log, and says nothing of one.
    assert "poste_log_up" not in shown
    assert not (data / "export-status.json").exists()


def test_rows_that_wait_while_nothing_can_be_exported_are_counted(tmp_path: Path) -> None:
    data, reporter = tmp_path / "data", ExportReporter(None, lambda: 0)
    settings = Settings(data_dir=data, export=Export(to=str(tmp_path / "out")))

    def export() -> None:
        stopping = threading.Event()

        def stop(_: object) -> None:
            stopping.set()

        ContinuousExport(settings, reporter, on_step=stop, on_fault=stop).run(stopping)

    with _mediator(data) as (_, growing):
        export()
        assert reporter.figures()["rows_behind"] == 0
        growing.grow()
        settings.keys_path.unlink()
        export()
        assert reporter.figures()["rows_behind"] == 5


def test_an_address_for_measures_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        options = ("--data-dir", "data", "--to", "out", "--watch", "--metrics", "nowhere")
        refused = run("export", *options)
    assert (refused.code, "--metrics nowhere" in refused.err) == (Exit.USAGE, True)


def test_an_address_for_measures_that_is_in_use_is_named_by_its_option(
    run: Run, tmp_path: Path
) -> None:
    with _mediator(tmp_path / "data"), create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        options = ("--data-dir", "data", "--to", "out", "--watch", "--metrics", address)
        refused = run("export", *options)
    assert (refused.code, refused.out) == (Exit.USAGE, "")
    assert "it is in use" in refused.err
    assert "Set --metrics to another address" in refused.err


def test_measures_of_an_export_that_does_not_go_on_are_refused(run: Run, tmp_path: Path) -> None:
    with _mediator(tmp_path / "data"):
        refused = run("export", "--data-dir", "data", "--to", "out", "--metrics", "127.0.0.1:0")
    assert (refused.code, "only for --watch" in refused.err) == (Exit.USAGE, True)
    assert not list((tmp_path / "out").glob("*"))


def test_root_makes_nothing_that_the_user_of_the_mediator_could_not_use(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with _mediator(tmp_path / "data"):
        assert run("export", "--data-dir", "data", "--to", "out").code == Exit.OK
        before = {path.name for path in (tmp_path / "data").iterdir()}
        if os.geteuid() == 0:
            os.chown(tmp_path / "data" / "mediator-keys.json", 12_345, 12_345)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
        for command in (("export", "--to", "other"), ("log", "archive")):
            refused = run(*command, "--data-dir", "data")
            assert (refused.code, "as that user" in refused.err) == (Exit.USAGE, True)
        checked = run("verify", "--data-dir", "data", "--from", "out")
        assert (checked.code, checked.err) == (Exit.OK, "")
        assert {path.name for path in (tmp_path / "data").iterdir()} == before
