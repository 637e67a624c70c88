"""Groups of commands, such as ``poste queue``: their help says of each command all that it does."""

from __future__ import annotations

from typing import Final

import click

_WHOLE: Final = 1_000
"""Characters of a summary; click would end each where the line ends."""


class Group(click.Group):
    """A group whose help shows the first sentence of each command, over as many lines as it has."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """The commands by name."""
        summaries = [
            (name, command.get_short_help_str(_WHOLE))
            for name, command in sorted(self.commands.items())
        ]
        with formatter.section("Commands"):
            formatter.write_dl(summaries)
