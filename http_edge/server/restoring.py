"""A restore: its source, the mediator's keys, and its target.

A source is a log, or an export (a folder or a URI), whose signatures and hashes are checked against
the keys. The keys are the operator's own backup: neither an export nor a log contains them, and a
mediator with other keys is another mediator to all its clients.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urlsplit
from uuid import UUID

from msgspec import structs

from actors.archive.archive_check import meeting, sections_to
from actors.archive.archived_states import beginning_of
from eventstore.log.codec import decode
from eventstore.log.databases import folder_name
from eventstore.log.errors import LogError
from eventstore.log.event_log import LogReader, LogRow, Snapshot
from eventstore.log.events import (
    SEAL_TOPIC,
    TOPIC_BY_TYPE,
    TYPE_BY_TOPIC,
    IdentityErased,
    IdentityErasureBegun,
)
from eventstore.log.log_format import FORMAT, FORMAT_NAME
from eventstore.log.name_erasure import NAMES_ERASED
from eventstore.log.public_key import PublicKey
from eventstore.log.redaction import digest_of, is_erased, renamed_state
from eventstore.log.seam import SEAM, seam_of
from eventstore.log.streams import is_erased_name
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.databases import exports_in
from eventstore.parquet.errors import ExportError, RowsPruned
from eventstore.parquet.files import HEAD, ExportPlace, FileMissing, open_place
from eventstore.parquet.manifest import export_head
from eventstore.parquet.opening import AsOf, DatabaseExport
from eventstore.parquet.rows import exported_sections, manifest_rows
from eventstore.parquet.write.step import IdentityNames
from eventstore.stores.log_import import LogImport
from eventstore.stores.open_log import open_log, open_store
from eventstore.stores.restore import (
    PAGE_BYTES,
    LogSection,
    OnProgress,
    Restored,
    log_sections,
    restore,
)
from http_edge.crypto.mediator_keys import MediatorKeys, create, load
from http_edge.server.data_dir import LOCK, left_alone, locked, make_data_dir
from http_edge.server.exits import Exit, Stop
from http_edge.server.log_check import MEDIATOR_KEY
from http_edge.server.log_head import PUBLIC_HEAD

_LOGS: Final = {"sqlite", "postgresql", "postgres"}
_LEFT_BEHIND: Final = {NAMES_ERASED, PUBLIC_HEAD}
"""Marks about rows that the restored log may not have: what is cut away, or changed since."""
_BEGUN: Final = TOPIC_BY_TYPE[IdentityErasureBegun]
_ERASED: Final = TOPIC_BY_TYPE[IdentityErased]
_ERASING: Final = {_BEGUN, _ERASED}
_LIKE: Final = "Name a SQLite file, sqlite:/PATH/log.db or postgresql://USER@HOST/DATABASE."


@dataclass(frozen=True)
class Source:
    """The log to restore.

    ``last`` is the position at which it ends, ``until`` the one up to which it is restored, None
    for all. ``states`` stand for rows that were pruned; then the constants contain the seam.
    ``log`` is the log, if the source is one; ``catalog`` is that of the export at ``place``, if one
    is there, which may go on further.
    """

    name: str
    sections: Iterator[LogSection]
    constants: Mapping[str, str]
    last: int
    until: int | None
    states: Sequence[tuple[UUID, Snapshot]] = ()
    log: LogReader | None = None
    place: ExportPlace | None = None
    catalog: Catalog | None = None


@dataclass(frozen=True)
class Target:
    """The target: the URL of a log, and the data directory of the mediator that will serve it."""

    dsn: str
    data_dir: Path
    option: str
    """The option that names the directory."""

    @property
    def keys_path(self) -> Path:
        """The file of the mediator's keys."""
        return self.data_dir / "mediator-keys.json"


def target_of(text: str, data_dir: Path) -> Target:
    """A data directory, or the URL of a log whose mediator has its keys in ``data_dir``.

    Raises:
        Stop: the text is another URI, or the directory is an export, which others may read.
    """
    if _is_log(text):
        target = Target(text, data_dir, "--data-dir")
    elif "://" in text:
        # The text itself may hold a password.
        reason = f"a log cannot be restored to {text.partition('://')[0]}://…"
        raise Stop(Exit.USAGE, reason, "Name a directory or the URL of a log with --to.")
    else:
        path = Path(text).absolute()
        target = Target(f"sqlite://{quote(str(path / 'log.db'))}", path, "--to")
    if (target.data_dir / HEAD).exists():
        raise Stop(
            Exit.USAGE,
            f"{target.data_dir} is an export, which must not hold the mediator's keys",
            f"Name an empty data directory with {target.option}.",
        )
    return target


def keys_for(target: Target, backup: Path | None) -> MediatorKeys:
    """The keys of the restored mediator: the backup's, else those in the target.

    Raises:
        Stop: there are no keys, the backup is missing, or the two differ.
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
            "Name the backup of its mediator-keys.json with --keys. Without it clients no"
            " longer recognise the mediator, and every contract is void.",
        )
    if there is not None and there != keys:
        raise Stop(
            Exit.USAGE,
            f"the keys in {target.keys_path} differ from those in {backup}",
            "Restore into an empty directory, or omit --keys if the keys there are the right ones.",
        )
    return keys


@contextmanager
def opened_source(
    text: str, target: Target, keys: MediatorKeys, until: AsOf, archive: str | None = None
) -> Iterator[Source]:
    """Open the source that a path or URL names, and check what needs no reading of all rows.

    If ``until`` is a time, the source ends with the last transaction made until then. ``archive``
    is the place of the rows that have left the log; None means the folder beside the log's file.

    Raises:
        Stop: there is no source, it is of other keys, it ends before ``until``, or a mediator runs
            on the directory of the log.
        ExportError, LogError: the source is damaged or cannot be read now.
    """
    with ExitStack() as stack:
        if _is_log(text) or Path(text).is_file():
            source = stack.enter_context(_log_source(text, target, keys, until, archive))
        else:
            _refuse_several(text)
            source = _export_source(open_place(text), keys, until)
        if source.until is not None and source.until > source.last:
            raise Stop(
                Exit.USAGE,
                f"{source.name} ends at position {source.last}, which is before {source.until}",
                "Name an earlier position, or omit --as-of.",
            )
        yield source


def run(source: Source, target: Target, keys: MediatorKeys, progress: OnProgress) -> Restored:
    """Restore the source into the target, which is then a log of the mediator.

    Raises:
        Stop: another process works in the target's data directory.
        ImportRefused: the target is not empty.
        NotAsSealed, ExportError, LogError: as ``eventstore.stores.restore``.
    """
    make_data_dir(target.data_dir, target.option)
    with (
        locked(target.data_dir, target.option),
        closing(open_store(target.dsn)) as store,
    ):
        log = LogImport(store, source.constants["mediator_did"], secrets.token_hex(8))
        log.begin()
        # Before the log is complete: a mediator that finds no keys makes new ones.
        create(target.keys_path, keys)
        return restore(
            source.sections,
            log,
            {**source.constants, FORMAT_NAME: str(FORMAT)},
            until=source.until,
            states=source.states,
            progress=progress,
        )


def _is_log(text: str) -> bool:
    return text.partition(":")[0] in _LOGS


@contextmanager
def _log_source(
    text: str, target: Target, keys: MediatorKeys, until: AsOf, archive: str | None
) -> Iterator[Source]:
    dsn = text if _is_log(text) else f"sqlite://{quote(str(Path(text).absolute()))}"
    try:
        path = Path(unquote(urlsplit(dsn).path))
    except ValueError as error:
        # The text itself may hold a password.
        raise Stop(Exit.USAGE, "--from does not name the URL of a log", _LIKE) from error
    is_file = dsn.startswith("sqlite:")
    if is_file and not path.is_file():
        raise Stop(Exit.UNREACHABLE, f"there is no log at {path}", "Name it with --from.")
    with ExitStack() as stack:
        if is_file and _is_served_elsewhere(path.parent, target):
            stack.enter_context(left_alone(path.parent, "--from"))
        log = stack.enter_context(closing(open_log(dsn, to_read=True)))
        constants = log.settings()
        if not {"mediator_did", "shards"} <= constants.keys():
            remedy = "Name the log of a mediator, or its export, with --from."
            raise Stop(Exit.USAGE, "the source is not the log of a mediator", remedy)
        name = str(path) if is_file else "the log in PostgreSQL"
        own = PublicKey(keys.signing_public).text
        # A log restored by an earlier release has no key until a mediator has served it.
        _check_key("the log", constants["mediator_did"], constants.get(MEDIATOR_KEY, own), own)
        kept = {name: value for name, value in constants.items() if name not in _LEFT_BEHIND}
        constants = {**kept, MEDIATOR_KEY: own}
        if SEAM in constants:
            place = archive or (str(path.parent / "archive") if is_file else None)
            yield _both_sources(name, constants, log, place, keys, until)
            return
        if isinstance(until, datetime):
            until = _until(name, _reached_in(log_sections(log), until), until)
        source = Source(name, log_sections(log), constants, log.position(), until, log=log)
        if archive is not None:  # its rows are in the log, but it may have gone on further
            with suppress(ExportError):
                export = open_place(archive)
                catalog = catalog_of(export, PublicKey(keys.signing_public).verify)
                source = replace(source, place=export, catalog=catalog)
        yield source


def _both_sources(
    name: str,
    constants: Mapping[str, str],
    log: LogReader,
    archive: str | None,
    keys: MediatorKeys,
    until: AsOf,
) -> Source:
    """A log with the rows that have left it: the archive up to where they meet, then the log.

    Raises:
        Stop: no archive is named, it does not go up to the seam, or its pruned part ends behind
            the log.
        NotAsSealed, LogError: the log cannot be read up to the end of that part.
        SeamRefused: the seam is not the mediator's.
    """
    key = PublicKey(keys.signing_public)
    seam = seam_of(log, key)
    assert seam is not None
    place = None if archive is None else open_place(archive)
    catalog = catalog_of(place, key.verify, is_whole=True) if place else Catalog(None)
    if place is None or catalog.last < seam.position:
        there = (
            "no archive is named"
            if place is None
            else f"{place.address()} lacks some of these rows"
        )
        raise Stop(
            Exit.USAGE,
            f"rows up to position {seam.position} have left this log for its archive, but {there}",
            "Name the archive with --archive: the place of the export, or else the folder"
            " archive in the data directory.",
        )

    if log.position() < catalog.pruned_up_to:
        raise Stop(
            Exit.USAGE,
            f"{place.address()} was pruned up to position {catalog.pruned_up_to}, but this log ends"
            f" before, at {log.position()}",
            "Restore the archive alone, which goes on further: name it with --from.",
        )
    met = meeting(log, seam, catalog)

    def sections() -> Iterator[LogSection]:
        for section in sections_to(place, catalog, met):
            yield _with_contents(section, log)
        yield from log_sections(log, met.position)

    name = f"{name} with {place.address()}"
    _check_not_pruned(name, catalog, until)
    if isinstance(until, datetime):
        until = _until(name, _reached_in(sections(), until), until)
    constants = {each: value for each, value in constants.items() if each != SEAM}
    source = Source(name, sections(), constants, log.position(), until, log=log)
    return _begun(source, place, catalog, keys)


def _with_contents(section: LogSection, log: LogReader) -> LogSection:
    """A section of an archive, with the contents that it lacks and the log has.

    A log from a backup has those of messages that were removed since, with which they were erased
    from the archive.
    """
    rows = list(section.rows)
    lacking = {row.position: index for index, row in enumerate(rows) if row.content is None}
    after, until = rows[0].position - 1, rows[-1].position
    while found := log.read_contents(after=after, until=until, bytes_max=PAGE_BYTES):
        for position in found.keys() & lacking.keys():
            index = lacking[position]
            rows[index] = structs.replace(rows[index], content=found[position])
        after = max(found)
    return section._replace(rows=rows)


def _begun(source: Source, place: ExportPlace, catalog: Catalog, keys: MediatorKeys) -> Source:
    """The source, with its export, and with states and seam if these stand for pruned rows."""
    source = replace(source, place=place, catalog=catalog)
    beginning = beginning_of(place, catalog, keys, source.constants["mediator_did"])
    if beginning is None:
        return source
    constants = {**source.constants, SEAM: beginning.seam}
    return replace(source, constants=constants, states=beginning.states)


def _check_not_pruned(name: str, catalog: Catalog, until: AsOf) -> None:
    try:
        catalog.check_not_pruned(until)
    except RowsPruned as error:
        remedy = "Name a later time or position, or omit --as-of."
        raise Stop(Exit.USAGE, f"{name}: {error}", remedy) from error


def _is_served_elsewhere(data_dir: Path, target: Target) -> bool:
    """Do mediators work in this directory, and is it not the restore's own target?"""
    return (data_dir / LOCK).exists() and data_dir.resolve() != target.data_dir.resolve()


def _refuse_several(text: str) -> None:
    """Refuse several databases at once: each is restored alone, into a database of its own."""
    found = exports_in(text)
    if found not in ([], [text]):
        raise Stop(
            Exit.USAGE,
            f"{open_place(text).address()} holds the exports of {len(found)} databases of one log",
            f"Restore each of its folders {folder_name(0)} to {folder_name(len(found) - 1)} into an"
            " empty database of its own, and name these in the same order with --log.",
        )


def _export_source(place: ExportPlace, keys: MediatorKeys, until: AsOf) -> Source:
    try:
        head = export_head(place, None)
    except FileMissing:
        remedy = "Name the folder or URI that poste export wrote to with --from."
        raise Stop(Exit.UNREACHABLE, f"there is no export at {place.address()}", remedy) from None
    own = PublicKey(keys.signing_public).text
    _check_key("the export", head.mediator_did, head.public_key, own)
    catalog = catalog_of(place, PublicKey(keys.signing_public).verify, is_whole=True)
    constants = {"mediator_did": head.mediator_did, "shards": str(head.shards), MEDIATOR_KEY: own}
    name = place.address()
    _check_not_pruned(name, catalog, until)
    if isinstance(until, datetime):
        _check_complete(name, catalog, until)
        reached = DatabaseExport(name, place, catalog).position_at(until)
        until = _until(name, reached, until)
    sections = exported_sections(place, catalog, until)
    return _begun(Source(name, sections, constants, catalog.last, until), place, catalog, keys)


def _check_key(what: str, did: str, known: str, own: str) -> None:
    """Refuse a log or an export that belongs to another key than the one at hand."""
    if known != own:
        raise Stop(
            Exit.UNSAFE,
            f"{what} belongs to {did} with the key {known}, but the given keys belong to {own}",
            f"Name the backup of the keys of {did} with --keys.",
        )


def _until(name: str, reached: int, at: datetime) -> int:
    """The position that was reached at ``at``, refused if there was none yet."""
    if not reached:
        remedy = "Name a later time."
        raise Stop(Exit.USAGE, f"{name} begins after {at.isoformat()}", remedy)
    return reached


def _reached_in(sections: Iterable[LogSection], at: datetime) -> int:
    """The position of the last seal that was made until ``at``; 0 for none."""
    at_ms = (at - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
    seals = (row for section in sections for row in section.rows if row.topic == SEAL_TOPIC)
    made = (seal.position for seal in seals if decode(seal.topic, seal.state).at_ms <= at_ms)
    return max(made, default=0)


def _check_complete(name: str, catalog: Catalog, at: datetime) -> None:
    until_ms = catalog.complete_until_ms
    if until_ms is None or at.timestamp() * 1000 > until_ms:
        said = (
            "does not say until when it is complete"
            if until_ms is None
            else f"is complete until {datetime.fromtimestamp(until_ms / 1000, UTC).isoformat()}"
        )
        remedy = "Name an earlier time or a position, or omit --as-of."
        raise Stop(Exit.USAGE, f"{name} {said}, not until {at.isoformat()}", remedy)


# ---- erasures behind the end of a restored log


class LaterErasure(NamedTuple):
    """The DID that was erased, None if its name is lost; ``is_foreign``: only others name it."""

    did: str | None
    is_foreign: bool = False


def later_erasures(source: Source, dsn: str, end: int) -> tuple[Mapping[str, LaterErasure], int]:
    """Who was erased behind ``end``, and is in the log that ends there; up to where that is known.

    Streams are as in receipts. One that was not here by then is in the log if others name it:
    whether it was erased as such, came later, or is of another database. Nothing behind ``end``
    is known if the source and its export end there, or cannot be read.
    """
    try:
        behind = [row for row in _rows_behind(source, end) if row.topic in _ERASING]
        begun = {row.stream for row in behind if row.topic == _BEGUN}
        with closing(open_log(dsn, to_read=True)) as log:
            names = IdentityNames(log)(begun)
            every = {row.stream for row in behind}
            newest = {s: log.read_stream(UUID(bytes=s), newest_first=True, limit=1) for s in every}
            left = {s for s, rows in newest.items() if all(r.topic == _ERASED for r in rows)}
            foreign = _named_by_others(log, {s for s in left if s not in begun or not newest[s]})
    except (ExportError, LogError):
        return {}, end
    here = {s: names[s] for s in begun - left}
    later = {
        stream.hex(): LaterErasure(name if name and not is_erased_name(name) else None, is_foreign)
        for named, is_foreign in ((here, False), (foreign, True))
        for stream, name in named.items()
    }
    exported = source.catalog.last if source.catalog else 0
    return dict(sorted(later.items())), max(end, source.last, exported)


def _named_by_others(log: LogReader, streams: Collection[bytes]) -> Mapping[bytes, str]:
    """The names of these streams (16 bytes each) that rows of the log have."""
    found: dict[bytes, str] = {}

    def note(name: Any) -> Any:
        digest: Any = digest_of(name) if isinstance(name, str) else None
        if is_erased(digest) and digest.data in streams:
            found[digest.data] = name
        return name

    for section in log_sections(log, 0) if streams else ():
        for row in section.rows:
            if (kind := TYPE_BY_TOPIC.get(row.topic)) is not None:
                renamed_state(kind, row.state, note)
    return found


def _rows_behind(source: Source, end: int) -> Iterator[LogRow]:
    """Rows behind ``end``, with all that begin or end an erasure: these never leave."""
    if source.log is not None:
        for section in log_sections(source.log, end):
            yield from section.rows
        end = max(end, source.last)
    for statement in source.catalog.statements if source.catalog else ():
        manifest = statement.manifest
        if manifest.last > end and any(_ERASING & file.types.keys() for file in manifest.files):
            assert source.place is not None
            for rows in manifest_rows(source.place, manifest):
                yield from (row for row in rows if row.position > end)
