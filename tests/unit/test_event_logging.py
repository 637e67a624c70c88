"""Log lines: one line each, JSON or text for a terminal, without what a mediator keeps secret."""

import base64
import errno
import importlib
import io
import json
import logging
import os
import queue
import random
import re
import secrets
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_edge.telemetry.logs import (
    LINE_BYTES_MAX,
    TEXT_CHARS_MAX,
    LogPipe,
    PipeLines,
    configure,
    formatter,
    pipe_or_stderr,
    safe_text,
    safe_value,
    short_did,
    style_of,
)
from tests.full_pipe import fill

DID = "did:decentrl:YWxpY2U:z6MkpTzgH3Kj2w:z6LSqR9vNp:ZGlkOndlYjptZWRpYXRvci5leGFtcGxl"
UUID4 = "0f8fad5b-d9cb-469f-a165-70867728950e"


def _line(message: str, **fields: Any) -> dict[str, Any]:
    record = logging.makeLogRecord({"name": "poste", "levelname": "INFO", "msg": message} | fields)
    line: dict[str, Any] = json.loads(formatter("main").format(record))
    return line


@given(st.text(), st.text())
def test_whatever_the_input_a_line_is_one_line_of_ascii_json(message: str, field: str) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (message,), "field": field})
    text = formatter("main").format(record)
    assert text.isascii()
    assert text.isprintable()
    assert json.loads(text).keys() == {"at", "level", "process", "logger", "event", "field"}


@pytest.mark.parametrize("attack", ["\r\n", "\x1b[2J", "\u2028", "\x00", "\ud800"])
def test_control_characters_arrive_escaped(attack: str) -> None:
    assert _line("event", field=f"a{attack}b")["field"] == f"a{attack}b"
    assert attack not in formatter("main").format(logging.makeLogRecord({"msg": f"a{attack}b"}))


@pytest.mark.parametrize(
    "secret",
    [
        base64.urlsafe_b64encode(bytes(range(100, 132))).decode().rstrip("="),
        base64.b64encode(bytes(range(200, 255)) * 4).decode(),
        bytes(range(32)).hex(),
        "z6MkiCG5p4RH36dHfYJAaDJ7LZkMsVhpXq8PWEHxffVsBWxA",
    ],
)
def test_keys_and_payloads_are_not_written_wherever_they_stand(secret: str) -> None:
    line = _line(f"refused {secret}", field=secret, nested={"list": [secret], secret: 1})
    assert secret[:33] not in json.dumps(line)
    assert line["field"] == f"<{len(secret.rstrip('='))} characters>" or "=" in secret


@given(st.randoms(use_true_random=True), st.integers(min_value=32, max_value=4_000))
def test_no_base64_text_of_random_bytes_is_written(chance: random.Random, size: int) -> None:
    payload = base64.urlsafe_b64encode(chance.randbytes(size)).rstrip(b"=").decode()
    assert payload[:32] not in safe_text(payload)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (
            "postgresql://poste:a@b:c@db.example:5432/log",
            "postgresql://poste:***@db.example:5432/log",
        ),
        ("no answer from http://:hunter2@proxy, again", "no answer from http://:***@proxy, again"),
        (
            "http://127.0.0.1:8080/a@b https://me@host:1",
            "http://127.0.0.1:8080/a@b https://me@host:1",
        ),
    ],
)
def test_a_password_in_a_url_is_not_written(url: str, shown: str) -> None:
    assert safe_text(url) == shown


def test_random_letters_without_a_digit_are_not_written() -> None:
    assert safe_text("xvsWIsNlZKeIdjIpRwf--CwsqsgAOOAeOyZXRNffapI") == "<43 characters>"


@pytest.mark.parametrize(
    "text",
    [
        UUID4,
        "/var/lib/poste/data/some-directory-that-is-long/log.db",
        "sqlite3.OperationalError: disk I/O error",
        "a-name-of-lower-case-letters-and-hyphens-only",
        "AnExceptionWithSomeVeryLongNameInCamelCase",
        "/srv/Poste/some-directory-that-is-long/Log.db",
    ],
)
def test_ids_paths_and_sentences_stay_readable(text: str) -> None:
    assert safe_text(text) == text


@pytest.mark.parametrize(
    "text", [DID, DID.replace(":", "%3A"), f"/public/{DID}?page=1", f"<{DID}>"]
)
def test_a_did_becomes_its_hash_in_every_form(text: str) -> None:
    assert short_did(DID) in safe_text(text)
    assert "YWxpY2U" not in safe_text(text)


def test_a_did_at_the_end_of_a_sentence_has_the_same_hash() -> None:
    assert safe_text(f"Unknown sender {DID}.") == f"Unknown sender {short_did(DID)}."


def test_different_dids_have_different_hashes_and_keep_their_method() -> None:
    assert short_did("did:web:a").startswith("did:web:#")
    assert short_did("did:web:a") != short_did("did:web:b")


def test_the_mediator_may_name_itself() -> None:
    assert _line("ready", mediator_did="did:web:m.example")["mediator_did"] == "did:web:m.example"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (None, None),
        (True, True),
        (7, 7),
        (1.5, 1.5),
        (float("nan"), "nan"),
        (b"payload", "<7 bytes>"),
        (Path("/srv"), "/srv"),
        (UUID(UUID4), UUID4),
        ((1, "a"), [1, "a"]),
        (object(), "<object>"),
        (list(range(99)), list(range(20))),
    ],
)
def test_fields_are_data_or_the_name_of_their_type(value: object, written: object) -> None:
    assert safe_value("field", value) == written


def test_long_texts_are_cut() -> None:
    assert safe_text("word " * 1_000) == ("word " * 1_000)[:TEXT_CHARS_MAX] + "…"


def test_a_field_cannot_pose_as_the_head_of_the_line() -> None:
    assert _line("event", level="error", at="never")["level"] == "info"


def test_a_failure_names_its_type_its_cause_and_where_it_happened_but_no_source_line() -> None:
    def fail(secret: str) -> None:
        raise OSError(f"cannot write {secret}")

    token = secrets.token_urlsafe(32)
    line = {}
    try:
        try:
            fail(token)
        except OSError as cause:
            raise RuntimeError("append failed") from cause
    except RuntimeError as error:
        line = _line("failed", exc_info=(RuntimeError, error, error.__traceback__))
    assert (line["error"], line["error_text"]) == ("RuntimeError", "append failed")
    assert line["error_cause"] == "OSError"
    assert line["error_trace"][0].startswith("unit/test_event_logging.py:")
    assert token not in json.dumps(line)


@pytest.fixture
def logging_as_before() -> Iterator[None]:
    root, raising = logging.getLogger(), logging.raiseExceptions
    handlers, level = root.handlers[:], root.level
    ray = logging.getLogger("ray")
    of_ray, propagates = ray.handlers[:], ray.propagate
    root.handlers.clear()
    # What a test before this one has begun to capture would not be captured anew.
    logging.captureWarnings(capture=False)
    yield
    logging.captureWarnings(capture=False)
    for handler in root.handlers:
        handler.close()
    root.handlers[:], logging.raiseExceptions = handlers, raising
    ray.handlers[:], ray.propagate = of_ray, propagates
    root.setLevel(level)


@pytest.mark.usefixtures("logging_as_before")
def test_configured_a_process_writes_its_level_and_above_and_warnings_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    configure("info", logging.StreamHandler(), process="edge-0")
    logging.getLogger("poste.test").debug("unseen")
    logging.getLogger("poste.test").info("seen", extra={"sockets": 3})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(capture=True)
        warnings.warn("careful", stacklevel=1)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["info", "warning"]
    assert (lines[0]["event"], lines[0]["sockets"]) == ("seen", 3)
    assert "careful" in lines[1]["event"]
    assert {line["process"] for line in lines} == {"edge-0"}


class Terminal(io.StringIO):
    """Takes text as a terminal does."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize(
    ("environment", "is_colored"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_on_a_terminal_a_line_is_text_with_colors_unless_they_are_unwanted(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_colored: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal = Terminal()
    style = style_of(terminal)
    configure("info", logging.StreamHandler(terminal), process="edge-0", style=style)
    logging.getLogger("poste.test").info("ready", extra={"seconds": 4.2, "sender": DID})
    text = terminal.getvalue()
    assert ("\x1b[" in text) is is_colored
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert re.fullmatch(
        rf"\d\d:\d\d:\d\d \[info +\] edge-0 +ready +seconds=4.2 sender={short_did(DID)}\n", plain
    )


@given(st.text(), st.text())
def test_whatever_the_input_it_cannot_drive_a_terminal(message: str, field: str) -> None:
    record = logging.makeLogRecord({"msg": "%s", "args": (message,), "field": field})
    record.nested = {field: [field]}
    text = formatter("main", "plain").format(record)
    assert text.isascii()
    assert text.isprintable()


def test_on_a_terminal_the_places_of_a_failure_stand_below_it() -> None:
    try:
        raise OSError("disk I/O error")
    except OSError as error:
        record = logging.makeLogRecord({"msg": "append failed", "exc_info": (OSError, error, None)})
        record.exc_info = (OSError, error, error.__traceback__)
    first, place = formatter("main", "plain").format(record).splitlines()
    assert first.endswith("error=OSError error_cause=null error_text=disk I/O error")
    assert place.startswith("    unit/test_event_logging.py:")


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("library", ["aiohttp.server", "ray", "asyncio"])
def test_lines_of_libraries_keep_the_rules_too(library: str) -> None:
    stream = io.StringIO()
    configure("info", logging.StreamHandler(stream))
    logging.getLogger(library).error("Error handling request of %s", DID)
    line = json.loads(stream.getvalue())
    assert (line["logger"], line["event"]) == (
        library,
        f"Error handling request of {short_did(DID)}",
    )


@pytest.mark.usefixtures("logging_as_before")
def test_a_closed_stream_stops_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    configure("info", logging.StreamHandler(stream))
    stream.close()
    logging.getLogger("poste.test").error("not written")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("logging_as_before")
def test_lines_of_other_processes_come_through_the_pipe_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    configure("info", pipe_or_stderr(str(path)), process="edge-1")
    logging.getLogger("poste.test").info(
        "one", extra={f"field-{n}": "word " * 70 for n in range(9)}
    )
    logging.getLogger("poste.test").info(
        "two", extra={f"field-{n}": "word " * 70 for n in range(99)}
    )
    lines = [json.loads(line) for line in os.read(reader, 1 << 16).splitlines()]
    os.close(reader)
    assert [line["event"] for line in lines] == ["one", "two"]
    assert "field-8" in lines[0]
    assert lines[1]["cut_bytes"] > LINE_BYTES_MAX


@pytest.mark.usefixtures("logging_as_before")
def test_a_pipe_that_is_full_or_left_drops_lines_and_stops_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    configure("info", pipe_or_stderr(str(path)), process="edge-1")
    for _ in range(2_000):
        logging.getLogger("poste.test").info("word " * 70)
    read = os.read(reader, 1 << 20)
    os.close(reader)
    logging.getLogger("poste.test").info("not read")
    assert 0 < len(read) < 2_000 * 350
    assert all(json.loads(line) for line in read.splitlines())


class Disk(io.FileIO):
    """A file on a disk with room for some more bytes."""

    def __init__(self, path: Path, room_bytes: int) -> None:
        super().__init__(path, "w")
        self.room_bytes = room_bytes
        self.refused: queue.Queue[int] = queue.Queue()

    def write(self, data: Any) -> int:
        size = min(len(data), self.room_bytes)
        if not size:
            self.refused.put(len(data))
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room_bytes -= size
        return super().write(data[:size])


@pytest.mark.usefixtures("logging_as_before")
def test_a_line_that_cannot_be_formatted_is_dropped_and_its_caller_goes_on() -> None:
    reading, writing = os.pipe()
    configure("info", PipeLines(writing))
    log = logging.getLogger("poste.test")
    log.warning("%d and %s", "x")  # noqa: PLE1206 - a defect
    log.warning("next")
    logging.getLogger().handlers[0].close()
    with os.fdopen(reading, "rb") as lines:
        assert [json.loads(line)["event"] for line in lines] == ["next"]


@pytest.mark.usefixtures("logging_as_before")
@pytest.mark.parametrize("room_bytes", [0, 1_000])
def test_lines_of_other_processes_arrive_whole_again_after_stderr_had_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room_bytes: int
) -> None:
    disk = Disk(tmp_path / "stderr", room_bytes)
    line = json.dumps({"event": "too many", "field": "x" * 270}).encode() + b"\n"
    with io.TextIOWrapper(io.BufferedWriter(disk)) as stderr, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", stderr)
        pipe = LogPipe("info")
        os.write(pipe._descriptor, line * 40)  # at once, as by many
        disk.refused.get(timeout=10)
        disk.room_bytes = 1 << 20
        logging.getLogger("poste.test").info("there is room")
        pipe.close()
        os.close(pipe._reading)
    *early, last = [json.loads(text) for text in (tmp_path / "stderr").read_bytes().splitlines()]
    assert len(early) >= room_bytes // len(line)
    assert last["event"] == "there is room"


_MAIN: Final = """
import logging
from http_edge.telemetry.logs import LogPipe
pipe = LogPipe("info")
for number in range(100):
    logging.getLogger("poste.test").info("line %d", number)
"""
"""A main process that writes some lines."""
_END: Final = "import os; pipe.close(); os._exit(0)"
_END_WITHOUT_RAY: Final = "from actors.ray import processes; processes._end_without_ray(0)"


@pytest.mark.thorough
@pytest.mark.parametrize("end", [_END, _END_WITHOUT_RAY])
def test_the_last_lines_of_the_main_process_are_written_before_it_ends(
    tmp_path: Path, end: str
) -> None:
    path = tmp_path / "stderr"
    with path.open("wb") as stderr:
        subprocess.run([sys.executable, "-c", _MAIN + end], stderr=stderr, check=True, timeout=60)
    lines = [json.loads(line)["event"] for line in path.read_bytes().splitlines()]
    assert lines[:100] == [f"line {number}" for number in range(100)]
    assert len(lines) == (100 if end == _END else 101)


def test_a_process_without_a_terminal_writes_lines_without_loading_what_colors_them() -> None:
    """Every host and edge would spend an eighth of a second of CPU on it."""
    loaded = "sys.stdout.write(' '.join({'rich', 'structlog'} & sys.modules.keys()))"
    program = [sys.executable, "-c", f"import sys\n{_MAIN}pipe.close()\n{loaded}"]
    said = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert (said.stdout, len(said.stderr.splitlines())) == ("", 100)


@pytest.mark.usefixtures("logging_as_before")
def test_signals_to_stop_go_to_no_thread_but_the_main_one_while_others_set_their_actions() -> None:
    pipe = LogPipe("info")
    status = Path(f"/proc/self/task/{pipe._copying.native_id}/status").read_text()
    pipe.close()
    os.close(pipe._reading)
    blocked = int(re.findall(r"SigBlk:\s*(\w+)", status)[0], base=16)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        assert blocked & 1 << number - 1


def test_a_main_process_whose_stderr_is_not_read_ends() -> None:
    reading, writing = os.pipe()
    fill(writing)
    ended = subprocess.run(
        [sys.executable, "-c", _MAIN + "pipe.close()"], stderr=writing, timeout=60, check=False
    )
    os.close(writing)
    os.close(reading)
    assert ended.returncode == 0


@pytest.mark.usefixtures("logging_as_before")
def test_without_a_reader_of_the_pipe_lines_go_to_stderr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("info", pipe_or_stderr(str(tmp_path / "no-such-pipe")))
    logging.getLogger("poste.test").info("here")
    assert json.loads(capsys.readouterr().err)["event"] == "here"


@pytest.mark.parametrize("name", ["psycopg", "psycopg.pool"])
def test_the_driver_of_postgresql_writes_no_lines_about_an_outage_besides_those_of_the_log(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    importlib.import_module("eventstore.stores.postgres_connections")
    logging.getLogger(name).warning("error ignored in rollback")
    assert not caplog.records
