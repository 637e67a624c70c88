"""Log lines: about events, never about content; JSON, or readable text on a terminal.

Modules use Python's own loggers: ``logger.warning("append failed", extra={"host": name})``. So
libraries' lines go the same way as ours, and a disabled call costs a quarter of what it costs
through structlog's own loggers (measured in one run on a busy machine: 183 and 793 ns).
``formatter`` turns each record into a line, on a terminal by means of structlog, and enforces what
may be written:

- no input breaks a line or drives a terminal: JSON is ASCII, other lines are escaped;
- bytes become their number, long texts are cut, a password in a URL becomes ``***``, and a run of
  characters that looks like a key, a signature, a token or a payload becomes its length;
- a line that is written for a request has its id (``http_edge.telemetry.request_id``);
- a DID becomes its method and a hash: a reader who knows a DID finds the lines about its identity,
  and other readers do not learn from them which identity it is.

Ray sends the output of its workers to files of its own. So the main process opens a pipe
(``LogPipe``), it and every actor write their lines there, and a thread copies them to stderr. If
stderr is not read, as when its terminal is stopped, only that thread waits. A child process has
such a pipe of its own.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from io import RawIOBase
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Final, Literal, TextIO, TypeAlias
from urllib.parse import unquote
from uuid import UUID

from typing_extensions import override

from http_edge.telemetry import request_id

Style: TypeAlias = Literal["json", "plain", "colored"]
"""How lines look: JSON for programs, plain or colored text for readers at a terminal."""
_Line: TypeAlias = dict[str, Any]
_Render: TypeAlias = Callable[[_Line], str]

TEXT_CHARS_MAX: Final = 400
ITEMS_MAX: Final = 20
LINES_APART_MS: Final = 10_000
"""Between two lines of one kind that anyone can bring about; metrics count what they leave out."""
LINE_BYTES_MAX: Final = select.PIPE_BUF
"""The longest line that a pipe takes atomically, whatever other processes write to it."""
_CHUNK_BYTES: Final = 65_536
_EVENT_CHARS: Final = 28
_PROCESS_CHARS: Final = 7
_SCANNED_CHARS_MAX: Final = 4_096
_HASH_BYTES: Final = 8
_LAST_LINES_S_MAX: Final = 1.0
"""How long the end of a process waits for the reader of stderr."""
_DID: Final = re.compile(
    r"did(:|%3A)([a-z0-9]+)\1[A-Za-z0-9._:%=+/-]*[A-Za-z0-9_=-]", re.IGNORECASE
)
_PASSWORD: Final = re.compile(r"(://[^\s/?#@:]*):[^\s/?#]*@")
_RANDOM: Final = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_LETTERS: Final = (re.compile("[a-z]"), re.compile("[A-Z]"))
_WORDS: Final = re.compile("[/_=+-]*(?:[A-Z]?[a-z]++[/_=+-]*+)++")
"""Names and paths, also InCamelCase: random text has capitals in a row, or digits."""
_UNREDACTED: Final = frozenset({"mediator_did", "request_id", "request_ids"})
"""Fields that are not redacted, because logs are searched by them: this server, and requests."""
_HEAD: Final = ("at", "level", "process", "logger", "event", "request_id")
"""The first fields of every line; ``request_id`` only in lines for a request."""
_UNSHOWN: Final = frozenset({"logger", "error_trace"})
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(
    level: str, handler: logging.Handler, *, process: str = "main", style: Style = "json"
) -> None:
    """Send all lines of this process from ``level`` up, warnings included, to a handler.

    ``process`` names the process in every line.
    """
    handler.setFormatter(formatter(process, style))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    of_ray = logging.getLogger("ray")  # Ray's own handler would not follow our rules
    of_ray.handlers.clear()
    of_ray.propagate = True
    logging.raiseExceptions = False  # a closed stderr must not become a traceback per line


def style_of(stream: TextIO) -> Style:
    """Text on a terminal, colored unless ``NO_COLOR`` or ``TERM=dumb`` is set; else JSON."""
    if stream.closed or not stream.isatty():
        return "json"
    return "plain" if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" else "colored"


def formatter(process: str, style: Style = "json") -> logging.Formatter:
    """The formatter that turns a record of this process into a line, without the line end."""
    return _Lines(process, json.dumps if style == "json" else _Readable(colors=style == "colored"))


class _Lines(logging.Formatter):
    """Turns records of a process into lines."""

    def __init__(self, process: str, render: _Render) -> None:
        super().__init__()
        self._process, self._render = process, render

    @override
    def format(self, record: logging.LogRecord) -> str:
        """The line of a record, as short as a pipe takes it."""
        line = _line_of_record(self._process, record)
        return _fit(self._render, {name: safe_value(name, value) for name, value in line.items()})


def _line_of_record(process: str, record: logging.LogRecord) -> _Line:
    """The head of the line, then the fields of the record, which cannot replace the head."""
    at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    head = {
        "at": at.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "process": process,
        "logger": record.name,
        "event": record.getMessage(),
    }
    request = request_id.current()
    if request:
        head["request_id"] = request
    fields = {
        name: value
        for name, value in vars(record).items()
        # Ray adds fields of its own to every record, whose names begin with "_".
        if name not in _OF_EVERY_RECORD and name not in head and not name.startswith("_")
    }
    failure = record.exc_info
    return head | fields | (_failure(failure[1]) if failure and failure[1] else {})


def _fit(render: _Render, line: _Line) -> str:
    """The rendered line; if it is too long, its head alone with the length of the whole."""
    text = render(line)
    if len(text) < LINE_BYTES_MAX:
        return text
    head = {name: line[name] for name in _HEAD if name in line}
    return render(head | {"cut_bytes": len(text)})


class _Readable:
    """Renders a line for a terminal: local time, level, process, event, then the fields.

    The stack frames of a failure follow on lines of their own. Everything is ASCII without control
    characters.
    """

    def __init__(self, *, colors: bool) -> None:
        # An eighth of a second of CPU, which processes without a terminal need not spend.
        from structlog import dev  # noqa: PLC0415

        styles = dev.ConsoleRenderer.get_default_column_styles(colors)
        levels = dev.ConsoleRenderer.get_default_level_styles(colors)

        def value(style: str, width: int = 0) -> dev.KeyValueColumnFormatter:
            return dev.KeyValueColumnFormatter(None, style, styles.reset, str, width)

        self._render = dev.ConsoleRenderer(
            columns=[
                dev.Column("at", value(styles.timestamp)),
                dev.Column("level", dev.LogLevelColumnFormatter(levels, styles.reset)),
                dev.Column("process", value(styles.logger_name, _PROCESS_CHARS)),
                dev.Column("event", value(styles.bright, _EVENT_CHARS)),
                dev.Column(
                    "",
                    dev.KeyValueColumnFormatter(styles.kv_key, styles.kv_value, styles.reset, str),
                ),
            ]
        )

    def __call__(self, line: _Line) -> str:
        places = [_printable(place) for place in line.get("error_trace", [])]
        at = datetime.fromisoformat(line["at"]).astimezone()
        shown = {name: _printable(value) for name, value in line.items() if name not in _UNSHOWN}
        text = str(self._render(None, line["level"], shown | {"at": f"{at:%H:%M:%S}"}))
        return "\n    ".join([text.rstrip(), *places])


def _printable(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text.encode("unicode_escape").decode("ascii")


class LinePace:
    """Chooses the level of each line of one kind, so that few of them fill the log."""

    def __init__(self) -> None:
        self._until_ms = 0

    def level(self, level: int, now_ms: int) -> int:
        """Return ``level`` once in ``LINES_APART_MS``, and DEBUG for the lines in between."""
        if 0 < self._until_ms - now_ms <= LINES_APART_MS:
            return logging.DEBUG
        self._until_ms = now_ms + LINES_APART_MS
        return level


class PipeLines(logging.Handler):
    """Writes lines to a pipe without ever waiting: a line that finds no room is dropped."""

    def __init__(self, descriptor: int) -> None:
        """A writer to this end of a pipe, which does not block."""
        super().__init__()
        self._descriptor = descriptor

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line as a whole or not at all."""
        try:
            os.write(self._descriptor, f"{self.format(record)}\n".encode("ascii"))
        except Exception:  # noqa: BLE001 - as in logging's own handlers, no line may fail its caller
            self.handleError(record)

    def close(self) -> None:
        """Close the pipe's end; later lines are dropped."""
        # The number may be that of another file soon.
        descriptor, self._descriptor = self._descriptor, -1
        with suppress(OSError):
            os.close(descriptor)
        super().close()


class LogPipe(PipeLines):
    """A pipe for the lines of this process, and of its actors; a thread copies them to stderr."""

    def __init__(self, level: str, process: str = "main") -> None:
        """Open the pipe, and send the lines of this process from ``level`` up there.

        ``process`` names it in every line. Lines without room are lost.
        """
        self._reading, writing = os.pipe()
        os.set_blocking(writing, False)
        super().__init__(writing)
        path, style = f"/proc/{os.getpid()}/fd/{writing}", style_of(sys.stderr)
        self.prepare: Callable[[str], None] = partial(_configure_actor, level, path, style)
        """What an actor calls first, with its name, to send its lines here."""
        self._copying = threading.Thread(target=self._copy, name="log-pipe", daemon=True)
        # Signals go to the main thread: while Ray starts, an action of its own, in C, would end the
        # process in this one.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        self._copying.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        configure(level, self, process=process, style=style)

    @override
    def close(self) -> None:
        """Close the pipe's end, and wait a bounded time until all lines are copied."""
        if self._descriptor >= 0:
            super().close()
            self._copying.join(_LAST_LINES_S_MAX)

    def _copy(self) -> None:
        # Not through Python's buffer, whose lock Python needs if this process ends meanwhile.
        stderr: Any = getattr(sys.stderr.buffer, "raw", sys.stderr.buffer)
        rest = b""
        while chunk := os.read(self._reading, _CHUNK_BYTES):
            for line in chunk.splitlines(keepends=True):
                # An earlier line's rest first, so that none is torn.
                rest = _rest_of(rest, stderr) or _rest_of(line, stderr)


def _rest_of(text: bytes, stderr: RawIOBase) -> bytes:
    """Write the text; return what found no room."""
    # A full disk loses lines, but must not end the copying thread: the pipe would stay full.
    with suppress(OSError):
        while text and (count := stderr.write(text)):
            text = text[count:]
    return text


def _configure_actor(level: str, pipe: str, style: Style, name: str) -> None:
    """Send the lines of this process, the actor ``name``, to the pipe."""
    configure(level, pipe_or_stderr(pipe), process=name, style=style)


def pipe_or_stderr(path: str) -> logging.Handler:
    """A writer to a named pipe, or to one of another process below ``/proc``, if it can be opened.

    Else to stderr.
    """
    with suppress(OSError):
        return PipeLines(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
    return logging.StreamHandler()


def short_did(did: str) -> str:
    """A DID as log lines name it: its method, and a hash of 16 hexadecimal digits."""
    digest = hashlib.blake2b(did.encode("utf-8", "replace"), digest_size=_HASH_BYTES).hexdigest()
    return f"did:{did.split(':')[1]}:#{digest}"


def safe_text(text: str) -> str:
    """The text, cut, without DIDs and without what looks like a secret or a payload."""
    plain = _PASSWORD.sub(r"\1:***@", text[:_SCANNED_CHARS_MAX])
    plain = _RANDOM.sub(_measured, _DID.sub(_shortened, plain))
    cut = len(plain) > TEXT_CHARS_MAX or len(text) > _SCANNED_CHARS_MAX
    return plain[:TEXT_CHARS_MAX] + "…" if cut else plain


def safe_value(name: str, value: object) -> Any:
    """A field's value as JSON without content; objects of other types become their type's name."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value[:TEXT_CHARS_MAX] if name in _UNREDACTED else safe_text(value)
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case Mapping():
            items = islice(value.items(), ITEMS_MAX)
            return {safe_text(str(key)): safe_value(str(key), inner) for key, inner in items}
        case list() | tuple() | set() | frozenset():
            return [safe_value(name, inner) for inner in islice(value, ITEMS_MAX)]
        case PurePath() | UUID():
            return safe_text(str(value))
        case _:
            return f"<{type(value).__qualname__}>"


def _failure(error: BaseException) -> dict[str, Any]:
    frames = traceback.extract_tb(error.__traceback__)[-ITEMS_MAX:]
    places = [f"{'/'.join(Path(f.filename).parts[-2:])}:{f.lineno} {f.name}" for f in frames]
    return {
        "error": type(error).__qualname__,
        "error_text": str(error),
        "error_cause": type(error.__cause__).__qualname__ if error.__cause__ else None,
        "error_trace": places,
    }


def _shortened(match: re.Match[str]) -> str:
    return short_did(match[0] if match[1] == ":" else unquote(match[0]))


def _measured(match: re.Match[str]) -> str:
    run = match[0]
    both = all(kind.search(run) for kind in _LETTERS)
    is_random = _HEX.fullmatch(run) or (both and not _WORDS.fullmatch(run))
    return f"<{len(run)} characters>" if is_random and not _UUID.fullmatch(run) else run
