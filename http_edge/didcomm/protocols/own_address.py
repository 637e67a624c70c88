"""The mediator's own address, to which no agent's messages may lead back."""

from __future__ import annotations

from urllib.parse import urlsplit

import msgspec

from http_edge.didcomm.envelopes.own_dids import OwnDids


class OwnAddress(msgspec.Struct, frozen=True):
    """The mediator as others address it: its HTTP endpoint, and its DIDs, whose key is in both.

    A message for an agent that is sent to this address would come back and be queued for the agent
    again, for ever.
    """

    endpoint: str
    dids: OwnDids

    def is_at(self, url: str) -> bool:
        """Say whether an endpoint has the host and port of the mediator's own; False if empty."""
        return urlsplit(url).netloc.lower() == urlsplit(self.endpoint).netloc.lower()
