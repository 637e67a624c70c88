"""The certificates that this machine trusts as a TLS client."""

from __future__ import annotations

import ssl
from functools import cache


@cache
def trusted_by_this_machine() -> ssl.SSLContext:
    """The TLS context for connections to strangers; callers must not change it.

    It offers no Diffie-Hellman over numbers that the server chooses (DHE of TLS 1.2): with 10,000
    bits one handshake held up the event loop for 2.3 s.

    Made once per process: reading the certificates takes longer than starting an edge.
    """
    context = ssl.create_default_context()
    suites = context.get_ciphers()
    context.set_ciphers(":".join(each["name"] for each in suites if each["kea"] != "kx-dhe"))
    return context
