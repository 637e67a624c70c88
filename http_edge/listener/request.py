"""A request whose head is read in time proportional to its length, and without failing."""

from __future__ import annotations

from typing import Any

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage


class Request(web.Request):
    """A request to this server, whatever host its target names."""

    def __init__(self, message: RawRequestMessage, *args: Any, **options: Any) -> None:
        """Take the target's path and query alone: aiohttp would decode its host, which may fail."""
        if message.url.absolute:
            message = message._replace(url=message.url.relative())
        super().__init__(message, *args, **options)
