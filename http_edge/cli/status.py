"""``poste status``: what a running mediator holds and does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any, Final

import click

from http_edge.cli.output import json_option, print_json, print_record, print_table
from http_edge.cli.running_mediator import RunningMediator, for_operators
from http_edge.server.exits import escaped

_IF_IT_LASTS: Final = (
    "Commands for its shards are refused with 503: no accepted message is lost. Remove the cause"
    " that its log lines name, such as a database that is away; if they name none, restart the"
    " mediator of that host."
)
_WORK: Final = ("export", "archive")
"""The work beside the mediator, each with the age from which it may hang."""
_IF_IT_HANGS: Final = (
    "Rows stay in the log meanwhile, and none is lost. Check that its place (export.to, or the"
    " folder archive of the data directory) and the log answer; if both do, restart the mediator."
)
_IF_IT_FAILS: Final = (
    "Rows stay in the log meanwhile, and none is lost. Remove the cause, such as a place that is"
    " away, is full or may not be written by this mediator: the work goes on by itself."
)


@click.command()
@json_option
@for_operators
def status(mediator: RunningMediator, *, as_json: bool) -> None:
    """Show what a running mediator holds and does.

    Counts are since the start of their process. Those of deliveries to endpoints (outbound), push
    notifications and refusals are of one edge: the metrics have all.

    Only for operators: this needs access to the mediator's data directory.
    """
    answer = mediator.ask("GET", "/status")
    if as_json:
        print_json(answer)
        return
    plain = {name: value for name, value in answer.items() if not _is_table(value)}
    print_record("Mediator", dict(_flat(plain)))
    for name, records in answer.items():
        if _is_table(records):
            print_table(name.capitalize(), *_table(records))
    if silent := answer.get("silent_hosts"):
        names = escaped(", ".join(silent))
        click.echo(f"poste: no answer from {names}\n  {_IF_IT_LASTS}", err=True)
    for why, remedy in _stopped(answer):
        click.echo(f"poste: {escaped(why)}\n  {remedy}", err=True)


def _stopped(answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What stops the work beside the mediator, with the remedy; nothing if it goes on."""
    for part in _WORK:
        figures = answer.get(part) or {}
        hangs_s = figures.get("hangs_after_s", inf)
        for number, each in enumerate(figures.get("databases", [figures])):
            name = f"{part} of database {number}" if "databases" in figures else part
            known = ("last_step_age_s", "caught_up_age_s", "last_round_age_s")
            ages_s = [each[age] for age in known if each.get(age) is not None]
            # Work of another machine, of which nothing is known here, has a fault without an age.
            if each.get("fault_age_s") is not None:
                yield f"{name}: {each['fault']}", _IF_IT_FAILS
            elif ages_s and min(ages_s) > hangs_s:
                age_s = f"{min(ages_s):,.0f} s"
                yield (
                    f"{name}: nothing was done here for {age_s}, for a reason unknown",
                    _IF_IT_HANGS,
                )


def _is_table(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _table(records: list[dict[str, Any]]) -> tuple[list[str], list[list[object]]]:
    """Columns and rows: one row for each record, or one column if fields outnumber records."""
    fields = list(dict.fromkeys(field for record in records for field in record))
    if len(fields) <= len(records):
        return fields, [[record.get(field) for field in fields] for record in records]
    titles, *rows = ([field, *(record.get(field) for record in records)] for field in fields)
    return list(map(str, titles)), rows


def _flat(record: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
