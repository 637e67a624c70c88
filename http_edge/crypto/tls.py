"""Which certificates this machine trusts, as a client."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def trusted_by_this_machine() -> ssl.SSLContext:
    """The context of connections to strangers; to be changed by no one.

    Made once for each process: to read the certificates takes longer than to start an edge.
    """
    return ssl.create_default_context()
