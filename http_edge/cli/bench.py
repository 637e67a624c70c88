"""``poste bench``: puts a load on a running mediator, with ordinary clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from ipaddress import ip_address
from itertools import chain, islice
from typing import Final

import aiohttp
import click
import msgspec

from http_edge.cli.arguments import require_consent
from http_edge.cli.output import (
    ProgressBar,
    json_option,
    print_json,
    print_table,
    progress_bars,
)
from http_edge.cli.running_mediator import require_answer, split_url
from http_edge.clients import decentrl, didcomm
from http_edge.clients.decentrl import ClientError, MediatorClient
from http_edge.clients.didcomm import UnusableInvitation, WalletError
from http_edge.clients.load.agents import Agents
from http_edge.clients.load.closed_loop import closed_loop, http_posts, percentile
from http_edge.clients.load.decentrl_agents import DecentrlAgents
from http_edge.clients.load.didcomm_agents import DidComm2Agents, DidCommAgents
from http_edge.server.exits import Exit, Stop, escaped

_GENERATIONS: Final[Mapping[str, type[DidCommAgents | DidComm2Agents]]] = {
    "didcomm": DidCommAgents,
    "didcomm-v2": DidComm2Agents,
}
PROTOCOLS: Final = ("decentrl", *_GENERATIONS)
_UNREACHABLE: Final = (decentrl.MediatorUnreachable, didcomm.MediatorUnreachable, OSError)
_PREPARED: Final = 4_000
"""Messages that are signed or packed before the clock runs; further ones are while it runs."""
_NS_PER_MS: Final = 1_000_000
_PERCENT: Final = 100


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the load for each protocol, bounded in count and in time."""

    messages: int
    size_bytes: int
    connections: int
    agents: int
    seconds_max: float


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The measurements of a load of one protocol.

    Attributes:
        protocol: ``decentrl``, ``didcomm`` or ``didcomm-v2``.
        accepted: Messages that the mediator accepted.
        seconds: From the first request to the last answer.
        accepted_per_s: Accepted messages per second.
        median_ms: Median latency of accepted messages; None without any.
        p99_ms: 99th percentile of their latency; None without any.
        refused: Numbers of messages that were not accepted, by status and code.
        drained: Messages that were fetched and acknowledged afterwards.
        drained_per_s: Drained messages per second.
        load_cpu_percent: CPU of the load itself, in percent of one core: near 100 it is the limit.
    """

    protocol: str
    accepted: int
    seconds: float
    accepted_per_s: float
    median_ms: float | None
    p99_ms: float | None
    refused: dict[str, int]
    drained: int
    drained_per_s: float
    load_cpu_percent: float


@click.command()
@click.argument("url", default="http://127.0.0.1:8080")
@click.option(
    "--protocol", type=click.Choice(PROTOCOLS), help="Only this one.  [default: all in turn]"
)
@click.option(
    "--messages",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    help="Messages of each protocol.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 3_600),
    default=10.0,
    help="Stop sending after this time.",
)
@click.option("--connections", type=click.IntRange(1, 1_024), default=8)
@click.option(
    "--agents",
    type=click.IntRange(1, 1_000),
    default=8,
    help="Recipients to register; each Decentrl recipient has a sender of its own.",
)
@click.option(
    "--size",
    type=click.IntRange(1, 1_000_000),
    default=1_024,
    help="Bytes of each message.",
)
@click.option("--yes", is_flag=True, help="Do not ask before a load on another machine's mediator.")
@json_option
def bench(  # noqa: PLR0913 - one argument for each option
    url: str,
    *,
    protocol: str | None,
    messages: int,
    seconds: float,
    connections: int,
    agents: int,
    size: int,
    yes: bool,
    as_json: bool,
) -> Exit:
    """Put a bounded load on a running mediator and show how it answers.

    For each protocol, new agents register, write to each other over a few connections, and fetch
    and acknowledge their messages. The registrations expire after a day. The load has no rate of
    its own: refusals by the mediator's rate limits are shown with their code.
    """
    protocols = [protocol] if protocol else list(PROTOCOLS)
    wanted = Wanted(
        messages=messages,
        size_bytes=size,
        connections=connections,
        agents=agents,
        seconds_max=seconds,
    )
    _announce(url, protocols, wanted, yes=yes)
    require_answer(url)
    measured: list[Figures] = []
    failure: Stop | None = None
    with progress_bars() as bar:
        try:
            for one in protocols:
                done = asyncio.run(_measure(url, one, wanted, bar))
                measured.append(done)
        except (ValueError, ClientError, WalletError, OSError) as error:
            failure = _failure(url, error)
    if measured and as_json:
        print_json(
            {"url": url, **msgspec.to_builtins(wanted), "measured": msgspec.to_builtins(measured)}
        )
    elif measured:
        _print(url, measured)
    if failure is not None:
        raise failure
    return Exit.FINDING if any(one.drained < one.accepted for one in measured) else Exit.OK


def _failure(url: str, error: Exception) -> Stop:
    """Why the load ended early, and what to do about it."""
    if isinstance(error, ValueError | UnusableInvitation):
        return Stop(Exit.USAGE, str(error))
    remedy = "Does this mediator serve the protocol? Choose one with --protocol."
    if isinstance(error, _UNREACHABLE):
        remedy = f"Does a mediator serve at {url}?"
        if not str(error).startswith(url.rstrip("/")):
            remedy = "DIDComm goes to the mediator's public_url: it must be reachable from here."
    return Stop(Exit.UNREACHABLE, f"the load failed: {error}", remedy)


def _announce(url: str, protocols: list[str], wanted: Wanted, *, yes: bool) -> None:
    """Print what the load will do; ask for consent if the mediator is on another machine.

    Raises:
        Stop: consent was not given, or the URL is no http or https URL.
    """
    host = split_url(url).hostname or ""
    click.echo(
        f"Registers {wanted.agents} agents of {', '.join(protocols)} at {escaped(url)}, then"
        f" sends up to {wanted.messages:,} messages of {wanted.size_bytes:,} bytes for each"
        f" protocol over {wanted.connections} connections for at most {wanted.seconds_max:g} s,"
        " and fetches them.",
        err=True,
    )
    if yes or _is_loopback(host):
        return
    click.echo(
        "Warning: this is not a mediator on this machine; a load can be an attack.", err=True
    )
    require_consent("Go on?", yes=yes)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


async def _measure(url: str, protocol: str, wanted: Wanted, bar: ProgressBar) -> Figures:
    """Put the load on the mediator, then drain the queues.

    Raises: ClientError, WalletError, ValueError.
    """
    async with _agents(url, protocol, wanted.agents, bar) as agents:
        bodies = agents.messages(wanted.messages, wanted.size_bytes)
        prepared = list(islice(bodies, _PREPARED))
        async with http_posts(agents.endpoint, agents.media_type, wanted.connections) as posts:
            result = await closed_loop(
                posts,
                chain(prepared, bodies),
                seconds_max=wanted.seconds_max,
                progress=bar(f"{protocol}: send", wanted.messages),
            )
        drained = await agents.drain(
            connections=wanted.connections, progress=bar(f"{protocol}: fetch", result.accepted)
        )
        await agents.leave()
    ordered = sorted(result.latencies)
    return Figures(
        protocol=protocol,
        accepted=result.accepted,
        seconds=result.elapsed_s,
        accepted_per_s=result.accepted / result.elapsed_s,
        median_ms=percentile(ordered, 50) / _NS_PER_MS if ordered else None,
        p99_ms=percentile(ordered, 99) / _NS_PER_MS if ordered else None,
        refused=result.refused,
        drained=drained.messages,
        drained_per_s=drained.messages / drained.elapsed_s,
        load_cpu_percent=result.cpu_s / result.elapsed_s * _PERCENT,
    )


@asynccontextmanager
async def _agents(url: str, protocol: str, count: int, bar: ProgressBar) -> AsyncIterator[Agents]:
    progress = bar(f"{protocol}: register", count)
    if protocol == "decentrl":
        async with MediatorClient(url) as client:
            yield await DecentrlAgents.registered(client, count, progress)
        return
    async with aiohttp.ClientSession() as session:
        yield await _GENERATIONS[protocol].registered(session, url, count, progress)


def _print(url: str, measured: list[Figures]) -> None:
    columns = ["protocol", "accepted", "per s", "p50 ms", "p99 ms", "refused", "drained", "CPU %"]
    rows = [
        (
            one.protocol,
            one.accepted,
            round(one.accepted_per_s),
            one.median_ms and round(one.median_ms, 2),
            one.p99_ms and round(one.p99_ms, 2),
            sum(one.refused.values()),
            one.drained,
            round(one.load_cpu_percent),
        )
        for one in measured
    ]
    print_table(f"Load on {escaped(url)} (CPU: share of one core used by the load)", columns, rows)
    refused = [
        (one.protocol, code, count)
        for one in measured
        for code, count in sorted(one.refused.items())
    ]
    if refused:
        print_table("Not accepted", ["protocol", "answer", "messages"], refused)
