"""The addresses of a mediator: reserved by its main process, shared by its edges."""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Final

from eventstore.log.errors import LogUnusable
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import split_listen

_RETRY_S: Final = 0.2
_ADDRESS_S_MAX: Final = 20.0
AUTO: Final = "auto"
"""Setting value for the address of this machine towards the database."""
_DISCARD: Final = 9  # only to look up a route; nothing is sent to this port


@contextlib.contextmanager
def reserved_address(address: str, option: str, *, patient: bool) -> Iterator[int]:
    """Reserve an address for the edges, which share it, within the block; yield its port.

    ``option`` is the option that sets the address. ``patient`` waits for an address in use: the
    processes of a killed mediator need some time to end.

    Raises:
        Stop: another process listens there, or the address is not of this machine.
    """
    host, port = split_listen(address)
    deadline = time.monotonic() + (_ADDRESS_S_MAX if patient else 0)
    while True:
        try:
            reserved = _reserve(_family(host), host, port)
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            if is_taken and time.monotonic() < deadline:
                time.sleep(_RETRY_S)
                continue
            stop = "Stop the process that listens there, or name" if is_taken else "Name"
            raise Stop(
                Exit.USAGE,
                f"The address {address} cannot be used: {error.strerror}.",
                f"{stop} another address with {option}.",
            ) from error
        with reserved:
            yield reserved.getsockname()[1]
        return


def address_towards(dsns: Sequence[str]) -> str:
    """The address from which this machine reaches the first server of a PostgreSQL log it finds.

    The name of a server that is away may be unknown.

    Raises:
        Stop: the URLs name no server, or no server is found; or a URL cannot be read.
    """
    # Imported here, so that a process without PostgreSQL needs no driver.
    from eventstore.stores.postgres_urls import first_server  # noqa: PLC0415

    unfound: list[str] = []
    for dsn in dsns:
        try:
            server = first_server(dsn)
        except LogUnusable as error:
            why = f"The event log cannot be opened: {error}."
            raise Stop(Exit.UNREACHABLE, why, "See --log.") from error
        try:
            family, kind, *_, address = socket.getaddrinfo(
                server, _DISCARD, type=socket.SOCK_DGRAM
            )[0]
            with socket.socket(family, kind) as asking:
                asking.connect(address)
                found: str = asking.getsockname()[0]
                return found
        except OSError as error:
            unfound.append(f"{server or 'unnamed'}: {error.strerror}")
        except UnicodeError:
            unfound.append(f"{server}: no host can have this name")
    raise Stop(
        Exit.UNREACHABLE,
        f"No route to a server of the log ({', '.join(unfound)}).",
        "Name the address of this node: --set node_address=ADDRESS.",
    )


def _reserve(family: socket.AddressFamily, host: str, port: int) -> socket.socket:
    """Bind a socket that does not listen, so that it never gets a connection."""
    with socket.socket(family) as unshared:
        # Bind without SO_REUSEPORT first: else a second mediator could share the port unnoticed.
        unshared.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        unshared.bind((host, port))
        port = unshared.getsockname()[1]
    reserved = socket.socket(family)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        reserved.bind((host, port))
    except OSError:
        reserved.close()
        raise
    return reserved


def listen(address: str) -> socket.socket:
    """A listening socket that several edges may share (SO_REUSEPORT)."""
    host, port = split_listen(address)
    listener = socket.socket(_family(host), socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((host, port))
    listener.settimeout(0)
    return listener


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
