"""``GET /log/head``: the signed head of the log that strangers get.

A mark of the log has this head. The exporting process renews it, less often than it exports, and
keeps it in a file of the data directory; a process that stands by does the latter, too. So every
edge reads it from its own machine, asks no host and no store, and does without pyarrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Final

from aiohttp import hdrs, web

from actors.host.clock import Clock
from eventstore.log.databases import folder_name
from eventstore.log.event_log import EventLog, LogReader
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tree_head import read_head
from http_edge.decentrl.answers import error_body
from http_edge.listener.address_charge import charge_public
from http_edge.listener.routes import JSON, PlainRoute, Rejection, Route
from http_edge.server.status_files import database_numbers, publish, status_path
from http_edge.settings.settings import Settings

_NAME: Final = "log-head.txt"
PUBLIC_HEAD: Final = "public_head"
"""The mark of a log with the head for strangers: since when it is, in Unix milliseconds, and it."""
_MS: Final = 1_000
_CLOCKS_DIFFER_MS: Final = 60_000
_READ_AGAIN_MS: Final = 1_000
_CACHED_S_MAX: Final = 60
"""A head that is renewed each hour may be a minute older."""
_SEVERAL: Final = "head: the log has several databases, each with a head of its own: "


class NoHead(Enum):
    """Why there is no head to answer with; the value is the detail for clients."""

    UNPUBLISHED = (
        "head: none is published; the mediator does not export its log, or has not exported it yet"
    )
    UNUSABLE = (
        "head: the published one cannot be used; its operator has to make log-head.txt in the data "
        "directory readable, or remove it: the next export writes it again"
    )


def public_head(log: LogReader) -> bytes | None:
    """The head for strangers, as ``renewed_head`` has left it; None before the first one.

    Raises:
        LogUnavailable: the log cannot be read.
    """
    return _public(log)[1]


def renewed_head(log: EventLog, newest: bytes, every_s: float, now_ms: int) -> bytes:
    """The head for strangers: ``newest`` if they had the one before for ``every_s``.

    That time begins anew also if nothing was sealed in it: else the next change, whenever it came,
    would show when the first seal was made. Clocks of nodes differ a little; a time more than a
    minute to come is of a clock that was ahead.

    Raises:
        LogUnavailable: the log cannot be read or written.
    """
    since_ms, note = _public(log)
    if note is not None and every_s and -_CLOCKS_DIFFER_MS <= now_ms - since_ms < every_s * _MS:
        return note
    if every_s or note != newest:
        log.mark(PUBLIC_HEAD, f"{now_ms}\n{newest.decode()}")
    return newest


def _public(log: LogReader) -> tuple[int, bytes | None]:
    since_ms, _, note = log.settings().get(PUBLIC_HEAD, "0").partition("\n")
    return int(since_ms), note.encode() or None


class HeadFile:
    """The head for strangers in the data directory."""

    def __init__(self, data_dir: Path, database: int | None = None) -> None:
        """The file for the log, or for one of its databases if it has several."""
        self._path = status_path(data_dir, _NAME, database)

    def publish(self, note: bytes) -> None:
        """Let edges of this machine answer with this head; ignore a failure to write the file.

        Called again with the same head, this writes only if that failed or the file has changed.
        """
        with suppress(OSError):
            if self._path.read_bytes() == note:
                return
        publish(self._path, note)

    def read(self) -> bytes | NoHead:
        """The signed note, or why there is no valid one."""
        try:
            content = self._path.read_bytes()
            read_head(content)
        except FileNotFoundError:
            return NoHead.UNPUBLISHED
        except (OSError, NoteRefused):
            return NoHead.UNUSABLE
        return content


class LogHeadEndpoint:
    """Answers ``GET /log/head``, and ``GET /log/db-1/head`` where the log has several databases."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._rate = settings.rates.public_reads_per_address_per_s
        cached_s = max(1, min(_CACHED_S_MAX, int(settings.export.head_every_s)))
        self._headers = {hdrs.CACHE_CONTROL: f"public, max-age={cached_s}"}
        self._clock = clock
        numbers = database_numbers(len(settings.log_dsns))
        self._files = {_path(n): HeadFile(settings.data_dir, n) for n in numbers}
        self._read: dict[str, tuple[int, bytes | NoHead]] = {}

    def routes(self) -> Sequence[Route]:
        """One route for each head, open to every client at the rate of public pages."""
        routes: list[Route] = [
            PlainRoute("GET", path, partial(self._show, path), per_address_per_s=self._rate)
            for path in self._files
        ]
        if len(self._files) > 1:
            routes.append(PlainRoute("GET", _path(None), self._name_each))
        return routes

    async def _show(self, path: str, _: web.Request) -> web.Response:
        note = self._newest(path)
        if isinstance(note, NoHead):
            return _not_found(note.value)
        charge_public(len(note))
        return web.Response(
            body=note, content_type="text/plain", charset="utf-8", headers=self._headers
        )

    async def _name_each(self, _: web.Request) -> web.Response:
        return _not_found(_SEVERAL + ", ".join(self._files))

    def _newest(self, path: str) -> bytes | NoHead:
        """The content of the file, read at most once a second."""
        read_ms, note = self._read.get(path, (0, NoHead.UNPUBLISHED))
        if abs(self._clock() - read_ms) >= _READ_AGAIN_MS:
            note = self._files[path].read()
            self._read[path] = self._clock(), note
        return note


def _path(database: int | None) -> str:
    return "/log/head" if database is None else f"/log/{folder_name(database)}/head"


def _not_found(detail: str) -> web.Response:
    body = error_body(Rejection.NOT_FOUND.value, detail)
    return web.Response(status=HTTPStatus.NOT_FOUND, body=body, content_type=JSON)
