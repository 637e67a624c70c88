"""Which events may leave the log for its archive, and after which later row of their stream. Pure.

What leaves (``actors.archive.leaving_rows``) and what a check accepts as having left
(``actors.archive.archive_check``) both follow from this.

- ``RECORDS`` leave once a later row has removed the record. The row that removed it stays if it
  says why a content is gone; that of a contract (``CONTRACT_ENDS``) leaves with the contract or
  after it, and so does that of messages, which are most of the log.
- ``REPLACED`` leave once a later row of the same kind stands for them: a registration that lasts
  longer, or any device, connection or rules for a queue.
- Other ``TRAFFIC`` leaves whatever follows, but the expiry time of a message not before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from eventstore.log.events import (
    AgentSeen,
    AnyContractRequested,
    AnyContractRequestsAcknowledged,
    AnyMessageQueued,
    AnyMessagesRemoved,
    AnyPublicEventPublished,
    AnyPublicEventsDeleted,
    ConnectionEstablished,
    ContractExpired,
    ContractRequestsExpired,
    ContractStored,
    Event,
    IdentityErasureBegun,
    IdentityRegistered,
    MessageExpirySet,
    MessagesDelivered,
    PublicEventsExpired,
    PushDeviceSet,
    QueuePolicySet,
    QueueRefused,
    RefusalsCounted,
    topics_of,
)

TRAFFIC: Final = topics_of(
    *(AnyMessageQueued, MessageExpirySet, MessagesDelivered, AnyMessagesRemoved),
    *(QueueRefused, RefusalsCounted, AgentSeen),
)
"""Events about messages, counts and signs of life; the archive may lose them, too."""
CONTRACTS: Final = topics_of(ContractStored)
RECORDS: Final = CONTRACTS | topics_of(
    AnyMessageQueued, AnyContractRequested, AnyPublicEventPublished
)
"""Events that add a record to the state of an identity."""
CONTRACT_ENDS: Final = topics_of(ContractExpired)
REMOVING: Final = CONTRACT_ENDS | topics_of(
    *(AnyMessagesRemoved, AnyContractRequestsAcknowledged, ContractRequestsExpired),
    *(AnyPublicEventsDeleted, PublicEventsExpired, IdentityErasureBegun),
)
"""Events that remove such records; an erasure begins with all contracts."""
REPLACED: Final = topics_of(
    IdentityRegistered, PushDeviceSet, ConnectionEstablished, QueuePolicySet
)
"""Events of which a later one may stand for an earlier one."""


def added_by(event: Event) -> Sequence[str]:
    """The id of the record that an event adds, none if it adds none."""
    match event:
        case AnyMessageQueued():
            return [event.message_id]
        case AnyContractRequested():
            return [event.request_id]
        case AnyPublicEventPublished():
            return [event.event_id]
        case ContractStored():
            return [event.contract_id]
        case _:
            return ()


def removed_by(event: Event) -> Sequence[str]:
    """The ids of the records that an event removes; without the contracts of an erased identity."""
    match event:
        case AnyMessagesRemoved():
            return event.message_ids
        case AnyContractRequestsAcknowledged() | ContractRequestsExpired():
            return event.request_ids
        case AnyPublicEventsDeleted() | PublicEventsExpired():
            return event.event_ids
        case ContractExpired():
            return [event.contract_id]
        case _:
            return ()


def rank_of(event: Event, version: int) -> float:
    """The rank of one of ``REPLACED``: a later one of its kind with a higher rank stands for it."""
    return event.expires_at_s if isinstance(event, IdentityRegistered) else version
