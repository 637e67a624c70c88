"""Requests to a running mediator: as its operator, or as any client.

The mediator's data directory has the address for operators and the token that they need.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import closing, suppress
from functools import wraps
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import SplitResult, quote, urlencode, urlsplit

import click

from actors.placement.port import Placed
from http_edge.cli.settings import with_settings
from http_edge.crypto.mediator_keys import load_operators_token
from http_edge.server.data_dir import is_in_use, was_left
from http_edge.server.exits import Exit, Stop
from http_edge.settings.settings import Settings
from http_edge.settings.sources import Loaded

Result = TypeVar("Result")
url_option = click.option(
    "--url",
    help="URL of the operators' listener; else as recorded in the mediator's data directory.",
)

_ANSWER_S_MAX: Final = 8.0
"""An edge waits 5 s for a host that does not answer before it answers without it."""
_ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""The longest answer names all queues that a request can ask for, by DIDs of some KiB each."""
_WHOLE_S_MAX: Final = 60.0
"""Further time for an answer of many parts, as the longest one over a slow line; each part comes
soon after the one before, or else the answer ends there."""
_ORDER_S_MAX: Final = 60.0
"""An order may have to start a process and move shards: the placer takes this long at most."""
_ORDER_CODES: Final = {
    Placed.NO_SUCH_IDENTITY: Exit.FINDING,
    Placed.DID_NOT_ANSWER: Exit.UNREACHABLE,
}
"""Exit codes of refused orders; any other refusal means that the order is wrong."""
_NO_SUCH: Final = (
    "Name the operators' listener (operators.listen) with --url, or the mediator's data"
    " directory with --data-dir; it is not behind a proxy."
)
_REMEDIES: Final = {
    http.client.NOT_FOUND: _NO_SUCH,
    http.client.UNAUTHORIZED: (
        "The mediator has another token: name its data directory with --data-dir, or the"
        " token file with --set operators.token_file=PATH. If the file was replaced, restart the"
        " mediator, which reads it at its start."
    ),
    http.client.SERVICE_UNAVAILABLE: (
        "A host does not answer, or its log accepts no writes: see poste status."
    ),
}


def ask(
    method: str,
    url: str,
    path: str,
    *,
    token: str | None = None,
    seconds_max: float = _ANSWER_S_MAX,
) -> dict[str, Any]:
    """Send a request to the mediator at ``url``; return the JSON object that it answers with.

    ``token`` is the operator's.

    Raises:
        Stop: the mediator cannot be reached, or does not answer as poste does.
    """
    status, body = exchange(method, url, path, token=token, seconds_max=seconds_max)
    refuse_unless_ok(status, url, path)
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        name = path.partition("?")[0]
        what = name.strip("/").split("/")[0]
        raise Stop(Exit.UNREACHABLE, f"the answer of {url}{name} is not a {what} of poste")
    return answer


class RunningMediator(NamedTuple):
    """A running mediator for its operator: at ``url``, else at the data directory's address."""

    settings: Settings
    url: str | None = None

    def ask(
        self, method: str, path: str, *, seconds_max: float = _ANSWER_S_MAX, **query: str
    ) -> dict[str, Any]:
        """``ask`` at the address for operators.

        Raises:
            Stop: as ``ask``, or no mediator runs there, or there is no token.
        """
        address, token = operators_access(self.settings, self.url)
        path += f"?{urlencode(query, quote_via=quote, safe='')}" if query else ""
        return ask(method, address, path, token=token, seconds_max=seconds_max)

    def order(
        self, path: str, refusals: Mapping[Placed, tuple[str, str]], see: str, **query: str
    ) -> Mapping[str, Any]:
        """Give the placer an order; return its answer.

        ``refusals`` has the reason of each refusal and its remedy; ``see`` is the remedy for
        others.

        Raises:
            Stop: as ``ask``, or the order was not carried out.
        """
        answer = self.ask("POST", path, seconds_max=_ORDER_S_MAX, **query)
        placed: Any = str(answer.get("placed"))
        if placed != Placed.DONE:
            reason, remedy = refusals.get(placed, ("The mediator refused.", see))
            if silent := ", ".join(answer.get("silent", ())):
                reason += f" The placer of database {silent} did not answer."
            raise Stop(_ORDER_CODES.get(placed, Exit.USAGE), reason, remedy)
        return answer


def for_operators(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command ``--url`` and ``--data-dir``, and pass it the ``RunningMediator`` there."""

    @url_option
    @with_settings("data_dir")
    @wraps(command)
    def run(loaded: Loaded, url: str | None, **options: Any) -> Result:
        return command(RunningMediator(loaded.settings, url), **options)

    return run


def unknown_identity(
    did: str, answer: Mapping[str, Any], remedy: str = "See all queues: poste queue show"
) -> Stop:
    """The end of a command about an identity that, by this answer, the mediator does not know."""
    if account := answer.get("account"):
        named = f"Name that account by its first DID: {account}"
        return Stop(Exit.FINDING, f"{did} belongs to the account of another DID", named)
    why = f"this mediator knows no identity {did}"
    return Stop(Exit.FINDING, why, f"It has never registered or connected here. {remedy}")


def operators_access(settings: Settings, url: str | None = None) -> tuple[str, str]:
    """The address at which the mediator of these settings answers operators, and their token.

    Raises:
        Stop: no mediator runs there, or there is no token yet.
        KeyFileRefused: the file of the token cannot be used as it is.
    """
    path, address = settings.operators_token_path, settings.operators_address_path
    if url is None and not address.exists() and is_in_use(settings.data_dir):
        raise Stop(
            Exit.UNREACHABLE,
            f"the mediator on {settings.data_dir} does not answer operators yet",
            "It is starting or stopping, or a restore works there: try again in some seconds.",
        )
    if not path.exists():
        remedy = (
            "Restart the mediator that runs there: it creates a token if it has none."
            if is_in_use(settings.data_dir)
            else "Name the mediator's data directory with --data-dir. A mediator creates its"
            " token at its start: poste serve."
        )
        raise Stop(Exit.USAGE, f"there is no operators' token at {path}", remedy)
    if url is None and not address.exists():
        raise Stop(
            Exit.UNREACHABLE,
            f"no mediator runs on {settings.data_dir}",
            "Start it with: poste serve. For another mediator, name its data directory with"
            " --data-dir.",
        )
    if url is None and was_left(settings.data_dir):
        # Another program may listen there by now, and must not see the token.
        raise Stop(
            Exit.UNREACHABLE,
            f"no mediator runs on {settings.data_dir}: the last one was killed, or its"
            f" machine stopped, and {address.name} still says {address.read_text().strip()}",
            "Start it again with: poste serve. No accepted message is lost.",
        )
    return url or address.read_text().strip(), load_operators_token(path)


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
    """Send a request to the mediator at ``url``; return the status and the body of its answer.

    The proxies of the environment are not used: the mediator is on this machine. ``seconds_max`` is
    for each part of the answer; all of them may take a minute longer.

    Raises:
        Stop: the mediator cannot be reached.
    """
    parts = split_url(url)
    https = parts.scheme == "https"
    connect = http.client.HTTPSConnection if https else http.client.HTTPConnection
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    whole_s_max = seconds_max + _WHOLE_S_MAX

    def answer() -> tuple[int, bytes]:
        with closing(connect(parts.netloc, timeout=seconds_max)) as connection:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            return response.status, response.read(bytes_max)

    try:
        return _within(whole_s_max, answer)
    except TimeoutError as error:
        raise Stop(
            Exit.UNREACHABLE,
            f"{url} did not answer within {seconds_max:g} s, or not in whole within"
            f" {whole_s_max:g} s",
            "Try again: the mediator may be starting, or busy, or wait for a host that hangs.",
        ) from error
    except (OSError, http.client.HTTPException) as error:
        remedy = (
            "Start it with: poste serve. If it listens elsewhere, name it with --url or --data-dir."
        )
        raise Stop(Exit.UNREACHABLE, f"no mediator answers at {url}: {error}", remedy) from error


def require_answer(url: str) -> None:
    """Refuse a mediator that does not answer now, before clients repeat their requests to it.

    A server that hangs would hold them for minutes.

    Raises:
        Stop: the mediator cannot be reached, or the text is no URL of one.
    """
    try:
        exchange("GET", url, "/")
    except Stop as stop:
        if stop.exit_code == Exit.UNREACHABLE:
            stop.remedy = f"Does a mediator serve at {url}? It is started with: poste serve."
        raise


def _within(seconds_max: float, run: Callable[[], Result]) -> Result:
    """What ``run`` returns, in a thread that is left alone after so many seconds.

    Raises:
        TimeoutError: it takes longer; otherwise what ``run`` raises.
    """
    result: Future[Result] = Future()

    def work() -> None:
        try:
            result.set_result(run())
        except BaseException as error:  # noqa: BLE001 - the caller gets it
            result.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return result.result(seconds_max)


def split_url(url: str) -> SplitResult:
    """Split the URL of a mediator into its parts.

    Raises:
        Stop: the text is no such URL.
    """
    with suppress(ValueError):  # brackets that do not close, or what no request can carry
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname:
            _ = parts.port  # one beyond 65535
            parts.hostname.encode("idna")
            parts.path.encode("ascii")
            return parts
    remedy = "Name the mediator as http://HOST:PORT or https://HOST."
    raise Stop(Exit.USAGE, f"{url} is not an http or https URL", remedy)


def refuse_unless_ok(status: int, url: str, path: str) -> None:
    """Refuse any other status than 200, with its remedy.

    Raises:
        Stop: the status is not 200.
    """
    if status != http.client.OK:
        remedy = _REMEDIES.get(status, _NO_SUCH)
        raise Stop(Exit.UNREACHABLE, f"{url}{path.partition('?')[0]} answered {status}", remedy)
