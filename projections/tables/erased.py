"""Erased identities: no table that is written after an erasure names them by their DIDs.

A table has ``ERASED`` in place of the DID of an identity that was erased and has not come back. The
table of identities has the streams of these identities; a DID belongs to one of them if its stream,
which is derived from the DID (UUIDv5), is among these. So a rebuild that continues earlier tables
knows the erased identities, although those tables no longer have their DIDs. The rebuild rewrites
the rows that name identities erased since. It cannot continue rows that lost the name of their own
stream: when an erased identity has come back, it makes all tables anew. Names may leave the former
life of one that came back only after that: then a rebuild in full has fewer names.

A DID that speaks for an account again after its erasure counts as come back, as in the log.

Names leave the export, too (``eventstore.log.name_erasure``), from some of its files earlier than
from others. So all rows of an erased identity, even of one that has come back, get one name before
tables are made of them (``with_names``).

A key of another owner, a channel or a tag that reads like such a DID stays where living data needs
it, as in the log.

With pseudonyms no DID is hidden, because such tables have none. The text in place of a name that
left has another pseudonym than the name, so rows with such texts are given one name before they get
pseudonyms, and earlier tables are not continued by them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eventstore.log.events import IdentityErased, SpeakerNamed, type_name
from eventstore.log.name_erasure import COMING_BACK
from eventstore.log.streams import ERASED as LEFT
from eventstore.log.streams import KINDS, NAMESPACE

ERASED: Final = "erased"
"""Replaces the DID of an erased identity."""
ERASURES: Final = type_name(IdentityErased)
EVERY_KIND: Final = ("", *KINDS)
"""The prefixes of all names that leave; that of identities is empty."""
_COMING_BACK: Final = tuple(map(type_name, COMING_BACK))
_NAMED: Final = type_name(SpeakerNamed)
_DIDS: Final = (
    *("identity", "sender_did", "recipient_did", "requestor_did", "did", "peer_did"),
    *("owner_did", "by_did", "speaker_did", "account_did"),
)
"""The columns of tables that hold a DID. A partition whose name is a DID keeps it."""
_PREFIX: Final = NAMESPACE.bytes + b"identity:"
_GONE: Final = "gone"
_NAME: Final = "name_of_stream"
_LEFT_NAME: Final = rf"^({'|'.join(KINDS)}|){LEFT}([0-9a-f]{{32}})$"


def without_erased(rows: DataFrame, erased: DataFrame) -> DataFrame:
    """Replace the DIDs of erased identities, by their ``stream``, in the rows of a table.

    Also the texts that took the place of such DIDs in the log.
    """
    gone = erased.select(F.col("stream").alias(_GONE))
    for name in reversed(names_in(rows.columns)):  # the identity last: see _stream_of
        joined = rows.join(
            F.broadcast(gone), _stream_of(name, rows.columns) == F.col(_GONE), "left"
        )
        is_gone = F.col(_GONE).isNotNull() | F.col(name).startswith(LEFT)
        hidden = F.when(is_gone, F.lit(ERASED)).otherwise(F.col(name))
        rows = joined.withColumn(name, hidden).drop(_GONE)
    return rows


def erased_identities(rows: DataFrame) -> DataFrame:
    """The ``stream`` and ``identity`` of the erased identities.

    ``rows`` are of the table of identities, which hides the names, or of ``said_last``.
    """
    return rows.where("erased").select("stream", "identity")


def without_speakers(erased: DataFrame, account_names: DataFrame) -> DataFrame:
    """The erased identities but those that speak for an account, by the table of account names.

    The table of identities calls these erased, too, until they register or connect.
    """
    speakers = account_names.where(F.col("account_did") != ERASED).select("stream")
    return erased.join(speakers, "stream", "left_anti")


def about_names(events: DataFrame) -> DataFrame:
    """Select the events that end a name, bring it back, or have lost it: few of a log.

    These rows answer all questions about names, so the caller keeps them.
    """
    is_said = F.col("type").isin(ERASURES, *_COMING_BACK)
    account = F.col("owner_did")
    speaks = (F.col("type") == _NAMED) & (account != "") & ~account.startswith(LEFT)
    place = ("stream", "type", "version", "identity")
    return events.where(is_said | _is_left()).select(*place, speaks.alias("speaks"))


def said_last(about: DataFrame) -> DataFrame:
    """Whether each identity is erased, by the last event that says so or brings it back.

    ``about`` are rows of ``about_names`` with all events of the identities from some version on.
    Identities that these events do not concern are left out.
    """
    said = about.where(F.col("type").isin(ERASURES, *_COMING_BACK))
    # A DID that an account has let go is what it was before it spoke for that.
    others = F.when(F.col("type") != _NAMED, F.col("version"))
    erased = F.max_by(F.col("type") == ERASURES, others) & ~F.max_by("speaks", "version")
    # The text in place of a name that left sorts after any DID.
    return said.groupBy("stream").agg(erased.alias("erased"), F.min("identity").alias("identity"))


def names_of(about: DataFrame) -> DataFrame:
    """The ``stream`` and one ``identity`` of each erased stream, whose events may have two names.

    For an identity this is its DID, if a row still has it; for keys and invitations that such an
    identity took, the text in place of their name. An event has its stream's own name, or that text
    if the name left: a stream without such events has one name.

    Args:
        about: rows of ``about_names``.
    """
    left = F.max(_is_left()).alias("left")
    of_streams = about.groupBy("stream").agg(left, F.min("identity").alias("identity"))
    return of_streams.where("left").select("stream", "identity")


def with_names(events: DataFrame, names: DataFrame) -> DataFrame:
    """The events, with the name from ``names`` for the streams in ``names``."""
    named = names.select("stream", F.col("identity").alias(_NAME))
    joined = events.join(F.broadcast(named), "stream", "left")
    return joined.withColumn("identity", F.coalesce(_NAME, "identity")).drop(_NAME)


def left_streams(about: DataFrame) -> DataFrame:
    """The ``stream`` of each erased name that has left some event, or is to leave.

    Args:
        about: rows of ``about_names``.
    """
    erased = erased_identities(said_last(about)).select("stream")
    return erased.unionAll(names_of(about).select("stream")).distinct()


def without_names(rows: DataFrame, left: DataFrame) -> DataFrame:
    """Replace each name of these streams by the text that takes its place in the log.

    So rows that still have such a name equal rows that have lost it.
    """
    for name in names_in(rows.columns):
        digits = F.regexp_extract(name, _LEFT_NAME, 2)
        stream = F.when(digits == "", stream_named(F.col(name))).otherwise(F.unhex(digits))
        gone = left.select(F.col("stream").alias(_GONE))
        joined = rows.join(F.broadcast(gone), stream == F.col(_GONE), "left")
        kind = F.regexp_extract(name, rf"^({'|'.join(KINDS)})", 1)
        stands = F.concat(kind, F.lit(LEFT), F.lower(F.hex(_GONE)))
        rows = joined.withColumn(name, F.coalesce(stands, name)).drop(_GONE)
    return rows


def has_nameless(about: DataFrame, kinds: Collection[str]) -> bool:
    """Whether one of these events is of a stream, of one of these kinds, whose name has left."""
    return bool(about.where(_is_left(kinds)).limit(1).count())


def has_returned(about: DataFrame) -> bool:
    """Whether one of these events erased an identity that has come back since.

    The names of its former life leave the whole export, and nothing else says so.
    """
    gone = erased_identities(said_last(about)).select("stream")
    ended = about.where(F.col("type") == ERASURES).select("stream")
    return bool(ended.join(gone, "stream", "left_anti").limit(1).count())


def named_before(names: DataFrame, identities: DataFrame) -> DataFrame:
    """Replace names that have left since by those in an earlier table of identities."""
    before = identities.select("stream", F.col("identity").alias(_NAME))
    left = F.col("identity").startswith(LEFT)
    name = F.when(left, F.coalesce(_NAME, "identity")).otherwise(F.col("identity"))
    return names.join(before, "stream", "left").select("stream", name.alias("identity"))


def has_events_of(events: DataFrame, identities: DataFrame) -> bool:
    """Whether one of these events is of one of these identities."""
    streams = F.broadcast(identities.select("stream"))
    return bool(events.select("stream").join(streams, "stream", "left_semi").limit(1).count())


def names_in(columns: Collection[str]) -> list[str]:
    """The columns among these that hold a DID."""
    return [name for name in _DIDS if name in columns]


def stream_named(did: Column) -> Column:
    """The stream of a DID, 16 bytes (``eventstore.log.streams``; RFC 9562, version 5)."""
    sha1 = F.sha1(F.concat(F.lit(_PREFIX), did.cast("binary")))
    return F.unhex(
        F.concat(
            F.substring(sha1, 1, 12),
            F.lit("5"),
            F.substring(sha1, 14, 3),
            F.translate(F.substring(sha1, 17, 1), "0123456789abcdef", "89ab89ab89ab89ab"),
            F.substring(sha1, 18, 15),
        )
    )


def _is_left(kinds: Collection[str] = EVERY_KIND) -> Column:
    """Whether an event, of a stream of one of these kinds, has lost its name."""
    return reduce(Column.__or__, [F.col("identity").startswith(kind + LEFT) for kind in kinds])


def _stream_of(name: str, columns: Collection[str]) -> Column:
    """The stream of the identity whose DID a column holds.

    Most often the DID is that of the row's own stream, which the row has.
    """
    if not {"stream", "identity"}.issubset(columns):
        return stream_named(F.col(name))
    if name == "identity":
        return F.col("stream")
    return F.when(F.col(name) == F.col("identity"), F.col("stream")).otherwise(
        stream_named(F.col(name))
    )
