"""``poste config``: the settings in force, and the reference of all settings."""

from __future__ import annotations

import click

from http_edge.cli.group import Group
from http_edge.cli.output import json_option, print_json, print_table
from http_edge.cli.settings import with_settings
from http_edge.settings.reference import markdown_reference, toml_reference
from http_edge.settings.sources import Loaded, shown


@click.group(cls=Group)
def config() -> None:
    """Show the settings in force, and all available settings."""


@config.command()
@json_option
@with_settings("data_dir", "listen", "public_url", "did", "log")
def show(loaded: Loaded, *, as_json: bool) -> None:
    """Show every setting in force and its source, without starting anything."""
    values = shown(loaded.settings)
    if as_json:
        sources = loaded.sources
        print_json({name: {"value": values[name], "source": sources[name]} for name in values})
    else:
        rows = [(name, values[name], loaded.sources[name]) for name in values]
        print_table("Settings in force", ["setting", "value", "source"], rows)


@config.command()
@click.option("--toml", "form", flag_value="toml", default="toml", help="A file to edit.")
@click.option("--markdown", "form", flag_value="markdown", help="Tables for the documentation.")
def reference(form: str) -> None:
    """Print every setting with its default, bounds, environment variable and reason.

    If both --toml and --markdown are given, the last one counts.
    """
    click.echo(toml_reference() if form == "toml" else markdown_reference(), nl=False)
