"""``poste audit``: one message or identity is looked up here; what reads much is left to Spark.

A look-up starts no Java: ``eventstore.parquet.audit`` finds the rows by the index of the export and
proves each. With ``--master`` Spark does the same, by the program ``projections``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import click

from eventstore.log.proof import proof_bytes
from eventstore.log.pseudonyms import (
    PREFIX,
    KeyRefused,
    fingerprint,
    pseudonym_of,
    pseudonymous,
    read_key,
)
from eventstore.log.public_key import PublicKey, read_public_key
from eventstore.parquet.audit.lookup import Lookup, position_at, recorded_ms
from eventstore.parquet.audit.records import (
    FROM_QUEUED,
    Record,
    identity_records,
    message_records,
    message_summary,
    time_text,
)
from eventstore.parquet.errors import ExportError, ExportUnavailable
from eventstore.parquet.opening import (
    AsOf,
    NoExport,
    NotExported,
    OpenedExport,
    open_exports,
    point_in_log,
    require,
    signer_said,
)
from eventstore.parquet.proofs import message_proof
from http_edge.cli.output import json_option, print_json, print_record, print_table
from http_edge.cli.projections_program import program_command
from http_edge.cli.public_key import public_key_option
from http_edge.server.exits import Exit, Stop

_ROWS_MAX: Final = 100
_MS: Final = 1_000
_TITLES: Final = {
    "history": "History, newest first",
    "traffic": "Messages and events by day, newest first",
    "refused": "Its refused commands",
}
_FOR_SPARK: Final = ("--master", "--memory-mib")
_BY_SPARK: Final = {
    "refused": "Show what was refused to whom and why, most refusals first.",
    "replays": "Show commands that were refused as replays, or as too old to be known.",
    "stuck": "Show messages that wait for long or are handed out again and again.",
}


class _Query(NamedTuple):
    """The export to read, and how; the options that both look-ups have."""

    source: str
    as_of: AsOf
    key: bytes | None
    public_key: PublicKey | None
    as_json: bool


class _Log(NamedTuple):
    """The exports as they stood at a point in the log, and what finds rows in them."""

    exports: Sequence[OpenedExport]
    lookups: Sequence[Lookup]
    positions: Sequence[int]
    at_ms: int

    @property
    def until(self) -> int | None:
        """The position up to which seals are shown; of several databases they are all."""
        return self.positions[0] if len(self.positions) == 1 else None


def _as_of(_: click.Context, __: click.Parameter, text: str | None) -> AsOf:
    try:
        return None if text is None else point_in_log(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _key(_: click.Context, __: click.Parameter, path: str | None) -> bytes | None:
    try:
        return None if path is None else read_key(path)
    except KeyRefused as error:
        raise click.BadParameter(str(error)) from error


class _Audit(click.Group):
    """Look-ups of one thing here; whatever else, and all with ``--master``, by Spark."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all."""
        return [*super().list_commands(ctx), *_BY_SPARK]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; one that Spark runs takes all arguments as they are."""
        if cmd_name in _BY_SPARK:
            return program_command(cmd_name, _BY_SPARK[cmd_name], "audit")
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command of a name, by Spark where its arguments say so."""
        is_for_spark = any(arg.partition("=")[0] in _FOR_SPARK for arg in args)
        if args[0] in self.commands and is_for_spark:
            return args[0], program_command(args[0], "", "audit"), args[1:]
        return super().resolve_command(ctx, args)


@click.group(cls=_Audit, no_args_is_help=False)
def audit() -> None:
    """Show from an export what happened to a message or an identity.

    Payloads are never shown. Times are in UTC. A message or an identity is looked up without Spark,
    and what is shown of it is proven by its seals; with --master Spark reads the same.
    """


def _query_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command with the options of ``_Query``, which it gets as its first argument."""

    @functools.wraps(command)
    def run(**options: Any) -> Any:
        query = _Query(**{name: options.pop(name) for name in _Query._fields})
        if query.source is None:
            raise click.UsageError("name the export with --from")
        with _explained():
            return command(query, **options)

    for option in (
        json_option,
        public_key_option,
        click.option(
            "--pseudonymise",
            "key",
            metavar="KEYFILE",
            callback=_key,
            help="Replace names by their hash under the key in this file.",
        ),
        click.option(
            "--as-of",
            metavar="TIME|POSITION",
            callback=_as_of,
            help="Take the log as it stood then; else all of it.",
        ),
        click.option(
            "--from",
            "source",
            help="The export, or the place of those of all databases: a folder or a URI.",
        ),
    ):
        run = option(run)
    return run


@audit.command("message")
@click.argument("message_id", metavar="ID")
@click.option(
    "--proof",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write what proves it to who has the mediator's public key: poste proof check.",
)
@_query_options
def message_command(query: _Query, *, message_id: str, file: Path | None) -> int:
    """Show the life of one message, and the seals that prove it.

    A proof holds all rows of the transactions in which something happened to the message, those of
    other messages too: who wrote to whom, and in rows of earlier releases their encrypted payloads.
    """
    if file is not None and query.key is not None:
        raise click.UsageError("a proof has names as they are: --proof or --pseudonymise")
    with _opened(query) as log:
        events = message_records(log.lookups, message_id, log.until)
    if not events:
        raise Stop(Exit.FINDING, f"no such message up to position {_positions(log)}")
    about = message_summary(events, log.at_ms)
    message = {"message_id": message_id, **about, "signed_by": _signer(query, log)}
    kept = [{n: v for n, v in event.items() if n not in FROM_QUEUED} for event in events]
    if file is not None:
        _write_proof(query, log, message_id, events, file)
        message["proof"] = str(file)
    if query.key is not None:
        message = pseudonymous(message, query.key)
        kept = [pseudonymous(event, query.key) for event in kept]
    if query.as_json:
        print_json(_head(query, log) | {"message": message, "events": kept})
        return Exit.OK
    print_record("Message", message)
    _print_listing("What happened to it, each with the seal that covers it", kept)
    return Exit.OK


@audit.command("identity")
@click.argument("did")
@click.option(
    "--limit", type=click.IntRange(1), default=_ROWS_MAX, show_default=True, help="Rows of a table."
)
@_query_options
def identity_command(query: _Query, *, did: str, limit: int) -> int:
    """Show what an identity did, what it was given, and what was refused to it.

    DID may be the pseudonym of one, with the key of the pseudonyms; then every row is read.
    """
    if did.startswith(PREFIX) and query.key is None:
        raise click.UsageError("a pseudonym is understood with its key alone: --pseudonymise")
    with _opened(query) as log:
        name = _name_of(query, log, did)
        found = identity_records(log.lookups, name)._asdict()
    if not any(found.values()):
        raise Stop(Exit.FINDING, f"no such identity up to position {_positions(log)}")
    head = _head(query, log) | {"identity": name}
    if query.key is not None:
        head["identity"] = pseudonym_of(name, query.key)
        key = query.key
        found = {what: [pseudonymous(r, key) for r in rows] for what, rows in found.items()}
    more = [what for what, rows in found.items() if len(rows) > limit]
    shown = {what: rows[:limit] for what, rows in found.items()}
    if query.as_json:
        print_json(head | shown | {"more": more})
        return Exit.OK
    print_record("The log", head)
    for what, rows in shown.items():
        _print_listing(_TITLES[what], rows)
        if what in more:
            click.echo(f"  and more: only {len(rows):,} are shown (--limit)\n")
    return Exit.OK


@contextmanager
def _opened(query: _Query) -> Iterator[_Log]:
    exports = open_exports(query.source, query.public_key)
    require([one.catalog for one in exports], query.as_of)
    if any(one.catalog.index is None and one.catalog.rows for one in exports):
        why = "this export has no index: all of it is read; the next poste export makes one"
        click.echo(f"poste: {why}", err=True)
    positions = [position_at(one, query.as_of) for one in exports]
    at_ms = (
        round(query.as_of.timestamp() * _MS)
        if isinstance(query.as_of, datetime)
        else max(recorded_ms(*pair) for pair in zip(exports, positions, strict=True))
    )
    with ExitStack() as stack:
        lookups = [stack.enter_context(Lookup(*pair))
                   for pair in zip(exports, positions, strict=True)]  # fmt: skip
        yield _Log(exports, lookups, positions, at_ms)


def _write_proof(
    query: _Query, log: _Log, message_id: str, events: Sequence[Record], file: Path
) -> None:
    """Prove what was found of a message, which is in one database."""
    export = log.exports[events[0].get("database", 0)]
    proof = message_proof(
        export.place,
        export.catalog,
        query.public_key or read_public_key(export.head.public_key),
        message_id,
        events[0]["identity"],
        [event["seal_position"] for event in events],
    )
    try:
        file.write_bytes(proof_bytes(proof))
    except OSError as error:
        raise Stop(Exit.UNREACHABLE, f"{file}: {error.strerror}") from error


def _name_of(query: _Query, log: _Log, did: str) -> str:
    if query.key is None or not did.startswith(PREFIX):
        return did
    names = (lookup.name_behind(did, query.key) for lookup in log.lookups)
    name = next((name for name in names if name is not None), None)
    if name is None:
        raise Stop(Exit.FINDING, f"no such identity up to position {_positions(log)}")
    return name


def _head(query: _Query, log: _Log) -> Record:
    several = {"positions": list(log.positions)} if len(log.positions) > 1 else {}
    return {
        "position": sum(log.positions),
        "signed_by": _signer(query, log),
        **several,
        "at": time_text(datetime.fromtimestamp(log.at_ms / _MS, UTC)),
        "pseudonyms": fingerprint(query.key),
    }


def _signer(query: _Query, log: _Log) -> str:
    return signer_said(log.exports[0].head.public_key, query.public_key)


def _positions(log: _Log) -> str:
    return ", ".join(f"{position:,}" for position in log.positions)


def _print_listing(title: str, records: Sequence[Record]) -> None:
    names = list(records[0]) if records else []
    rows = [[_cell(record[name]) for name in names] for record in records]
    print_table(title, names, rows)


def _cell(value: Any) -> Any:
    """A value in a table: lists and records of details on one line."""
    if isinstance(value, Mapping):
        return "  ".join(f"{name} {_cell(member)}" for name, member in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else value


@contextmanager
def _explained() -> Iterator[None]:
    """What a look-up that could not be done, or found damage, means for the user."""
    try:
        yield
    except NoExport as error:
        raise Stop(Exit.UNREACHABLE, str(error), "Name the export with --from.") from error
    except NotExported as error:
        raise Stop(Exit.USAGE, str(error)) from error
    except ExportUnavailable as error:
        raise Stop(Exit.UNREACHABLE, f"the export cannot be read now: {error}") from error
    except ExportError as error:
        said = f"the export is damaged, so there is no answer: {error}"
        raise Stop(Exit.UNSAFE, said, "See: poste verify") from error
