"""``poste serve``: run the mediator."""

from __future__ import annotations

import gc

import click

from actors.ray import environment as ray_environment
from http_edge.cli.settings import with_settings
from http_edge.settings.sources import Loaded


@click.command()
@with_settings(
    "data_dir",
    "listen",
    "public_url",
    "did",
    "log",
    "placement",
    "hosts",
    "edges",
    "shards",
    "ray_address",
    "log_level",
)
def serve(loaded: Loaded) -> int:
    """Run the mediator.

    Without options it serves http://127.0.0.1:8080 from an embedded log in ./data. SIGTERM lets
    the commands in flight finish.
    """
    ray_environment.prepare()
    # Imported objects stay: collecting among them would take a fifth of the time of the imports.
    gc.disable()
    from http_edge.server.serve import run  # noqa: PLC0415 - imports Ray; the help of this command need not

    gc.enable()
    return run(loaded)
