"""What an audit asks of an export, and what it is answered, by Spark or without it.

A look-up without Spark (``eventstore.parquet.audit.answering``) answers what is asked of one thing;
the program ``projections audit`` answers all, as JSON for JSON.
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
    """What an identity did and was given: its ``history``, ``traffic`` and what was ``refused``.

    The DID may be the pseudonym of one, with the key of the pseudonyms.
    """

    did: str


class OfRefusals(msgspec.Struct, frozen=True, kw_only=True, tag="refused"):
    """What was ``refused`` to whom, and the ``queues`` that began to refuse messages.

    Of a time from ``since`` on and before ``until``; None for no end.
    """

    since: datetime | None = None
    until: datetime | None = None


class OfReplays(msgspec.Struct, frozen=True, kw_only=True, tag="replays"):
    """What was ``refused`` as a replay, in a time as that of ``OfRefusals``."""

    since: datetime | None = None
    until: datetime | None = None


class OfStuck(msgspec.Struct, frozen=True, kw_only=True, tag="stuck"):
    """``messages`` that wait for longer than a time, or were handed out so often, worst first.

    Queued in a time as that of ``OfRefusals``; ``older_than_s`` and ``deliveries_min`` are 1 at
    least.
    """

    older_than_s: int
    deliveries_min: int
    since: datetime | None = None
    until: datetime | None = None


OfOne: TypeAlias = OfMessage | OfIdentity
Subject: TypeAlias = OfOne | OfRefusals | OfReplays | OfStuck


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked of which export.

    Attributes: source: The export, or the place with the exports of all databases: a folder or a
    URI. subject: What of it. as_of: The point in the log as text, a position or a time; None for
    all of it. key_file: The key of the pseudonyms that stand for names; None for names as they are.
    public_key: Whose signatures are expected, as text; None for any. rows_max: Of each list; one
    row more says that there are more.
    """

    source: str
    subject: Subject
    as_of: str | None = None
    key_file: str | None = None
    public_key: str | None = None
    rows_max: int


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the export says.

    Attributes:
        name: The message or identity that was asked for, as the rows name it; empty for a range.
        positions: How far the log is that was asked, in each of its databases.
        at_ms: When that was, Unix milliseconds.
        signed_by: The public key that has signed the export, as text.
        key_is_trusted: Whether that is the one that was expected; False where none was named.
        pseudonyms: The fingerprint of their key; empty without one.
        found: Records by the name of their list.
        note: What is worth knowing of how they were found; empty for nothing.
    """

    name: str = ""
    positions: list[int]
    at_ms: int
    signed_by: str
    key_is_trusted: bool
    pseudonyms: str
    found: dict[str, list[Record]]
    note: str = ""
