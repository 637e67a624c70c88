"""``poste shards``: the places of the shards, and orders of an operator to move them."""

from __future__ import annotations

import time
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final, TypeAlias

import click

from actors.placement.port import Placed
from http_edge.cli.arguments import utf8
from http_edge.cli.group import Group
from http_edge.cli.output import json_option, print_json, print_table, progress_bar
from http_edge.cli.running_mediator import RunningMediator, for_operators
from http_edge.server.exits import Exit, Stop

_Silent: TypeAlias = Mapping[str, Sequence[str]]
"""The shards of each database whose placer does not answer, by its number."""
_SHARDS: Final = ("shard", "host", "node", "to")
_HOSTS: Final = ("host", "node", "shards", "draining")
_POLL_S: Final = 0.2
_EMPTY_S_MAX: Final = 60.0
_SEE: Final = "See: poste shards list"
_REFUSALS: Final = {
    Placed.NO_SUCH_SHARD: ("There is no such shard.", _SEE),
    Placed.NO_SUCH_HOST: ("No running host has this name or is on a node with this name.", _SEE),
    Placed.NO_SUCH_NODE: ("No host is running on a node with this name.", _SEE),
    Placed.NO_OTHER_NODE: ("No other node can take the shards: start one, or undrain one.", _SEE),
    Placed.OTHER_DATABASE: ("No host there works on the database of the shard.", _SEE),
    Placed.MOVING_NOW: ("The shard is being moved.", _SEE),
    Placed.DID_NOT_ANSWER: ("A host did not answer: the shard may or may not have moved.", _SEE),
    Placed.NO_CLUSTER: ("This mediator serves alone, so its shards cannot move.", _SEE),
}


@click.group(cls=Group)
def shards() -> None:
    """Show which hosts own the shards of a running mediator; move shards.

    Only for operators: this needs access to the mediator's data directory.
    """


@shards.command("list")
@json_option
@for_operators
def list_(mediator: RunningMediator, *, as_json: bool) -> None:
    """Show the host and node of every shard, and the shards of every host."""
    answer = mediator.ask("GET", "/shards")
    if as_json:
        print_json(answer)
        return
    for title, columns in (("Shards", _SHARDS), ("Hosts", _HOSTS)):
        records = answer.get(title.lower(), [])
        print_table(title, columns, [[record.get(c) for c in columns] for record in records])


@shards.command()
@click.argument("shard", callback=utf8)
@click.argument("host", callback=utf8)
@for_operators
def move(mediator: RunningMediator, *, shard: str, host: str) -> None:
    """Move SHARD to HOST, or to the host with the fewest shards on the node HOST.

    Commands wait meanwhile; none is refused. The shard stays there until a host joins, leaves or is
    drained.
    """
    mediator.order("/shards/move", _REFUSALS, _SEE, shard=shard, to=host)
    click.echo(f"{shard} moved")


@shards.command()
@click.argument("node", callback=utf8)
@for_operators
def drain(mediator: RunningMediator, *, node: str) -> None:
    """Move all shards and dedicated identities off NODE; wait until it is empty.

    NODE gets no new ones, and clients do not notice when you then stop it. poste serve does this by
    itself at SIGTERM.
    """
    answer = mediator.order("/shards/drain", _REFUSALS, _SEE, node=node)
    silent: _Silent = answer.get("silent", {})
    later = _until_empty(mediator, node, _shards_of(silent))
    _refuse_if_silent(
        {**silent, **later}, f"{node} is empty as far as the other databases are concerned."
    )
    click.echo(f"{node} is empty")


@shards.command()
@click.argument("node", callback=utf8)
@for_operators
def undrain(mediator: RunningMediator, *, node: str) -> None:
    """Give NODE its share of the shards again."""
    answer = mediator.order("/shards/undrain", _REFUSALS, _SEE, node=node)
    _refuse_if_silent(
        answer.get("silent", {}), f"{node} accepts shards of the other databases again."
    )
    click.echo(f"{node} accepts shards again")


def _shards_of(silent: _Silent) -> set[str]:
    return {shard for shards in silent.values() for shard in shards}


def _refuse_if_silent(silent: _Silent, done: str) -> None:
    """Fail if some placers did not answer: the order may not hold in their databases."""
    if not silent:
        return
    each = ", ".join(f"{number} ({len(shards)} shards)" for number, shards in silent.items())
    raise Stop(
        Exit.UNREACHABLE,
        f"The placer of database {each} did not answer, so the order may not hold there. {done}",
        "Give the order again when that database is there: the log lines of the nodes say why it"
        " is not.",
    )


def _until_empty(mediator: RunningMediator, node: str, silent: Container[str]) -> _Silent:
    """Wait until a node is empty, ignoring shards whose placer did not confirm the order.

    Return the databases whose placers are silent by then if only their shards have no known host.
    """
    deadline = time.monotonic() + _EMPTY_S_MAX
    with progress_bar("To move") as progress:
        most = 0
        while True:
            places = mediator.ask("GET", "/shards")
            hosts: list[dict[str, Any]] = places.get("hosts", [])
            own: list[dict[str, Any]] = places.get("identities", [])
            ordered = [p for p in places.get("shards", []) if p["shard"] not in silent]
            left = sum(place["node"] == node for place in [*ordered, *own])
            # Moving, or in a database whose placer does not answer now: perhaps on NODE.
            unknown = [place["shard"] for place in ordered if place["host"] is None]
            most = max(most, left)
            progress(most - left, most)
            if not left and not unknown:
                return {}
            if left and all(host["draining"] for host in hosts):
                raise Stop(
                    Exit.FINDING,
                    "All hosts are being drained, so none can take the shards.",
                    "Start another node, or undrain one.",
                )
            if time.monotonic() > deadline:
                now: _Silent = places.get("silent", {})
                if not left and _shards_of(now).issuperset(unknown):
                    return now
                why = "".join(f" The placer of database {number} is silent." for number in now)
                raise Stop(
                    Exit.FINDING,
                    f"{node} still has {left} shards and identities after {_EMPTY_S_MAX:.0f} s,"
                    f" and {len(unknown)} shards have no known host.{why}",
                    "The moves continue: see poste shards list.",
                )
            time.sleep(_POLL_S)
