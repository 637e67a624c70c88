"""``poste audit``: asks an export a question and prints the answer.

One message or identity is looked up here (``eventstore.parquet.audit.answering``), without Java.
Questions that read much go to Spark, in the program ``projections``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click
import msgspec

from eventstore.log.proof import proof_bytes
from eventstore.log.pseudonyms import PREFIX, KeyRefused, read_key
from eventstore.log.public_key import PublicKey, read_public_key
from eventstore.parquet.audit.answering import (
    Answer,
    OfIdentity,
    OfMessage,
    OfOne,
    OfRefusals,
    OfReplays,
    OfStuck,
    Period,
    Question,
    look_up,
)
from eventstore.parquet.audit.records import FROM_QUEUED, Record, message_summary
from eventstore.parquet.errors import (
    ExportError,
    ExportUnavailable,
    RowsPruned,
    SignedByAnother,
)
from eventstore.parquet.opening import (
    AsOf,
    NoExport,
    NotExported,
    open_exports,
    point_in_log,
    position_text,
)
from eventstore.parquet.proofs import message_proof
from http_edge.cli.arguments import named_place, parsed, utf8
from http_edge.cli.group import Group
from http_edge.cli.output import json_option, print_json, print_record, print_table, write_file
from http_edge.cli.projections_program import answer_of_program, spark_options
from http_edge.cli.public_key import NAMED, NOT_KNOWN, public_key_option
from http_edge.server.exits import Endings, Exit, Stop, ended_by
from http_edge.server.status_files import time_text

_ROWS_MAX: Final = 100
_OLD_S: Final = 86_400
_OFTEN: Final = 5
_NUMBER: Final = click.IntRange(1, 2**31 - 2)
"""A number for Spark, which counts rows in 32 bits and is asked for one more than are shown."""
_ENDINGS: Final[Endings] = {
    NoExport: (Exit.UNREACHABLE, "{}", "Name the export with --from."),
    NotExported: (Exit.USAGE, "{}", ""),
    RowsPruned: (Exit.USAGE, "{}", ""),
    ExportUnavailable: (Exit.UNREACHABLE, "the export cannot be read now: {}", ""),
    SignedByAnother: (Exit.UNSAFE, "{}",
        "Name the key of the mediator that exports there with --public-key."),
    ExportError: (Exit.UNSAFE, "the export is damaged and cannot be read: {}", "See: poste verify"),
}  # fmt: skip


class _Query(NamedTuple):
    """The export, and how to read it.

    All commands have the first options. Only those that Spark answers have a ``period``, and in
    ``spark`` the arguments for it.
    """

    source: str
    as_of: AsOf
    key_file: str | None
    public_key: PublicKey | None
    as_json: bool
    period: Period = Period()
    spark: Sequence[str] = ()


def _key_file(path: str) -> str:
    read_key(path)
    return path


def _instant(text: str) -> datetime:
    at = point_in_log(text)
    if not isinstance(at, datetime):
        raise click.BadParameter(f"{text!r} is not a time like 2030-12-31T23:59:59Z")
    return at


@click.group(cls=Group, no_args_is_help=False)
def audit() -> None:
    """Show from an export what happened to a message or an identity.

    Payloads are never shown. Times are in UTC. Messages and identities are looked up without Spark,
    and seals prove what is shown. Spark finds refusals, replays and stuck messages, in files that
    match their signatures.
    """


def _query_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of ``_Query``, and pass it the query as first argument."""

    @click.option(
        "--from",
        "source",
        callback=named_place,
        help="The export, or the place with the exports of all databases: a folder or a URI.",
    )
    @click.option(
        "--as-of",
        metavar="TIME|POSITION",
        type=parsed(point_in_log),
        help="Show the log as of then; else all of it.",
    )
    @click.option(
        "--pseudonymise",
        "key_file",
        metavar="KEYFILE",
        type=parsed(_key_file, KeyRefused),
        help="Replace names by their hash with the key in this file.",
    )
    @public_key_option
    @json_option
    @functools.wraps(command)
    def run(
        *,
        source: str | None,
        as_of: AsOf,
        key_file: str | None,
        public_key: PublicKey | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        if source is None:
            raise click.UsageError("name the export with --from")
        with ended_by(_ENDINGS):
            return command(_Query(source, as_of, key_file, public_key, as_json), **options)

    return run


_limit_option: Final = click.option(
    "--limit", type=_NUMBER, default=_ROWS_MAX, show_default=True, help="Rows of a table."
)


def _range_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command all options of ``_Query``, and ``limit``."""

    @click.option("--since", type=parsed(_instant), metavar="TIME", help="From this time on.")
    @click.option("--until", type=parsed(_instant), metavar="TIME", help="Before this time.")
    @_limit_option
    @spark_options
    @click.option(
        "--skip-hashes",
        is_flag=True,
        help="Do not verify data files: changes to them go undetected.",
    )
    @functools.wraps(command)
    def run(
        query: _Query,
        *,
        since: datetime | None,
        until: datetime | None,
        spark: Sequence[str],
        skip_hashes: bool,
        **rest: Any,
    ) -> Any:
        if since is not None and until is not None and until <= since:
            said = f"the time from {since.isoformat()} until {until.isoformat()} is empty"
            raise click.BadParameter(said, param_hint="--until")
        spark = [*spark, "--skip-hashes"] if skip_hashes else spark
        return command(query._replace(period=Period(since, until), spark=spark), **rest)

    return _query_options(run)


@audit.command("message")
@click.argument("message_id", metavar="ID", callback=utf8)
@click.option(
    "--proof",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a proof for holders of the mediator's public key: poste proof check.",
)
@_query_options
def message_command(query: _Query, *, message_id: str, file: Path | None) -> None:
    """Show the history of one message, and the seals that prove it.

    A proof holds all rows of the transactions that changed the message. These include rows of other
    messages: who wrote to whom and, in rows of earlier releases, encrypted payloads.
    """
    if file is not None and query.key_file is not None:
        raise click.UsageError("a proof needs the real names: use either --proof or --pseudonymise")
    said = _look_up(query, OfMessage(message_id))
    events = said.found["events"]
    if not events:
        raise Stop(Exit.FINDING, f"no such message up to position {position_text(said.positions)}")
    about = message_summary(events, said.at_ms)
    message = {"message_id": message_id, **about}
    if file is not None:
        _write_proof(query, message_id, events, file)
        message["proof"] = str(file)
    kept = [{n: v for n, v in event.items() if n not in FROM_QUEUED} for event in events]
    if query.as_json:
        print_json(_json_head(said) | {"message": message, "events": kept})
        return
    print_record("Message", message | _signer(said))
    _print_listing("Its history, with the seal of each event", kept)


@audit.command("identity")
@click.argument("did", callback=utf8)
@_limit_option
@_query_options
def identity_command(query: _Query, *, did: str, limit: int) -> None:
    """Show what an identity did, what it received, and which of its commands were refused.

    DID may be a pseudonym if its key is given; then every row is read.
    """
    if did.startswith(PREFIX) and query.key_file is None:
        raise click.UsageError("a pseudonym needs its key: --pseudonymise")
    said = _look_up(query, OfIdentity(did))
    if not any(said.found.values()):
        why = f"no such identity up to position {position_text(said.positions)}"
        remedy = "All DIDs of a wallet are of one account, which this names: poste queue show DID"
        raise Stop(Exit.FINDING, why, remedy if did.startswith("did:") else "")
    titles = {
        "history": "History, newest first",
        "traffic": "Messages and events by day, newest first",
        "refused": "Its refused commands",
    }
    _show(query, said, limit, titles)


@audit.command("refused")
@_range_options
def refused_command(query: _Query, *, limit: int) -> None:
    """Show which commands were refused, to whom and why, most refusals first.

    Edges count refused commands over short periods; a count is shown in full if its period overlaps
    the given time. Also lists queues that began to refuse messages.
    """
    said = _ask(query, OfRefusals(), limit)
    titles = {"refused": "Refused commands", "queues": "Queues that began to refuse messages"}
    _show(query, said, limit, titles)


@audit.command("replays")
@_range_options
def replays_command(query: _Query, *, limit: int) -> None:
    """Show commands that were refused as replays or for their timestamp.

    DUPLICATE_NONCE is a replay; TIMESTAMP_OUT_OF_RANGE is a replay after a longer time, or a wrong
    clock.
    """
    said = _ask(query, OfReplays(), limit)
    _show(query, said, limit, {"refused": "Refused as replays"})


@audit.command("stuck")
@click.option(
    "--older-than-s",
    type=_NUMBER,
    default=_OLD_S,
    show_default=True,
    help="Messages that have waited longer than this.",
)
@click.option(
    "--deliveries-min",
    type=_NUMBER,
    default=_OFTEN,
    show_default=True,
    help="Messages delivered at least this often and not acknowledged.",
)
@_range_options
def stuck_command(query: _Query, *, older_than_s: int, deliveries_min: int, limit: int) -> None:
    """Show messages that wait long or are delivered again and again, worst first.

    --since and --until select messages by the time of queuing. The age is that at the time of
    --as-of, or else at the newest event.
    """
    said = _ask(query, OfStuck(older_than_s, deliveries_min), limit)
    kept = f"Messages that have waited more than {older_than_s:,} s"
    title = f"{kept} or were handed out {deliveries_min:,} times or more"
    _show(query, said, limit, {"messages": title})


def _look_up(query: _Query, subject: OfOne) -> Answer:
    said = look_up(
        query.source,
        subject,
        as_of=query.as_of,
        key=None if query.key_file is None else read_key(query.key_file),
        signer=query.public_key,
    )
    if said.note:
        click.echo(f"poste: {said.note}", err=True)
    return said


def _ask(query: _Query, subject: OfRefusals | OfReplays | OfStuck, rows_max: int) -> Answer:
    """Have Spark answer a question that needs all rows."""
    question = Question(
        source=query.source,
        subject=subject,
        period=query.period,
        as_of=None if query.as_of is None else str(query.as_of),
        key_file=query.key_file,
        public_key=None if query.public_key is None else query.public_key.text,
        rows_max=rows_max,
    )
    text = msgspec.json.encode(question).decode()
    code, printed = answer_of_program(["audit", *query.spark, text])
    if code:
        raise click.exceptions.Exit(code)
    return msgspec.json.decode(printed, type=Answer)


def _write_proof(query: _Query, message_id: str, events: Sequence[Record], file: Path) -> None:
    """Write the proof of what was found of a message, which is in one database."""
    if any(event["seal_position"] is None for event in events):
        why = "the archive no longer has all rows that the seals of this message cover"
        said = "see the signed manifest of their removal: poste verify"
        raise Stop(Exit.FINDING, f"no proof can be made: {why}; {said}")
    export = open_exports(query.source, query.public_key)
    part = export.parts[events[0].get("database", 0)]
    proof = message_proof(
        part.place,
        part.catalog,
        query.public_key or read_public_key(export.head.public_key),
        message_id,
        events[0]["identity"],
        [event["seal_position"] for event in events],
    )
    write_file(file, proof_bytes(proof), "--proof")


def _show(query: _Query, said: Answer, limit: int, titles: Mapping[str, str]) -> None:
    named = {"identity": said.name} if said.name else {}
    more = [what for what, rows in said.found.items() if len(rows) > limit]
    shown = {what: rows[:limit] for what, rows in said.found.items()}
    if query.as_json:
        print_json(_json_head(said) | named | shown | {"more": more})
        return
    print_record("The log", _head(said) | named | _signer(said))
    for what, rows in shown.items():
        _print_listing(titles[what], rows)
        if what in more:
            click.echo(f"  and more; only {len(rows):,} are shown (--limit)\n")


def _json_head(said: Answer) -> Record:
    signer = {"signed_by": said.signed_by, "key_is_trusted": said.key_is_trusted}
    return _head(said) | signer


def _signer(said: Answer) -> Record:
    signer = NAMED if said.key_is_trusted else NOT_KNOWN
    return {"signed_by": said.signed_by, "signer": signer}


def _head(said: Answer) -> Record:
    several = {"positions": said.positions} if len(said.positions) > 1 else {}
    return {
        "position": sum(said.positions),
        **several,
        "at": time_text(said.at_ms),
        "pseudonyms": said.pseudonyms,
    }


def _print_listing(title: str, records: Sequence[Record]) -> None:
    names = list(records[0]) if records else []
    rows = [[_cell(record[name]) for name in names] for record in records]
    print_table(title, names, rows)


def _cell(value: Any) -> Any:
    """A value in a table: lists and records of details on one line."""
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_cell(member)}" for name, member in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else value
