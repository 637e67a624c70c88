"""``audit``: what the exported log says of a message, an identity, refusals and long waits."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from eventstore.log.proof import proof_bytes
from eventstore.log.pseudonyms import PREFIX, fingerprint, pseudonym_of
from eventstore.log.public_key import PublicKey, read_public_key
from eventstore.parquet.audit.records import FROM_QUEUED, message_summary
from eventstore.parquet.proofs import message_proof
from projections.audit.identity import identity_history, identity_traffic
from projections.audit.listing import (
    Listing,
    Record,
    listed,
    print_json,
    print_listing,
    print_record,
)
from projections.audit.messages import (
    REPLAYS,
    AuditPeriod,
    events_until,
    message_life,
    queue_refusals,
    refused_commands,
    stuck_messages,
)
from projections.errors import FINDING, UNREACHABLE
from projections.exported import AsOf, Position, position_text
from projections.spark.export import DATABASE, ExportedLog
from projections.spark.program import (
    Ended,
    as_of_option,
    explaining,
    open_named,
    point_in_log,
    pseudonymise_option,
    public_key_option,
    signer_said,
    spark_options,
)
from projections.spark.session import open_session
from projections.tables.projection import Step

_ROWS_MAX: Final = 100
_EVENTS_MAX: Final = 100_000
"""Of one message; it is delivered again only after a lease has ended."""
_OLD_S: Final = 86_400
_OFTEN: Final = 5
_MS: Final = 1_000


class _Query(NamedTuple):
    """The export to read, and how; the options that all these commands have."""

    source: str
    as_of: AsOf
    key: bytes | None
    signer: PublicKey | None
    master: str | None
    memory_mib: int
    as_json: bool


class _Log(NamedTuple):
    """The log as it stood at the position; ``at_ms`` is that point_in_log, Unix milliseconds."""

    export: ExportedLog
    step: Step
    position: Position
    at_ms: int


def _on_export(command: Callable[..., None]) -> Callable[..., Any]:
    """A command with the options of ``_Query``, which it gets as its first argument."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        query = _Query(**{name: options.pop(name) for name in _Query._fields})
        with explaining():
            command(query, **options)

    return spark_options(as_of_option(pseudonymise_option(public_key_option(run))))


def _instant(text: str) -> datetime:
    """A time in ISO 8601.

    Raises:
        BadParameter: it is none.
    """
    at = point_in_log(text)
    if not isinstance(at, datetime):
        raise click.BadParameter(f"{text!r} is no time like 2030-12-31T23:59:59Z")
    return at


def _period_options(command: Callable[..., Any]) -> Callable[..., Any]:
    since = click.option("--since", type=_instant, metavar="TIME", help="Not before this time.")
    until = click.option("--until", type=_instant, metavar="TIME", help="Before this time.")
    return since(until(command))


_limit_option: Final = click.option(
    "--limit", type=click.IntRange(1), default=_ROWS_MAX, show_default=True, help="Rows of a table."
)


@click.group()
def audit() -> None:
    """Show from an export what happened to a message or an identity.

    Payloads are never shown. Times are in UTC.
    """


@audit.command("message")
@click.argument("message_id", metavar="ID")
@click.option(
    "--proof",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what proves it to who has the mediator's public key: poste proof check.",
)
@_on_export
def message_command(query: _Query, *, message_id: str, file: Path | None) -> None:
    """Show the life of one message, and the seals that prove it.

    A proof holds all rows of the transactions in which something happened to the message, those of
    other messages too: who wrote to whom, and in rows of earlier releases their encrypted payloads.
    """
    if file is not None and query.key is not None:
        raise click.UsageError("a proof has names as they are: --proof or --pseudonymise")
    with _opened(query) as log:
        events = listed(message_life(log.step, message_id), _EVENTS_MAX).records
        if not events:
            raise Ended(FINDING, f"no such message up to position {position_text(log.position)}")
    message = {
        "message_id": message_id,
        **message_summary(events, log.at_ms),
        "signed_by": signer_said(log.export, query.signer),
    }
    kept = [{n: v for n, v in event.items() if n not in FROM_QUEUED} for event in events]
    if file is not None:
        message["proof"] = str(file)
        _write_proof(query, log.export, message, events, file)
    if query.as_json:
        print_json(_head(query, log) | {"message": message, "events": kept})
        return
    print_record("Message", message)
    print_listing(
        "What happened to it, each with the seal that covers it", Listing(kept, has_more=False)
    )


def _write_proof(
    query: _Query, export: ExportedLog, message: Record, events: list[Record], file: Path
) -> None:
    """Prove what was listed of a message, which is in one database."""
    part = export.parts[events[0].get(DATABASE, 0)]
    proof = message_proof(
        part.place,
        part.catalog,
        query.signer or read_public_key(export.head.public_key),
        message["message_id"],
        message["identity"],
        [event["seal_position"] for event in events],
    )
    try:
        file.write_bytes(proof_bytes(proof))
    except OSError as error:
        raise Ended(UNREACHABLE, f"{file}: {error.strerror}") from error


@audit.command("identity")
@click.argument("did")
@_limit_option
@_on_export
def identity_command(query: _Query, *, did: str, limit: int) -> None:
    """Show what an identity did, what it was given, and what was refused to it.

    DID may be the pseudonym of one, with the key of the pseudonyms.
    """
    name = _name(did, query.key)
    with _opened(query) as log:
        found = {
            "history": listed(identity_history(log.step, name), limit),
            "traffic": listed(identity_traffic(log.step, name), limit),
            "refused": listed(refused_commands(log.step, sender_did=name), limit),
        }
    if not any(listing.records for listing in found.values()):
        raise Ended(FINDING, f"no such identity up to position {position_text(log.position)}")
    titles = (
        "History, newest first",
        "Messages and events by day, newest first",
        "Its refused commands",
    )
    _show(query, log, found, titles, {"identity": name})


@audit.command("refused")
@_period_options
@_limit_option
@_on_export
def refused_command(
    query: _Query, *, since: datetime | None, until: datetime | None, limit: int
) -> None:
    """Show what was refused to whom and why, most refusals first.

    Commands are counted by the edges over short periods; a count is shown whole if a part of its
    period is in the time that is named. Queues are listed that began to refuse messages.
    """
    period = AuditPeriod(since, until)
    with _opened(query) as log:
        found = {
            "refused": listed(refused_commands(log.step, period), limit),
            "queues": listed(queue_refusals(log.step, period), limit),
        }
    _show(query, log, found, ("Refused commands", "Queues that began to refuse messages"))


@audit.command("replays")
@_period_options
@_limit_option
@_on_export
def replays_command(
    query: _Query, *, since: datetime | None, until: datetime | None, limit: int
) -> None:
    """Show commands that were refused as replays, or as too old to be known.

    DUPLICATE_NONCE is a replay; TIMESTAMP_OUT_OF_RANGE is a later one, or a wrong clock.
    """
    with _opened(query) as log:
        rows = refused_commands(log.step, AuditPeriod(since, until), reasons=REPLAYS)
        found = {"refused": listed(rows, limit)}
    _show(query, log, found, ("Refused as replays",))


@audit.command("stuck")
@click.option(
    "--older-than-s",
    type=click.IntRange(1),
    default=_OLD_S,
    show_default=True,
    help="Messages that wait for longer.",
)
@click.option(
    "--deliveries-min",
    type=click.IntRange(1),
    default=_OFTEN,
    show_default=True,
    help="Messages handed out so often and not acknowledged.",
)
@_period_options
@_limit_option
@_on_export
def stuck_command(
    query: _Query,
    *,
    older_than_s: int,
    deliveries_min: int,
    since: datetime | None,
    until: datetime | None,
    limit: int,
) -> None:
    """Show messages that wait for long or are handed out again and again, worst first.

    With --since and --until those that were queued then. The age is what it was at the time of
    --as-of, else when the newest event was recorded.
    """
    with _opened(query) as log:
        rows = stuck_messages(
            log.step,
            log.at_ms,
            older_than_s=older_than_s,
            deliveries_min=deliveries_min,
            period=AuditPeriod(since, until),
        )
        found = {"messages": listed(rows, limit)}
    kept = f"Messages that wait for more than {older_than_s:,} s"
    _show(query, log, found, (f"{kept} or were handed out {deliveries_min:,} times or more",))


@contextmanager
def _opened(query: _Query) -> Iterator[_Log]:
    export = open_named(query.source, query.signer, query.key)
    export.require(query.as_of)
    with open_session(query.master, memory_mib=query.memory_mib) as spark:
        position = export.position(spark, query.as_of)
        step = events_until(spark, export, position)
        at = query.as_of
        at_ms = int(at.timestamp() * _MS) if isinstance(at, datetime) else step.at_ms
        yield _Log(export, step, position, at_ms)


def _name(did: str, key: bytes | None) -> str:
    """The name by which the rows know this identity."""
    if not did.startswith(PREFIX):
        return did if key is None else pseudonym_of(did, key)
    if key is None:
        raise click.UsageError("a pseudonym is understood with its key alone: --pseudonymise")
    return did


def _show(
    query: _Query,
    log: _Log,
    found: dict[str, Listing],
    titles: tuple[str, ...],
    record: Record | None = None,
) -> None:
    head = _head(query, log) | (record or {})
    if query.as_json:
        more = [name for name, listing in found.items() if listing.has_more]
        print_json(head | {n: listing.records for n, listing in found.items()} | {"more": more})
        return
    print_record("The log", head)
    for title, listing in zip(titles, found.values(), strict=True):
        print_listing(title, listing)


def _head(query: _Query, log: _Log) -> Record:
    return {
        "position": sum(log.position),
        "signed_by": signer_said(log.export, query.signer),
        **({"positions": list(log.position)} if len(log.position) > 1 else {}),
        "at": _time(log.at_ms).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "pseudonyms": fingerprint(query.key),
    }


def _time(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / _MS, UTC)
