"""``report``: a page and tables of numbers on what an export shows of a time."""

from __future__ import annotations

from datetime import datetime

import click
import msgspec

from eventstore.log.public_key import PublicKey
from projections.report.numbers import FOLDER
from projections.report.writing import STEPS, NoSuchTime, Report, write_report
from projections.spark.export import open_export
from projections.spark.program import (
    ProgressSteps,
    explaining,
    point_in_log,
    pseudonymise_option,
    public_key_option,
    signer_said,
    spark_options,
)
from projections.spark.session import open_session


def time_ms(text: str) -> int:
    """A time in ISO 8601 as Unix milliseconds; in UTC if it names no zone.

    Raises:
        BadParameter: the text is no time.
    """
    at = point_in_log(text)
    if not isinstance(at, datetime):
        raise click.BadParameter(f"{text!r} is not a time like 2030-12-31T23:59:59Z")
    return int(at.timestamp() * 1000)


@click.command("report")
@spark_options
@click.option("--to", "target", required=True, help="The report: a folder or a URI.")
@click.option(
    "--since", type=time_ms, metavar="TIME", help="Where it begins; else the first event."
)
@click.option(
    "--until", type=time_ms, metavar="TIME", help="Before which it ends; else the last event."
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
    key: bytes | None,
    signer: PublicKey | None,
    master: str | None,
    memory_mib: int,
    as_json: bool,
) -> None:
    """Write a page of figures and plots, and its numbers as CSV and Parquet.

    Of what was recorded from --since until before --until: traffic, waiting messages, pickup,
    growth, largest senders and recipients, redeliveries, refusals. The page report.html needs
    nothing else to be shown. Messages that were queued before that time and waited count as
    waiting. Nothing has content of messages.
    """
    export = open_export(source, signer)
    with ProgressSteps("Writing the report", STEPS + 1) as steps:
        steps.begin("Spark")
        with open_session(master, memory_mib=memory_mib) as spark:
            steps.done("messages")
            try:
                report = write_report(
                    spark,
                    export,
                    target,
                    since_ms=since,
                    until_ms=until,
                    key=key,
                    progress=steps.done,
                )
            except NoSuchTime as error:
                raise click.BadParameter(str(error), param_hint="--until") from error
    click.echo(msgspec.json.encode(report) if as_json else _text(report))
    if not as_json:
        click.echo(f"Signed by {signer_said(export, signer)}")


def _text(report: Report) -> str:
    about = f"from {report.since} until {report.until}" if report.since else "of no events"
    lines = [f"{report.page} and {FOLDER}/ in {report.to}, {about}"]
    width = max(len(number.name) for number in report.numbers)
    lines += [
        f"  {number.name:{width}}  {number.rows:>6,} rows  {number.title}"
        for number in report.numbers
    ]
    return "\n".join(lines)
