"""``poste keys``: the mediator's identity according to its data directory."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from eventstore.log.public_key import PublicKey
from eventstore.log.tree_head import origin_of
from eventstore.stores.open_log import open_log
from http_edge.cli.output import json_option, print_json, print_record
from http_edge.cli.settings import is_missing, with_settings
from http_edge.crypto.encoding import ED25519_PREFIX, X25519_PREFIX, multibase_encode
from http_edge.crypto.mediator_keys import MediatorKeys, load, load_or_create
from http_edge.server.data_dir import named_disk_faults, owner_hindered_by_root
from http_edge.server.exits import Exit, Stop
from http_edge.server.status_files import database_numbers
from http_edge.settings.settings import Settings, did_web
from http_edge.settings.sources import DEFAULT, Loaded


@click.command()
@json_option
@with_settings("data_dir", "public_url", "did")
def keys(loaded: Loaded, *, as_json: bool) -> None:
    """Show the mediator's DID and public keys; create the keys at first use.

    DID and URL are those of the mediator that was last served from the data directory, or, before
    its first start, those from the settings. After that start no keys are created. Auditors give
    the signing key to --public-key. Verifier keys are the same key in the form for signed notes,
    one for each database of the log. Private keys are never shown. Back up the file: contracts are
    bound to its keys.
    """
    settings = loaded.settings
    path = settings.keys_path
    if path.exists():
        mediator_keys = load(path)
    elif settings.served_url_path.exists():
        raise Stop(
            Exit.USAGE,
            f"there are no mediator keys at {path}, but a mediator was served from"
            f" {settings.data_dir}",
            "Restore the file from its backup, or name it with --set keys_file=PATH.",
        )
    else:
        option = "--data-dir" if settings.keys_file is None else "--set keys_file=PATH"
        with named_disk_faults(path.parent, option):
            mediator_keys = load_or_create(path)
        click.echo(
            f"poste: there were no keys at {path}, so new ones were created\n  If the"
            " mediator already has keys, delete these and name its data directory with"
            " --data-dir.",
            err=True,
        )
    did, url = _did(loaded), served_url(loaded)
    record: dict[str, Any] = {
        "did": did,
        "url": url,
        "signing_key": multibase_encode(ED25519_PREFIX, mediator_keys.signing_public),
        "verifier_keys": [
            PublicKey(mediator_keys.signing_public).verifier_key(origin_of(did, number))
            for number in database_numbers(len(settings.log_dsns))
        ],
        "pre_key": multibase_encode(X25519_PREFIX, mediator_keys.pre_public),
        "file": str(path),
    }
    if as_json:
        print_json(record)
    else:
        verifier_keys = " ".join(record["verifier_keys"])
        print_record("The mediator's identity", record | {"verifier_keys": verifier_keys})


def _did(loaded: Loaded) -> str:
    """The mediator's DID: the one in the log of the data directory, else the settings'.

    Raises:
        LogError: the log exists and cannot be read.
    """
    settings = loaded.settings
    if settings.log_dsn.startswith("sqlite:") and not is_missing(settings.log_dsn):
        with closing(open_log(settings.log_dsn, to_read=True)) as log:
            fixed = log.settings().get("mediator_did")
        if fixed is not None:
            return fixed
    return settings.did or did_web(served_url(loaded))


def served_url(loaded: Loaded) -> str:
    """The URL for clients: as set, else as served last, else as it would be served."""
    path = loaded.settings.served_url_path
    if loaded.sources["public_url"] == DEFAULT and path.exists():
        return path.read_text("utf-8").strip()
    return loaded.settings.url


def existing_keys(settings: Settings) -> MediatorKeys:
    """The mediator's keys, for a command that must not make new ones.

    Raises:
        Stop: there are no keys.
        KeyFileRefused: the key file cannot be used as it is.
    """
    path = settings.keys_path
    if not path.exists():
        raise Stop(
            Exit.USAGE,
            f"there are no mediator keys at {path}",
            "Name its data directory with --data-dir. A mediator makes its keys at its first"
            " start: poste serve.",
        )
    return load(path)


def require_owner(settings: Settings) -> None:
    """Refuse to run as root in another user's data directory, before root makes files there.

    A mediator that runs as that user could not use these files: its archive would end there.

    Raises:
        Stop: names the user to run the command as.
    """
    owner = owner_hindered_by_root(settings.keys_path)
    if owner is not None:
        raise Stop(
            Exit.USAGE,
            f"{settings.data_dir} belongs to another user, who could not use files that"
            " root creates there",
            f"Run it as that user: sudo --user='#{owner}' poste …",
        )
