"""The questions of an audit to an export, and the answers, with or without Spark.

``answer`` looks up one message or identity by the index and the seals of the export. The program
``projections audit`` reads any question as JSON, and answers in JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Final, TypeAlias, assert_never

import msgspec

from eventstore.log.pseudonyms import PREFIX, fingerprint, pseudonym_of, pseudonymous, read_key
from eventstore.log.public_key import read_public_key
from eventstore.parquet.audit.lookup import Lookup
from eventstore.parquet.audit.records import Record, identity_records, message_records
from eventstore.parquet.catalog import pruned_text
from eventstore.parquet.opening import OpenedExport, open_exports, point_in_log

_MS: Final = 1_000
_NO_INDEX: Final = (
    "this export has no index, so all of it was read; the next poste export makes one"
)


class OfMessage(msgspec.Struct, frozen=True, tag="message"):
    """The life of one message: ``events``, in order."""

    message_id: str


class OfIdentity(msgspec.Struct, frozen=True, tag="identity"):
    """What an identity did and received: ``history``, ``traffic`` and ``refused`` commands.

    With the key of the pseudonyms, the DID may be a pseudonym.
    """

    did: str


class OfRefusals(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """The ``refused`` commands by sender, and the ``queues`` that began to refuse messages.

    From ``since`` until before ``until``; None for no bound.
    """

    since: datetime | None = None
    until: datetime | None = None


class OfReplays(msgspec.Struct, frozen=True, kw_only=True, tag="replays"):
    """The commands ``refused`` as replays, in a time as in ``OfRefusals``."""

    since: datetime | None = None
    until: datetime | None = None


class OfStuck(msgspec.Struct, frozen=True, kw_only=True, tag="stuck"):
    """The ``messages`` that wait longer than a time, or were delivered too often, worst first.

    They were queued in a time as in ``OfRefusals``; ``older_than_s`` and ``deliveries_min`` are at
    least 1.
    """

    older_than_s: int
    deliveries_min: int
    since: datetime | None = None
    until: datetime | None = None


OfOne: TypeAlias = OfMessage | OfIdentity
Subject: TypeAlias = OfOne | OfRefusals | OfReplays | OfStuck


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question to an export.

    Attributes:
        source: The folder or URI of the export, or of the exports of all databases.
        subject: What the question is about.
        as_of: The point in the log as text, a position or a time; None for all of it.
        key_file: The key that makes pseudonyms of names; None to show names.
        public_key: The key that must have signed the export, as text; None for any.
        rows_max: The most rows of each list; an answer with one row more says that there are more.
    """

    source: str
    subject: Subject
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
    positions: list[int]
    at_ms: int
    signed_by: str
    key_is_trusted: bool
    pseudonyms: str
    found: dict[str, list[Record]]
    note: str = ""


def answer(question: Question, subject: OfOne) -> Answer:
    """Look up one message or identity; seals prove the answer.

    Args:
        question: the export to ask, and how.
        subject: the message or identity.

    Raises:
        NoExport, NotExported, ExportDamaged, ExportUnavailable: see ``eventstore.parquet.opening``;
            a file that was tampered with raises ``ExportDamaged``, and gives no answer.
        KeyRefused: the key of the pseudonyms cannot be used.
        ValueError, PublicKeyRefused: the point in the log or the public key cannot be parsed.
    """
    signer = None if question.public_key is None else read_public_key(question.public_key)
    key = None if question.key_file is None else read_key(question.key_file)
    as_of = None if question.as_of is None else point_in_log(question.as_of)
    export = open_exports(question.source, signer)
    positions = export.position(as_of)
    if isinstance(as_of, datetime):
        at_ms = round(as_of.timestamp() * _MS)
    else:
        at_ms = export.at_ms(positions)
    is_indexed = all(part.catalog.index or not part.catalog.rows for part in export.parts)
    with ExitStack() as stack:
        lookups = [
            stack.enter_context(Lookup(part, at, number if len(positions) > 1 else None))
            for number, (part, at) in enumerate(zip(export.parts, positions, strict=True))
        ]
        name, found = _found(lookups, subject, key, positions)
    if key is not None:
        found = {what: [pseudonymous(one, key) for one in rows] for what, rows in found.items()}
    return Answer(
        name=name,
        positions=list(positions),
        at_ms=at_ms,
        signed_by=export.head.public_key,
        key_is_trusted=signer is not None,
        pseudonyms=fingerprint(key),
        found={what: rows[: question.rows_max + 1] for what, rows in found.items()},
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
    lookups: Sequence[Lookup], subject: OfOne, key: bytes | None, positions: Sequence[int]
) -> tuple[str, dict[str, list[Record]]]:
    match subject:
        case OfMessage(message_id):
            # One database has a position to stop at; for several, ``as_of`` is a time or None.
            until = positions[0] if len(positions) == 1 else None
            return message_id, {"events": message_records(lookups, message_id, until)}
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
