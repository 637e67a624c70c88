"""``report``: writes a page and tables of numbers about a time of an exported log."""

from __future__ import annotations

import csv
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final

import click
import msgspec

from eventstore.log.public_key import PublicKey
from eventstore.parquet.opening import signer_said
from projections.report.numbers import FOLDER
from projections.report.writing import STEPS, Report, write_report
from projections.spark.export import open_export
from projections.spark.program import (
    explaining,
    json_option,
    point_in_log,
    progress_steps,
    pseudonymise_option,
    public_key_option,
    session_options,
    source_option,
)
from projections.spark.session import open_session
from projections.views.span import DAY_MS, WITHIN_MS, NoSuchTime

_WITHIN_MS_MAX: Final = 100 * 366 * DAY_MS


def time_ms(text: str) -> int:
    """Parse a time in ISO 8601 to Unix milliseconds; without a zone it is in UTC.

    Raises:
        BadParameter: the text is no time.
    """
    at = point_in_log(text)
    if not isinstance(at, datetime):
        raise click.BadParameter(f"{text!r} is not a time like 2030-12-31T23:59:59Z")
    return int(at.timestamp() * 1000)


def seconds_ms(text: str | float) -> int:
    """Parse a duration in seconds to milliseconds.

    Raises:
        BadParameter: the text is no number from 0 to a hundred years.
    """
    try:
        found = round(float(text) * 1000)
    except (ValueError, OverflowError):  # the latter for infinity
        found = -1
    if not 0 <= found <= _WITHIN_MS_MAX:
        raise click.BadParameter(f"{text!r} is not a number of seconds up to a hundred years")
    return found


def tenants_in(path: str) -> dict[str, str]:
    """Read the tenants of identities from a CSV file of two columns, without a header.

    Raises:
        BadParameter: the file cannot be read, or a line does not have two columns.
    """
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            return dict(csv.reader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise click.BadParameter(f"cannot be read: {error}") from error
    except ValueError as error:
        raise click.BadParameter("every line must be a DID and a tenant") from error


@click.command("report")
@source_option
@session_options
@json_option
@click.option("--to", "target", required=True, help="Target for the report: a folder or a URI.")
@click.option(
    "--since", type=time_ms, metavar="TIME", help="Start of the report; else the first event."
)
@click.option(
    "--until",
    type=time_ms,
    metavar="TIME",
    help=("End of the report, exclusive; else the last event."),
)
@click.option(
    "--within-s",
    "within_ms",
    type=seconds_ms,
    metavar="SECONDS",
    default=WITHIN_MS / 1000,
    show_default=True,
    help="Longest wait, in seconds, that meets the service level.",
)
@click.option(
    "--tenants",
    type=tenants_in,
    default=None,
    metavar="FILE",
    help="CSV file that maps DIDs to tenants; other identities are counted by label.",
)
@pseudonymise_option
@public_key_option
@explaining()
def report_command(  # noqa: PLR0913 - one for each option
    *,
    source: str,
    target: str,
    since: int | None,
    until: int | None,
    within_ms: int,
    tenants: dict[str, str] | None,
    key: bytes | None,
    signer: PublicKey | None,
    master: str | None,
    memory_mib: int,
    skip_hashes: bool,
    as_json: bool,
) -> None:
    """Write a page of figures and plots, and the numbers as CSV and Parquet.

    Covers events recorded from --since until before --until: traffic, tenants, waiting messages,
    service level, pickup, growth, largest senders and recipients, redeliveries, refusals. The page
    report.html is self-contained. Messages queued earlier that were still waiting count as waiting.
    The report contains no message content.
    """
    export = open_export(source, signer, skip_hashes=skip_hashes)
    with (
        progress_steps("Writing the report", STEPS + 1) as steps,
        open_session(master, memory_mib=memory_mib) as spark,
    ):
        steps.update(1, "the time")
        try:
            report = write_report(
                spark,
                export,
                target,
                since_ms=since,
                until_ms=until,
                within_ms=within_ms,
                tenants=tenants,
                key=key,
                progress=partial(steps.update, 1),
            )
        except NoSuchTime as error:
            raise click.BadParameter(str(error), param_hint="--until") from error
    click.echo(msgspec.json.encode(report) if as_json else _text(report))
    if not as_json:
        click.echo(f"Signed by {signer_said(export.head.public_key, signer)}")


def _text(report: Report) -> str:
    about = f"from {report.since} until {report.until}" if report.since else "of no events"
    if report.complete_until != report.until:
        about += f", complete until {report.complete_until}"
    lines = [f"{report.page} and {FOLDER}/ in {report.to}, {about}"]
    width = max(len(number.name) for number in report.numbers)
    lines += [
        f"  {number.name:{width}}  {number.rows:>6,} rows  {number.title}"
        for number in report.numbers
    ]
    return "\n".join(lines)
