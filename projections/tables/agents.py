"""DIDComm agents: connections, devices, mediation, keys and invitations.

RFC 0160 and RFC 0023 (connections), RFC 0699 and RFC 0734 (devices), RFC 0211 (mediation, keylists,
owners of keys), RFC 0434 (invitations).
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from projections.tables.projection import (
    ACCOUNT_ENDS,
    ERASED,
    EXPIRED,
    PLACE,
    LiveRows,
    Projection,
    Step,
    earliest,
    latest_of,
    without,
)

_CONNECTION: Final = {
    "peer_did": "DID that the agent uses for the connection",
    "label": "what the agent calls itself",
    "endpoint": "where messages are sent to; empty for an agent that fetches them",
    "routing_keys": "keys to forward through, base58",
    "handshake": "protocol that the connection was made by",
    "invitation_id": "invitation that was answered; empty for none",
}
_KEY: Final = {
    "key": "key that messages may be forwarded to, base58",
    "ordinal": "its place among the keys of one update",
    "claim": "number of the claim that it is held by",
}


def _connections(step: Step) -> DataFrame:
    new = step.of("connection-established").select(*PLACE, *_CONNECTION)
    return latest_of(step, new, *ACCOUNT_ENDS)


def _push_devices(step: Step) -> DataFrame:
    """The last device of each agent; a row without a channel removed it."""
    new = step.of("push-device-set").select(*PLACE, "channel")
    return latest_of(step, new, *ACCOUNT_ENDS).where("channel <> ''")


def _mediation(step: Step) -> DataFrame:
    since = step.since(step.of("mediation-granted").select(*PLACE))
    return earliest(without(since, step.of(*ACCOUNT_ENDS), "stream"), "stream")


def _keylists(step: Step) -> DataFrame:
    """Keys added and not removed since; a key added again keeps its place, with a later claim."""
    updates = step.of("keylist-updated")
    new = updates.select(*PLACE, "claims", F.posexplode("keys_added").alias("ordinal", "key"))
    new = new.select(*PLACE, "key", "ordinal", F.get("claims", F.col("ordinal")).alias("claim"))
    removed = updates.select("stream", "version", F.explode("keys_removed").alias("key"))
    since = without(step.since(new), step.of(EXPIRED, ERASED), "stream")
    return (
        without(since, removed, "stream", "key")
        .groupBy("stream", "identity", "key")
        .agg(
            F.min("version").alias("version"),
            *[
                F.min_by(name, "version").alias(name)
                for name in ("position", "recorded_at", "ordinal")
            ],
            F.max("claim").alias("claim"),
        )
    )


CONNECTIONS: Final = Projection(
    "connections",
    "What each connected agent last said of itself.",
    PLACE | _CONNECTION,
    ("connection-established", *ACCOUNT_ENDS),
    _connections,
    LiveRows(),
)
PUSH_DEVICES: Final = Projection(
    "push_devices",
    "Agents whose device is notified of waiting messages.",
    PLACE | {"channel": "push service: fcm or apns"},
    ("push-device-set", *ACCOUNT_ENDS),
    _push_devices,
    LiveRows(),
)
MEDIATION: Final = Projection(
    "mediation",
    "Agents that mediation was granted to.",
    PLACE,
    ("mediation-granted", *ACCOUNT_ENDS),
    _mediation,
    LiveRows(),
)
KEYLISTS: Final = Projection(
    "keylists",
    "Keys of each agent; a keylist is in the order of versions and ordinals.",
    PLACE | _KEY,
    ("keylist-updated", EXPIRED, ERASED),
    _keylists,
    LiveRows(keys=("key",), order=("version", "ordinal")),
)


def _speakers(step: Step) -> DataFrame:
    new = step.of("account-rotated").select(*PLACE, F.col("did").alias("speaker_did"))
    return latest_of(step, new, ERASED)


def _account_names(step: Step) -> DataFrame:
    new = step.of("speaker-named").select(*PLACE, F.col("owner_did").alias("account_did"))
    return latest_of(step, new, ERASED).where("account_did != ''")


SPEAKERS: Final = Projection(
    "speakers",
    "Accounts that another DID than their own speaks for (DIDComm v2, DID rotation).",
    PLACE | {"speaker_did": "the DID that speaks for the account"},
    ("account-rotated", ERASED),
    _speakers,
    LiveRows(),
)
ACCOUNT_NAMES: Final = Projection(
    "account_names",
    "DIDs that will speak for another account once that account says so, too.",
    PLACE | {"account_did": "the account"},
    ("speaker-named", ERASED),
    _account_names,
    LiveRows(),
)


_OWNER: Final = {"key": "the key, base58", "owner_did": "whose it is"}
_USE: Final = {"invitation_id": "the invitation", "by_did": "who used it"}


def _owners(step: Step) -> DataFrame:
    new = step.of("key-claimed").select(*PLACE, *_OWNER)
    return latest_of(step, new, "key-released")


def _invitations(step: Step) -> DataFrame:
    return step.since(step.of("invitation-used").select(*PLACE, *_USE))


KEY_OWNERS: Final = Projection(
    "key_owners",
    "Keys that have an owner; the version is the number of the claim.",
    PLACE | _OWNER,
    ("key-claimed", "key-released"),
    _owners,
    LiveRows(),
)
INVITATIONS: Final = Projection(
    "invitations",
    "Single-use invitations that were used.",
    PLACE | _USE,
    ("invitation-used",),
    _invitations,
    LiveRows(),
)
