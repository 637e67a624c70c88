"""``poste demo``: two people walk through the whole protocol and check each promise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import click
from rich.console import Console
from rich.text import Text

from http_edge.cli.output import Exit, Stop, escaped, json_option, print_json
from http_edge.client import (
    MediatorClient,
    MediatorUnreachable,
    OutcomeUnknown,
    UnexpectedAnswer,
)
from http_edge.client.walk import Proof, walk


@click.command()
@click.option("--url", default="http://127.0.0.1:8080", show_default=True, help="The mediator.")
@click.option("--peer", help="A second mediator: Bob lives there, Alice at the first.")
@json_option
def demo(url: str, peer: str | None, *, as_json: bool) -> Exit:
    """Walk two people through the whole protocol against a running mediator.

    They register, agree on a contract, exchange a private message, keep and publish events, over
    HTTP and WebSocket as any client would. Each step says what it proves; the walk ends with 0
    only if every proof held.
    """
    console = Console(highlight=False, quiet=as_json)
    try:
        proofs = asyncio.run(_run(url, peer, partial(_show, console)))
    except ValueError as error:
        raise Stop(Exit.USAGE, str(error)) from error
    except (MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer) as error:
        remedy = "Start it with: poste serve. If it listens elsewhere, name it with --url."
        raise Stop(Exit.UNREACHABLE, f"no mediator answers: {error}", remedy) from error
    held = all(proof.held for proof in proofs)
    if as_json:
        print_json({"held": held, "proofs": [asdict(proof) for proof in proofs]})
    else:
        console.print(f"\n{len(proofs)} proofs held." if held else "\nThe last proof failed.")
    return Exit.OK if held else Exit.FINDING


async def _run(url: str, peer: str | None, show: Callable[[Proof], None]) -> list[Proof]:
    addresses: dict[str, str] = {}

    async def resolver(did: str) -> str | None:
        return addresses.get(did)

    proofs = []
    async with (
        MediatorClient(url, resolver=resolver) as alices,
        MediatorClient(peer or url, resolver=resolver) as bobs,
    ):
        for mediator, address in ((alices, url), (bobs, peer or url)):
            addresses[(await mediator.document()).did] = address
        async for proof in walk(alices, bobs):
            show(proof)
            proofs.append(proof)
    return proofs


def _show(console: Console, proof: Proof) -> None:
    mark, style = ("✓", "green") if proof.held else ("✗", "red")
    console.print(
        Text.assemble((f"{mark} {proof.step}", f"bold {style}"), f": {proof.proves}"),
        Text(f"  {escaped(proof.evidence)}", style="dim"),
        sep="\n",
    )
