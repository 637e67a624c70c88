"""``poste queue``: the waiting messages of each identity, and their removal by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import click

from http_edge.admin.operators import QUEUES_MAX
from http_edge.cli.arguments import did_argument, require_consent, yes_option
from http_edge.cli.output import json_option, print_json, print_record, print_table
from http_edge.cli.running_mediator import ask_as_operator, unknown_identity, url_option
from http_edge.cli.settings import with_settings
from http_edge.settings.sources import Loaded

_COLUMNS = ("did", "messages", "bytes", "oldest_age_s", "outbound")


@click.group()
def queue() -> None:
    """Show the queues of a running mediator; empty a queue.

    Only for operators: this needs access to the mediator's data directory.
    """


@queue.command()
@did_argument(required=False)
@click.option(
    "--limit", type=click.IntRange(1, QUEUES_MAX), default=20, show_default=True, help="Queues."
)
@json_option
@url_option
@with_settings("data_dir")
def show(loaded: Loaded, *, did: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """Show the queues with the oldest messages, or details of the queue of DID.

    Exit code 1 if the mediator does not know the identity. Payloads are never shown: the mediator
    cannot read them.
    """
    which = f"did={quote(did, safe='')}" if did else f"limit={limit}"
    answer = ask_as_operator("GET", loaded.settings, url, f"/queues?{which}")
    if did:
        _refuse_unknown(did, answer)
    if as_json:
        print_json(answer)
        return
    rows = [[queue.get(column) for column in _COLUMNS] for queue in answer.get("queues", [])]
    print_table("Queues with the oldest messages" if did is None else "Queue", _COLUMNS, rows)
    agent = answer.get("agent")
    if isinstance(agent, dict):
        print_record("As a DIDComm agent", agent)


@queue.command()
@did_argument()
@yes_option
@json_option
@url_option
@with_settings("data_dir")
def purge(loaded: Loaded, *, did: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Remove everything that waits for DID; it is never delivered.

    The log records that the messages waited and were purged.
    """
    if not yes:
        waiting = f"/queues?did={quote(did, safe='')}"
        _refuse_unknown(did, ask_as_operator("GET", loaded.settings, url, waiting))
    require_consent(f"Remove everything that waits for {did}?", yes=yes)
    path = f"/queues/purge?did={quote(did, safe='')}"
    answer = ask_as_operator("POST", loaded.settings, url, path)
    _refuse_unknown(did, answer)
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer.get('purged', 0)} messages removed")


def _refuse_unknown(did: str, answer: Mapping[str, Any]) -> None:
    """Refuse an answer about an unknown identity, which would look like one about an empty queue.

    Raises:
        Stop: the mediator knows no such identity.
    """
    if not answer.get("known", True):
        raise unknown_identity(did)
