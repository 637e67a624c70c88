"""``poste audit``: see ``projections/audit_program.py``."""

from __future__ import annotations

from http_edge.cli.projections_program import projections_command

audit = projections_command(
    "audit", "Tell from an export what happened to a message or an identity."
)
