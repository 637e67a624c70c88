"""The frame of the command line: help without weight, and an end that says why."""

import errno
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from eventstore.log.errors import CorruptRow, LogUnavailable, UnsafeLog
from http_edge.cli import projections_program
from http_edge.cli.main import SUMMARIES, LazyGroup, explained, poste
from http_edge.crypto.mediator_keys import load_or_create
from http_edge.crypto.private_files import KeyFileRefused
from http_edge.server.exits import Exit, Stop
from http_edge.settings.sources import SettingRefused
from tests.tidy.modules import ROOT
from tests.unit.cli.conftest import Run


def test_help_names_every_command_and_every_exit_code(run: Run) -> None:
    ran = run("--help")
    assert ran.code == 0
    for name in SUMMARIES:
        assert f"\n  {name} " in ran.out
    for code in Exit:
        assert f"\n  {int(code)} " in ran.out


@pytest.mark.parametrize("group", [[], ["queue"], ["shards"], ["identities"], ["log"], ["config"]])
def test_a_group_without_a_command_shows_its_help(run: Run, group: list[str]) -> None:
    ran = run(*group)
    assert (ran.code, ran.err) == (Exit.OK, "")
    assert ran.out == run(*group, "--help").out


@pytest.mark.parametrize(
    "group", ["queue", "shards", "identities", "log", "export", "proof", "audit", "config"]
)
def test_the_help_of_a_group_says_in_whole_what_each_command_does(run: Run, group: str) -> None:
    shown = " ".join(run(group, "--help").out.split())
    found = poste.get_command(click.Context(poste), group)
    assert isinstance(found, click.Group)
    for name, command in found.commands.items():
        summary = " ".join((command.help or "").partition("\n\n")[0].split())
        assert f" {name} {summary.partition('. ')[0].rstrip('.')}" in shown


def test_options_of_settings_show_their_defaults_choices_and_bounds(run: Run) -> None:
    shown = " ".join(run("serve", "--help").out.split())
    assert "[default: 127.0.0.1:8080; host:port" in shown
    assert "--placement [sharded|dedicated]" in shown
    assert "[default: sharded]" in shown
    assert "--log-level [debug|info|warning|error]" in shown
    assert "--shards NUMBER" in shown
    assert "[default: 16; a whole number from 1 to 1_024]" in shown
    assert "[default: data; the path of a directory]" in shown


def test_every_option_with_a_default_shows_it(run: Run) -> None:
    assert "[default: out-of-band]" in run("invite", "--help").out
    assert "[default: 20; 1<=x<=10000]" in run("queue", "show", "--help").out


@pytest.mark.parametrize(
    ("command", "uses"), [("message", False), ("identity", False), ("stuck", True)]
)
def test_only_an_audit_that_reads_much_has_options_of_spark(
    run: Run, command: str, uses: bool
) -> None:
    shown = " ".join(run("audit", command, "--help").out.split())
    assert ("Spark master, e.g. local[2]; else all cores of this machine." in shown) == uses
    ran = run("audit", command, "id", "--from", "x", "--master", "local[2]")
    assert ("No such option" in ran.err) == (not uses)


@pytest.mark.parametrize("args", [["--help"], ["serve", "--help"]])
def test_help_imports_neither_ray_nor_the_server(args: list[str]) -> None:
    script = (
        "import sys\nfrom http_edge.cli.main import poste\n"
        f"poste.main({args}, standalone_mode=False)\n"
        "heavy = {'ray', 'aiohttp', 'pyspark', 'eventsourcing', 'psycopg'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SUMMARIES)
def test_a_summary_says_what_the_command_says_of_itself(name: str) -> None:
    assert isinstance(poste, LazyGroup)
    command = poste.get_command(click.Context(poste), name)
    assert command is not None
    assert command.name == name
    assert (command.help or "").startswith(SUMMARIES[name])


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_older_than_utf_8_gets_other_characters(tmp_path: Path, encoding: str) -> None:
    load_or_create(tmp_path / "mediator-keys.json")

    def printed(*args: str) -> subprocess.CompletedProcess[bytes]:
        run = "from http_edge.cli.main import main; main()"
        command = [sys.executable, "-c", run, *args, "--data-dir", str(tmp_path)]
        env = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "80"}
        return subprocess.run(command, env=env, capture_output=True, check=False)

    table = printed("config", "show", "--set", f"push.text={'x' * 100}")
    assert (table.returncode, table.stderr) == (0, b"")
    assert b"\n ------" in table.stdout
    assert b"\\u" not in table.stdout
    invitation = printed("invite", "--qr", "--label", "\u2713")
    assert (invitation.returncode, b"\\u2713" in invitation.stdout) == (0, True)
    assert b"\\u2580" not in invitation.stdout
    assert b"--png" in invitation.stderr


def test_an_unknown_command_is_a_mistake_of_usage(run: Run) -> None:
    ran = run("stamp")
    assert (ran.code, ran.out) == (Exit.USAGE, "")
    assert "No such command 'stamp'" in ran.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SettingRefused("hosts", "POSTE_HOSTS", "a whole number"), Exit.USAGE),
        (KeyFileRefused("open to others"), Exit.UNSAFE),
        (UnsafeLog("fsync is off"), Exit.UNSAFE),
        (CorruptRow("topic", "why"), Exit.UNSAFE),
        (LogUnavailable("no such file"), Exit.UNREACHABLE),
        (PermissionError(13, "Permission denied"), Exit.USAGE),
        (FileNotFoundError(2, "No such file or directory", "keys"), Exit.USAGE),
    ],
)
def test_what_a_user_can_mend_ends_in_a_sentence(error: Exception, code: Exit) -> None:
    stop = explained(error)
    assert stop is not None
    assert stop.exit_code == code
    assert (error.strerror or "" if isinstance(error, OSError) else str(error)) in stop.message


@pytest.mark.parametrize("name", [None, "/data/log-head.txt"])
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EIO, Exit.UNREACHABLE),
        (errno.EMFILE, Exit.UNREACHABLE),
        (errno.EROFS, Exit.UNREACHABLE),
        (errno.ECONNREFUSED, Exit.UNREACHABLE),
        (errno.ENOSPC, Exit.UNWRITTEN),
        (errno.EDQUOT, Exit.UNWRITTEN),
    ],
)
def test_what_can_fail_at_any_time_does_not_say_that_nothing_was_done(
    number: int, code: Exit, name: str | None
) -> None:
    stop = explained(OSError(number, os.strerror(number), name))
    assert stop is not None
    assert stop.exit_code == code
    assert os.strerror(number) in stop.message
    assert (name or "") in stop.message


_EXPORT = ("--from", "export")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("audit", "message", "\udcff", *_EXPORT), "is not UTF-8"),
        (("audit", "identity", "did:x:\udcff", *_EXPORT), "is not UTF-8"),
        (("identities", "receipt", "did:x:\udcff"), "is not UTF-8"),
        (
            ("audit", "identity", "did:x:me", *_EXPORT, "--as-of", "0001-01-01T00:00:00+14:00"),
            "is neither a position nor a time",
        ),
        (("audit", "refused", *_EXPORT, "--since", "9999-12-31T23:59:59-14:00"), "nor a time"),
        (("log", "verify", "--log", "postgresql://[bad"), "expected sqlite:///absolute/path.db"),
        (("shards", "move", "\udcff", "host-0"), "is not UTF-8"),
        (("shards", "move", "shard-0", "\udcff"), "is not UTF-8"),
        (("shards", "drain", "\udcff"), "is not UTF-8"),
        (("shards", "undrain", "\udcff"), "is not UTF-8"),
        (("bench", "http://127.0.0.1:65536"), "is not an http or https URL"),
        (("serve", "--listen", "\xe4..b:80"), "listen from command line: expected host:port"),
        (("serve", "--set", "metrics_listen=\xe4..b:80"), "metrics_listen from command line: exp"),
        (("serve", "--set", "node_address=\xe4..b"), "node_address from command line: expected an"),
    ],
)
def test_what_cannot_be_meant_is_a_mistake_of_usage(
    run: Run, args: tuple[str, ...], said: str
) -> None:
    ran = run(*args)
    assert (ran.code, said in ran.err) == (Exit.USAGE, True), ran.err


PLACES = [
    ("export", "--to"),
    ("export", "compact", "--to"),
    ("verify", "--from"),
    ("proof", "consistency", "poste.toml", "poste.toml", "--from"),
    ("audit", "message", "id", "--from"),
    ("audit", "refused", "--from"),
    ("restore", "--to", "data", "--from"),
    ("restore", "--from", "export", "--to"),
    ("restore", "--from", "export", "--to", "data", "--archive"),
]


@pytest.mark.parametrize("args", PLACES, ids=" ".join)
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("", "names no place"),
        ("\udcff", "is not UTF-8"),
        ("~no-such-user/out", "Could not determine home directory"),
    ],
)
def test_a_place_is_named_in_text(
    run: Run, tmp_path: Path, args: tuple[str, ...], place: str, said: str
) -> None:
    """Empty would be the working directory: as of --to "$EXPORT" without an EXPORT."""
    (tmp_path / "poste.toml").touch()
    load_or_create(tmp_path / "data/mediator-keys.json")
    ran = run(*args, place)
    assert (ran.code, said in ran.err) == (Exit.USAGE, True), ran.err


@pytest.mark.parametrize("origin", ["postgresql://me:secret@[bad", "sqlite://[bad"])
def test_a_log_to_restore_from_is_named_by_a_url_and_never_shown(
    run: Run, tmp_path: Path, origin: str
) -> None:
    load_or_create(tmp_path / "keys.json")
    named = ("--to", str(tmp_path / "data"), "--keys", str(tmp_path / "keys.json"))
    ran = run("restore", "--from", origin, *named)
    assert (ran.code, "does not name the URL of a log" in ran.err) == (Exit.USAGE, True)
    assert "secret" not in ran.err


def test_a_log_that_cannot_be_reached_ends_with_how_to_name_it() -> None:
    stop = explained(LogUnavailable("PostgreSQL: connection refused"))
    assert stop is not None
    assert "--log" in stop.remedy


def test_a_file_of_another_user_is_named_with_what_to_do() -> None:
    stop = explained(PermissionError(13, "Permission denied", "/data/operators-token"))
    assert stop is not None
    assert stop.exit_code == Exit.USAGE
    assert stop.message == "/data/operators-token cannot be used: Permission denied"
    assert "as the owner of the file" in stop.remedy


@pytest.mark.thorough
@pytest.mark.parametrize("args", [["config", "reference"], ["--help"]])
def test_what_is_not_read_to_its_end_ends_without_words_and_not_as_a_finding(
    args: list[str],
) -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-c", "from http_edge.cli.main import main; main()", *args]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.thorough
@pytest.mark.parametrize("args", [["config", "reference"], ["--help"]])
def test_a_full_disk_for_the_output_is_said_and_no_fault_of_the_program(args: list[str]) -> None:
    command = [sys.executable, "-c", "from http_edge.cli.main import main; main()", *args]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False, text=True)
    assert done.returncode == Exit.UNWRITTEN
    reason, remedy = done.stderr.splitlines()
    assert reason == "poste: the output cannot be written: No space left on device"
    assert remedy == "  Check what it changed before you repeat it."


def ends_as_its_output_does(*args: str) -> None:
    """Check how this command ends if no one reads its output, and if there is no room for that."""
    command = [sys.executable, "-c", "from http_edge.cli.main import main; main()", *args]
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, b"")
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert done.returncode == Exit.UNWRITTEN
    assert b"Traceback" not in done.stderr
    assert b"No space left on device" in done.stderr


def test_help_that_was_not_asked_for_ends_like_any_output() -> None:
    ends_as_its_output_does()


@pytest.mark.thorough
def test_an_exit_code_holds_where_its_reason_cannot_be_printed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "from http_edge.cli.main import main; main()"]
    for args, code in (
        (["status", "--data-dir", str(tmp_path)], Exit.USAGE),
        (["log", "verify", "--data-dir", str(tmp_path)], Exit.UNREACHABLE),
        (["nothing"], Exit.USAGE),
    ):
        with Path("/dev/full").open("wb") as full:
            done = subprocess.run([*command, *args], stderr=full, check=False)
        assert done.returncode == code


_STREAMS_OF_A_COMMAND = """
import os, sys
from pathlib import Path
from http_edge.cli import main

def command(*_args, **_options):
    streams = [f"{os.readlink(f'/proc/self/fd/{n}')} {os.get_inheritable(n)}" for n in range(3)]
    Path(sys.argv[1]).write_text("\\n".join(streams))

main.poste.main = command
main.main()
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path, closed: str) -> None:
    found = tmp_path / "found"
    shell = ["sh", "-c", f'exec "$0" -c "$1" "$2" {closed}']
    command = [*shell, sys.executable, _STREAMS_OF_A_COMMAND, str(found)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == Exit.OK
    streams = found.read_text().splitlines()
    assert [stream.split()[1] for stream in streams] == ["True"] * 3
    assert all(stream.startswith(("/dev/null ", "pipe:")) for stream in streams)


@pytest.mark.thorough
def test_a_table_is_printed_to_a_closed_stream() -> None:
    code = "from http_edge.cli.main import main; main()"
    shell = ["sh", "-c", 'exec "$0" -c "$1" config show >&-', sys.executable, code]
    done = subprocess.run(shell, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, b"")


@pytest.mark.thorough
def test_a_command_of_spark_ends_like_all_others_where_its_output_does() -> None:
    pytest.importorskip("pyspark")
    ends_as_its_output_does("rebuild", "--help")


def test_a_fault_of_the_program_is_named_as_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("http_edge.cli.config.shown", lambda settings: settings["nothing"])
    ran = run("config", "show")
    assert ran.code == Exit.INTERNAL
    assert "TypeError" in ran.err
    assert ran.err.endswith("please report the lines above\n")


def test_a_panic_of_a_library_in_rust_is_no_finding_but_a_fault_of_the_program(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def panics(_: object) -> None:
        raise BaseException("failed to create UnixStream")  # noqa: TRY002 - as PyO3 does

    monkeypatch.setattr("http_edge.cli.config.shown", panics)
    ran = run("config", "show")
    assert ran.code == Exit.INTERNAL
    assert "failed to create UnixStream" in ran.err
    assert "a fault of poste itself" in ran.err


def test_an_interrupt_ends_like_one(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("http_edge.cli.config.shown", interrupt)
    ran = run("config", "show")
    assert (ran.code, ran.err.strip()) == (130, "poste: interrupted")


@pytest.mark.parametrize(("to", "said"), [("", b"poste: interrupted\n"), ("2>&-", b"")])
def test_an_interrupt_while_poste_imports_ends_it_like_any_other(
    tmp_path: Path, to: str, said: bytes
) -> None:
    interrupts = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
    (tmp_path / "click.py").write_text(interrupts)  # found before the real one
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["poste"].partition(":")
    code = f"from {module} import {function}; {function}()"
    shell = ["sh", "-c", f'exec "$0" -c "$1" --help {to}', sys.executable, code]
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(shell, cwd=ROOT, env=env, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", said)


def test_a_refusal_cannot_drive_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Stop(Exit.USAGE, "a\x1b[2Jb\r\nc", "d\u2028e").show()
    assert capsys.readouterr().err == "poste: a\\x1b[2Jb\\r\\nc\n  d\\u2028e\n"


def poste_with_spark(*args: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("pyspark")
    command = [sys.executable, "-c", "from http_edge.cli.main import main; main()", *args]
    return subprocess.run(command, capture_output=True, check=False, text=True)


@pytest.mark.thorough
def test_a_command_of_spark_calls_itself_by_the_name_that_was_typed() -> None:
    done = poste_with_spark("rebuild", "--from", "export")
    assert (done.returncode, done.stdout) == (Exit.USAGE, "")
    assert "Usage: poste rebuild" in done.stderr
    assert "python -m" not in done.stderr


@pytest.mark.thorough
def test_a_place_without_an_export_is_unreachable_to_a_command_of_spark(tmp_path: Path) -> None:
    done = poste_with_spark("report", "--to", "page", "--from", str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout) == (Exit.UNREACHABLE, "")
    assert f"{tmp_path}/nowhere: there is no such folder" in done.stderr
    assert "key" not in done.stderr


@pytest.mark.parametrize("missing", ["pyspark", "matplotlib", "jinja2"])
@pytest.mark.parametrize(
    "command",
    ["rebuild --from export --to tables", "verify --from export --live"],
    ids=["rebuild", "verify"],
)
def test_a_command_of_spark_says_what_to_install_where_a_package_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch, missing: str, command: str
) -> None:
    """With another exit code than 1, which would be that of a finding."""
    monkeypatch.setattr(projections_program, "find_spec", lambda name: name != missing or None)
    ran = run(*command.split())
    assert ran.code == Exit.UNREACHABLE
    assert f"(missing: {missing})" in ran.err
    assert "pip install --constraint constraints.txt '.[spark]'" in ran.err


@pytest.mark.thorough
def test_no_program_that_a_command_starts_imports_from_the_current_directory(
    tmp_path: Path,
) -> None:
    """As the processes among which the check of a large export divides its work, and children."""
    (tmp_path / "multiprocessing.py").write_text("raise ImportError('this is another one')")
    (tmp_path / "decoy.py").write_text("print('imported')")
    command = tmp_path / "bin" / "poste"
    command.parent.mkdir()
    command.write_text(
        "from concurrent.futures import ProcessPoolExecutor\n"
        "from multiprocessing import get_context\n"
        "from subprocess import run\n"
        "from http_edge.cli import entry, main, projections_program\n"
        "from http_edge.server import child_process\n"
        "def work():\n"
        "    with ProcessPoolExecutor(1, get_context('spawn')) as pool:\n"
        "        print(pool.submit(abs, -3).result())\n"
        "    children = child_process.EXPORT, child_process.ARCHIVE, projections_program.PROGRAM\n"
        "    for child in children:\n"
        "        run([*child[:-1], 'import decoy'], check=False)\n"
        "if __name__ == '__main__':\n"
        "    main.main = work\n"
        "    entry.main()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONSAFEPATH", None)
    ran = subprocess.run(
        [sys.executable, command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (ran.stdout, b"another one" in ran.stderr) == (b"3\n", False)
    assert ran.stderr.count(b"No module named 'decoy'") == 3
