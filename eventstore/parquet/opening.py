"""Opens what a path or URI names: the export of a log, or those of all its databases together."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final, NamedTuple, TypeAlias

from eventstore.log.databases import folder_name
from eventstore.log.public_key import PublicKey, PublicKeyRefused, read_public_key
from eventstore.parquet.catalog import Catalog, catalog_of
from eventstore.parquet.databases import check_one_log, exports_in
from eventstore.parquet.errors import ExportDamaged, ExportError
from eventstore.parquet.files import HEAD, ExportPlace, FileMissing, open_place
from eventstore.parquet.manifest import ExportHead, Verify, read_head
from eventstore.parquet.tree import check_not_cut, published_note

AsOf: TypeAlias = datetime | int | None
"""A time (with its zone) or a position of the log; None for all that is exported."""
_MS: Final = 1_000


def point_in_log(text: str) -> AsOf:
    """A position of the log, or a time in ISO 8601; in UTC if it names no zone.

    Raises:
        ValueError: the text is neither.
    """
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        said = f"{text!r} is neither a position nor a time like 2030-12-31T23:59:59Z"
        raise ValueError(said) from error
    return at if at.tzinfo else at.replace(tzinfo=UTC)


class NoExport(ExportError):
    """There is no export in the place that was named."""


class NotExported(ExportError):
    """The export does not reach the position that was named."""


class OpenedExport(NamedTuple):
    """The export of one database, and what it held when it was opened."""

    target: str
    place: ExportPlace
    catalog: Catalog

    @property
    def head(self) -> ExportHead:
        """Whose export it is."""
        assert self.catalog.head is not None
        return self.catalog.head


def open_exports(target: str, signer: PublicKey | None = None) -> list[OpenedExport]:
    """The export at a path of this machine or a URI, or those of all databases there.

    Everything in it that is signed has to be signed by ``signer``; without one by the key that the
    export names itself, and whose that is, nothing says.

    Raises:
        NoExport: there is no export.
        ExportDamaged: names the file and says what is wrong with it, a wrong signature included;
            also if an export of several is missing.
        ExportUnavailable: the place cannot be read now.
    """
    targets = exports_in(target)
    parts = [_opened(one, signer) for one in targets or [target]]
    if targets not in ([], [target]):
        check_one_log([part.catalog for part in parts])
    return parts


def require(catalogs: Sequence[Catalog], as_of: AsOf) -> None:
    """Say what is wrong with a point in the log before it is looked for.

    Args:
        catalogs: of the exports of all databases of the log.
        as_of: the point.

    Raises:
        NotExported: the exports end before it, or may be incomplete until then, or it names none.
    """
    if isinstance(as_of, datetime):
        _check_complete(catalogs, as_of)
    elif as_of is None:
        return
    elif len(catalogs) > 1:
        raise NotExported(
            f"position {as_of}: the log has {len(catalogs)} databases, each with positions of"
            " its own: name a time, or the export of one database"
        )
    elif as_of > catalogs[0].last:
        raise NotExported(f"position {as_of}: the export ends at {catalogs[0].last}")


def signer_said(key: str, signer: PublicKey | None) -> str:
    """Who has signed an export, and whether that is the mediator that was named."""
    if signer is None:
        return f"{key}, and whose key that is, is not known: none was named (--public-key)"
    return f"{key}, the key that was expected"


def _check_complete(catalogs: Sequence[Catalog], at: datetime) -> None:
    for number, catalog in enumerate(catalogs):
        until_ms = catalog.complete_until_ms
        name = f"{folder_name(number)}: " if len(catalogs) > 1 else ""
        if until_ms is None:
            raise NotExported(
                f"{name}the export does not say until when it is complete, for it is not done"
                " or of an earlier release: export once more, or name a position"
            )
        if at.timestamp() * _MS > until_ms:
            until = datetime.fromtimestamp(until_ms / _MS, UTC).isoformat(timespec="seconds")
            raise NotExported(
                f"{name}{at.isoformat()}: the export is complete until {until}, position"
                f" {catalog.last}: name an earlier time, or wait for what is exported next"
            )


def _opened(target: str, signer: PublicKey | None) -> OpenedExport:
    place = open_place(target)
    # Before the catalog: a head of more seals than the newest version has says that it was cut.
    note = published_note(place)
    catalog = catalog_of(place, _verify_of(place, signer), is_listed=False)
    if catalog.head is None:
        why = "no export is here" if place.exists() else "there is no such folder"
        raise NoExport(f"{place.address()}: {why}")
    if note is not None:
        newest = catalog.statements[-1].manifest if catalog.statements else None
        check_not_cut(note, read_public_key(catalog.head.public_key), newest)
    return OpenedExport(target, place, catalog)


def _verify_of(place: ExportPlace, signer: PublicKey | None) -> Verify | None:
    """The check of signatures; None where there is no export, or none that can be read."""
    if signer is not None:
        return signer.verify
    try:
        named = read_head(HEAD, place.read(HEAD)).public_key
    except (FileMissing, ExportDamaged):
        return None
    try:
        return read_public_key(named).verify
    except PublicKeyRefused:
        return lambda _message, _signature: False
