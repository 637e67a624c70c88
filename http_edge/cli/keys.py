"""``poste keys``: the mediator's identity."""

from __future__ import annotations

import click

from http_edge.cli.output import json_option, print_json, print_record
from http_edge.cli.settings import with_settings
from http_edge.config_sources import Loaded
from http_edge.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_encode
from http_edge.mediator_keys import load_or_create


@click.command()
@json_option
@with_settings("data_dir", "public_url", "did")
def keys(loaded: Loaded, *, as_json: bool) -> None:
    """Show the mediator's DID and public keys; make the keys at first use.

    Private keys are never shown. Back up the file: contracts are bound to its keys.
    """
    settings = loaded.settings
    mediator_keys = load_or_create(settings.keys_path)
    record = {
        "did": settings.mediator_did,
        "url": settings.url,
        "signing_key": multibase_encode(ED25519_PREFIX, mediator_keys.signing_public),
        "pre_key": multibase_encode(X25519_PREFIX, mediator_keys.pre_public),
        "file": str(settings.keys_path),
    }
    if as_json:
        print_json(record)
    else:
        print_record("The mediator's identity", record)
