"""Who owns a key, and who used a single-use invitation (RFC 0211, RFC 0434)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from projections.step import PLACE, Projection, Step, latest, select_place, without

_OWNER: Final = {"key": "the key, base58", "owner_did": "whose it is"}
_USE: Final = {"invitation_id": "the invitation", "by_did": "who used it"}


def _owners(step: Step) -> DataFrame:
    new = select_place(step.of("key-claimed"), *_OWNER)
    claimed = without(step.since("key_owners", new), step.of("key-released"), "stream")
    return latest(claimed, "stream")


def _invitations(step: Step) -> DataFrame:
    return step.since("invitations", select_place(step.of("invitation-used"), *_USE))


KEY_OWNERS: Final = Projection(
    "key_owners",
    "Keys that belong to somebody; the version is the number of the claim.",
    PLACE | _OWNER,
    ("key-claimed", "key-released"),
    _owners,
)
INVITATIONS: Final = Projection(
    "invitations",
    "Single-use invitations that were used.",
    PLACE | _USE,
    ("invitation-used",),
    _invitations,
)
