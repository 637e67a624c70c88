"""The program ``projections``: its commands. ``spark-submit`` runs it, too."""

from __future__ import annotations

import click

from projections.analysis.dictionary import dictionary_command
from projections.audit import audit
from projections.compare import compare_command
from projections.rebuild.program import rebuild_command
from projections.report.program import report_command
from projections.spark.program import Program


@click.group(cls=Program)
def projections() -> None:
    """Work on an export of a mediator's log with Spark."""


projections.add_command(audit)
projections.add_command(compare_command)
projections.add_command(dictionary_command)
projections.add_command(rebuild_command)
projections.add_command(report_command)
