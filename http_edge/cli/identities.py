"""``poste identities``: which identities have hosts of their own, and the operator's say in it."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

import click
from rich.console import Console

from actors.placer_port import Placed
from http_edge.cli.nearby import ask
from http_edge.cli.output import Exit, Stop, json_option, print_json, print_table
from http_edge.cli.settings import with_settings
from http_edge.config import Settings
from http_edge.config_sources import Loaded
from http_edge.mediator_keys import load_or_create
from http_edge.operators import operator_token

_COLUMNS: Final = ("did", "by", "host", "node")
_ORDER_S_MAX: Final = 60.0
_SEE: Final = "See: poste identities list"
_REFUSALS: Final = {
    Placed.NO_SUCH_IDENTITY: (
        "No identity with this DID has ever registered or connected here.",
        "Name one that has; see: poste queue show --did DID",
    ),
    Placed.MOVING_NOW: ("The identity is moving just now.", "Try again in some seconds."),
    Placed.TOO_MANY: (
        "No more identities may have hosts of their own.",
        "Release one, or raise limits.dedicated_max on every node.",
    ),
    Placed.DID_NOT_ANSWER: ("A host did not answer: it may have moved or not.", _SEE),
    Placed.NO_CLUSTER: (
        "This mediator serves alone, where settings say which identities have hosts of their own.",
        "Set placement or dedicated_dids, or serve with --ray-address.",
    ),
}
_url_option = click.option("--url", help="The mediator to ask; else the one of the settings.")


@click.group()
def identities() -> None:
    """Give identities of a cluster hosts of their own, and back to their shards.

    It answers on loopback only, and to whoever can read its key file.
    """


@identities.command("list")
@json_option
@_url_option
@with_settings("listen", "data_dir")
def list_(loaded: Loaded, *, url: str | None, as_json: bool) -> None:
    """Show the identities with hosts of their own: by whose wish, on which host and node."""
    settings = loaded.settings
    answer = ask("GET", url or settings.local_url, "/shards", token=_token(settings))
    found: list[dict[str, Any]] = answer.get("identities", [])
    if as_json:
        print_json({"identities": found})
        return
    print_table("Identities", _COLUMNS, [[place.get(c) for c in _COLUMNS] for place in found])


@identities.command()
@click.argument("did")
@_url_option
@with_settings("listen", "data_dir")
def dedicate(loaded: Loaded, *, did: str, url: str | None) -> None:
    """Give the identity DID a host of its own, a process on the node with the fewest.

    Commands wait for the moment of the move and none is refused. It stays there, whatever its load,
    until it is released; if its node is drained or lost, it gets a host on another.
    """
    already = "It has a host of its own already, by an operator's wish."
    _order(loaded.settings, url, "dedicate", did, already)
    click.echo(f"{did} has a host of its own")


@identities.command()
@click.argument("did")
@_url_option
@with_settings("listen", "data_dir")
def release(loaded: Loaded, *, did: str, url: str | None) -> None:
    """Give the identity DID back to its shard. Commands wait meanwhile and none is refused."""
    already = "It has no host of its own: it is with its shard already."
    _order(loaded.settings, url, "release", did, already)
    click.echo(f"{did} is with its shard")


def _order(settings: Settings, url: str | None, order: str, did: str, already: str) -> None:
    """Give an order.

    Raises:
        Stop: it was not carried out; says why.
    """
    console = Console(stderr=True)
    path = f"/identities/{order}?did={quote(did, safe='')}"
    with console.status("Moving", spinner="dots"):
        answer = ask(
            "POST",
            url or settings.local_url,
            path,
            token=_token(settings),
            seconds_max=_ORDER_S_MAX,
        )
    placed = answer.get("placed")
    if placed == Placed.ALREADY_SO:
        raise Stop(Exit.USAGE, already, _SEE)
    if placed != Placed.DONE:
        refusals = {refusal.value: said for refusal, said in _REFUSALS.items()}
        reason, remedy = refusals.get(str(placed), ("The mediator refused.", _SEE))
        code = Exit.UNREACHABLE if placed == Placed.DID_NOT_ANSWER else Exit.USAGE
        raise Stop(code, reason, remedy)


def _token(settings: Settings) -> str:
    return operator_token(load_or_create(settings.keys_path))
