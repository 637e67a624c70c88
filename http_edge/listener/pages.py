"""Pages for browsers: one HTML text with one style, which loads, runs and sends nothing."""

from __future__ import annotations

import base64
from hashlib import sha256
from typing import Final

from aiohttp import hdrs, web

HTML: Final = "text/html"


def page_headers(style: str) -> dict[str, str]:
    """The headers of a page whose ``<style>`` is ``style``: it is allowed by its hash."""
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
    """All that ``Accept`` names, in lower case."""
    return ",".join(request.headers.getall(hdrs.ACCEPT, [])).lower()
