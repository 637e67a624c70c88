"""The events of accounts: their devices, and the DIDs that speak for them.

The rules of ``eventstore.log.events`` hold here.
"""

from __future__ import annotations

from typing import Annotated

from eventstore.log.event_declaration import (
    NAME,
    STATE_ALONE,
    Event,
    ExportColumn,
    NamesStream,
    Seconds,
    released,
)


@released("push-device-set.1")
class PushDeviceSet(Event, frozen=True, kw_only=True):
    """The agent named the device to notify of waiting messages (RFC 0699, RFC 0734), or none.

    ``channel`` is the push service, ``fcm`` or ``apns``; empty, like the other fields, for no
    device. ``device_token`` is the address of the device at that service.
    """

    channel: str
    device_token: Annotated[str, STATE_ALONE, NAME]
    device_platform: Annotated[str, STATE_ALONE, NAME]


@released("speaker-named.1")
class SpeakerNamed(Event, frozen=True, kw_only=True):
    """A DID was reserved for an account that rotates to it (DIDComm v2); in the stream of the DID.

    It speaks for the account once the stream of the account has ``AccountRotated``. An empty
    ``account_did`` frees the DID again; as the first event of a stream it only names a DID that was
    never here and is to be erased.
    """

    did: Annotated[str, NamesStream(), NAME]
    account_did: Annotated[str, ExportColumn("owner_did"), NAME]


@released("account-rotated.1")
class AccountRotated(Event, frozen=True, kw_only=True):
    """The account rotated its DID: ``speaker_did`` now speaks for it in place of ``prior_did``.

    ``issued_at_s`` is the owner's time of the rotation (DIDComm v2, ``from_prior``).
    """

    speaker_did: Annotated[str, ExportColumn("did"), NAME]
    prior_did: Annotated[str, ExportColumn("by_did"), NAME]
    issued_at_s: Annotated[Seconds, ExportColumn("timestamp_s")]


@released("account-ended.1")
class AccountEnded(Event, frozen=True, kw_only=True):
    """The owner ended its account: connection, mediation, queue policy and device are over.

    Queue and keylist were emptied just before. Fields as in ``AccountRotated``.
    """

    prior_did: Annotated[str, ExportColumn("by_did"), NAME]
    issued_at_s: Annotated[Seconds, ExportColumn("timestamp_s")]
