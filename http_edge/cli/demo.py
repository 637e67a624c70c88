"""``poste demo``: Alice and Bob use a whole protocol and check each promise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from functools import partial
from typing import Final

import aiohttp
import click
from rich.console import Console
from rich.text import Text

from http_edge.cli.output import json_option, print_json
from http_edge.cli.running_mediator import require_answer
from http_edge.clients.decentrl import (
    MediatorClient,
    MediatorUnreachable,
    OutcomeUnknown,
    UnexpectedAnswer,
)
from http_edge.clients.demonstration.decentrl import walk as walk_decentrl
from http_edge.clients.demonstration.didcomm import demonstrate as demonstrate_wallets
from http_edge.clients.demonstration.proofs import Proof
from http_edge.clients.didcomm import MediatorRefused, UnusableInvitation, WalletError
from http_edge.server.exits import Exit, Stop, escaped

_PROTOCOLS: Final = ("decentrl", "didcomm")


@click.command()
@click.argument("protocol", type=click.Choice(_PROTOCOLS), default="decentrl")
@click.option("--url", default="http://127.0.0.1:8080", help="The mediator.")
@click.option("--peer", help="A second mediator for Bob; Alice uses the first.")
@click.option("--invitation", help="Id of a multi-use invitation, if registration needs one.")
@json_option
def demo(
    protocol: str, url: str, peer: str | None, invitation: str | None, *, as_json: bool
) -> Exit:
    """Walk Alice and Bob through a whole protocol against a running mediator.

    decentrl, the default: they register, agree on a contract, exchange a private message, save and
    publish events. didcomm: they connect with the mediator's invitation, register keys, send
    messages, and fetch them from one queue with every version of pickup. All steps use HTTP and
    WebSocket like any client. Each step says what it proves; the exit code is 0 only if every proof
    held.
    """
    console = Console(highlight=False, quiet=as_json)
    walk = _didcomm if protocol == "didcomm" else _decentrl
    for one in dict.fromkeys((url, peer or url)):
        require_answer(one)
    try:
        proofs = asyncio.run(_run(walk(url, peer or url, invitation), partial(_show, console)))
    except (ValueError, UnusableInvitation) as error:
        raise Stop(Exit.USAGE, str(error)) from error
    except MediatorRefused as error:
        remedy = "If registration needs an invitation, name the id of one with --invitation."
        raise Stop(Exit.UNREACHABLE, f"no invitation is given: {error}", remedy) from error
    except (MediatorUnreachable, OutcomeUnknown, UnexpectedAnswer, WalletError) as error:
        remedy = "Start it with: poste serve. If it listens elsewhere, name it with --url."
        raise Stop(Exit.UNREACHABLE, f"no mediator answers: {error}", remedy) from error
    held = all(proof.held for proof in proofs)
    if as_json:
        print_json({"held": held, "proofs": [asdict(proof) for proof in proofs]})
    else:
        console.print(f"\n{len(proofs)} proofs held." if held else "\nThe last proof failed.")
    return Exit.OK if held else Exit.FINDING


async def _run(walk: AsyncIterator[Proof], show: Callable[[Proof], None]) -> list[Proof]:
    proofs = []
    async for proof in walk:
        show(proof)
        proofs.append(proof)
    return proofs


async def _decentrl(url: str, peer: str, invitation: str | None) -> AsyncIterator[Proof]:
    addresses: dict[str, str] = {}

    async def resolver(did: str) -> str | None:
        return addresses.get(did)

    async with (
        MediatorClient(url, resolver=resolver) as alices,
        MediatorClient(peer, resolver=resolver) as bobs,
    ):
        for mediator, address in ((alices, url), (bobs, peer)):
            addresses[(await mediator.document()).did] = address
        async for proof in walk_decentrl(alices, bobs, invitation):
            yield proof


async def _didcomm(url: str, peer: str, invitation: str | None) -> AsyncIterator[Proof]:
    async with aiohttp.ClientSession() as session:
        async for proof in demonstrate_wallets(session, url, peer, invitation):
            yield proof


def _show(console: Console, proof: Proof) -> None:
    mark, style = ("✓", "green") if proof.held else ("✗", "red")
    console.print(
        Text.assemble((f"{mark} {proof.step}", f"bold {style}"), f": {proof.proves}"),
        Text(f"  {escaped(proof.evidence)}", style="dim"),
        sep="\n",
    )
