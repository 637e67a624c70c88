"""Reads the URL of a log in PostgreSQL, and names nothing of it that may be part of a password."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from psycopg import ProgrammingError
from psycopg.conninfo import conninfo_to_dict

from eventstore.log.errors import LogUnusable
from eventstore.stores.postgres_bounds import PostgresBounds

_ENCODED: Final = (
    "the URL cannot be read (in a password or name write % as %25, @ as %40, / as %2F)"
)
_LOGIN: Final = re.compile("^[^@/]*@")
_PORTS: Final = re.compile("[0-9,]*")


def parameters_of(dsn: str, bounds: PostgresBounds) -> dict[str, Any]:
    """The parameters of libpq in a connection string (a URL, or ``name=value`` pairs), and ours.

    Raises:
        LogUnusable: the URL cannot be read; says what may be wrong, and nothing of a password.
    """
    try:
        parameters = conninfo_to_dict(
            dsn,
            connect_timeout=max(1, round(bounds.connect_s_max)),
            # Otherwise texts from a database without an encoding would come as bytes.
            client_encoding="UTF8",
        )
    except ProgrammingError as error:
        # What follows quotes the URL, and may be a part of the password.
        why = re.split('[:"]', str(error))[0].strip()
        raise LogUnusable(f"PostgreSQL: {_ENCODED}: {why}") from None
    # User and password end at the first @ or /: what is left of a password with one of these goes
    # on as host, port or database, which errors quote.
    places = _LOGIN.sub("", dsn.partition("://")[2]).partition("?")[0]
    is_port = ":" not in places or _PORTS.fullmatch(str(parameters.get("port", "")))
    if "@" in places or not is_port:
        raise LogUnusable(f"PostgreSQL: {_ENCODED}")
    # Where neither the URL nor PGAPPNAME says how an administrator finds these sessions.
    parameters.setdefault("fallback_application_name", f"poste {os.getpid()}")
    if servers_in(parameters) > 1:
        # A standby accepts connections too, and refuses every append.
        parameters.setdefault("target_session_attrs", "read-write")
    if bounds.at_primary and parameters.get("target_session_attrs") != "read-write":
        parameters["target_session_attrs"] = "primary"
    return parameters


def first_server(dsn: str) -> str:
    """The host that a connection string names first; empty for none.

    Raises:
        LogUnusable: the URL cannot be read.
    """
    return str(parameters_of(dsn, PostgresBounds()).get("host", "")).partition(",")[0]


def servers_in(parameters: Mapping[str, Any]) -> int:
    """How many servers the DSN names, by their names or by their addresses alone."""
    return 1 + max(str(parameters.get(each, "")).count(",") for each in ("host", "hostaddr"))


def each_server(parameters: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The parameters for each server of the DSN alone; a single port is that of all."""
    names = ("host", "hostaddr", "port")
    lists = {name: str(parameters.get(name, "")).split(",") for name in names}
    for number in range(servers_in(parameters)):
        own = {name: values[number % len(values)] for name, values in lists.items()}
        yield {**parameters, **{name: value or None for name, value in own.items()}}
