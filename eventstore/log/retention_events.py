"""Event types of expiry and erasure: what ends by its age, or with an erased identity.

A part of ``eventstore.log.events``; the same rules hold here.
"""

from __future__ import annotations

from typing import Annotated

from eventstore.log.event_declaration import (
    ERASED_AT_ONCE,
    STATE_ALONE,
    UNLISTED_AT_ONCE,
    Event,
    released,
)


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
