"""``poste report``: see ``projections/report_program.py``."""

from __future__ import annotations

from http_edge.cli.projections_program import projections_command

report = projections_command("report", "Write a page of figures and plots from an export.")
