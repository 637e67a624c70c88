"""Log lines: one JSON object per line on stderr, about events, never about content.

Modules log as Python does: ``logger.warning("append failed", extra={"host": name})``. The rules
of what may be written are enforced here, for our lines and for those of libraries:

- every value is JSON in ASCII, so nobody's input breaks a line or drives a terminal;
- bytes become their number, long texts are cut, and a run of characters that looks like a key,
  a signature, a token or a payload becomes its length;
- a line that is written for a request names it (``http_edge.request_id``);
- a DID becomes its method and a hash: lines about one identity can be found by whoever knows its
  DID, and tell nobody else who it is.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import select
import sys
import traceback
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Final, TextIO
from urllib.parse import unquote
from uuid import UUID

from http_edge import request_id

TEXT_CHARS_MAX: Final = 400
ITEMS_MAX: Final = 20
LINE_BYTES_MAX: Final = select.PIPE_BUF
"""Lines up to this length enter a pipe whole, whatever other processes write to it."""
_SCANNED_CHARS_MAX: Final = 4_096
_HASH_BYTES: Final = 8
_DID: Final = re.compile(
    r"did(:|%3A)([a-z0-9]+)\1[A-Za-z0-9._:%=+/-]*[A-Za-z0-9_=-]", re.IGNORECASE
)
_RANDOM: Final = re.compile(r"[A-Za-z0-9+/_=-]{32,}")
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_HEX: Final = re.compile(r"[0-9a-fA-F]+")
_LETTERS: Final = (re.compile("[a-z]"), re.compile("[A-Z]"))
_WORDS: Final = re.compile("[/_=+-]*(?:[A-Z]?[a-z]++[/_=+-]*+)++")
"""Names and paths, also InCamelCase: random letters have capitals in a row, or digits."""
_AS_IT_IS: Final = frozenset({"mediator_did", "request_id", "request_ids"})
"""Fields that name this server itself, and requests: by what they are searched for."""
_OF_EVERY_RECORD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(
    level: str, stream: TextIO | None = None, *, pipe: str | None = None, process: str = "main"
) -> None:
    """Send all lines of this process from ``level`` up, warnings included, to one place.

    That is ``stream``, without one stderr. With the path of a ``pipe`` (named, or another
    process's below ``/proc``) the lines go there instead, and never wait for its reader; a pipe
    that cannot be opened is passed over. ``process`` names the process in every line.
    """
    handler = _handler(stream, pipe)
    handler.setFormatter(JsonLines(process))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(capture=True)
    logging.raiseExceptions = False  # a closed stderr must not become a traceback per line


class JsonLines(logging.Formatter):
    """One record as one line of JSON."""

    def __init__(self, process: str) -> None:
        """Lines of the process of this name."""
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """The line, without its end."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        head = {
            "at": at.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "process": self._process,
            "logger": record.name,
            "event": safe_text(record.getMessage()),
        }
        request = request_id.current()
        if request:
            head["request_id"] = request
        names = sorted(vars(record).keys() - _OF_EVERY_RECORD - head.keys())
        fields = {name: safe_value(name, vars(record)[name]) for name in names}
        if record.exc_info and record.exc_info[1]:
            fields |= _failure(record.exc_info[1])
        line = json.dumps(head | fields)
        return line if len(line) < LINE_BYTES_MAX else json.dumps(head | {"cut_bytes": len(line)})


class PipeLines(logging.Handler):
    """Writes lines to a pipe; a line that finds no room is dropped, nothing ever waits."""

    def __init__(self, path: str) -> None:
        """A writer to the pipe at ``path``.

        Raises:
            OSError: nobody reads it.
        """
        super().__init__()
        self._descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line as a whole or not at all."""
        with suppress(OSError):
            os.write(self._descriptor, f"{self.format(record)}\n".encode("ascii"))

    def close(self) -> None:
        """Close the pipe's end."""
        with suppress(OSError):
            os.close(self._descriptor)
        super().close()


def _handler(stream: TextIO | None, pipe: str | None) -> logging.Handler:
    if pipe is not None:
        with suppress(OSError):
            return PipeLines(pipe)
    return logging.StreamHandler(stream or sys.stderr)


def short_did(did: str) -> str:
    """A DID as log lines name it: its method, and a hash of 16 hexadecimal digits."""
    digest = hashlib.blake2b(did.encode("utf-8", "replace"), digest_size=_HASH_BYTES).hexdigest()
    return f"did:{did.split(':')[1]}:#{digest}"


def safe_text(text: str) -> str:
    """A text without DIDs and without what looks like a secret or a payload, cut to a length."""
    plain = _RANDOM.sub(_measured, _DID.sub(_shortened, text[:_SCANNED_CHARS_MAX]))
    cut = len(plain) > TEXT_CHARS_MAX or len(text) > _SCANNED_CHARS_MAX
    return plain[:TEXT_CHARS_MAX] + "…" if cut else plain


def safe_value(name: str, value: object) -> Any:
    """A field's value as JSON without content; objects that are no data become their type."""
    match value:
        case None | bool() | int():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case str():
            return value[:TEXT_CHARS_MAX] if name in _AS_IT_IS else safe_text(value)
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
        "error_text": safe_text(str(error)),
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
