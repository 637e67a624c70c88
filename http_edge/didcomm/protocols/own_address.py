"""The mediator's own address, to which no agent's messages may lead back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from http_edge.didcomm.envelopes.own_dids import OwnDids
from http_edge.didcomm.envelopes.recipient_names import canonical_name

_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443", "ws": ":80", "wss": ":443"}


class OwnAddress(msgspec.Struct, frozen=True):
    """The mediator as others address it: its HTTP endpoint, and its DIDs, whose key is in both.

    A message for an agent that is sent to this address would come back and be queued for the agent
    again, for ever.
    """

    endpoint: str
    dids: OwnDids

    def leads_back(self, url: str, routing_keys: Iterable[str]) -> bool:
        """Say whether messages to this endpoint, or through a mediator with these keys, come here.

        An endpoint is compared by host and port, whether or not it writes a default port; an empty
        one leads nowhere.
        """
        if any(canonical_name(key) in self.dids.names for key in routing_keys):
            return True
        return _place(url) == _place(self.endpoint)


def _place(url: str) -> str:
    """Return host and port of an endpoint, without the port if its scheme implies it."""
    parts = urlsplit(url)
    return parts.netloc.lower().removesuffix(_DEFAULT_PORTS.get(parts.scheme, ""))
