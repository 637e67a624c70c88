"""``poste queue``: what waits for whom, and the operator's way to remove it."""

from __future__ import annotations

from urllib.parse import quote

import click

from http_edge.cli.nearby import ask
from http_edge.cli.output import json_option, print_json, print_record, print_table
from http_edge.cli.settings import with_settings
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.mediator_keys import load_or_create
from http_edge.operators import QUEUES_MAX, operator_token

_COLUMNS = ("did", "messages", "bytes", "oldest_age_s", "outbound")
_url_option = click.option("--url", help="The mediator to ask; else the one of the settings.")


@click.group()
def queue() -> None:
    """Show what waits for whom in a running mediator; empty a queue.

    It answers on loopback only, and to whoever can read its key file.
    """


@queue.command()
@click.argument("did", required=False)
@click.option(
    "--limit", type=click.IntRange(1, QUEUES_MAX), default=20, show_default=True, help="Queues."
)
@json_option
@_url_option
@with_settings("listen", "data_dir")
def show(loaded: Loaded, *, did: str | None, limit: int, url: str | None, as_json: bool) -> None:
    """Show the queues that wait longest, or all about the one of DID.

    Payloads are never shown: the mediator cannot read them.
    """
    settings = loaded.settings
    which = f"did={quote(did, safe='')}" if did else f"limit={limit}"
    answer = ask("GET", url or settings.local_url, f"/queues?{which}", token=_token(settings))
    if as_json:
        print_json(answer)
        return
    rows = [[queue.get(column) for column in _COLUMNS] for queue in answer.get("queues", [])]
    print_table("Queues that wait longest" if did is None else "Queue", _COLUMNS, rows)
    agent = answer.get("agent")
    if isinstance(agent, dict):
        print_record("As a DIDComm agent", agent)


@queue.command()
@click.argument("did")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@_url_option
@with_settings("listen", "data_dir")
def purge(loaded: Loaded, *, did: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Remove everything that waits for DID: its owner never gets it.

    The log keeps that it was there, and that it was purged.
    """
    if not yes:
        click.confirm(f"Remove everything that waits for {did}?", abort=True, err=True)
    settings = loaded.settings
    path = f"/queues/purge?did={quote(did, safe='')}"
    answer = ask("POST", url or settings.local_url, path, token=_token(settings))
    if as_json:
        print_json(answer)
    else:
        click.echo(f"{answer.get('purged', 0)} messages removed")


def _token(settings: Settings) -> str:
    return operator_token(load_or_create(settings.keys_path))
