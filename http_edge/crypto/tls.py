"""The certificates that this machine trusts as a TLS client."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def trusted_by_this_machine() -> ssl.SSLContext:
    """The TLS context for connections to strangers; callers must not change it.

    Made once per process: reading the certificates takes longer than starting an edge.
    """
    return ssl.create_default_context()
