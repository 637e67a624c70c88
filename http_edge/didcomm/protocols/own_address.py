"""The mediator's own address, to which no agent's messages may lead back."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

import msgspec

from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.recipient_names import canonical_name


class OwnAddress(msgspec.Struct, frozen=True):
    """The mediator as others address it: its HTTP endpoint, and its DIDs, whose key is in both.

    A message for an agent that is sent to this address would come back and be queued for the agent
    again, for ever.
    """

    endpoint: str
    dids: OwnDids

    def leads_back(self, url: str, routing_keys: Iterable[str]) -> bool:
        """Say whether messages to this endpoint, or through a mediator with these keys, come here.

        An endpoint is compared by host and port; an empty one leads nowhere.
        """
        if any(canonical_name(key) in self.dids.names for key in routing_keys):
            return True
        return urlsplit(url).netloc.lower() == urlsplit(self.endpoint).netloc.lower()
