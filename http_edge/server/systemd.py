"""Tells systemd, as sd_notify(3) does, that the mediator serves, so that its start has ended."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def notify_ready() -> None:
    """Send READY=1 to the socket that NOTIFY_SOCKET names, if a unit of Type=notify has set it."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    # An abstract socket has a NUL where its name in the variable has an @.
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"READY=1", address)
