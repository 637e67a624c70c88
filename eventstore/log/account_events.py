"""The events of accounts, and of the expiry and erasure of records.

An account has a device and the DIDs that speak for it. Records end by their age, or with an erased
identity. The rules of ``eventstore.log.events`` hold here.
"""

from __future__ import annotations

from typing import Annotated

from eventstore.log.event_declaration import (
    ERASED_AT_ONCE,
    NAME,
    STATE_ALONE,
    UNLISTED_AT_ONCE,
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
    ``account_did`` frees the DID again.
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


@released("public-events-expired.1")
class PublicEventsExpired(Event, frozen=True, kw_only=True):
    """The mediator removed these public events, published at ``versions``.

    ``reason`` is expired: they are older than the operator keeps public events.
    """

    event_ids: list[str]
    reason: str
    versions: Annotated[list[int], STATE_ALONE]


@released("agent-seen.1")
class AgentSeen(Event, frozen=True, kw_only=True):
    """The agent sent a message, as its envelope proves, that stores nothing else.

    Recorded only if the operator ends idle agents, and for each agent at most once in a fraction
    of the idle age, so that not every poll writes a row.
    """


@released("account-expired.1")
class AccountExpired(Event, frozen=True, kw_only=True):
    """The mediator ended an agent's account: connection, mediation, keylist, queue policy, device.

    ``reason`` is idle: the agent was silent for longer than the operator allows. The events after
    this one remove its waiting messages. An agent that returns has to connect again.
    """

    reason: str


@released("saved-events-erased.1")
class SavedEventsErased(Event, frozen=True, kw_only=True):
    """The saved events at the ``count`` versions after the version ``after`` were erased."""

    after: Annotated[int, STATE_ALONE]
    count: Annotated[int, STATE_ALONE, ERASED_AT_ONCE]

    @property
    def versions(self) -> range:
        """The versions whose contents are erased; some belong to rows that have no content."""
        return range(self.after + 1, self.after + 1 + self.count)


@released("saved-events-unlisted.1")
class SavedEventsUnlisted(Event, frozen=True, kw_only=True):
    """The first ``count`` index postings of the identity's saved events were removed, in order.

    Postings on the list of all events come last: an event is on it as long as it is on any list.
    """

    count: Annotated[int, STATE_ALONE, UNLISTED_AT_ONCE]
