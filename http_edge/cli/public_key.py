"""``--public-key``: with it auditors name the mediator whose signatures they expect."""

from __future__ import annotations

from typing import Any, Final

import click

from eventstore.log.public_key import PublicKey, read_public_key
from http_edge.cli.arguments import parsed
from http_edge.crypto.mediator_keys import load
from http_edge.settings.sources import DEFAULT, Loaded

NOT_KNOWN: Final = "not known: no key was named, so only the signature by that key was checked"
NAMED: Final = "the key that was expected"
NAME_IT: Final = "Name the mediator's key with --public-key, or its data directory with --data-dir."


public_key_option = click.option(
    "--public-key",
    metavar="KEY",
    type=parsed(read_public_key),
    help="The mediator's public key, as poste keys and its DID document show it.",
)


def own_key(loaded: Loaded) -> PublicKey | None:
    """The public key in the data directory; None if there is none.

    Also None if no directory is named, as by an auditor, and ``./data`` is another user's.

    Raises:
        KeyFileRefused, OSError: the key file cannot be used.
    """
    path = loaded.settings.keys_path
    try:
        return PublicKey(load(path).signing_public) if path.exists() else None
    except PermissionError:
        if loaded.sources["data_dir"] == loaded.sources["keys_file"] == DEFAULT:
            return None
        raise


def signer_of(key: PublicKey, named: PublicKey | None) -> dict[str, Any]:
    """The signer for the output of commands: the key, whether it was named, and what that means."""
    is_named = named is not None
    return {"public_key": key.text, "is_named": is_named, "said": NAMED if is_named else NOT_KNOWN}
