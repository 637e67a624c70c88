"""``poste queue``: the waiting messages of each identity, and their removal by an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from http_edge.admin.operators import QUEUES_MAX
from http_edge.cli.arguments import did_argument, require_consent, yes_option
from http_edge.cli.group import Group
from http_edge.cli.output import json_option, print_json, print_record, print_table
from http_edge.cli.running_mediator import RunningMediator, for_operators, unknown_identity

_COLUMNS = ("did", "messages", "bytes", "oldest_age_s", "outbound")


@click.group(cls=Group)
def queue() -> None:
    """Show the queues of a running mediator; empty a queue.

    Only for operators: this needs access to the mediator's data directory.
    """


@queue.command()
@did_argument(required=False)
@click.option("--limit", type=click.IntRange(1, QUEUES_MAX), default=20, help="Queues.")
@json_option
@for_operators
def show(mediator: RunningMediator, *, did: str | None, limit: int, as_json: bool) -> None:
    """Show the queues with the oldest messages, or details of the queue of DID.

    Exit code 1 if the mediator does not know the identity. Payloads are never shown: the mediator
    cannot read them.
    """
    if did:
        answer = mediator.ask("GET", "/queues", did=did)
        _refuse_unknown(did, answer)
    else:
        answer = mediator.ask("GET", "/queues", limit=str(limit))
    if as_json:
        print_json(answer)
        return
    rows = [[queue.get(column) for column in _COLUMNS] for queue in answer.get("queues", [])]
    print_table("Queues with the oldest messages" if did is None else "Queue", _COLUMNS, rows)
    agent = answer.get("agent")
    if isinstance(agent, dict):
        print_record("As a DIDComm agent", agent)
    _show_account(answer)


@queue.command()
@did_argument()
@yes_option
@json_option
@for_operators
def purge(mediator: RunningMediator, *, did: str, yes: bool, as_json: bool) -> None:
    """Remove everything that waits for DID; it is never delivered.

    The log records that the messages waited and were purged. Exit code 1 if the mediator does not
    know the identity, or if nothing waits for DID but it belongs to the account of another DID.
    """
    if not yes:
        shown = mediator.ask("GET", "/queues", did=did)
        _refuse_unknown(did, shown)
        _refuse_elsewhere(did, shown, shown.get("queues"))
    require_consent(f"Remove everything that waits for {did}?", yes=yes)
    answer = mediator.ask("POST", "/queues/purge", did=did)
    _refuse_unknown(did, answer)
    _refuse_elsewhere(did, answer, answer.get("purged"))
    if as_json:
        print_json(answer)
        return
    click.echo(f"{answer.get('purged', 0)} messages removed")
    _show_account(answer)


def _show_account(answer: Mapping[str, Any]) -> None:
    if account := answer.get("account"):
        click.echo(f"What waits for its DIDComm agent is in the queue of the account {account}")


def _refuse_elsewhere(did: str, answer: Mapping[str, Any], waiting: object) -> None:
    """Refuse a DID for which nothing is ``waiting`` itself, if it leads to another account."""
    if answer.get("account") and not waiting:
        raise unknown_identity(did, answer)


def _refuse_unknown(did: str, answer: Mapping[str, Any]) -> None:
    """Refuse an answer about an unknown identity, which looks like one about an empty queue."""
    if not answer.get("known", True):
        raise unknown_identity(did, answer)
