"""``poste rebuild``: see ``projections/rebuild_program.py``."""

from __future__ import annotations

from http_edge.cli.projections_program import projections_command

rebuild = projections_command(
    "rebuild", "Rebuild every table from an export alone, as of now or of any moment."
)
