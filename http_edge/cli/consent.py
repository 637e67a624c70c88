"""The consent to actions that cannot be undone or may harm others."""

from __future__ import annotations

import sys

import click

from http_edge.server.exits import Exit, Stop

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def require_consent(question: str, *, yes: bool) -> None:
    """Ask for consent on the terminal, unless ``yes`` gives it.

    Raises:
        Stop: there is no terminal to ask on, or the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        why = "this needs consent, but there is no terminal for the question; nothing was done"
        raise Stop(Exit.USAGE, why, "Repeat the command with --yes.")
    if not click.confirm(question, err=True):
        raise Stop(Exit.USAGE, "nothing was done")
