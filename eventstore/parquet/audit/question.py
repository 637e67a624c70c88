"""The questions of an audit to an export, and the answers, with or without Spark.

A look-up without Spark (``eventstore.parquet.audit.answering``) answers questions about one message
or identity; the program ``projections audit`` reads any question as JSON, and answers in JSON.
"""

from __future__ import annotations

from datetime import datetime
from typing import TypeAlias

import msgspec

from eventstore.parquet.audit.records import Record


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
