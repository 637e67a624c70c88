"""``poste proof``: checks proofs without the mediator, its log or any network."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from eventstore.log.proof import (
    ConsistencyProof,
    ProofFault,
    ProofRefused,
    ProvenConsistency,
    ProvenMessage,
    check_proof,
    proof_bytes,
)
from eventstore.log.public_key import PublicKey, PublicKeyRefused
from eventstore.log.signed_note import NoteRefused
from eventstore.log.tree_head import TreeHead
from http_edge.cli.arguments import export_named, source_option
from http_edge.cli.group import Group
from http_edge.cli.output import json_option, print_json, print_record, print_table, write_file
from http_edge.cli.public_key import public_key_option, signer_of
from http_edge.cli.settings import with_settings
from http_edge.server.exits import Exit, Stop
from http_edge.server.status_files import time_text
from http_edge.settings.sources import Loaded

_EVENTS = ("at", "event", "by", "sender_did", "partition", "position", "seal_digest")


@click.group(cls=Group)
def proof() -> None:
    """Check proofs from the log offline; show that one head continues another."""


@proof.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@public_key_option
@json_option
def check(*, file: Path, public_key: PublicKey | None, as_json: bool) -> int:
    """Check a proof that poste audit message --proof or poste proof consistency wrote.

    Reads only FILE. Exit code 0: the proof holds and, with --public-key, the mediator with that key
    signed it. Without --public-key the proof is only consistent in itself: it names the key, but
    cannot prove whose key that is. Exit code 1: something is wrong, which is named, or the proof
    was made with another key.
    """
    try:
        proven = check_proof(file.read_bytes(), public_key)
    except ProofRefused as error:
        _show_refused({"file": file}, error, as_json=as_json)
        return Exit.FINDING
    match proven:
        case ProvenMessage():
            _show_message(proven, public_key, as_json=as_json)
        case ProvenConsistency():
            _show_consistency(proven, public_key, as_json=as_json)
    return Exit.OK


@proof.command()
@click.argument("old", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("new", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@source_option
@click.option(
    "--proof",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the proof for poste proof check, which works offline.",
)
@public_key_option
@json_option
@with_settings("data_dir")
def consistency(  # noqa: PLR0913 - one for each option
    loaded: Loaded,
    *,
    old: Path,
    new: Path,
    source: str | None,
    file: Path | None,
    public_key: PublicKey | None,
    as_json: bool,
) -> int:
    """Show that the signed head in OLD is the beginning of the one in NEW.

    Both are answers of GET /log/head, or tree/checkpoint of an export. The proof consists of a few
    hashes of the export. Exit code 1: NEW does not continue OLD, so the mediator signed two logs,
    or a signature is not by --public-key (by default the key that the export names).
    """
    target = export_named(loaded.settings, source)
    notes = old.read_bytes(), new.read_bytes()
    try:
        content = proof_bytes(_consistency(target, *notes, public_key))
        proven = check_proof(content, public_key)
    except ProofRefused as error:
        _show_refused({"old": old, "new": new}, error, as_json=as_json)
        return Exit.FINDING
    if file is not None:
        write_file(file, content, "--proof")
    assert isinstance(proven, ProvenConsistency)
    _show_consistency(proven, public_key, as_json=as_json)
    return Exit.OK


def _consistency(target: str, old: bytes, new: bytes, named: PublicKey | None) -> ConsistencyProof:
    """Make the proof from the export at a place, or from that of the heads' database there.

    Raises:
        Stop: there is no export, or it cannot be read or is damaged.
        ProofRefused: one head is not the beginning of the other, or is not signed.
    """
    # Import pyarrow only here: it takes half a second, and poste proof check needs none.
    from eventstore.parquet.errors import ExportError, ExportUnavailable  # noqa: PLC0415
    from eventstore.parquet.proofs import NotConsistent, consistency_in  # noqa: PLC0415

    try:
        return consistency_in(target, old, new, named)
    except (NoteRefused, PublicKeyRefused) as error:
        raise ProofRefused(ProofFault.BAD_HEAD, str(error)) from error
    except NotConsistent as error:
        raise ProofRefused(ProofFault.NOT_CONSISTENT, str(error)) from error
    except ExportUnavailable as error:
        raise Stop(Exit.UNREACHABLE, f"the export cannot be read: {error}") from error
    except ExportError as error:
        raise Stop(Exit.UNSAFE, f"the export is damaged: {error}", "See: poste verify") from error


def _show_refused(files: Mapping[str, Path], error: ProofRefused, *, as_json: bool) -> None:
    found = {name: str(path) for name, path in files.items()}
    found |= {"fault": error.fault.value, "explanation": error.why}
    if as_json:
        print_json({"holds": False, **found})
    else:
        print_record("Nothing is proven", found)


def _show_message(proven: ProvenMessage, named: PublicKey | None, *, as_json: bool) -> None:
    events = [
        {"at": _time(event.at_ms)}
        | {name: getattr(event, name) for name in _EVENTS[1:-1]}
        | {"seal_digest": event.seal_digest.hex()}
        for event in proven.events
    ]
    about = {"message_id": proven.message_id, "identity": proven.identity}
    if as_json:
        head = {"head": _head(proven.head)}
        signer = {"signer": signer_of(proven.key, named)}
        print_json({"holds": True, "message": about, "events": events, **head, **signer})
        return
    head_said = {f"head {name}": value for name, value in _head(proven.head).items()}
    signer_said = _signer_said(proven.key, named)
    print_record("The proof holds", {**about, **head_said, **signer_said})
    rows = [[event[name] for name in _EVENTS] for event in events]
    print_table("History of the message in the log", _EVENTS, rows)


def _show_consistency(proven: ProvenConsistency, named: PublicKey | None, *, as_json: bool) -> None:
    if as_json:
        heads = {"old": _head(proven.old), "new": _head(proven.new)}
        print_json({"holds": True, **heads, "signer": signer_of(proven.key, named)})
        return
    record = {
        "origin": proven.new.origin,
        "old size": proven.old.size,
        "new size": proven.new.size,
        **_signer_said(proven.key, named),
    }
    print_record("The newer head continues the older one", record)


def _head(head: TreeHead) -> dict[str, Any]:
    return {"origin": head.origin, "size": head.size, "root": head.root.hex()}


def _signer_said(key: PublicKey, named: PublicKey | None) -> dict[str, str]:
    signer = signer_of(key, named)
    return {"signed by": signer["public_key"], "signer": signer["said"]}


def _time(at_ms: int) -> str:
    try:
        return str(time_text(at_ms))
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"  # out of the range of datetime
