"""Requests to the mediator that runs on this machine, which answers operators on loopback alone.

What only operators may see or do carries a token that follows from the mediator's keys.
"""

from __future__ import annotations

import http.client
import json
from contextlib import closing
from typing import Any, Final
from urllib.parse import urlsplit

import click

from http_edge.cli.keys import existing_keys
from http_edge.crypto.mediator_keys import operator_token
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import Settings

url_option = click.option(
    "--url", help="The mediator to ask; else the one that the settings describe."
)

_ANSWER_S_MAX: Final = 5
_ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024
_NO_SUCH: Final = "The status is for loopback: run this on the machine of the mediator."
_REMEDIES: Final = {
    http.client.NOT_FOUND: _NO_SUCH,
    http.client.UNAUTHORIZED: "It runs with other keys: name its data directory with --data-dir.",
    http.client.SERVICE_UNAVAILABLE: "A host does not answer: see poste status.",
}


def ask(
    method: str,
    url: str,
    path: str,
    *,
    token: str | None = None,
    seconds_max: float = _ANSWER_S_MAX,
) -> dict[str, Any]:
    """The JSON object that the mediator at ``url`` answers at ``path``, within ``seconds_max``.

    ``token`` is the operator's.

    Raises:
        Stop: it cannot be reached, or does not answer as poste does.
    """
    status, body = exchange(method, url, path, token=token, seconds_max=seconds_max)
    refuse_unless_ok(status, url, path)
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    if not isinstance(answer, dict):
        name = path.partition("?")[0]
        what = name.strip("/").split("/")[0]
        raise Stop(Exit.UNREACHABLE, f"{url}{name} did not answer with a {what} of poste")
    return answer


def ask_as_operator(
    method: str,
    settings: Settings,
    url: str | None,
    path: str,
    *,
    seconds_max: float = _ANSWER_S_MAX,
) -> dict[str, Any]:
    """As ``ask``, of the mediator at ``url``, else of the one that the settings describe.

    Raises:
        Stop: as ``ask``, or there are no keys in the data directory.
    """
    token = operator_token(existing_keys(settings))
    return ask(method, url or settings.local_url, path, token=token, seconds_max=seconds_max)


def exchange(  # noqa: PLR0913 - each is a part of the request
    method: str,
    url: str,
    path: str,
    *,
    token: str | None = None,
    body: bytes | None = None,
    seconds_max: float = _ANSWER_S_MAX,
    bytes_max: int = _ANSWER_BYTES_MAX,
) -> tuple[int, bytes]:
    """Status and body of an answer of the mediator at ``url``.

    The proxies of the environment are not used: the mediator is on this machine.

    Raises:
        Stop: it cannot be reached.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Stop(Exit.USAGE, f"{url} is not an http or https URL")
    https = parts.scheme == "https"
    connect = http.client.HTTPSConnection if https else http.client.HTTPConnection
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with closing(connect(parts.netloc, timeout=seconds_max)) as connection:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(bytes_max)
    except (OSError, http.client.HTTPException) as error:
        remedy = "Start it with: poste serve. If it listens elsewhere, name it with --url."
        raise Stop(Exit.UNREACHABLE, f"no mediator answers at {url}: {error}", remedy) from error


def refuse_unless_ok(status: int, url: str, path: str) -> None:
    """Refuse any other status than 200, with its remedy.

    Raises:
        Stop: the status is not 200.
    """
    if status != http.client.OK:
        remedy = _REMEDIES.get(status, _NO_SUCH)
        raise Stop(Exit.UNREACHABLE, f"{url}{path.partition('?')[0]} answered {status}", remedy)
