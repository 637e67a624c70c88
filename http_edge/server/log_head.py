"""``GET /log/head``: the newest signed head of the log that the exporter has published.

The exporting process keeps the head in a file of the data directory. A process that stands by does
so too, with the heads that it finds at the export's place. So every edge reads the head from its
own machine, asks no host and no store, and does without pyarrow.
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
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tree_head import read_head
from http_edge.decentrl.answers import error_body
from http_edge.listener.address_charge import charge_public
from http_edge.listener.routes import JSON, PlainRoute, Rejection, Route
from http_edge.server.status_files import database_numbers, publish, status_path
from http_edge.settings.settings import Settings

_NAME: Final = "log-head.txt"
_READ_AGAIN_MS: Final = 1_000
_CACHE_CONTROL: Final = "public, max-age=1"
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


class HeadFile:
    """The newest head in the data directory."""

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
        headers = {hdrs.CACHE_CONTROL: _CACHE_CONTROL}
        return web.Response(body=note, content_type="text/plain", charset="utf-8", headers=headers)

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
