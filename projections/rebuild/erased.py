"""Identities that were erased: no table that is written afterwards has their DIDs.

Where a table would have the DID of an identity that was erased and has not come back, it has
``ERASED``. The streams of these identities stand in the table of identities; a DID belongs to one
of them if its stream, which follows from it (UUIDv5), is among them. So a rebuild that continues an
earlier one knows them, whose tables have no DID of theirs any more. Rows cannot be continued that
lost their names: after an erasure, and when an identity has come back, all tables are made anew.

With pseudonyms nothing is done: there is no DID in such tables.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that all of Spark's users know

from eventstore.log.codec import NAMESPACE
from eventstore.log.events import (
    ConnectionEstablished,
    IdentityErased,
    IdentityRegistered,
    type_name,
)

ERASED: Final = "erased"
"""Instead of the DID."""
ERASURES: Final = type_name(IdentityErased)
_COMING_BACK: Final = (type_name(IdentityRegistered), type_name(ConnectionEstablished))
_DIDS: Final = (
    *("identity", "sender_did", "recipient_did", "requestor_did", "did", "peer_did"),
    *("owner_did", "by_did", "speaker_did", "account_did"),
)
"""The columns of tables that hold a DID. A partition that is one keeps its name."""
_PREFIX: Final = NAMESPACE.bytes + b"identity:"


def erased_streams(identities: DataFrame) -> list[str]:
    """The streams, in hexadecimal, of the identities in such rows, or in their table."""
    found = identities.where("erased").select(F.lower(F.hex("stream")).alias("stream")).collect()
    return sorted(row["stream"] for row in found)


def said_last(events: DataFrame) -> DataFrame:
    """Of each identity, by its events from the first on, whether it is erased."""
    said = events.where(F.col("type").isin(ERASURES, *_COMING_BACK))
    erased = F.max_by(F.col("type") == ERASURES, F.col("version"))
    return said.groupBy("stream").agg(erased.alias("erased"))


def has_events_of(events: DataFrame, streams: Collection[str]) -> bool:
    """Is one of these events of one of these streams?"""
    if not streams:
        return False
    return bool(events.where(F.lower(F.hex("stream")).isin(*streams)).limit(1).count())


def without_names(rows: DataFrame, streams: Sequence[str]) -> DataFrame:
    """The rows, with no DID of the identities of these streams."""
    if not streams:
        return rows
    names = [name for name in _DIDS if name in rows.columns]
    return rows.withColumns({name: _hidden(F.col(name), streams) for name in names})


def _hidden(did: Column, streams: Sequence[str]) -> Column:
    return F.when(_stream_of(did).isin(*streams), F.lit(ERASED)).otherwise(did)


def _stream_of(did: Column) -> Column:
    """``eventstore.log.codec.identity_stream`` in hexadecimal (RFC 9562, version 5)."""
    sha1 = F.sha1(F.concat(F.lit(_PREFIX), did.cast("binary")))
    return F.concat(
        F.substring(sha1, 1, 12),
        F.lit("5"),
        F.substring(sha1, 14, 3),
        F.translate(F.substring(sha1, 17, 1), "0123456789abcdef", "89ab89ab89ab89ab"),
        F.substring(sha1, 18, 15),
    )
