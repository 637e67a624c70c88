"""The questions of an audit to an export, and the answers.

``look_up`` finds one message or identity by the index and the seals of the export. The program
``projections audit`` reads a ``Question`` as JSON, and answers in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Final, NamedTuple, TypeAlias, assert_never

import msgspec

from eventstore.log.pseudonyms import PREFIX, fingerprint, pseudonym_of, pseudonymous
from eventstore.log.public_key import PublicKey
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import Record, identity_records, message_records
from eventstore.parquet.catalog import pruned_text
from eventstore.parquet.opening import AsOf, OpenedExport, Position, open_exports

_NO_INDEX: Final = (
    "this export has no index, so all of it was read; the next poste export makes one"
)


class OfMessage(NamedTuple):
    """The life of one message: ``events``, in order."""

    message_id: str


class OfIdentity(NamedTuple):
    """What an identity did and received: ``history``, ``traffic`` and ``refused`` commands.

    With the key of the pseudonyms, the DID may be a pseudonym.
    """

    did: str


OfOne: TypeAlias = OfMessage | OfIdentity


class OfRefusals(msgspec.Struct, frozen=True, tag="refused"):
    """The ``refused`` commands by sender, and the ``queues`` that began to refuse messages."""


class OfReplays(msgspec.Struct, frozen=True, tag="replays"):
    """The commands ``refused`` as replays."""


class OfStuck(msgspec.Struct, frozen=True, tag="stuck"):
    """The ``messages`` that wait longer than a time, or were delivered too often, worst first.

    ``older_than_s`` and ``deliveries_min`` are at least 1.
    """

    older_than_s: int
    deliveries_min: int


class Period(NamedTuple):
    """A time from ``since`` until before ``until``; None for no bound."""

    since: datetime | None = None
    until: datetime | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question that needs all rows of an export, which Spark reads.

    Attributes:
        source: The folder or URI of the export, or of the exports of all databases.
        subject: What the question is about.
        period: When that was refused, or queued.
        as_of: The point in the log as text, a position or a time; None for all of it.
        key_file: The key that makes pseudonyms of names; None to show names.
        public_key: The key that must have signed the export, as text; None for any.
        rows_max: The most rows of each list; an answer with one row more says that there are more.
    """

    source: str
    subject: OfRefusals | OfReplays | OfStuck
    period: Period = Period()
    as_of: str | None = None
    key_file: str | None = None
    public_key: str | None = None
    rows_max: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of an export.

    Attributes:
        name: The message or identity of the question, as the rows name it; empty for a range.
        positions: The positions in each database up to which the answer holds.
        at_ms: The time of these positions, Unix milliseconds.
        signed_by: The public key that signed the export, as text.
        key_is_trusted: Whether this is the expected key; False if the question names none.
        pseudonyms: The fingerprint of the key of the pseudonyms; empty without one.
        found: Records by the name of their list.
        note: A remark on how they were found; empty for none.
    """

    name: str = ""
    positions: Position
    at_ms: int
    signed_by: str
    key_is_trusted: bool
    pseudonyms: str
    found: dict[str, list[Record]]
    note: str = ""


def look_up(
    source: str, subject: OfOne, *, as_of: AsOf, key: bytes | None, signer: PublicKey | None
) -> Answer:
    """Look up one message or identity; seals prove the answer.

    Args:
        source: the folder or URI of the export, or of the exports of all databases.
        subject: the message or identity.
        as_of: the point in the log, a position or a time; None for all of it.
        key: makes pseudonyms of names; None to show names.
        signer: the key that must have signed the export; None for any.

    Raises:
        NoExport, NotExported, ExportDamaged, ExportUnavailable: see ``eventstore.parquet.opening``;
            a file that was tampered with raises ``ExportDamaged``, and gives no answer.
    """
    export = open_exports(source, signer)
    positions = export.position(as_of)
    is_indexed = all(part.catalog.index or not part.catalog.rows for part in export.parts)
    with ExitStack() as stack:
        lookups = [
            stack.enter_context(Lookup(part, at, number if len(positions) > 1 else None))
            for number, (part, at) in enumerate(zip(export.parts, positions, strict=True))
        ]
        name, found = _found(lookups, subject, key)
    if key is not None:
        found = {what: [pseudonymous(one, key) for one in rows] for what, rows in found.items()}
    return Answer(
        name=name,
        positions=positions,
        at_ms=export.at_ms(positions, as_of),
        signed_by=export.head.public_key,
        key_is_trusted=signer is not None,
        pseudonyms=fingerprint(key),
        found=found,
        note="; ".join([*([] if is_indexed else [_NO_INDEX]), *_removed(export, lookups)]),
    )


def _removed(export: OpenedExport, lookups: Sequence[Lookup]) -> Iterator[str]:
    for part, lookup in zip(export.parts, lookups, strict=True):
        if lookup.removed:
            yield (
                f"{lookup.removed} of the rows that name it are missing:"
                f" {pruned_text(part.catalog)}"
            )


def _found(
    lookups: Sequence[Lookup], subject: OfOne, key: bytes | None
) -> tuple[str, dict[str, list[Record]]]:
    match subject:
        case OfMessage(message_id):
            return message_id, {"events": message_records(lookups, message_id)}
        case OfIdentity(did):
            behind = _name_behind(lookups, did, key)
            if behind is None:
                return did, {}
            shown = behind if key is None else pseudonym_of(behind, key)
            return shown, identity_records(lookups, behind)._asdict()
        case _:
            assert_never(subject)


def _name_behind(lookups: Sequence[Lookup], did: str, key: bytes | None) -> str | None:
    if key is None or not did.startswith(PREFIX):
        return did
    names = (lookup.name_behind(did, key) for lookup in lookups)
    return next((name for name in names if name is not None), None)
