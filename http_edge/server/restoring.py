"""A restore from its source to its target: what is read, with which keys, and where it goes.

A source is an export (a folder or a URI), whose signatures and hashes are checked against the
keys, or a log itself. The keys are the operator's own backup: neither an export nor a log has
them, and a mediator with other keys is another mediator to all its clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote, urlsplit

import base58

from eventstore.log.databases import folder_name
from eventstore.parquet.catalog import catalog_of
from eventstore.parquet.databases import exports_in
from eventstore.parquet.files import HEAD, ExportPlace, FileMissing, open_place
from eventstore.parquet.manifest import parse_head
from eventstore.parquet.rows import exported_sections
from eventstore.stores.log_import import LogImport
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.restore import LogSection, OnProgress, Restored, log_sections, restore
from http_edge.crypto import signatures
from http_edge.crypto.mediator_keys import MediatorKeys, create, load
from http_edge.server.data_dir import locked, make_data_dir
from http_edge.server.exits import Exit, Stop

_LOGS: Final = {"sqlite", "postgresql", "postgres"}


@dataclass(frozen=True)
class Source:
    """The log to restore: its rows, its constants, and the position of its end."""

    name: str
    sections: Iterator[LogSection]
    constants: Mapping[str, str]
    last: int


@dataclass(frozen=True)
class Target:
    """Where to: the URL of a log, and the data directory of the mediator that will serve it."""

    dsn: str
    data_dir: Path

    @property
    def keys_path(self) -> Path:
        """The file of the mediator's keys."""
        return self.data_dir / "mediator-keys.json"


def target_of(text: str, data_dir: Path) -> Target:
    """A data directory, or the URL of a log whose mediator has its keys in ``data_dir``."""
    if _is_log(text):
        return Target(text, data_dir)
    path = Path(text).expanduser().absolute()
    return Target(f"sqlite://{quote(str(path / 'log.db'))}", path)


def keys_for(target: Target, backup: Path | None) -> MediatorKeys:
    """The keys that the restored mediator will have: the backup, else those that are there.

    Raises:
        Stop: there are none, the backup is missing, or there are two different ones.
        KeyFileRefused, OSError: a key file cannot be used.
    """
    there = load(target.keys_path) if target.keys_path.exists() else None
    if backup is not None and not backup.exists():
        raise Stop(
            Exit.USAGE,
            f"there is no key file at {backup}",
            "Name the backup of the mediator's mediator-keys.json with --keys.",
        )
    keys = load(backup) if backup else there
    if keys is None:
        raise Stop(
            Exit.USAGE,
            f"there are no keys of the mediator at {target.keys_path}",
            "Name the backup of its mediator-keys.json with --keys. Without it no client knows the "
            "mediator again, and every contract is void.",
        )
    if there is not None and there != keys:
        raise Stop(
            Exit.USAGE,
            f"{target.keys_path} holds other keys than {backup}",
            "Restore into an empty directory, or leave --keys out if those there are right.",
        )
    return keys


@contextmanager
def opened_source(
    text: str, target: Target, keys: MediatorKeys, until: int | None
) -> Iterator[Source]:
    """The source that a path or URL names, checked as far as that goes without reading all.

    Raises:
        Stop: there is none, it is of other keys, it ends before ``until``, or a mediator runs on
            the directory of the log.
        ExportError, LogError: it is damaged or cannot be read now.
    """
    with ExitStack() as stack:
        if _is_log(text) or Path(text).is_file():
            source = stack.enter_context(_log_source(text, target))
        else:
            _refuse_several(text)
            source = _export_source(open_place(text), keys, until)
        if until is not None and until > source.last:
            raise Stop(
                Exit.USAGE,
                f"{source.name} ends at position {source.last}, before {until}",
                "Name a position that it has, or leave --as-of out.",
            )
        yield source


def run(
    source: Source, target: Target, keys: MediatorKeys, until: int | None, progress: OnProgress
) -> Restored:
    """Restore the source into the target, which is a log of the mediator when this returns.

    Raises:
        Stop: something runs on the target's data directory.
        ImportRefused: the target holds something.
        NotAsSealed, ExportError, LogError: as ``eventstore.stores.restore``.
    """
    make_data_dir(target.data_dir)
    with (
        locked(target.data_dir),
        closing(open_store(target.dsn)) as store,
    ):
        log = LogImport(store, source.constants["mediator_did"], secrets.token_hex(8))
        log.begin()
        # Before the log is one: a mediator that finds no keys makes new ones.
        create(target.keys_path, keys)
        return restore(source.sections, log, source.constants, until=until, progress=progress)


def _is_log(text: str) -> bool:
    return text.partition(":")[0] in _LOGS


@contextmanager
def _log_source(text: str, target: Target) -> Iterator[Source]:
    dsn = text if _is_log(text) else f"sqlite://{quote(str(Path(text).absolute()))}"
    path = Path(unquote(urlsplit(dsn).path))
    is_file = dsn.startswith("sqlite:")
    if is_file and not path.is_file():
        raise Stop(Exit.UNREACHABLE, f"there is no log at {path}", "Name it with --from.")
    with ExitStack() as stack:
        if is_file and _is_served_elsewhere(path.parent, target):
            stack.enter_context(locked(path.parent))
        # Reading asks nothing of the store's durability.
        log = stack.enter_context(closing(open_log(dsn, allow_unsafe=True)))
        constants = log.settings()
        if not {"mediator_did", "shards"} <= constants.keys():
            remedy = "Name the log of a mediator, or its export, with --from."
            raise Stop(Exit.USAGE, "the source is not the log of a mediator", remedy)
        name = str(path) if is_file else "the log in PostgreSQL"
        yield Source(name, log_sections(log), constants, log.position())


def _is_served_elsewhere(data_dir: Path, target: Target) -> bool:
    """Whether mediators work in this directory, and the restore itself does not."""
    return (data_dir / "lock").exists() and data_dir.resolve() != target.data_dir.resolve()


def _refuse_several(text: str) -> None:
    """A log of several databases is restored database by database, each into one of its own."""
    found = exports_in(text)
    if found not in ([], [text]):
        raise Stop(
            Exit.USAGE,
            f"{open_place(text).address()} holds the exports of {len(found)} databases of one log",
            f"Restore each of its folders {folder_name(0)} to {folder_name(len(found) - 1)} into an"
            " empty database of its own, and name these in the same order with --log.",
        )


def _export_source(place: ExportPlace, keys: MediatorKeys, until: int | None) -> Source:
    try:
        head = parse_head(HEAD, place.read(HEAD), verify=None)
    except FileMissing:
        remedy = "Name the folder or URI that poste export wrote to with --from."
        raise Stop(Exit.UNREACHABLE, f"there is no export at {place.address()}", remedy) from None
    public_key = base58.b58encode(keys.signing_public).decode()
    if head.public_key != public_key:
        raise Stop(
            Exit.UNSAFE,
            f"the export is of {head.mediator_did} with the key {head.public_key},"
            f" the keys at hand are those of {public_key}",
            f"Name the backup of the keys of {head.mediator_did} with --keys.",
        )
    catalog = catalog_of(place, partial(signatures.verify, keys.signing_public), is_whole=True)
    constants = {"mediator_did": head.mediator_did, "shards": str(head.shards)}
    return Source(
        place.address(), exported_sections(place, catalog, until), constants, catalog.last
    )
