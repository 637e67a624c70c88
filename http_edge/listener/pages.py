"""HTML pages for browsers: each is one text with its style, and loads, runs and sends nothing."""

from __future__ import annotations

import base64
from hashlib import sha256
from html import escape
from string import Template
from typing import Final

from aiohttp import hdrs, web

HTML: Final = "text/html"


_STYLE: Final = """
:root { color-scheme: light dark; font: 1.1rem/1.5 system-ui, sans-serif; }
body { margin: 0 auto; padding: 1.5rem 1rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
"""
_FRAME: Final = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="robots" content="noindex">
<title>$title</title>
<style>$style</style>
</head>
<body>
<h1>$title</h1>
$body</body>
</html>
""")


class PageFrame:
    """What the pages of one kind share."""

    def __init__(self, style: str) -> None:
        """A frame whose CSS is that of all pages followed by ``style``."""
        self._style = _STYLE + style
        self.headers: Final = _headers(self._style)
        """Headers of every answer with such a page; they allow its style by hash, nothing else."""

    def html(self, title: str, body: str) -> str:
        """A page: ``title`` is plain text, ``body`` is HTML whose lines end with a new line."""
        return _FRAME.substitute(title=escape(title), style=self._style, body=body)


def _headers(style: str) -> dict[str, str]:
    digest = base64.b64encode(sha256(style.encode("utf-8")).digest()).decode("ascii")
    return {
        hdrs.CACHE_CONTROL: "no-store",  # the answer depends on Accept
        "Content-Security-Policy": (
            f"default-src 'none'; style-src 'sha256-{digest}';"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }


def accepted(request: web.Request) -> str:
    """The values of the ``Accept`` headers, joined by commas, in lower case."""
    return ",".join(request.headers.getall(hdrs.ACCEPT, [])).lower()
