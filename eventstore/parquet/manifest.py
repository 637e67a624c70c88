"""Manifests: the signed statements that make data files count.

A manifest stands for all rows of the log from ``first`` to ``last``: it follows the manifest
before it without a gap, ends at a seal, and names its files with their SHA-256. ``heads`` has the
newest seal of every partition up to ``last``, so that a log that later lost its end is recognised.

``previous`` chains manifests: it is the SHA-256 of the one before. A manifest that replaces
others (``eventstore.parquet.write.compaction``) takes their place in the chain: it has the
``previous`` of the first of them, and ``stands_for`` is the SHA-256 of the last of them.

Names of manifests and data files have a hash of the content and of the version of the table that
they are written for. So an exporter that was replaced cannot overwrite or delete its successor's
files, however late it runs: a later version gives the same content another name. Names that earlier
releases gave have no hash.

A manifest with ``pruned`` is the first one. It stands for the beginning of a log, of which only
needed rows are left (``eventstore.parquet.write.pruning``). No seal covers single rows, so only the
manifest's signature over their files proves these rows.

Manifests are canonical JSON (RFC 8785); the signature is over this JSON without ``signature``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias, TypeVar

import msgspec
import rfc8785

from eventstore.log.events import TYPE_BY_TOPIC
from eventstore.log.faults import Head
from eventstore.log.public_key import PublicKey, read_public_key
from eventstore.log.tiles import TiledTree
from eventstore.parquet.errors import Damage, ExportDamaged
from eventstore.parquet.files import EVENTS, HEAD, MANIFESTS, STATEMENT_BYTES_MAX, ExportPlace
from eventstore.parquet.schema import FORMAT, SCHEMA_VERSION, TABLE_FORMAT

Sign: TypeAlias = Callable[[bytes], bytes]
Verify: TypeAlias = Callable[[bytes, bytes], bool]
"""Whether the second argument is the mediator's signature of the first."""

_DIGEST_LENGTH: Final = 16
_SPAN: Final = r"(\d{20})-(\d{20})"
_STEM: Final = rf"{_SPAN}(?:-r[1-9]\d*|-[0-9a-f]{{{_DIGEST_LENGTH}}})?"
"""Positions, and a hash; earlier releases wrote how often the rows were rewritten, or nothing."""
_NAME: Final = re.compile(rf"{MANIFESTS}/{_STEM}\.json")
_FILE_NAME: Final = re.compile(rf"{EVENTS}/date=\d{{4}}-\d\d-\d\d/events-{_STEM}\.parquet")

_LARGE_NUMBER: Final = re.compile(rb"[:,\[]-?\d{16}")
"""What JSON has that has a number of 2**53 or more, which canonical JSON cannot say."""


class SignedStatement(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A statement of an export, stored as canonical JSON; ``signature`` is over the rest of it.

    A member that is None is not written.
    """

    formats: ClassVar[Sequence[int]] = (FORMAT,)
    """The values of ``format`` that this release knows."""
    format: int
    schema: int
    signature: str = ""


class _Versions(msgspec.Struct):
    """The members of every statement of an export, whichever release wrote it."""

    format: int | None = None
    schema: int | None = None


_S = TypeVar("_S", bound=SignedStatement)


class Signer(NamedTuple):
    """The mediator's key: its public key as text, and the function that signs."""

    signed_by: str
    sign: Sign

    @property
    def key(self) -> PublicKey:
        """The public key."""
        return read_public_key(self.signed_by)


class DataFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One Parquet file: rows of one day, sorted by position.

    ``first`` and ``last`` are the positions of its own first and last row; ``types`` counts its
    rows by topic; ``state_bytes`` is the sum of its states, uncompressed.
    """

    path: str
    rows: int
    first: int
    last: int
    bytes: int
    sha256: str
    state_bytes: int
    types: dict[str, int]

    @property
    def day(self) -> str:
        """The day (UTC) of its rows, as in its path."""
        return day_of(self.path)


class SealedHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The newest seal of a partition; ``digest`` in hexadecimal."""

    version: int
    digest: str


class ManifestTree(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tree over all seals of the log so far: their number, and the root in hexadecimal."""

    size: Annotated[int, msgspec.Meta(ge=0)]
    root: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class Pruned(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows that were removed from the positions of a manifest.

    ``rows`` counts the rows removed by this and earlier prunings. ``recorded_until_ms`` is when the
    last of all rows at these positions was recorded, ``at_ms`` when this was signed, both in Unix
    milliseconds.
    """

    rows: int
    recorded_until_ms: int
    at_ms: int


class Manifest(SignedStatement, frozen=True, kw_only=True):
    """The signed statement for the positions ``first`` to ``last`` of the log.

    ``tree`` is the tree of all seals up to ``last``. ``rewritten`` counts how often the rows were
    written again to leave out what was erased since; ``contents`` counts the rows that have their
    content. ``pruned`` says that rows between these positions were removed; ``tree`` and ``heads``
    stand for them. ``digest`` is a hash of the rest but for the signature (``digest_for``).
    Earlier releases wrote neither ``tree`` nor ``contents`` nor ``digest``.
    """

    first: int
    last: int
    rows: int
    files: list[DataFile]
    heads: dict[str, SealedHead]
    replaces: list[str]
    stands_for: str
    previous: str
    signed_by: str
    tree: ManifestTree | None = None
    rewritten: int | None = None
    contents: int | None = None
    pruned: Pruned | None = None
    digest: str | None = None

    @property
    def is_pruned(self) -> bool:
        """Whether rows were removed between the manifest's positions."""
        return self.pruned is not None

    @property
    def path(self) -> str:
        """The manifest's path in the export."""
        again = f"-r{self.rewritten}" if self.rewritten else ""
        suffix = f"-{self.digest}" if self.digest else again
        return f"{MANIFESTS}/{self.first:020d}-{self.last:020d}{suffix}.json"


class ExportHead(SignedStatement, frozen=True, kw_only=True):
    """``export.json``: the owner of the export."""

    formats: ClassVar[Sequence[int]] = (FORMAT, TABLE_FORMAT)
    mediator_did: str
    shards: int
    public_key: str


class Statement(NamedTuple):
    """A manifest that was read, with its place in the chain.

    A manifest from a summary (``eventstore.parquet.versions``) has no heads.
    """

    manifest: Manifest
    sha256: str
    """The SHA-256 of the stored manifest."""

    @property
    def link(self) -> str:
        """The ``previous`` of the next manifest."""
        return self.manifest.stands_for or self.sha256


def digest_for(version: int, sha256: str) -> str:
    """The digits in the name of a file with this SHA-256 that is written for a table's version."""
    return hashlib.sha256(f"{version} {sha256}".encode()).hexdigest()[:_DIGEST_LENGTH]


def data_path(date: str, first: int, last: int, digest: str) -> str:
    """The path of a data file with a day's rows between these positions."""
    return f"{EVENTS}/date={date}/events-{first:020d}-{last:020d}-{digest}.parquet"


def is_manifest(path: str) -> bool:
    """Whether this is the path of a manifest."""
    return _NAME.fullmatch(path) is not None


def positions_of(path: str) -> tuple[int, int]:
    """The first and last position that the path of a manifest, data or index file names."""
    first, last = re.findall(_SPAN, path)[0]
    return int(first), int(last)


def day_of(path: str) -> str:
    """The day that the path of a data file names, e.g. 2030-12-31."""
    return path.split("/")[1].removeprefix("date=")


def is_data(path: str) -> bool:
    """Whether this is the path of a data file."""
    return _FILE_NAME.fullmatch(path) is not None


def tree_said(tree: TiledTree) -> ManifestTree:
    """A tree in the form of manifests."""
    return ManifestTree(tree.size, tree.root().hex())


def heads_to_text(heads: Mapping[str, Head]) -> dict[str, SealedHead]:
    """Heads in the form of manifests."""
    return {name: SealedHead(head.version, head.digest.hex()) for name, head in heads.items()}


def signed(statement: _S, sign: Sign) -> tuple[_S, bytes]:
    """Sign a statement of an export; return it with its signature, and the bytes to store."""
    complete = msgspec.structs.replace(statement, signature=sign(_canonical(statement)).hex())
    return complete, _canonical(complete, is_whole=True)


def signed_manifest(manifest: Manifest, sign: Sign, version: int) -> tuple[Manifest, bytes]:
    """Sign a manifest for a version of the table; return it, and the bytes to store at its path."""
    digest = digest_for(version, hashlib.sha256(_canonical(manifest)).hexdigest())
    return signed(msgspec.structs.replace(manifest, digest=digest), sign)


def export_head(place: ExportPlace, verify: Verify | None) -> ExportHead:
    """Read ``export.json``.

    Raises:
        FileMissing: there is none.
        ExportDamaged: it is no head, of another format, or not signed by the mediator.
    """
    return verified_statement(HEAD, place.read(HEAD), ExportHead, verify)


def parse_manifest(path: str, content: bytes, verify: Verify | None) -> Statement:
    """Read a manifest and check its signature and figures.

    Raises:
        ExportDamaged: the manifest, or what it says about a file, cannot be right.
    """
    statement, damages = read_manifest(path, content, verify)
    if damages:
        raise damages[0]
    return statement


def read_manifest(
    path: str, content: bytes, verify: Verify | None
) -> tuple[Statement, list[ExportDamaged]]:
    """Read a manifest that may be damaged; return it with its damages.

    Raises:
        ExportDamaged: the manifest cannot be read, or its figures contradict each other.
    """
    manifest = parse_statement(path, content, Manifest)
    damages = list(signature_damage(path, manifest, content, verify))
    try:
        _check_figures(path, manifest)
    except ExportDamaged as error:
        # A bad signature tells more.
        raise (damages or [error])[0] from error
    if manifest.path != path:
        why = f"it is the manifest {manifest.path}"
        damages.append(ExportDamaged(path, Damage.MISPLACED, why))
    for file in manifest.files:
        unknown = sorted(file.types.keys() - TYPE_BY_TOPIC.keys())
        if unknown:
            why = f"has {', '.join(unknown)}, which this release does not know"
            damages.append(ExportDamaged(file.path, Damage.UNKNOWN_EVENT, why))
    return Statement(manifest, hashlib.sha256(content).hexdigest()), damages


def heads_of(path: str, manifest: Manifest) -> dict[str, Head]:
    """The heads of a manifest in the form of ``eventstore.log.row_check``.

    Raises:
        ExportDamaged: a digest is not hexadecimal.
    """
    try:
        return {
            name: Head(head.version, bytes.fromhex(head.digest))
            for name, head in manifest.heads.items()
        }
    except ValueError as error:
        raise ExportDamaged(path, Damage.BROKEN_MANIFEST, "a head is not hexadecimal") from error


def parse_statement(path: str, content: bytes, kind: type[_S], *, is_proven: bool = False) -> _S:
    """Read a signed statement, whichever key signed it.

    ``is_proven``: another signed statement names its SHA-256, of what the mediator wrote.

    Raises:
        ExportDamaged: the content is no such statement, or of another format.
    """
    check_size(path, content)
    try:
        made = msgspec.json.decode(content, type=_Versions)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ExportDamaged(path, Damage.BROKEN_MANIFEST, "not a JSON object") from error
    if made.format not in kind.formats or made.schema != SCHEMA_VERSION:
        known = " or ".join(map(str, kind.formats))
        why = f"format {made.format} and schema {made.schema}, this release knows {known} and 1"
        raise ExportDamaged(path, Damage.UNKNOWN_FORMAT, why)
    try:
        # Other members are not made into objects, which take many times the memory of the text.
        statement = msgspec.json.decode(content, type=kind)
        if not is_proven:
            _canonical(statement)
    except (ValueError, TypeError, KeyError) as error:
        raise ExportDamaged(path, Damage.BROKEN_MANIFEST, str(error)) from error
    return statement


def check_size(path: str, content: bytes) -> None:
    """Raise ``ExportDamaged`` if a statement or a commit has more than was read of it."""
    if len(content) > STATEMENT_BYTES_MAX:
        why = f"more than {STATEMENT_BYTES_MAX} bytes, which no exporter writes"
        raise ExportDamaged(path, Damage.TRUNCATED, why)


def verified_statement(path: str, content: bytes, kind: type[_S], verify: Verify | None) -> _S:
    """Read a signed statement as ``parse_statement`` does, and check its signature, too."""
    statement = parse_statement(path, content, kind)
    for damage in signature_damage(path, statement, content, verify):
        raise damage
    return statement


def signature_damage(
    path: str, statement: SignedStatement, content: bytes, verify: Verify | None
) -> Iterator[ExportDamaged]:
    """Yield the damage of a statement's signature or encoding, if any; at most one."""
    try:
        signature = bytes.fromhex(statement.signature)
    except ValueError:
        yield ExportDamaged(path, Damage.BROKEN_MANIFEST, "its signature is not hexadecimal")
        return
    if verify is not None and not verify(_canonical(statement), signature):
        yield ExportDamaged(path, Damage.BAD_SIGNATURE, "not signed by the mediator's key")
    elif (
        not signature
        or signature.hex() != statement.signature
        or _canonical(statement, is_whole=True) != content
    ):
        # It parses to the same statement, but the signature and the chain are over these bytes.
        yield ExportDamaged(path, Damage.BROKEN_MANIFEST, "not written as it was signed")


def owner_damage(path: str, signed_by: str, owner: str) -> Iterator[ExportDamaged]:
    """Yield the damage if a statement names another key than that of the export; at most one."""
    if signed_by != owner:
        why = f"signed by {signed_by}, the export is of {owner}"
        yield ExportDamaged(path, Damage.BAD_SIGNATURE, why)


def _check_figures(path: str, manifest: Manifest) -> None:
    rows = sum(file.rows for file in manifest.files)
    if not 0 < manifest.first <= manifest.last or rows != manifest.rows or rows == 0:
        why = f"{rows} rows in its files, {manifest.rows} rows in all"
        raise ExportDamaged(path, Damage.BROKEN_MANIFEST, why)
    if manifest.is_pruned and (manifest.first > 1 or manifest.tree is None):
        why = "what was pruned begins with position 1, and a tree stands for it"
        raise ExportDamaged(path, Damage.BROKEN_MANIFEST, why)
    for file in manifest.files:
        _check_file(path, manifest, file)


def _check_file(path: str, manifest: Manifest, file: DataFile) -> None:
    named = _FILE_NAME.fullmatch(file.path)
    if named is None or tuple(map(int, named.groups())) != (file.first, file.last):
        raise ExportDamaged(file.path, Damage.MISPLACED, f"listed with other positions in {path}")
    if not manifest.first <= file.first <= file.last <= manifest.last:
        raise ExportDamaged(file.path, Damage.MISPLACED, f"outside the positions of {path}")
    if file.bytes < 1 or sum(file.types.values()) != file.rows:
        raise ExportDamaged(path, Damage.BROKEN_MANIFEST, f"contradicts itself about {file.path}")


def _canonical(statement: object, *, is_whole: bool = False) -> bytes:
    """The canonical JSON of a statement, which has no fractions; ``is_whole``: with its signature.

    That of ASCII and small integers is JSON with its members sorted, which takes an eighth of the
    time; other members have another order, and other numbers are refused.
    """
    members = msgspec.to_builtins(statement)
    if not is_whole:
        members.pop("signature", None)
    plain = msgspec.json.encode(members, order="sorted")
    is_plain = plain.isascii() and not _LARGE_NUMBER.search(plain)
    return plain if is_plain else rfc8785.dumps(members)
