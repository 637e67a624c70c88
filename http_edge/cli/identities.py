"""``poste identities``: the identities with dedicated hosts, orders to change that, erasure."""

from __future__ import annotations

from typing import Any, Final

import click
from rich.console import Console

from actors.placement.port import Placed
from http_edge.cli import erasure
from http_edge.cli.arguments import did_argument
from http_edge.cli.group import Group
from http_edge.cli.output import json_option, print_json, print_table
from http_edge.cli.running_mediator import RunningMediator, for_operators

_COLUMNS: Final = ("did", "by", "host", "node")
_SEE: Final = "See: poste identities list"
_REFUSALS: Final = {
    Placed.NO_SUCH_IDENTITY: (
        "This DID has never registered or connected here.",
        "Check the DID with: poste queue show DID",
    ),
    Placed.MOVING_NOW: ("The identity is being moved.", "Try again in some seconds."),
    Placed.TOO_MANY: (
        "No more identities may have dedicated hosts.",
        "Release one, or raise limits.dedicated_max on every node.",
    ),
    Placed.DID_NOT_ANSWER: ("A host did not answer: the identity may or may not have moved.", _SEE),
    Placed.NO_CLUSTER: (
        "This mediator serves alone and has no placer, so its identities stay in their shards.",
        "Set node_address, placement, dedicated_dids or limits.dedicate_above_commands_per_s.",
    ),
}


@click.group(cls=Group)
def identities() -> None:
    """Give identities dedicated hosts, return them to their shards; erase identities.

    Only for operators: this needs access to the mediator's data directory.
    """


identities.add_command(erasure.erase)
identities.add_command(erasure.receipt)
identities.add_command(erasure.check)


@identities.command("list")
@json_option
@for_operators
def list_(mediator: RunningMediator, *, as_json: bool) -> None:
    """Show the identities with dedicated hosts, with reason, host and node."""
    answer = mediator.ask("GET", "/shards")
    found: list[dict[str, Any]] = answer.get("identities", [])
    # What the placer of a database knows is missing while it does not answer.
    unknown = sum(place["host"] is None for place in answer.get("shards", []))
    if unknown:
        text = f"poste: {unknown} shards have no known host: identities of theirs may be missing"
        click.echo(text, err=True)
    if as_json:
        print_json({"identities": found, "unknown_shards": unknown})
        return
    print_table("Identities", _COLUMNS, [[place.get(c) for c in _COLUMNS] for place in found])


@identities.command()
@did_argument()
@for_operators
def dedicate(mediator: RunningMediator, *, did: str) -> None:
    """Give the identity DID a dedicated host: a process on the node with the fewest.

    Commands wait during the move; none is refused. The identity keeps a dedicated host, whatever
    its load, until you release it; if the node is drained or lost, it gets a host on another node.
    """
    already = "It already has a dedicated host, by an operator's order."
    _order(mediator, "dedicate", did, already)
    click.echo(f"{did} has a dedicated host")


@identities.command()
@did_argument()
@for_operators
def release(mediator: RunningMediator, *, did: str) -> None:
    """Return the identity DID to its shard. Commands wait meanwhile; none is refused."""
    already = "It has no dedicated host and is already in its shard."
    _order(mediator, "release", did, already)
    click.echo(f"{did} is in its shard")


def _order(mediator: RunningMediator, what: str, did: str, already: str) -> None:
    refusals = {**_REFUSALS, Placed.ALREADY_SO: (already, _SEE)}
    with Console(stderr=True).status("Moving", spinner="dots"):
        mediator.order(f"/identities/{what}", refusals, _SEE, did=did)
